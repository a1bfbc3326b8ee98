"""Sessions over HTTP: created, prompted, followed, answered, exported."""

import asyncio
import gc

import msgspec
import pytest

from outrider import Agent, Engine, Tool
from outrider.engine.frontend import user_command_part
from outrider.engine.session_tools import ToolEnvironment
from outrider.event_bus import EventBus
from outrider.processes.sandbox.sandbox import NoSandbox
from outrider.providers.scripted import call
from outrider.server.app import OPENAPI_PATH
from outrider.server.server import program_froze_objects
from outrider.testing import Simulator
from tests.e2e.server.http_server import TOKEN, served


def is_idle(event) -> bool:
    return event["event"] == "live" and any(one["type"] == "LoopCompletedEvent" for one in event["data"])


def text_of(events) -> str:
    pieces = [one for event in events if event["event"] == "live" for one in event["data"]]
    return "".join(piece["delta"] for piece in pieces if piece["type"] == "PartDeltaEvent")


async def test_a_prompt_streams_to_who_follows_and_is_preserved(tmp_path):
    async with served(tmp_path, ["The answer is forty-two."]) as client:
        session_id = await client.create(title="sums")
        async with client.follow(session_id) as events:
            status, prompted = await client.ask("POST", f"/api/sessions/{session_id}/prompt", {"text": "how much?"})
            assert (status, "end" in prompted) == (202, False)
            await events.until(is_idle)
            shown = text_of(events.seen)  # all of it, but for what was stored before the store had been read
            assert shown
            assert "The answer is forty-two.".endswith(shown)
        status, transcript = await client.ask("GET", f"/api/sessions/{session_id}/messages")
        assert [message["role"] for message in transcript["messages"]] == ["user", "assistant"]


async def test_who_comes_back_misses_nothing_and_sees_nothing_twice(tmp_path):
    async with served(tmp_path, ["one " * 50, "two " * 50], delay=0.001) as client:
        session_id = await client.create()
        seen = []
        after = 0
        turn = asyncio.create_task(
            client.ask("POST", f"/api/sessions/{session_id}/prompt", {"text": "1", "wait": True})
        )
        for _ in range(4):  # the turn has more changes, so that each of these waits ends
            async with client.follow(session_id, after) as events:
                event = await events.until(lambda event: event["event"] == "change")
                after = int(event["id"])
                seen.append(after)
        await turn
        await client.ask("POST", f"/api/sessions/{session_id}/prompt", {"text": "2", "wait": True})
        last = (await client.ask("GET", f"/api/sessions/{session_id}"))[1]["seq"]
        async with client.follow(session_id, after) as events:
            while after < last:
                after = int((await events.until(lambda event: event["event"] == "change"))["id"])
                seen.append(after)
        assert seen == sorted(set(seen))
        changes = [change async for change in client.engine.store.changes(session_id, follow=False)]
        assert {change.seq for change in changes} <= set(seen) | {
            change.seq for change in changes if change.seq < seen[0]
        }
        assert seen[-1] == last


async def test_waiting_gives_the_end_of_the_turn(tmp_path):
    async with served(tmp_path, ["done"]) as client:
        session_id = await client.create()
        prompt = {"text": "go", "wait": True, "id": "mine"}
        status, prompted = await client.ask("POST", f"/api/sessions/{session_id}/prompt", prompt)
        assert prompted == {
            "id": "mine",
            "end": {"reason": "completed", "output": "done", "error": "", "error_type": ""},
        }
        status, again = await client.ask("POST", f"/api/sessions/{session_id}/prompt", prompt)
        assert (status, again["end"]["output"]) == (202, "done")


async def test_a_call_waits_for_an_answer_over_http(tmp_path):
    ran = []

    @Tool(policy="ask")
    def launch(where: str) -> str:
        """Launch it."""
        ran.append(where)
        return "launched"

    async with served(
        tmp_path, [call("launch", where="moon"), "up", call("launch", where="mars"), "not"], [launch]
    ) as client:
        session_id = await client.create()
        for allow in (True, False):
            turn = asyncio.create_task(
                client.ask("POST", f"/api/sessions/{session_id}/prompt", {"text": "go", "wait": True})
            )
            while not (waiting := (await client.ask("GET", f"/api/approvals?session_id={session_id}"))[1]):
                await asyncio.sleep(0.01)
            answer = {"allow": allow, "words": "" if allow else "too far"}
            status, answered = await client.ask("POST", f"/api/approvals/{waiting[0]['id']}", answer)
            assert (status, answered["answered_by"]) == (200, "server")
            await turn
        assert ran == ["moon"]


