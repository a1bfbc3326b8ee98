"""Runs of MCP clients that answer approvals by repeating their request, and the forms that they fill in."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
from mcp.server.mcpserver.exceptions import ToolError as McpToolError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from outrider.presentation.approvals import ApprovalView, requested_approval_view
from outrider.server.mcp import (
    MAX_PAUSED_RUNS,
    ApprovalForm,
    AskClient,
    McpTools,
    RunReport,
    create_approval_form,
    form_text,
    read_answer,
)
from outrider.types.events import ToolApprovalRequestedEvent
from outrider.types.outcomes import CommandOutcome, OutcomeFile, RuleWidth


class AskingRunner:
    """Runs that ask for an approval, and end without its answer when they may."""

    def __init__(self) -> None:
        self.may_end, self.ended = asyncio.Event(), 0

    async def run_prompt(
        self, _prompt: str, _id: str, _mode: Any, _report: Any, ask: AskClient, _owner: str
    ) -> RunReport:
        async with asyncio.TaskGroup() as group:
            question = group.create_task(ask("May it?", ApprovalForm))
            await self.may_end.wait()
            question.cancel()
        self.ended += 1
        return RunReport("s", "", "completed", [])


class RepeatingClient:
    """The request of a client that answers questions by repeating it."""

    client_capabilities = SimpleNamespace(elicitation=object())
    protocol_version = MODERN_PROTOCOL_VERSIONS[0]
    request_context = SimpleNamespace(request=None)
    input_responses = None

    def __init__(self, request_state: str | None = None) -> None:
        self.request_state = request_state


async def test_runs_that_ended_while_their_client_was_away_do_not_count_against_the_limit():
    runner, nothing, settings = AskingRunner(), Any, SimpleNamespace(missing="", mcp_all_sessions=True)
    async with asyncio.TaskGroup() as tasks:
        tools: Any = McpTools(nothing, runner, settings, tasks)  # type: ignore[arg-type]
        paused = [await tools.run_agent("go", RepeatingClient()) for _ in range(MAX_PAUSED_RUNS)]
        with pytest.raises(McpToolError, match="wait for approvals already"):
            await tools.run_agent("go", RepeatingClient())
        runner.may_end.set()
        while runner.ended < MAX_PAUSED_RUNS:
            await asyncio.sleep(0)
        assert (await tools.run_agent("go", RepeatingClient())).ended == "completed"
        with pytest.raises(McpToolError, match="this run has ended"):
            await tools.run_agent("go", RepeatingClient(paused[0].request_state))


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


def test_a_form_that_cannot_show_all_can_only_deny():
    view = requested(can_last=True, offers=("shell(ls)",), widths=(RuleWidth(id="exact", label="exactly this"),))
    form = create_approval_form(view, allows=False)
    properties = form.model_json_schema()["properties"]
    assert (properties["answer"]["const"], set(properties)) == ("no", {"answer", "reason"})
    with pytest.raises(ValueError, match="answer"):
        form.model_validate({"answer": "yes, once"})
    assert read_answer(view, form.model_validate({"reason": "long"})) == {"allow": False, "words": "long"}


def test_widths_of_long_paths_stay_different_choices():
    folder = "deep/" * 100
    widths = tuple(RuleWidth(id=name, label=f"all edits under {folder}{name}") for name in ("a/b", "a"))
    view = requested(can_last=True, offers=("x",), widths=widths)
    form = create_approval_form(view)
    narrow = form.model_json_schema()["properties"]["width"]["default"]
    answer = read_answer(view, form.model_validate({"answer": "this folder", "width": narrow}))
    assert answer["width"] == "a/b"
    assert all(width.label in form_text(view) for width in widths)
