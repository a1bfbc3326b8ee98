"""Every call is stored before it starts and ends exactly once, also if its tool misbehaves."""

import asyncio
import time
from pathlib import Path

import pytest

from outrider import (
    Attachment,
    EndedTime,
    Progress,
    Tool,
    ToolCompleted,
    ToolContext,
    ToolError,
    ToolFailure,
    ToolPart,
    ToolPending,
    ToolResult,
)
from outrider.tools.runner import OutputCap, ToolRunner
from outrider.tools.tool import tools_by_name
from outrider.types.tool_state import ToolRunning


class Ledger:
    """Records as a journal would, and can be asked what was recorded."""

    def __init__(self) -> None:
        self.parts: list[ToolPart] = []

    async def record(self, part: ToolPart) -> None:
        await asyncio.sleep(0)
        self.parts.append(part)

    @property
    def statuses(self) -> list[str]:
        return [part.state.status for part in self.parts]


def call(tool: str, **arguments: object) -> ToolPart:
    return ToolPart("call_1", tool, ToolPending(arguments, phase="ready"))


async def run(tool: Tool, part: ToolPart | None = None, **options: object) -> tuple[ToolPart, Ledger]:
    ledger = Ledger()
    runner = ToolRunner(tools_by_name([tool]), ledger.record, **options)  # pyright: ignore[reportArgumentType]
    return await runner.run(part or call(tool.name), ToolContext()), ledger


async def test_a_call_is_recorded_as_running_before_its_tool_starts():
    ledger = Ledger()
    seen: list[list[str]] = []
    tool = Tool(lambda: seen.append(ledger.statuses), name="look")
    await ToolRunner(tools_by_name([tool]), ledger.record).run(call("look"), ToolContext())
    assert seen == [["running"]]
    assert ledger.statuses == ["running", "completed"]


async def test_a_result_is_preserved_with_its_attachments_title_and_metadata():
    result = ToolResult("text", (Attachment("image/png", "QUJD"),), "a title", {"lines": 1})
    part, _ = await run(Tool(lambda: result, name="t"))
    assert isinstance(part.state, ToolCompleted)
    assert (part.state.output, part.state.title, part.state.metadata) == ("text", "a title", {"lines": 1})
    assert part.state.attachments == result.attachments


def fails():
    raise ToolFailure("no such file: a")


def breaks():
    raise KeyError("k")


def returns_nothing():
    raise ValueError


def endless():
    value: list[object] = []
    value.append(value)
    return value


def own_timeout():
    raise TimeoutError("the server did not answer")


@pytest.mark.parametrize(
    ("function", "reason", "message"),
    [
        (fails, "failed", "no such file: a"),
        (breaks, "failed", "KeyError: 'k'"),
        (returns_nothing, "failed", "ValueError"),
        (own_timeout, "failed", "TimeoutError: the server did not answer"),
        (endless, "failed", "cannot be written as JSON"),
        (lambda path: path, "invalid_input", "`path` is missing"),
    ],
)
async def test_a_tool_that_goes_wrong_ends_the_call_in_error(function, reason, message):
    part, ledger = await run(Tool(function, name="t"))
    assert isinstance(part.state, ToolError)
    assert part.state.reason == reason
    assert message in part.state.error
    assert ledger.statuses == ["running", "error"]


async def test_a_call_over_its_time_limit_ends_with_reason_timeout_and_its_output_so_far():
    @Tool(timeout=0.02)
    async def slow(context: ToolContext) -> None:
        context.report(Progress("half way\n"))
        await asyncio.sleep(10)

    part, _ = await run(slow)
    assert isinstance(part.state, ToolError)
    assert part.state.reason == "timeout"
    assert part.state.error == "timed out after 0.02 s\n\nIts output until then:\nhalf way\n"


async def test_a_plain_function_that_never_returns_does_not_hold_the_call():
    part, _ = await run(Tool(lambda: time.sleep(0.3), name="t", timeout=0.02))
    assert part.state.reason == "timeout"  # pyright: ignore[reportAttributeAccessIssue]


async def test_a_call_that_is_cancelled_as_soon_as_it_is_recorded_ends_and_its_tool_never_starts():
    ledger, started = Ledger(), []

    async def record(part: ToolPart) -> None:
        ledger.parts.append(part)
        if part.state.status == "running":
            task.cancel()
            await asyncio.sleep(0)

    tool = Tool(lambda: started.append(1), name="start")
    task = asyncio.create_task(ToolRunner(tools_by_name([tool]), record).run(call("start"), ToolContext()))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ledger.statuses == ["running", "error"]
    assert ledger.parts[-1].state.error == "canceled before it started"
    assert not started


