"""The approval question: what would run, why it needs an answer, and the answers that every front end offers."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from outrider.presentation.diffs import DiffRow, FileDiff, diff_rows
from outrider.presentation.tool_calls import call_title, input_text, planned_changes
from outrider.sessions.records import Approval, ApprovalScope
from outrider.types.events import ToolApprovalRequestedEvent

AnswerKind = Literal["allow", "deny"]


class ApprovalChoice(msgspec.Struct, frozen=True):
    """One possible answer. `needs_reason`: the answer comes with a text that the model reads."""

    id: str
    kind: AnswerKind
    scope: ApprovalScope
    key: str
    label: str
    needs_reason: bool = False


ALLOW_ONCE = ApprovalChoice("once", "allow", "once", "y", "yes, once")
ALLOW_SESSION = ApprovalChoice("session", "allow", "session", "s", "this session")
ALLOW_PROJECT = ApprovalChoice("project", "allow", "project", "p", "this folder")
ALLOW_ALWAYS = ApprovalChoice("always", "allow", "always", "a", "always")
DENY = ApprovalChoice("no", "deny", "once", "n", "no")
DENY_WITH_REASON = ApprovalChoice("no-because", "deny", "once", "r", "no, because…", needs_reason=True)

_ONLY_ONCE = "no rule could describe exactly this call, so it can only be allowed once"
_BY_CONTENT = "none; a lasting answer applies as long as the workspace files that influence the command stay unchanged"


class ApprovalDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What an approval question shows, computed, for front ends that receive it as JSON. `diff` has the rows of
    `changes`, and `input` the arguments that they do not show; together these are complete."""

    title: str
    reason: str
    rules: tuple[str, ...]
    rule_text: str
    choices: tuple[ApprovalChoice, ...]
    changes: tuple[FileDiff, ...] = ()
    agent: str = ""
    input: str = ""
    diff: tuple[DiffRow, ...] = ()


class ApprovalView(msgspec.Struct, frozen=True, kw_only=True):
    """A question about one exact call. `rules` are what a lasting answer would store; without `can_last` the call can
    only be allowed once. `agent` is named if it is not the session's own."""

    id: str
    session_id: str
    call_id: str
    tool: str
    arguments: dict[str, Any]
    reason: str
    rules: tuple[str, ...] = ()
    can_last: bool = False
    agent: str = ""

    @property
    def title(self) -> str:
        return call_title(self.tool, self.arguments)

    @property
    def changes(self) -> list[FileDiff]:
        """The files that the call would change, as far as its arguments show them."""
        return planned_changes(self.tool, self.arguments)

    @property
    def choices(self) -> tuple[ApprovalChoice, ...]:
        lasting = (ALLOW_SESSION, ALLOW_PROJECT, ALLOW_ALWAYS) if self.can_last else ()
        return (ALLOW_ONCE, *lasting, DENY, DENY_WITH_REASON)

    @property
    def rule_text(self) -> str:
        """What a lasting answer would store, or why there is none."""
        return ", ".join(self.rules) or (_BY_CONTENT if self.can_last else _ONLY_ONCE)

    @property
    def details(self) -> ApprovalDetails:
        return ApprovalDetails(
            title=self.title,
            reason=self.reason,
            rules=self.rules,
            rule_text=self.rule_text,
            choices=self.choices,
            changes=tuple(self.changes),
            agent=self.agent,
            input=input_text(self.tool, self.arguments),
            diff=tuple(diff_rows(self.changes)),
        )


def approval_view(approval: Approval, *, agent: str = "") -> ApprovalView:
    return ApprovalView(
        id=approval.id,
        session_id=approval.session_id,
        call_id=approval.call_id,
        tool=approval.tool,
        arguments=approval.input,
        reason=approval.description,
        rules=approval.offers,
        can_last=approval.can_persist,
        agent=agent,
    )


def requested_approval_view(event: ToolApprovalRequestedEvent, *, agent: str = "") -> ApprovalView:
    """The same question from the event that announces it, for front ends that do not read the stored approval."""
    return ApprovalView(
        id=event.approval_id,
        session_id=event.session_id,
        call_id=event.call_id,
        tool=event.tool_name,
        arguments=event.tool_input,
        reason=event.description,
        rules=event.offers,
        can_last=event.can_last,
        agent=agent,
    )


def choice_by_id(choices: Sequence[ApprovalChoice], choice_id: str) -> ApprovalChoice | None:
    return next((choice for choice in choices if choice.id == choice_id), None)
