"""Runs of MCP clients that answer approvals by repeating their request, and the forms that they fill in."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
from outrider.errors import OutriderError
from outrider.presentation.approvals import ApprovalView, requested_approval_view
from outrider.server.mcp import (
    MAX_PAUSED_RUNS,
    McpTools,
    PausedRun,
    RunReport,
    create_approval_form,
    read_answer,
)
from outrider.types.events import ToolApprovalRequestedEvent
from outrider.types.outcomes import CommandOutcome, OutcomeFile, RuleWidth


async def test_runs_that_ended_while_their_client_was_away_do_not_count_against_the_limit():
    may_end = asyncio.Event()

    class Runner:
        async def run_prompt(self, *_: Any) -> RunReport:
            await may_end.wait()
            return RunReport("s", "", "completed", [])

    settings, nothing, runner = SimpleNamespace(missing="", mcp_all_sessions=True), Any, Runner()
    async with asyncio.TaskGroup() as tasks:
        tools: Any = McpTools(nothing, None, settings, tasks)  # type: ignore[arg-type]
        runs: list[PausedRun] = [tools._start_run(runner, "go", "", None, "") for _ in range(MAX_PAUSED_RUNS)]
        tools._paused = {run.id: run for run in runs}
        with pytest.raises(OutriderError, match="wait for approvals already"):
            tools._start_run(runner, "go", "", None, "")
        may_end.set()
        while not all(run.has_ended for run in runs):
            await asyncio.sleep(0)
        tools._start_run(runner, "go", "", None, "")
        with pytest.raises(OutriderError, match="this run has ended"):
            tools._find_run(runs[0].id)


def requested(**more: Any) -> ApprovalView:
    event = ToolApprovalRequestedEvent(
        session_id="s", call_id="c", tool_name="shell", tool_input={"command": "ls"}, approval_id="a", **more
    )
    return requested_approval_view(event)


def test_a_form_has_the_choices_and_widths_of_the_approval():
    widths = (RuleWidth(id="exact", label="exactly this", rules=("shell(ls)",)), RuleWidth(id="any", label="any ls"))
    view = requested(can_last=True, offers=("shell(ls)",), widths=widths)
    form = create_approval_form(view)
    properties = form.model_json_schema()["properties"]
    assert properties["answer"]["enum"] == ["yes, once", "this session", "this folder", "always", "no"]
    assert properties["answer"]["default"] == "no"
    assert properties["width"]["enum"] == ["exactly this", "any ls"]
    assert "files" not in properties
    answer = read_answer(view, form.model_validate({"answer": "always", "width": "any ls"}))
    assert answer == {"allow": True, "scope": "always", "choice": "keep", "width": "any"}
    with pytest.raises(ValueError, match="answer"):
        form.model_validate({"answer": "Allow once"})


def test_a_form_about_one_exact_call_has_no_lasting_answer_and_a_denial_has_its_reason():
    view = requested()
    form = create_approval_form(view)
    assert form.model_json_schema()["properties"]["answer"]["enum"] == ["yes, once", "no"]
    assert read_answer(view, form.model_validate({"answer": "no", "reason": "why"})) == {"allow": False, "words": "why"}
    assert read_answer(view, form()) == read_answer(view, None) == {"allow": False, "words": ""}


def test_a_form_about_changed_files_keeps_those_that_are_named():
    files = tuple(OutcomeFile(path=path, kind="modified") for path in ("a.py", "b.py"))
    view = requested(outcome=CommandOutcome(files=files))
    form = create_approval_form(view)
    answer = read_answer(view, form.model_validate({"answer": "keep some files…", "files": "a*"}))
    assert answer == {"allow": True, "scope": "once", "choice": "keep", "keep": ("a.py",)}