async def test_a_cancelled_call_is_recorded_as_canceled_with_its_output_so_far_and_the_cancellation_continues():
    started = asyncio.Event()

    @Tool
    async def slow(context: ToolContext) -> None:
        context.report(Progress("half way", title="working", metadata={"percent": 50}))
        started.set()
        await asyncio.sleep(10)

    ledger = Ledger()
    task = asyncio.ensure_future(ToolRunner(tools_by_name([slow]), ledger.record).run(call("slow"), ToolContext()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ledger.statuses == ["running", "error"]
    state = ledger.parts[-1].state
    assert isinstance(state, ToolError)
    assert state.reason == "canceled"
    assert "half way" in state.error
    assert state.metadata["percent"] == 50


async def test_an_unknown_tool_is_an_error_that_names_the_known_ones():
    part, ledger = await run(Tool(lambda: "", name="read_file"), call("readfile"))
    assert isinstance(part.state, ToolError)
    assert part.state.reason == "invalid_input"
    assert part.state.error == ("There is no tool called 'readfile'. Did you mean read_file? The tools are: read_file.")
    assert ledger.statuses == ["error"]


async def test_a_call_whose_input_was_damaged_never_runs():
    damaged = ToolPart("c", "t", ToolPending(raw="{", phase="ready"), {"input_error": "not valid JSON"})
    part, ledger = await run(Tool(lambda: pytest.fail("it ran"), name="t"), damaged)
    assert part.state.error == "not valid JSON"  # pyright: ignore[reportAttributeAccessIssue]
    assert ledger.statuses == ["error"]


async def test_a_call_that_has_ended_is_not_run_again():
    ended = ToolPart("c", "t", ToolCompleted({}, "x", EndedTime(1, 1)))
    part, ledger = await run(Tool(lambda: pytest.fail("it ran"), name="t"), ended)
    assert part is ended
    assert ledger.parts == []


async def test_a_long_output_is_cut_in_the_middle_and_preserved_whole_in_a_file(tmp_path: Path):
    def save(text: str) -> Path:
        path = tmp_path / "output.txt"
        path.write_text(text)
        return path

    whole = "\n".join(f"line {number}" for number in range(100_000))
    part, _ = await run(Tool(lambda: whole, name="t"), output_cap=OutputCap(2_000, 100), save_output=save)
    assert isinstance(part.state, ToolCompleted)
    output = part.state.output
    assert output.startswith("line 0\nline 1\n")
    assert output.endswith("line 99998\nline 99999")
    assert f"the whole output is in {tmp_path / 'output.txt'}; read or search it there" in output
    assert len(output) < 2_300
    assert (tmp_path / "output.txt").read_text() == whole
    assert part.state.metadata["truncated"]["lines"] == 100_000


async def test_one_very_long_line_is_cut_too():
    part, _ = await run(Tool(lambda: "x" * 1_000_000, name="t"), output_cap=OutputCap(2_000, 100))
    assert len(part.state.output) < 2_300  # pyright: ignore[reportAttributeAccessIssue]
    assert "the rest could not be stored" in part.state.output  # pyright: ignore[reportAttributeAccessIssue]


async def test_partial_output_is_bounded():
    @Tool
    async def flood(context: ToolContext) -> None:
        for number in range(10_000):
            context.report(Progress(f"{number}\n"))
        raise ToolFailure("enough")

    part, _ = await run(flood)
    assert part.state.error.endswith("9999\n")  # pyright: ignore[reportAttributeAccessIssue]
    assert len(part.state.error) < 5_000  # pyright: ignore[reportAttributeAccessIssue]


async def test_progress_reaches_the_one_who_watches():
    received: list[Progress] = []

    @Tool
    async def work(context: ToolContext) -> str:
        context.report(Progress("a", title="half"))
        return "done"

    ledger = Ledger()
    part = await ToolRunner(tools_by_name([work]), ledger.record).run(call("work"), ToolContext(report=received.append))
    assert received == [Progress("a", title="half")]
    assert part.state.title == "half"  # pyright: ignore[reportAttributeAccessIssue]


async def test_what_a_running_call_has_written_is_given_to_be_preserved():
    drafts: list[tuple[str, int, ToolPart]] = []

    @Tool
    def slow(context: ToolContext) -> str:
        context.report(Progress(output="one\n"))
        context.report(Progress(output="two\n", title="half way"))
        return "done"

    async def record(_: ToolPart) -> None:
        pass

    part = ToolPart("c", "slow", ToolPending(phase="ready"))
    runner = ToolRunner({"slow": slow}, record, save_draft=lambda id, size, now: drafts.append((id, size, now())))
    await runner.run(part, ToolContext())
    assert [(id, size) for id, size, _ in drafts] == [(part.id, 4), (part.id, 4)]
    last = drafts[-1][2].state
    assert isinstance(last, ToolRunning)
    assert (last.metadata["output"], last.title) == ("one\ntwo\n", "half way")
