"""Questions to the user as a screen shows them: calls that wait for an approval, and what a model asks."""

from typing import Any

from outrider.permissions.offers import offered_rules
from outrider.permissions.tools import shape_of
from outrider.sessions.records import Approval, ApprovalScope
from outrider.tools.builtin.question import Ask, Question
from outrider.tools.context import ToolContext

__all__ = ["Approval", "ApprovalScope", "Ask", "Question", "ToolContext", "rules_for"]


def rules_for(tool: str, given: dict[str, Any], *, workspace: str) -> tuple[str, ...]:
    """The rules that would let this call run unasked; empty where it can only be allowed once: what cannot be shown
    in full, or what no rule can name."""
    offered = offered_rules(tool, given, workspace=workspace)
    return offered or ((tool,) if shape_of(tool).kind == "unknown" else ())