async def test_the_result_of_an_undo_has_what_to_show_of_it(tmp_path):
    async with served(tmp_path, ["Nothing changed."]) as client:
        session_id = await client.create()
        status, result = await client.ask("POST", f"/api/sessions/{session_id}/files", {"direction": "undo"})
        assert (status, "to undo" in result["off"]) == (200, True)
        shown = {"level": "warning", "topic": "files", "text": result["off"]}
        assert shown.items() <= result["notice"].items()


async def test_a_stored_answer_has_what_it_covers_as_text(tmp_path):
    @Tool(policy="ask")
    def launch(where: str) -> str:
        """Launch it."""
        return "launched"

    async with served(tmp_path, [call("launch", where="moon"), "up"], [launch]) as client:
        session_id = await client.create()
        turn = asyncio.create_task(
            client.ask("POST", f"/api/sessions/{session_id}/prompt", {"text": "go", "wait": True})
        )
        while not (waiting := (await client.ask("GET", f"/api/approvals?session_id={session_id}"))[1]):
            await asyncio.sleep(0.01)
        await client.ask("POST", f"/api/approvals/{waiting[0]['id']}", {"allow": True, "scope": "always"})
        await turn
        status, (answer,) = await client.ask("GET", "/api/answers")
        assert (status, answer["tool"]) == (200, "launch")
        covered = ", ".join(answer["offers"])
        assert answer["view"] == {"title": "launch where=moon", "text": covered, "scope": "always"}


async def test_a_session_is_exported_imported_forked_renamed_shared_and_deleted(tmp_path):
    async with served(tmp_path, ["kept words"]) as client:
        session_id = await client.create(title="first")
        at = f"/api/sessions/{session_id}"
        await client.ask("POST", f"{at}/prompt", {"text": "go", "wait": True})
        document = (await client.ask("GET", f"{at}/export"))[1]
        status, imported = await client.ask("POST", "/api/import", document)
        assert (status, len(imported["sessions"])) == (201, 1)
        assert (await client.ask("PATCH", at, {"title": "second"}))[1]["title"] == "second"
        fork = (await client.ask("POST", f"{at}/fork", {}))[1]
        assert fork["forked_from"]["session_id"] == session_id
        found = (await client.ask("GET", "/api/search?query=kept"))[1]
        assert {hit["session_id"] for hit in found} >= {session_id}
        page = (await client.ask("GET", f"{at}/share"))[1]
        assert b"kept words" in page
        assert b"<html" in (await client.ask("GET", f"{at}/trace"))[1].lower()
        assert (await client.ask("DELETE", at))[0] == 204
        assert (await client.ask("GET", at))[0] == 404


async def test_what_cannot_be_is_reported_clearly(tmp_path):
    async with served(tmp_path, []) as client:
        session_id = await client.create()
        at = f"/api/sessions/{session_id}"
        wrong = [
            ("POST", f"{at}/prompt", {}, 400),
            ("POST", f"{at}/prompt", {"text": 3}, 400),
            ("POST", f"{at}/prompt", {"words": "x"}, 400),
            ("PATCH", at, {"mode": "wild"}, 400),
            ("PATCH", at, {"agent": "nobody"}, 400),
            ("GET", "/api/sessions?limit=0", None, 400),
            ("GET", "/api/sessions?limit=x", None, 400),
            ("GET", "/api/sessions?colour=red", None, 400),
            ("GET", "/api/sessions/nobody", None, 404),
            ("GET", f"{at}/plan", None, 404),
            ("DELETE", f"{at}/queue/nothing", None, 404),
            ("POST", "/api/approvals/nothing", {"allow": True}, 404),
            ("POST", "/api/import", {"not": "an export"}, 400),
        ]
        for method, path, body, status in wrong:
            got, answer = await client.ask(method, path, body)
            assert got == status, (method, path, answer)
            assert answer["error"]["message"]


