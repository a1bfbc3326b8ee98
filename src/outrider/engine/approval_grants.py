"""What people have allowed for longer than once: the smallest rule for it, where it holds, and how it is taken back."""

import os
from collections.abc import Collection, Iterable, Sequence
from typing import Self

import msgspec

from outrider.permissions.modes import shape_of
from outrider.sessions.records import Approval
from outrider.sessions.store import Store

LASTING = ("session", "project", "always")


class Grant(msgspec.Struct, frozen=True):
    """Rules that allow, and the hashes of files that may steer programs, since somebody said yes to them."""

    rules: tuple[str, ...] = ()
    contents: frozenset[str] = frozenset()

    @classmethod
    def of(cls, approvals: Iterable[Approval]) -> Self:
        listed = list(approvals)
        rules = dict.fromkeys(rule for approval in listed for rule in approval.offers)
        return cls(tuple(rules), frozenset(content for approval in listed for content in approval.contents))


def holds_here(approval: Approval, sessions: Collection[str], workspace: str) -> bool:
    """A rule about files of one workspace says nothing about another, however long it holds."""
    if approval.scope == "session":
        return approval.session_id in sessions
    about_files = shape_of(approval.tool).kind in ("read", "write") or bool(approval.contents)
    if approval.scope == "project" or about_files:
        return os.path.realpath(approval.workspace) == os.path.realpath(workspace)
    return True


async def standing(store: Store) -> Sequence[Approval]:
    """Every yes that still holds for longer than once, oldest first."""
    return [
        approval
        for approval in await store.approvals()
        if approval.answer == "allowed" and approval.scope in LASTING and approval.can_last
    ]
