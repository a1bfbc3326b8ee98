"""Approvals that apply to more than one call: their rules, their scope, and the query for those in effect."""

import os
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Self

import msgspec

from outrider.sessions.records import Approval, ApprovalScope, fingerprint_call
from outrider.sessions.store import Store
from outrider.types.approvals import RuleWidth
from outrider.types.parts import ToolPart
from outrider.types.tool_declaration import declaration_of

if TYPE_CHECKING:
    from outrider.agents.run_context import AgentContext

LASTING_SCOPES = ("session", "project", "always")


class ApprovalGrant(msgspec.Struct, frozen=True):
    """Allow rules, hashes of approved file contents that can change what a program does, and destinations to which
    the session may send data."""

    rules: tuple[str, ...] = ()
    contents: frozenset[str] = frozenset()
    destinations: frozenset[str] = frozenset()

    @classmethod
    def from_approvals(cls, approvals: Iterable[Approval]) -> Self:
        """Combine the rules and contents of approvals."""
        listed = list(approvals)
        rules = dict.fromkeys(rule for approval in listed for rule in approval.offers)
        return cls(
            tuple(rules),
            frozenset(content for approval in listed for content in approval.contents),
            frozenset(approval.flow.destination for approval in listed if approval.flow and approval.flow.can_last),
        )


def applies_here(approval: Approval, sessions: Collection[str], workspace: str) -> bool:
    """Return whether an approval applies. One about files applies in its own workspace only, for every scope."""
    if approval.scope == "session":
        return approval.session_id in sessions
    if approval.scope == "project" or _is_about_files(approval):
        return os.path.realpath(approval.workspace) == os.path.realpath(workspace)
    return True


def in_workspace(approvals: Iterable[Approval], workspace: str) -> list[Approval]:
    """Return the approvals that were asked for in this workspace."""
    real = os.path.realpath(workspace)
    return [approval for approval in approvals if os.path.realpath(approval.workspace) == real]


def grant_text(approval: Approval) -> str:
    """Return everything that a stored approval covers: rules, file contents and destinations."""
    covered = [*approval.offers]
    if approval.contents:
        covered.append("the present content of the configuration files that its programs read")
    if approval.flow is not None and approval.flow.can_last:
        covered.append(f"sending data to {approval.flow.destination}")
    return ", ".join(covered) or "exactly this call"


def _is_about_files(approval: Approval) -> bool:
    """In doubt True: a rule with a pattern for a tool whose name says nothing may contain a relative path."""
    if any(rule.startswith(("may write ", "shell(cd ")) for rule in approval.offers):
        return True
    match declaration_of(approval.tool).kind:
        case "read" | "write":
            return True
        case "unknown":
            return bool(approval.contents) or any("(" in rule for rule in approval.offers)
        case _:
            return bool(approval.contents)


async def lasting_approvals(store: Store) -> Sequence[Approval]:
    """Return all approvals in effect for more than one call, oldest first."""
    return [
        approval
        for approval in await store.approvals()
        if approval.answer == "allowed" and approval.scope in LASTING_SCOPES and approval.can_persist
    ]


class RunGrants:
    """Lasting answers of the `approve` function of a run. With a store they are stored, and those in it apply."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._lasting: list[Approval] = []
        self._is_loaded = store is None

    async def load(self) -> None:
        """Read the stored approvals, once."""
        if not self._is_loaded and self._store is not None:
            self._is_loaded = True
            self._lasting += await lasting_approvals(self._store)

    async def remember(
        self, call: ToolPart, context: "AgentContext", widths: tuple[RuleWidth, ...], scope: ApprovalScope
    ) -> None:
        """Allow such calls from now on; for the exact call only, if no rule can describe it."""
        approval = Approval(
            session_id=context.root.session.id,
            call_id=call.call_id,
            tool=call.tool,
            input=call.state.input,
            fingerprint=fingerprint_call(call.tool, call.state.input),
            workspace=str(context.workspace),
            offers=widths[0].rules if widths else (),
            contents=widths[0].contents if widths else (),
            widths=widths,
        )
        self._lasting.append(msgspec.structs.replace(approval, answer="allowed", scope=scope))
        if self._store is not None:
            stored = await self._store.ask(approval)
            await self._store.answer(stored.id, "allowed", scope=scope, by="approve")

    def find_grant(self, context: "AgentContext") -> ApprovalGrant:
        """Return what the answers allow this agent."""
        sessions, here = {context.session.id, context.root.session.id}, str(context.workspace)
        return ApprovalGrant.from_approvals(one for one in self._lasting if applies_here(one, sessions, here))
