"""Approvals that apply to more than one call: their rules, their scope, and the query for those in effect."""

import os
from collections.abc import Collection, Iterable, Sequence
from typing import Self

import msgspec

from outrider.sessions.records import Approval
from outrider.sessions.store import Store
from outrider.types.tool_declaration import declaration_of

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