async def test_the_description_names_every_route(tmp_path):
    async with served(tmp_path, []) as client:
        description = (await client.ask("GET", OPENAPI_PATH))[1]
        assert description["openapi"] == "3.1.0"
        assert "/api/sessions/{session_id}/prompt" in description["paths"]
        references = set(msgspec.json.encode(description["paths"]).decode().split('"#/components/schemas/'))
        for reference in (found.partition('"')[0] for found in list(references)[1:]):
            assert reference in description["components"]["schemas"] or "{" in reference


async def test_a_manual_call_is_checked_run_and_stored_below_the_session(tmp_path):
    @Tool(policy="allow", preprocess_args=lambda given: {"where": given["where"].strip()})
    def launch(where: str) -> str:
        """Launch it."""
        return f"launched to {where}"

    async with served(tmp_path, [], [launch]) as client:
        session_id = await client.create()
        at = f"/api/sessions/{session_id}"
        assert [tool["name"] for tool in (await client.ask("GET", f"{at}/tools"))[1]] == ["launch"]
        given = {"tool": "launch", "input": {"where": " moon "}}
        looked = (await client.ask("POST", f"{at}/calls/look", given))[1]
        assert (looked["input"], looked["decision"]["effect"]) == ({"where": "moon"}, "allow")
        status, ended = await client.ask("POST", f"{at}/calls", given)
        assert (status, ended["state"]["output"]) == (200, "launched to moon")
        stored = (await client.ask("GET", f"/api/sessions/{ended['session_id']}"))[1]
        assert stored["parent_id"] == session_id
        assert (await client.ask("POST", f"{at}/calls", {"tool": "nothing"}))[0] == 400


