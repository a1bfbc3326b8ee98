"""The tools that run commands and look after those in the background, through the runner as in a turn."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from outrider import Progress, ToolCompleted, ToolContext, ToolError, ToolPart, ToolPending
from outrider.processes.supervisor import ProcessSupervisor
from outrider.tools.builtin.process import process_tool
from outrider.tools.builtin.shell import shell_tool
from outrider.tools.runner import ToolRunner
from outrider.tools.tool import tools_by_name
from tests.fixtures.process_checks import until_there


class Bench:
    """Runs calls of the two tools in one workspace."""

    def __init__(self, supervisor: ProcessSupervisor, workspace: Path, **options: Any) -> None:
        self.supervisor = supervisor
        self.workspace = workspace
        self.reported: list[Progress] = []
        self.tools = tools_by_name([shell_tool(supervisor, **options), process_tool(supervisor)])
        self._count = 0

    def set_early_exit_wait(self, seconds: float) -> None:
        self.tools["shell"] = shell_tool(self.supervisor, early_exit_wait=seconds)

    async def call(self, tool: str, *, session: str = "s", **arguments: Any) -> ToolCompleted | ToolError:
        self._count += 1
        call_id = f"call_{self._count}"
        prepared = self.tools[tool].prepare(arguments)
        part = ToolPart(call_id, tool, ToolPending(prepared, phase="ready"))
        context = ToolContext(session, call_id, workspace=self.workspace, report=self.reported.append)
        ended = await ToolRunner(self.tools, self._record).run(part, context)
        assert isinstance(ended.state, ToolCompleted | ToolError)
        return ended.state

    async def output(self, tool: str, **arguments: Any) -> str:
        state = await self.call(tool, **arguments)
        assert isinstance(state, ToolCompleted), state
        return state.output

    async def error(self, tool: str, **arguments: Any) -> ToolError:
        state = await self.call(tool, **arguments)
        assert isinstance(state, ToolError), state
        return state

    async def _record(self, part: ToolPart) -> None:
        await asyncio.sleep(0)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    async with ProcessSupervisor(folder=tmp_path / "outputs") as supervisor:
        yield Bench(supervisor, workspace)


async def test_a_command_runs_in_the_workspace_and_gives_its_output(bench: Bench):
    state = await bench.call("shell", command="pwd; echo $((6*7))", description="Compute")
    assert isinstance(state, ToolCompleted)
    assert state.output == f"{bench.workspace.resolve()}\n42\n"
    assert (state.title, state.metadata["exit_code"]) == ("Compute", 0)


async def test_a_relative_workdir_starts_at_the_workspace(bench: Bench):
    (bench.workspace / "sub").mkdir()
    assert (await bench.output("shell", command="basename $PWD", workdir="sub")).strip() == "sub"
    assert "workdir: No such file" in (await bench.error("shell", command="true", workdir="nowhere")).error


async def test_an_exit_code_that_is_not_0_is_reported_below_the_output(bench: Bench):
    assert await bench.output("shell", command="echo oops >&2; exit 4") == "oops\n[exit code 4]"
    assert await bench.output("shell", command="printf oops; kill -SEGV $$") == "oops\n[killed by SIGSEGV]"
    assert await bench.output("shell", command="true") == "(no output)"


@pytest.mark.slow
async def test_a_command_over_its_time_limit_ends_in_error_with_what_it_wrote(bench: Bench):
    error = await bench.error("shell", command="echo begun; sleep 60", timeout=2)
    assert error.reason == "timeout"
    assert error.error.startswith("killed after its time limit of 2 s")
    assert "begun" in error.error


@pytest.mark.slow
async def test_a_command_over_its_time_limit_can_continue_in_the_background(tmp_path: Path):
    async with ProcessSupervisor() as supervisor:
        bench = Bench(supervisor, tmp_path, at_limit="background")
        assert "goes on in the background" in bench.tools["shell"].description
        command = f"echo begun; {until_there(tmp_path / 'go on')}; echo done"
        output = await bench.output("shell", command=command, timeout=2)
        assert output == "begun\n[it runs on in the background; its process_id is call_1]"
        (tmp_path / "go on").touch()
        assert "done\n[exit code 0]" in await bench.output("process", action="wait", process_id="call_1")


async def until_reported(bench: Bench) -> None:
    async with asyncio.timeout(30):
        while not any(progress.output for progress in bench.reported):
            await asyncio.sleep(0.01)


async def test_output_is_reported_while_the_command_runs(bench: Bench, tmp_path: Path):
    command = f"echo one; {until_there(tmp_path / 'go on')}; printf 'a\\rb\\n'"
    task = asyncio.create_task(bench.call("shell", command=command))
    await until_reported(bench)
    (tmp_path / "go on").touch()
    await task
    assert [progress.output for progress in bench.reported if progress.output] == ["one\n", "b\n"]


async def test_a_canceled_call_ends_at_once_and_its_command_with_it(bench: Bench):
    task = asyncio.create_task(bench.call("shell", command="echo begun; sleep 60"))
    await until_reported(bench)
    task.cancel()
    async with asyncio.timeout(30):
        with pytest.raises(asyncio.CancelledError):
            await task
    await bench.supervisor.kill_process("call_1")
    assert bench.supervisor.get_running_ids() == []


async def test_very_long_output_is_cut_once_and_the_model_is_informed_where_the_whole_is(bench: Bench):
    state = await bench.call("shell", command="seq 1 200000")
    assert isinstance(state, ToolCompleted)
    assert state.output.startswith("1\n2\n")
    assert state.output.endswith("199999\n200000\n")
    assert len(state.output) < 30_000
    assert state.output.count("left out") == 1
    path = Path(state.metadata["path"])
    assert f"the whole output is in {path}" in state.output
    assert path.read_text() == "".join(f"{number}\n" for number in range(1, 200_001))
    assert "truncated" not in state.metadata


async def test_bytes_that_are_no_text_are_counted(bench: Bench):
    output = await bench.output("shell", command=r"printf 'caf\xe9\n\0\x1b[31mred\x1b[0m\n'")
    assert output == "caf�\n␀red\n[1 bytes were not UTF-8 and are shown as �]"


@pytest.mark.parametrize(
    ("arguments", "prepared"),
    [
        ({"cmd": "ls", "cwd": "src"}, {"command": "ls", "workdir": "src"}),
        ({"command": "ls", "run_in_background": True}, {"command": "ls", "background": True}),
        ({"command": "ls", "timeout": 120_000}, {"command": "ls", "timeout": 120}),
        ({"command": "ls", "timeout": 90}, {"command": "ls", "timeout": 90}),
        ({"command": "ls", "timeout_ms": 500}, {"command": "ls", "timeout": 0.5}),
        ({"command": ["bash", "-lc", "ls | wc"]}, {"command": "ls | wc"}),
        ({"command": ["echo", "a b"], "workdir": None}, {"command": "echo 'a b'"}),
    ],
)
def test_names_that_models_know_from_other_agents_are_accepted(
    bench: Bench, arguments: dict[str, Any], prepared: dict[str, Any]
):
    assert bench.tools["shell"].prepare(arguments) == prepared


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "`command` is missing"),
        ({"command": None}, "`command` is missing"),
        ({"command": 5}, "`command`: expected `str`"),
        ({"command": "  "}, "empty"),
        ({"command": "echo \0"}, "NUL"),
        ({"command": "true", "timeout": "soon"}, "`timeout`"),
        ({"command": "true", "color": "red"}, "`color` is not an argument"),
        ({"command": "true", "workdir": "/dev/null"}, "workdir: Not a directory"),
        ({"command": "x" * 4_000_000}, "Argument list too long"),
    ],
)
async def test_wrong_arguments_say_what_is_wrong(bench: Bench, arguments: dict[str, Any], message: str):
    assert message in (await bench.error("shell", **arguments)).error


@pytest.mark.slow
async def test_a_process_in_the_background_is_read_written_waited_for_and_killed(bench: Bench):
    bench.set_early_exit_wait(2)
    started = await bench.output("shell", command="echo ready; read x; echo got $x; sleep 60", background=True)
    assert started == "ready\n[it runs on in the background; its process_id is call_1]"
    assert "call_1: still running" in await bench.output("process", action="list")
    assert (await bench.output("process", action="read", process_id="call_1")).startswith("ready\n")
    assert "no new output" in await bench.output("process", action="read", bash_id="call_1")
    await bench.output("process", action="send", process_id="call_1", input="hello\n")
    waited = await bench.output("process", action="wait", process_id="call_1", timeout=2)
    assert "still running" in waited
    assert "got hello" in await bench.output("process", action="read", process_id="call_1", offset=0)
    assert "[killed]" in await bench.output("process", action="kill", process_id="call_1")
    assert "call_1: killed" in await bench.output("process", action="list")


async def test_a_process_that_fails_at_once_reports_it_instead_of_an_id(bench: Bench):
    bench.set_early_exit_wait(30)
    output = await bench.output("shell", command="echo no such port; exit 1", background=True)
    assert output == "no such port\n[it was started in the background and has ended: exit code 1]"


async def test_processes_of_other_sessions_are_unknown(bench: Bench):
    await bench.call("shell", command="sleep 60", background=True, session="one")
    assert "no processes" in await bench.output("process", action="list", session="two")
    error = await bench.error("process", action="kill", process_id="call_1", session="two")
    assert error.error == "there is no process 'call_1'; there are none"
    assert bench.supervisor.get_running_ids() == ["call_1"]


async def test_much_output_of_a_process_is_read_piece_by_piece(bench: Bench):
    bench.set_early_exit_wait(30)
    await bench.call("shell", command="seq 1 10000", background=True)
    first = await bench.output("process", action="read", process_id="call_1")
    assert "more bytes; read again" in first
    second = await bench.output("process", action="read", process_id="call_1")
    numbers = [line for line in (first + "\n" + second).split("\n") if line.isdigit()]
    assert "".join(numbers).startswith("12345678910")
    assert int(second.split("\n")[0]) <= int(first.split("\n")[-3]) + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "`action` is missing"),
        ({"action": "explode"}, "`action`"),
        ({"action": "read"}, "no process ''"),
        ({"action": "kill", "process_id": "../x"}, "no process '../x'"),
        ({"action": "read", "process_id": "a", "offset": "x"}, "`offset`"),
    ],
)
async def test_wrong_arguments_of_process_say_what_is_wrong(bench: Bench, arguments: dict[str, Any], message: str):
    assert message in (await bench.error("process", **arguments)).error


async def test_a_call_whose_command_was_killed_from_outside_is_an_error(bench: Bench):
    task = asyncio.create_task(bench.call("shell", command="echo begun; sleep 60"))
    await until_reported(bench)
    await bench.supervisor.kill_process("call_1")
    state = await task
    assert isinstance(state, ToolError)
    assert (state.error, state.reason) == ("killed\n\nIts output until then:\nbegun\n", "failed")


async def test_a_user_can_move_a_running_call_to_the_background(bench: Bench):
    task = asyncio.create_task(bench.call("shell", command="echo begun; sleep 60"))
    await until_reported(bench)
    assert bench.supervisor.mark_as_backgrounded("call_1")
    state = await task
    assert isinstance(state, ToolCompleted)
    assert state.output == "begun\n[it runs on in the background; its process_id is call_1]"
    assert state.metadata["running"]
