"""Decisions about calls, made again to be looked at: why one would be made, and what other rules would have changed."""

from typing import Any

import msgspec

from outrider.app.archive.archive import Transcript
from outrider.errors import ConfigurationError
from outrider.permissions.backtest import Verdict, backtest, past_calls, summary
from outrider.permissions.decision import Mode
from outrider.permissions.explain import Explanation, explain
from outrider.permissions.policy import Policy
from outrider.permissions.tools import shape_of

__all__ = ["Explanation", "Policy", "Verdict", "explained", "judged_again", "summary"]


def explained(tool: str, subject: str, policy: Policy, *, mode: Mode, workspace: str, sandbox: bool) -> Explanation:
    """`subject` is what the tool is mostly about (a command, a path, an address), or its whole input as JSON."""
    given = _input(tool, subject)
    rules = msgspec.structs.asdict(policy)
    try:
        return explain(tool, given, mode=mode, workspace=workspace, sandbox=sandbox, **rules)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def judged_again(transcript: Transcript, before: Policy, after: Policy, mode: Mode, *, sandbox: bool) -> list[Verdict]:
    """Every call of a session, under the rules of today and under others."""
    workspace = transcript.session.workspace_directory or "."
    calls = past_calls(transcript.messages)
    return backtest(calls, before=before, after=after, mode=mode, workspace=workspace, sandbox=sandbox)


def _input(tool: str, subject: str) -> dict[str, Any]:
    if subject.lstrip().startswith("{"):
        try:
            return msgspec.json.decode(subject, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"the input of {tool} is not a JSON object: {error}") from error
    subjects = shape_of(tool).subjects
    if not subjects:
        raise ConfigurationError(f"what {tool!r} takes is not known; give its whole input as JSON")
    return {subjects[0]: subject}
