"""A run with signals, closed pipes and simple terminals."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.cli.program import SECONDS, Program, answering, call, ended, interrupt

SLEEPING = call("shell", command="echo begun; sleep 60")
ESCAPES = "\x1b]0;evil\x07\x1b[31mred\x1b[0m \x1b[2J"


async def command_started(process: asyncio.subprocess.Process) -> None:
    """Waits until the verbose output reports a running command."""
    assert process.stderr is not None
    while "▸ ".encode() not in await asyncio.wait_for(process.stderr.readline(), SECONDS):
        pass


async def stored_text(program: Program) -> str:
    return (await program.run("sessions", "show", "last", "--full")).out


async def test_an_interrupt_ends_the_turn_and_all_that_was_reported_is_preserved(program: Program):
    never = asyncio.Event()
    async with answering(program, [["I was about to say", never]]) as server:
        process = await program.start("run", "-o", "stream-json", "go")
        assert process.stdout is not None
        while b'"text"' not in await process.stdout.readline():
            pass
        interrupt(process)
        done = await ended(process)
        await asyncio.wait_for(server.disconnected.wait(), SECONDS)
    assert done.code == 130
    assert done.lines[-1]["termination_reason"] == "aborted"
    assert "I was about to say" in await stored_text(program)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_a_running_command_too(program: Program, number: signal.Signals):
    async with answering(program, [[SLEEPING], "never"]) as server:
        process = await program.start("run", "--allow", "shell", "-v", "go")
        await command_started(process)
        process.send_signal(number)
        done = await ended(process)
        assert len(server.requests) == 1
    assert done.code == 128 + number
    assert "Traceback" not in done.err
    assert "canceled" in await stored_text(program)


async def test_a_second_interrupt_does_not_wait(program: Program):
    stubborn = call("shell", command="trap '' TERM; sleep 60; sleep 60")
    async with answering(program, [[stubborn], "never"]):
        process = await program.start("run", "--allow", "shell", "-v", "go")
        await command_started(process)
        interrupt(process)
        await asyncio.sleep(0.1)
        with suppress(ProcessLookupError):  # it may have been quick enough
            interrupt(process)
        assert await asyncio.wait_for(process.wait(), SECONDS) in (130, -signal.SIGINT)  # to a shell both are 130
        await ended(process)


async def test_a_reader_that_goes_away_is_no_error_and_the_work_is_done(program: Program):
    chunks = [f"word{number} " for number in range(2000)]
    async with answering(program, [[*chunks, call("read", file_path="notes.txt")], "The end."]) as server:
        process = await program.start("run", "go")
        assert process.stdout is not None
        await process.stdout.read(10)
        process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
        assert await asyncio.wait_for(process.wait(), SECONDS) == 0
        assert process.stderr is not None
        assert await process.stderr.read() == b""
        assert len(server.requests) == 2
    assert "The end." in await stored_text(program)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is always full")
async def test_a_full_disk_is_reported_once_and_the_work_is_preserved(program: Program):
    async with answering(program, ["All of it is kept."]):
        with Path("/dev/full").open("w") as full:
            done = await ended(await program.start("run", "work", stdout=full))
            listed = await ended(await program.start("sessions", "list", stdout=full))
    message = "outrider: cannot write to stdout: No space left on device\n"
    assert [(one.code, one.err) for one in (done, listed)] == [(1, message), (1, message)]
    assert "All of it is kept." in await stored_text(program)


async def test_streams_that_the_caller_closed_are_not_written(program: Program):
    async with answering(program, ["Done.", "Done.", "Done."]):
        for closing in (">&-", "2>&-", "<&- >&- 2>&-"):
            shell = ["sh", "-c", f'"$0" -m outrider run work {closing}', sys.executable]
            process = await asyncio.create_subprocess_exec(
                *shell, cwd=program.workspace, env=program.environ, stdout=PIPE, stderr=PIPE
            )
            done = await ended(process)
            assert (done.code, done.err) == (0, ""), closing


async def test_a_list_whose_reader_closes_the_pipe_is_no_error(program: Program):
    process = await program.start("--help")
    assert process.stdout is not None
    process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
    done = await asyncio.wait_for(process.wait(), SECONDS)
    assert process.stderr is not None
    assert (done, await process.stderr.read()) == (0, b"")


async def test_a_terminal_sees_progress_and_no_control_sequences_of_others(program: Program):
    (program.workspace / "evil.txt").write_text(ESCAPES)
    async with answering(program, [["Look.", call("shell", command="cat evil.txt")], f"Milk {ESCAPES} here."]):
        done = await program.on_a_terminal("run", "go")
    assert done.code == 0
    assert "Look.\r\n" in done.out
    assert "▸ cat evil.txt" in done.out
    assert "Milk" in done.out
    assert "continue with" in done.out
    for bad in ("\x1b]0;", "\x1b[2J", "\x07", "\x1b[31mred"):
        assert bad not in done.out


async def test_a_pipe_receives_no_control_sequences(program: Program):
    (program.workspace / "evil.txt").write_text(ESCAPES)
    for options in ((), ("-q",)):
        async with answering(program, [["Look.", call("shell", command="cat evil.txt")], f"Milk {ESCAPES} here."]):
            done = await program.run("run", *options, "go")
        assert (done.code, "Milk" in done.out) == (0, True)
        assert "\x1b" not in done.out + done.err
        assert "\x07" not in done.out


async def test_colours_are_used_where_they_are_wanted_and_nowhere_else(program: Program):
    async with answering(
        program, lambda body: [call("read", file_path="notes.txt")] if len(body.body["messages"]) == 2 else "x"
    ):
        colourful = await program.on_a_terminal("run", "go")
        program.extra = {"NO_COLOR": "1"}
        plain = await program.on_a_terminal("run", "go")
        program.extra = {"TERM": "dumb"}
        dumb = await program.on_a_terminal("run", "go")
    assert "\x1b[" in colourful.out
    assert "\x1b" not in plain.out
    assert "\x1b" not in dumb.out


async def test_the_application_reports_what_it_needs_where_there_is_no_terminal(program: Program):
    program.url = "http://127.0.0.1:9"
    done = await program.run()
    assert done.code == 2
    assert "needs a terminal" in done.err
    assert "outrider run" in done.err


async def test_acp_explains_that_an_editor_starts_it(program: Program):
    alone = await program.run("acp")
    assert (alone.code, "is started by an editor" in alone.err) == (2, True), alone.err
    asked = await program.run(
        "acp", stdin='{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n'
    )
    assert asked.json["result"]["agentInfo"]["name"] == "outrider", asked.err


async def test_the_summary_of_a_run_names_no_cost_for_a_free_model(program: Program):
    async with answering(program, lambda _: "Hello."):
        assert ", cost $" in (await program.on_a_terminal("run", "go")).out
        config = program.home / "outrider" / "config.toml"
        config.write_text('[models."gpt-4.1"]\nprices = { input = "0", output = "0" }\n')
        free = (await program.on_a_terminal("run", "go")).out
    assert "continue with" in free
    assert "cost" not in free