async def test_a_session_is_brought_from_another_server(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with served(tmp_path / "a", ["said elsewhere"]) as there, served(tmp_path / "b", []) as here:
        session_id = await there.create(title="travels")
        await there.ask("POST", f"/api/sessions/{session_id}/prompt", {"text": "go", "wait": True})
        export = f"{there.address.url}/api/sessions/{session_id}/export"
        status, brought = await here.ask("POST", "/api/import-from", {"url": export, "token": TOKEN})
        assert (status, brought["sessions"][0]["title"]) == (201, "travels")
        at = f"/api/sessions/{brought['sessions'][0]['id']}/messages"
        texts = [
            part.get("text") for message in (await here.ask("GET", at))[1]["messages"] for part in message["parts"]
        ]
        assert "said elsewhere" in texts
        status, refused = await here.ask("POST", "/api/import-from", {"url": export, "token": "wrong"})
        assert (status, "401" in refused["error"]["message"]) == (503, True)


async def test_the_reasoning_effort_is_chosen_over_http(tmp_path):
    async with served(tmp_path, ["Done."]) as client:
        session_id = await client.create()
        status, found = await client.ask("POST", f"/api/sessions/{session_id}/effort", {"effort": "high"})
        assert (status, found["effort"]) == (200, "high")
        status, found = await client.ask("POST", f"/api/sessions/{session_id}/effort", {"effort": None})
        assert (status, found["effort"]) == (200, "medium")
        status, _ = await client.ask("POST", f"/api/sessions/{session_id}/effort", {"effort": "huge"})
        assert status == 400


async def test_the_context_of_each_step_is_reported_by_source(tmp_path):
    async with served(tmp_path, ["one"]) as client, Simulator(["one", "two"]) as vendor:
        scripted = await client.create()
        await client.ask("POST", f"/api/sessions/{scripted}/prompt", {"text": "1", "wait": True})
        report = (await client.ask("GET", f"/api/sessions/{scripted}/context"))[1]
        assert [(step["step"], step["recorded"], step["sources"]) for step in report["steps"]] == [(1, False, [])]
        agent = Agent("writer", "You write.", "gpt-4.1", "simulator")
        async with Engine([agent], [vendor.provider("openai")], [], store=client.engine.store) as engine:
            session_id = await engine.create()
            for text in ("first", "second"):
                await engine.prompt(session_id, text)
        status, report = await client.ask("GET", f"/api/sessions/{session_id}/context")
        sizes = [sum(share["bytes"] for share in step["sources"]) for step in report["steps"]]
        assert (status, sizes) == (200, [len(request.raw) for request in vendor.requests])
        assert report["totals"]
        assert (await client.ask("GET", "/api/sessions/nothing/context"))[0] == 404


async def test_a_session_is_run_again_with_a_change_compared_and_replayed_if_it_was_recorded(tmp_path):
    async with served(tmp_path, ["One.", "Two."]) as client:
        session_id = await client.create()
        await client.ask("POST", f"/api/sessions/{session_id}/prompt", {"text": "hi", "wait": True})
        status, changed = await client.ask("POST", f"/api/sessions/{session_id}/what-if", {"instructions": "Be brief."})
        assert (status, changed["shared"]) == (200, 0)
        assert changed["session_id"] != session_id
        answers = next(row for row in changed["rows"] if row["name"] == "answer")
        assert answers["a"] == "One."
        path = f"/api/sessions/{session_id}/compare?other={changed['session_id']}"
        assert await client.ask("GET", path) == (200, changed)
        assert (await client.ask("GET", f"/api/sessions/{session_id}/compare?other=nothing"))[0] == 404
        assert (await client.ask("POST", f"/api/sessions/{session_id}/what-if", {}))[0] == 400
        status, refused = await client.ask("POST", f"/api/sessions/{session_id}/replay", {})
        assert (status, "recorded" in str(refused)) == (400, True)


async def test_a_repeated_creation_with_the_same_key_creates_one_session(tmp_path):
    headers = {"Idempotency-Key": "order-1"}
    async with served(tmp_path, ["hi"]) as client:
        answers = await asyncio.gather(
            *(client.ask("POST", "/api/sessions", {"title": "one"}, headers=headers) for _ in range(5))
        )
        assert {status for status, _ in answers} == {201}
        assert len({session["id"] for _, session in answers}) == 1
        status, reused = await client.ask("POST", "/api/sessions", {"title": "two"}, headers=headers)
        assert (status, reused["error"]["type"]) == (409, "key_reused")
        other = await client.ask("POST", "/api/sessions", {"title": "one"}, headers={"Idempotency-Key": "order-2"})
        assert other[1]["id"] != answers[0][1]["id"]
        failed = await client.ask("POST", "/api/sessions", {"mode": "none"}, headers={"Idempotency-Key": "order-3"})
        again = await client.ask("POST", "/api/sessions", {}, headers={"Idempotency-Key": "order-3"})
        assert (failed[0], again[0]) == (400, 201)
    async with served(tmp_path, ["hi"]) as client:  # a restart
        status, session = await client.ask("POST", "/api/sessions", {"title": "one"}, headers=headers)
        assert (status, session["id"]) == (201, answers[0][1]["id"])


async def test_a_repeated_prompt_with_the_same_key_runs_one_turn(tmp_path):
    async with served(tmp_path, ["one", "two"]) as client:
        path = f"/api/sessions/{await client.create()}"
        headers, body = {"Idempotency-Key": "prompt-1"}, {"text": "hello", "wait": True}
        first = await client.ask("POST", f"{path}/prompt", body, headers=headers)
        assert await client.ask("POST", f"{path}/prompt", body, headers=headers) == first
        assert first[1]["end"]["output"] == "one"
        assert len((await client.ask("GET", f"{path}/messages"))[1]["messages"]) == 2


async def test_commands_of_the_user_are_stored_as_the_terminal_stores_them(tmp_path):
    async with served(tmp_path, ["one", "two"]) as client:
        path = f"/api/sessions/{await client.create()}"
        command = {"command": "ls", "output": "a.py\n", "status": "exit code 0"}
        await client.ask("POST", f"{path}/prompt", {"text": "look", "commands": [command], "wait": True})
        part = user_command_part("ls", "a.py\n", "exit code 0")
        before = {"type": "text", "text": part.text, "synthetic": True, "metadata": part.metadata}
        await client.ask("POST", f"{path}/prompt", {"text": "again", "parts": [before], "wait": True})
        _, transcript = await client.ask("GET", f"{path}/messages")
        new, old = (message["parts"] for message in transcript["messages"] if message["role"] == "user")
        for stored in (new[0], old[1]):
            assert (stored["text"], stored["metadata"], stored["synthetic"]) == (part.text, part.metadata, True)
        assert (new[1]["text"], old[0]["text"]) == ("look", "again")
        assert (await client.ask("POST", f"{path}/prompt", {"commands": [command]}))[0] == 400


async def test_the_end_of_a_command_of_the_user_says_whether_it_succeeded(tmp_path):
    environment = ToolEnvironment(sandbox=NoSandbox("", ""), data=tmp_path / "data", home=tmp_path, bus=EventBus())
    async with served(tmp_path, [], surroundings=environment) as client:
        path = f"/api/sessions/{await client.create(workspace=str(tmp_path))}/commands"
        for command, succeeded in (("true", True), ("exit 3", False), ("kill -9 $$", False)):
            _, frames = await client.ask("POST", path, {"command": command})
            end = msgspec.json.decode(frames.rpartition(b"data: ")[2])
            assert end["succeeded"] is succeeded, end


async def test_a_compaction_takes_instructions_and_needs_none(tmp_path):
    async with served(tmp_path, ["one " * 200, "two " * 200, "a summary", "three"]) as client:
        session_id = await client.create()
        path = f"/api/sessions/{session_id}"
        for text in ("1", "2"):
            await client.ask("POST", f"{path}/prompt", {"text": text, "wait": True})
        status, reply = await client.ask("POST", f"{path}/compact", {"instructions": "focus on the API"})
        assert (status, reply["tokens_after"] < reply["tokens_before"]) == (200, True)
        _, transcript = await client.ask("GET", f"{path}/messages")
        (part,) = [one for one in transcript["messages"][-1]["parts"] if one["type"] == "compaction"]
        assert part["instructions"] == "focus on the API"
        assert reply["notice"] is None  # the message with the summary shows it
        status, reply = await client.ask("POST", f"{path}/compact")
        assert (status, reply["tokens_before"], reply["tokens_after"]) == (200, None, None)
        assert reply["notice"]["text"] == "there is nothing to shorten yet"
        assert (await client.ask("POST", f"{path}/compact", {"instructions": "x" * 4001}))[0] == 400


async def test_a_follower_adds_few_objects_that_the_garbage_collector_visits(tmp_path):
    """A full collection blocks the event loop, for as long as there are objects; 215 of each follower were too many."""

    async def open_follower(port: int, session_id: str):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"GET /api/sessions/{session_id}/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        writer.write(f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode())
        await reader.readuntil(b": still here\n\n")
        return writer

    def count_objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    async with served(tmp_path, ["Yes."]) as client:
        session_id, port = await client.create(), client.address.port
        writers = [await open_follower(port, session_id) for _ in range(3)]
        before = count_objects()
        writers += [await open_follower(port, session_id) for _ in range(20)]
        assert (count_objects() - before) / 20 < 160  # with the connection of the client
        for writer in writers:
            writer.close()
            await writer.wait_closed()
        async with asyncio.timeout(10):
            while count_objects() - before > 20 * 20:  # what a follower had is free when it has left
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("frozen", [False, True])
async def test_the_collector_ignores_what_exists_before_the_first_request_while_a_server_runs(tmp_path, frozen):
    """After that, what the program had frozen itself is still frozen: the last collection of `outrider serve` would
    visit all of it."""
    program_froze_objects.cache_clear()
    gc.unfreeze()
    if frozen:
        gc.freeze()
    thresholds = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)  # Python's own
        async with served(tmp_path, ["Yes."]) as client:
            await client.create()
            assert gc.get_freeze_count() > 10_000
            assert gc.get_threshold()[0] > 700
        assert gc.get_threshold() == (700, 10, 10)
        assert (gc.get_freeze_count() > 0) == frozen
    finally:
        gc.set_threshold(*thresholds)
        gc.freeze()  # as before all tests
        program_froze_objects.cache_clear()
