"""Explains permission decisions for `outrider permissions`: of one call, and of all calls of a stored session."""

from typing import Any

import msgspec

from outrider.engine.archive import SessionTranscript
from outrider.errors import ConfigurationError
from outrider.permissions.explain import (
    BacktestResult,
    DecisionExplanation,
    backtest_rules,
    count_changes,
    explain_decision,
    past_calls,
)
from outrider.permissions.policy import PermissionRules
from outrider.tools.tool import Tool
from outrider.types.agents import Mode
from outrider.types.modes import ApprovalLevel
from outrider.types.tool_declaration import declaration_of, tool_name

# With re-exports: front ends import types of lower layers from the engine.
__all__ = [
    "BacktestResult",
    "DecisionExplanation",
    "PermissionRules",
    "count_changes",
    "explain_call",
    "recheck_session",
]


def explain_call(
    tool: str,
    subject: str,
    policy: PermissionRules,
    *,
    mode: Mode,
    workspace: str,
    sandbox: bool,
    level: ApprovalLevel = "ask",
) -> DecisionExplanation:
    """Explains the permission decision about a call. `subject` is the tool's main argument (a command, a path, a URL)
    or its whole input as JSON. Raises ConfigurationError for an invalid input."""
    declared = _find_tool(tool, workspace)
    tool_input = _parse_input(declared, subject)
    rules = msgspec.structs.asdict(policy)
    try:
        return explain_decision(
            declared, tool_input, mode=mode, level=level, workspace=workspace, sandbox=sandbox, **rules
        )
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def recheck_session(
    transcript: SessionTranscript, before: PermissionRules, after: PermissionRules, mode: Mode, *, sandbox: bool
) -> list[BacktestResult]:
    """Compares the decisions about all calls of a session under two policies."""
    workspace = transcript.session.workspace_directory or "."
    calls = list(past_calls(transcript.messages))
    tools = {name: _find_tool(name, workspace) for name in {call.tool for call in calls}}
    declared = {name: tool for name, tool in tools.items() if not isinstance(tool, str)}
    return backtest_rules(
        calls, before=before, after=after, mode=mode, workspace=workspace, sandbox=sandbox, tools=declared
    )


def _find_tool(name: str, workspace: str) -> str | Tool:
    """Returns the name of a well-known tool, or else the built-in tool. With a name, more spellings of parameters are
    accepted."""
    if declaration_of(name).kind != "unknown":
        return name
    from outrider.engine.session_tools import list_built_in_tools  # lazy: loads every tool

    return list_built_in_tools(workspace).get(name, name)


def _parse_input(tool: str | Tool, subject: str) -> dict[str, Any]:
    if subject.lstrip().startswith("{"):
        try:
            return msgspec.json.decode(subject, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"the input of {tool_name(tool)} is not a JSON object: {error}") from error
    subjects = declaration_of(tool).parameters
    if not subjects:
        raise ConfigurationError(f"the parameters of {tool_name(tool)!r} are unknown; pass the whole input as JSON")
    return {subjects[0]: subject}
