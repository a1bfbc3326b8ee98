"""`outrider run --attach` beside a real server: the same outputs, exit codes and signals as a separate run."""

import asyncio
import json
import signal

from outrider.remote.engine import RemoteArchive
from tests.e2e.attach.socket_server import Serving, call, ended

LONG = "A long answer that takes its time, word by word, until somebody has heard enough of it. " * 4


async def test_an_answer_streams_and_ends_like_that_of_a_run_here(serving: Serving):
    serving.script("Hello from the server.", "Hello from the server.", delay=0.01)
    await serving.begin()
    there = await serving.run("--attach", serving.url, "-o", "stream-json", "hi")
    here = await serving.run("-o", "stream-json", "hi")
    assert (there.code, here.code) == (0, 0), there.err
    assert [line["type"] for line in there.lines if line["type"] != "text"] == ["start", "message", "step", "result"]
    for printed in (there, here):
        assert "".join(line["text"] for line in printed.lines if line["type"] == "text") == "Hello from the server."
    assert there.lines[0].keys() == here.lines[0].keys()
    assert {**there.lines[-1], "session_id": "", "duration_ms": 0, "time": 0} == {
        **here.lines[-1], "session_id": "", "duration_ms": 0, "time": 0,
    }  # fmt: skip


async def test_a_session_continues_and_text_is_printed_as_text(serving: Serving):
    serving.script("One.", "Two.")
    await serving.begin()
    first = await serving.run("--attach", serving.url, "-o", "json", "first")
    session_id = json.loads(first.out)["session_id"]
    going_on = await serving.run("--attach", serving.url, "--session", session_id[-8:], "second")
    assert (going_on.code, going_on.out) == (0, "Two.\n"), going_on.err
    async with serving.client() as engine:
        texts = [message.get_text_content() for message in (await engine.open(session_id)).messages]
    assert texts == ["first", "One.", "second", "Two."]


async def test_a_call_without_approval_is_refused_with_its_own_exit_code(serving: Serving):
    serving.script(call("shell", command="touch made"), "It was refused.")
    await serving.begin()
    done = await serving.run("--attach", serving.url, "-o", "json", "make it")
    result = json.loads(done.out)
    assert (done.code, result["output"]) == (3, "It was refused."), done.err
    assert [refused["input"] for refused in result["refused_calls"]] == [{"command": "touch made"}]
    assert not (serving.workspace / "made").exists()


async def test_the_approval_level_applies_to_new_sessions_and_to_those_that_continue(serving: Serving):
    serving.script(call("shell", command="touch made"), "It is made.", call("shell", command="touch more"), "No more.")
    await serving.begin()
    done = await serving.run("--attach", serving.url, "--approval", "edits", "-o", "json", "make it")
    assert (done.code, json.loads(done.out)["output"]) == (0, "It is made."), done.err
    session_id = json.loads(done.out)["session_id"]
    again = await serving.run("--attach", serving.url, "--session", session_id, "--approval", "ask", "make more")
    assert (again.code, again.out) == (3, "No more.\n"), again.err
    assert [(serving.workspace / name).exists() for name in ("made", "more")] == [True, False]


async def test_with_wait_for_approval_another_front_end_s_answer_applies(serving: Serving):
    serving.script(call("shell", command="touch made"), "It is made.")
    await serving.begin()
    async with serving.client() as engine:
        run = asyncio.create_task(serving.run("--attach", serving.url, "--wait-for-approval", "make it"))
        async with asyncio.timeout(60):
            while not (asked := await engine.approvals()):
                await asyncio.sleep(0.05)
        await engine.answer(asked[0].id, allow=True)
        done = await run
    assert (done.code, done.out) == (0, "It is made.\n"), done.err
    assert (serving.workspace / "made").exists()


async def test_what_ends_the_turn_there_decides_the_exit_code_here(serving: Serving):
    serving.script({"error": "the model is ill"})
    await serving.begin()
    done = await serving.run("--attach", serving.url, "-o", "json", "hi")
    assert (done.code, json.loads(done.out)["error"]["type"]) == (5, "ProviderError")


async def test_an_interrupt_ends_the_turn_on_the_server(serving: Serving):
    serving.script(LONG, delay=0.2)
    await serving.begin()
    run = await serving.start("run", "--attach", serving.url, "hi")
    async with serving.client() as engine, asyncio.timeout(60):
        archive = RemoteArchive(engine.client)
        while not (sessions := await archive.list_sessions(2)) or len((await engine.open(sessions[0].id)).messages) < 2:
            await asyncio.sleep(0.05)
    run.send_signal(signal.SIGINT)
    assert (await ended(run)).code == 130
    async with serving.client() as engine:
        (session,) = await RemoteArchive(engine.client).list_sessions(2)
        messages = (await engine.open(session.id)).messages
        assert messages[-1].error is not None
        assert messages[-1].error.type == "aborted"
        assert not engine.live[session.id].in_turn


async def test_flags_that_are_the_server_s_to_say_are_refused(serving: Serving):
    done = await serving.run("--attach", serving.url, "--allow", "shell(ls)", "--max-cost", "1", "hi")
    assert done.code == 2
    assert "--allow, --max-cost" in done.err
