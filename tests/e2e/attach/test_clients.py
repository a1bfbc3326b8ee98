"""Clients of one server receive the same events, lose nothing in a crash, and get clear error messages."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

import outrider
from outrider.config.settings import read_settings
from outrider.errors import ConfigurationError, OutriderError, ServerAwayError
from outrider.project.mcp_completion import InputCompletion
from outrider.remote.client import resolve_server
from outrider.remote.engine import RemoteBridge, connect_engine
from outrider.types.events import (
    Event,
    MessageAddedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
)
from outrider.types.parts import CompactionPart
from tests.e2e.attach.socket_server import Serving, call, ended, until

LONG = "Words that come one after the other, slowly enough to be cut off in their midst. " * 8
OTHER = "import outrider; outrider.__version__ = '99.0.0'; from outrider.cli.main import main; main()"
CERTIFICATE = Path(__file__).parents[2] / "fixtures" / "self_signed.pem"


def stored_changes(events: list[Event]) -> list[tuple[str, object]]:
    """Returns the stored changes, which every client must have received, sorted by id."""
    found: list[tuple[str, object]] = []
    for event in events:
        match event:
            case PartUpdatedEvent(seq=int()):
                found.append((event.part.id, event.part))
            case MessageAddedEvent():
                found.append((event.message_id, event.role))
            case ToolApprovalRequestedEvent() | ToolApprovalResultEvent():
                found.append((event.approval_id, type(event)))
            case _:
                pass
    return sorted(found, key=lambda one: one[0])


def texts(events: list[Event]) -> str:
    return "".join(event.delta for event in events if isinstance(event, PartDeltaEvent))


async def test_two_clients_of_a_session_receive_the_same_and_either_may_answer(serving: Serving):
    serving.script("First of all.", call("shell", command="touch made"), "Made.", delay=0.01)
    await serving.begin()
    async with serving.client() as one, serving.client() as other:
        received: tuple[list[Event], list[Event]] = ([], [])
        session_id = await one.create()
        await other.open(session_id)
        for engine, events in zip((one, other), received, strict=True):
            engine.bus.subscribe_all(events.append)
        assert (await one.prompt(session_id, "begin")).output == "First of all."
        working = asyncio.create_task(one.prompt(session_id, "make it"))
        await until(lambda: any(isinstance(event, ToolApprovalRequestedEvent) for event in received[1]))
        (asked,) = await other.approvals(session_id)
        await other.answer(asked.id, allow=True)
        assert (await working).output == "Made."
        await until(lambda: len(stored_changes(received[0])) == len(stored_changes(received[1])))
        assert stored_changes(received[0]) == stored_changes(received[1])
        assert texts(received[0]) == texts(received[1]) == "First of all.Made."
        assert [len(engine.live[session_id].session.messages) for engine in (one, other)] == [5, 5]
    assert (serving.workspace / "made").exists()


async def test_a_client_is_asked_with_all_that_the_stored_question_has(serving: Serving):
    (serving.workspace / "notes.txt").write_text("one\ntwo\n")
    edit = call("edit", file_path="notes.txt", old_string="two", new_string="2")
    serving.script(edit, call("shell", command="git push --force"), "Done.")
    await serving.begin()
    async with serving.client() as engine:
        events: list[ToolApprovalRequestedEvent] = []
        engine.bus.subscribe(ToolApprovalRequestedEvent, events.append)
        session_id = await engine.create()
        working = asyncio.create_task(engine.prompt(session_id, "begin"))
        for count in (1, 2):
            await until(lambda count=count: len(events) == count)
            (asked,) = await engine.approvals(session_id)
            expected = asked.requested_event(events[-1].agent_name).to_dict() | {"timestamp": events[-1].timestamp}
            assert events[-1].to_dict() == expected
            await engine.answer(asked.id, allow=False)
        assert (await working).output == "Done."
    assert "-two\n+2" in events[0].preview
    assert events[0].widths
    assert any(effect.risky for effect in events[1].effects)


async def test_a_client_compacts_with_instructions_and_completes_inputs(serving: Serving):
    serving.script("One. " * 200, "Two.", "A summary.")
    await serving.begin()
    async with serving.client() as engine:
        session_id = await engine.create()
        for text in ("first", "second"):
            await engine.prompt(session_id, text)
        result = await engine.compact(session_id, "focus on the API")
        assert result is not None
        messages = engine.live[session_id].session.messages
        await until(lambda: any(message.get_parts_by_type(CompactionPart) for message in messages))
        (part,) = [part for message in messages for part in message.get_parts_by_type(CompactionPart)]
        assert part.instructions == "focus on the API"
        assert (
            await RemoteBridge(engine, read_settings(environ=serving.environ)).complete_input("/friendly:greet ")
            == InputCompletion()
        )


async def test_a_turn_continues_after_a_crash_of_the_server_and_nothing_is_reported_twice(serving: Serving):
    serving.script(LONG, delay=0.03)
    await serving.begin()
    async with serving.client() as engine:
        events: list[Event] = []
        session_id = await engine.create()
        engine.bus.subscribe_all(events.append)
        prompted = asyncio.create_task(engine.prompt(session_id, "tell me"))
        await until(lambda: len(texts(events)) > 250)
        await serving.kill()
        serving.script("It goes on.")
        await serving.begin()
        assert (await prompted).output == "It goes on."
        there = (await engine.open(session_id)).messages
        # The third one is a note of the program, since vendors refuse a conversation that ends with the assistant.
        assert [message.role for message in there] == ["user", "assistant", "user", "assistant"]
        numbers = [event.seq for event in events if isinstance(event, PartUpdatedEvent) and event.seq is not None]
        assert all(before < after for before, after in pairwise(numbers))
        cut = texts(events).removesuffix("It goes on.")
        assert texts(events) == f"{cut}It goes on."
        assert LONG.startswith(cut)
        assert cut.startswith(there[1].get_text_content())


async def test_a_run_survives_the_crash_of_its_server(serving: Serving):
    serving.script(LONG, delay=0.03)
    await serving.begin()
    run = await serving.start("run", "--attach", serving.url, "-o", "stream-json", "tell me")
    assert run.stdout is not None
    first = await asyncio.wait_for(run.stdout.readline(), 60) + await asyncio.wait_for(run.stdout.readline(), 60)
    assert b'"text"' in first
    await serving.kill()
    serving.script("It goes on.")
    await serving.begin()
    done = await ended(run)
    assert done.code == 0, done.err
    assert done.lines[-1]["output"] == "It goes on."
    assert "Disconnected" in [line.get("error_type") for line in done.lines]


async def test_who_joins_in_the_middle_of_an_answer_gets_all_of_it_once(serving: Serving):
    serving.script(LONG, delay=0.02)
    await serving.begin()
    async with serving.client() as one, serving.client() as late:
        events: list[Event] = []
        session_id = await one.create()
        one.bus.subscribe_all(events.append)
        prompted = asyncio.create_task(one.prompt(session_id, "tell me"))
        await until(lambda: len(texts(events)) > 40)
        later: list[Event] = []
        session = await late.open(session_id)
        late.bus.subscribe_all(later.append)
        known = "".join(message.get_text_content() for message in session.messages if message.role == "assistant")
        assert late.live[session_id].in_turn
        assert (await prompted).output == LONG
        await until(lambda: not late.live[session_id].in_turn)
        assert known + texts(later) == LONG


async def test_what_is_wrong_is_reported_with_its_remedy(serving: Serving):
    serving.script("hello")
    await serving.begin()
    wrong = await serving.run("--attach", serving.url, "--token", "not-the-one", "hi")
    assert (wrong.code, "rejects this token" in wrong.err, "OUTRIDER_SERVER_TOKEN" in wrong.err) == (
        2,
        True,
        True,
    )
    refused = await serving.run("--attach", f"{serving.url}.not", "hi")
    assert (refused.code, "outrider serve" in refused.err) == (1, True)
    token = (serving.home / "server" / "token").read_text()
    serving.extra = {"OUTRIDER_SERVER_TOKEN": token, "OUTRIDER_HOME": str(serving.workspace)}
    assert (await serving.run("--attach", serving.url, "hi")).out == "hello\n"


async def test_a_server_of_another_version_is_not_worked_with(serving: Serving):
    serving.script("hello")
    await serving.begin(program=("-c", OTHER))
    done = await serving.run("--attach", serving.url, "hi")
    assert done.code == 2
    assert "version 99.0.0" in done.err
    assert outrider.__version__ in done.err


async def test_what_is_no_server_of_ours_is_distinguished(tmp_path):
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
        writer.close()

    async with await asyncio.start_unix_server(answer, tmp_path / "s.sock"):
        place = resolve_server(f"unix:{tmp_path / 's.sock'}", token="x" * 40, environ={"HOME": str(tmp_path)})
        with pytest.raises(ConfigurationError, match="is not an Outrider server"):
            async with connect_engine(place, "0.1.0"):
                pass


async def test_an_unknown_certificate_is_refused_and_a_configured_one_is_accepted(serving: Serving):
    serving.script("hello over TLS")
    pem = str(CERTIFICATE)
    line = await serving.begin("--tls-cert", pem, "--tls-key", pem)
    url = next(word for word in line.split() if word.startswith("https://"))
    refused = await serving.run("--attach", url, "hi")
    assert (refused.code, "SSL_CERT_FILE" in refused.err) == (2, True), refused.err
    serving.extra = {"SSL_CERT_FILE": pem}
    occupied = await serving.run("--attach", url, "hi")
    assert (occupied.code, occupied.out) == (0, "hello over TLS\n"), occupied.err


async def test_a_server_that_stays_away_is_waited_for_only_so_long(serving: Serving):
    serving.script(LONG, delay=0.05)
    await serving.begin()
    place = resolve_server(serving.url, token=None, environ=serving.environ)
    async with connect_engine(place, outrider.__version__, reconnect_seconds=0.5) as engine:
        session_id = await engine.create()
        prompted = asyncio.create_task(engine.prompt(session_id, "tell me"))
        await until(lambda: engine.live[session_id].in_turn)
        await serving.kill()
        with pytest.raises(ServerAwayError):
            await prompted
        with pytest.raises(OutriderError, match="outrider serve"):
            await engine.queued(session_id)
