"""Agents of other servers are agents like any other: asked, followed, bounded, ended."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import pytest

from outrider import Agent, Attachment, Limits, Provider, Tool, async_run, async_run_stream
from outrider.errors import ProviderError
from outrider.providers.scripted import call
from outrider.server.auth import ListenAddress
from outrider.server.server import bind_socket
from outrider.types.parts import Tokens, ToolPart, ToolResultPart
from tests.e2e.server.http_server import TOKEN
from tests.e2e.server.peers import asking, peer, peer_of

MAIN = Agent("main", "You lead.", "model-1", "here")
AWAY = Agent("away", "", "", "away", role="lives elsewhere")


def here(script) -> Provider:
    return Provider("here", "scripted", options={"script": script})


@Tool(read_only=True)
def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is empty"


async def test_an_agent_of_another_server_is_called_like_any_other(tmp_path):
    async with peer(tmp_path, "helper", [["two and two is four", Tokens(30, 20)]]) as (there, address):
        result = await async_run(MAIN, "Go.", [MAIN, AWAY], [], [here(asking("away")), peer_of(address)])
        assert result.output == "I was told: two and two is four"
        assert [(one.type, one.sender, one.receiver) for one in result.messages] == [
            ("forward", "user", "main"),
            ("forward", "main", "away"),
            ("return", "away", "main"),
            ("return", "main", "user"),
        ]
        [stored] = (await there.store.list(limit=9)).sessions
        assert (stored.agent, stored.mode) == ("helper", "agent")
        assert result.usage.tokens.output >= 20


async def test_what_happens_over_there_is_streamed_under_the_names_of_the_agents(tmp_path):
    script = [["let me look", call("look", place="the attic")], ["it is ", "empty"]]
    async with peer(tmp_path, "helper", script, tools=[look]) as (_, address):
        providers = [here(asking("away")), peer_of(address)]
        events = [event async for event in async_run_stream(MAIN, "Go.", [MAIN, AWAY], [], providers)]
    away = [event for event in events if event.agent_name == "away"]
    assert "".join(event.data["text"] for event in away if event.type == "token") == "let me lookit is empty"
    [called] = [event for event in away if event.type == "tool_call"]
    assert (called.data["tool"], called.data["input"]) == ("look", {"place": "the attic"})
    [gave] = [event for event in away if event.type == "tool_result"]
    assert (gave.data["output"], gave.data["is_error"]) == ("the attic is empty", False)
    assert [event.data["output"] for event in away if event.type == "finish"] == ["it is empty"]
    assert events[-1].data == {"output": "I was told: it is empty"}


async def test_agents_that_are_called_over_there_are_received_here(tmp_path):
    async with (
        peer(tmp_path, "third", ["deep"]) as (_, deep),
        peer(tmp_path, "second", asking("third"), knows={"third": deep}) as (_, address),
    ):
        providers = [here(asking("away")), peer_of(address)]
        events = [event async for event in async_run_stream(MAIN, "Go.", [MAIN, AWAY], [], providers)]
    calls = [(event.agent_name, event.data["agent_name"]) for event in events if event.type == "agent_call"]
    assert calls == [("main", "away"), ("away", "third")]
    assert "".join(e.data["text"] for e in events if e.agent_name == "third" and e.type == "token") == "deep"
    assert events[-1].data == {"output": "I was told: I was told: deep"}


async def test_a_finish_over_there_is_the_answer(tmp_path):
    script = [["words on the way", call("finish", message="the result")]]
    async with peer(tmp_path, "helper", script) as (_, address):
        result = await async_run(MAIN, "Go.", [MAIN, AWAY], [], [here(asking("away")), peer_of(address)])
    assert result.output == "I was told: the result"


async def test_the_session_over_there_is_recorded_and_continues_with_the_next_input(tmp_path):
    async with (
        peer(tmp_path, "helper", ["one", "two"]) as (there, address),
        peer(tmp_path, "front", [], knows={"away": address}) as (engine, _),
    ):
        session_id = await engine.create(agent="away")
        assert (await engine.prompt(session_id, "first")).output == "one"
        assert (await engine.prompt(session_id, "second")).output == "two"
        [stored] = (await there.store.list(limit=9)).sessions
        transcript = await there.store.load(stored.id, limit=9)
        assert [message.get_text_content() for message in transcript.messages] == ["first", "one", "second", "two"]
        ours = await engine.store.load(session_id, limit=9)
        assert stored.id in str([message.to_dict() for message in ours.messages])


async def test_a_session_that_was_deleted_over_there_is_started_anew_with_what_was_reported(tmp_path):
    async with (
        peer(tmp_path, "helper", ["one", "two"]) as (there, address),
        peer(tmp_path, "front", [], knows={"away": address}) as (engine, _),
    ):
        session_id = await engine.create(agent="away")
        await engine.prompt(session_id, "first")
        [stored] = (await there.store.list(limit=9)).sessions
        await there.close(stored.id)
        await there.store.delete(stored.id)
        assert (await engine.prompt(session_id, "second")).output == "two"
        [fresh] = (await there.store.list(limit=9)).sessions
        asked = (await there.store.load(fresh.id, limit=9)).messages[0]
        assert "assistant: one" in asked.get_text_content()


async def test_an_abort_reaches_the_other_server(tmp_path):
    waiting = asyncio.Event()
    async with (
        peer(tmp_path, "helper", [["I begin", waiting, "never said"]]) as (there, address),
        peer(tmp_path, "front", asking("away"), knows={"away": address}) as (engine, _),
    ):
        session_id = await engine.create()
        end = await engine.enqueue(session_id, "Go.")
        async with asyncio.timeout(30):
            while not any(live.in_turn for live in there.live.values()):
                await asyncio.sleep(0.01)
        [(remote, live)] = there.live.items()
        await engine.abort(session_id)
        assert (await end).reason == "aborted"
        async with asyncio.timeout(30):
            while live.in_turn:
                await asyncio.sleep(0.01)
        last = (await there.store.load(remote, limit=1)).messages[-1]
        assert last.error is not None
        assert last.error.type == "aborted"


async def test_what_fails_over_there_comes_back_as_a_result(tmp_path):
    async with peer(tmp_path, "helper", [RuntimeError("the model broke")]) as (_, address):
        result = await async_run(MAIN, "Go.", [MAIN, AWAY], [], [here(asking("away")), peer_of(address)])
    assert result.termination_reason == "completed"
    assert "away ended early" in result.output


async def test_a_server_that_does_not_know_us_is_an_error_that_the_model_reads(tmp_path):
    async with peer(tmp_path, "helper", []) as (_, address):
        stranger = Provider("away", "outrider", "not the token", address.url)
        result = await async_run(MAIN, "Go.", [MAIN, AWAY], [], [here(asking("away")), stranger])
    assert "send the server's token" in result.output


async def test_two_servers_that_call_each_other_stop_at_the_depth_of_the_first(tmp_path):
    at_a, at_b = bind_socket(ListenAddress()), bind_socket(ListenAddress())
    async with (
        peer(tmp_path, "a", asking("b"), at=at_a, knows={"b": at_b[1]}, limits=Limits(depth=3)) as (a, _),
        peer(tmp_path, "b", asking("a"), at=at_b, knows={"a": at_a[1]}) as (b, _),
    ):
        end = await a.prompt(await a.create(), "Go.")
        assert end.reason == "completed"
        assert end.output.count("I was told:") == 4
        assert "No agent can be called from here" in end.output
        # Each level is a session of the one who calls, and one of the other server: b at 1, a at 2, b at 3.
        assert len((await b.store.list(limit=50)).sessions) == 3
        assert len((await a.store.list(limit=50)).sessions) == 4


async def test_tokens_and_turns_of_the_other_server_count_against_the_limits(tmp_path):
    greedy = [[call("look", place="x"), Tokens(400, 100)] for _ in range(9)]
    async with peer(tmp_path, "helper", greedy, tools=[look]) as (_, address):
        result = await async_run(
            MAIN, "Go.", [MAIN, AWAY], [], [here(asking("away")), peer_of(address)], limits=Limits(turns=4)
        )
    assert result.termination_reason == "limit"
    subtask = next(part for message in result.session.messages for part in message.get_parts_by_type(ToolPart))
    assert "ended early" in subtask.state.error
    assert result.usage.tokens.output == 300 + sum(m.tokens.output for m in result.session.messages if m.tokens)


async def test_a_price_that_is_not_known_over_there_is_not_known_here(tmp_path):
    async with peer(tmp_path, "helper", ["hello"]) as (_, address):
        with pytest.raises(ProviderError, match="price is not known") as raised:
            await async_run(AWAY, "Go.", [AWAY], [], [peer_of(address)], limits=Limits(cost=Decimal(1)))
    assert raised.value.type == "error"


async def test_the_caller_s_rules_count_over_there(tmp_path):
    def respond(request):
        results = [part for part in request.prompt[-1].content if isinstance(part, ToolResultPart)]
        return results[0].content if results else [call("look", place="x")]

    careful = Agent("away", "", "", "away", permissions={"deny": ("look(*)",)})
    async with peer(tmp_path, "helper", respond, tools=[look]) as (_, address):
        result = await async_run(careful, "Go.", [careful], [], [peer_of(address)])
        planned = await async_run(AWAY, "Go.", [AWAY], [], [peer_of(address)], mode="chat")
    assert "a rule forbids it: look(*)" in result.output
    assert "empty" not in planned.output


async def test_files_go_along(tmp_path):
    seen = []
    async with peer(tmp_path, "helper", lambda request: seen.append(request) or "seen") as (_, address):
        await async_run(
            AWAY, "Read.", [AWAY], [], [peer_of(address)], attachments=[Attachment("text/plain", data="aGk=", name="n")]
        )
    kinds = [part.part_type for part in seen[0].prompt[0].content]
    assert kinds == ["text", "file"]


CONFIG = """\
model = "demo/demo"
{more}
[providers.demo]
kind = "scripted"
[providers.demo.options]
script = {script}
"""
KNOWS = """\
[agents.main]
[agents.helper]
model = "away"
role = "helps"
[providers.away]
kind = "outrider"
base_url = "{url}"
api_key_env = "AWAY_TOKEN"
"""


@contextmanager
def program(folder: Path, config: str, **environ: str) -> Iterator[tuple[str, str]]:
    """`outrider serve` as a separate process: its address and token."""
    folder.mkdir()
    (folder / "config.toml").write_text(config)
    command = [sys.executable, "-m", "outrider", "serve"]
    environment = {**os.environ, "OUTRIDER_HOME": str(folder), **environ}
    with subprocess.Popen(command, env=environment, cwd=folder, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            address = re.search(r"http://127\.0\.0\.1:\d+", server.stderr.readline())
            assert address is not None
            yield address[0], (folder / "server" / "token").read_text()
        finally:
            server.terminate()
            server.wait(30)


async def test_two_programs_that_were_only_configured_work_together(tmp_path):
    one = '[{tool = "call_agent", input = {agent_name = "helper", message = "what is it?"}}]'
    with (
        program(tmp_path / "b", CONFIG.format(more="", script='["it is a whale"]')) as (url, token),
        program(
            tmp_path / "a",
            CONFIG.format(more=KNOWS.format(url=url), script=f'[{one}, "it is done"]'),
            AWAY_TOKEN=token,
        ) as (front, key),
    ):
        main = Agent("anybody", "", "main", "front")
        result = await async_run(main, "Go.", [main], [], [Provider("front", "outrider", key, front)])
    assert result.output == "it is done"
    assert TOKEN not in (url, key)
