"""A person's answer to one exact call: values only, sessions keep them."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from outrider.permissions.tools import canonical

Scope = Literal["once", "session", "project", "always", "no"]


class Approval(Struct, frozen=True):
    """Bound to the exact call by its hash; `rule` is what it stands for beyond this call, where it does."""

    id: str
    call_hash: str
    tool: str
    scope: Scope
    time: int
    session_id: str = ""
    workspace: str = ""
    shown: str = ""
    rule: str | None = None
    answered_by: str = ""
    revoked: int | None = None

    def covers(self, call_hash: str, *, session_id: str, workspace: str) -> bool:
        """Whether the answer still holds for this very call; `once` is used up by the call it was given for."""
        if self.revoked is not None or self.call_hash != call_hash:
            return False
        match self.scope:
            case "once" | "no":
                return False
            case "session":
                return self.session_id == session_id
            case "project":
                return self.workspace == workspace
            case "always":
                return True


def call_hash(tool: str, arguments: Mapping[str, Any], *, workspace: str) -> str:
    """The same call in the same workspace has the same hash, whatever the order of its arguments; nothing else has."""
    exact = msgspec.json.encode([canonical(tool), dict(arguments), workspace], order="deterministic")
    return hashlib.sha256(exact).hexdigest()


def rules_of(approvals: Iterable[Approval], *, session_id: str, workspace: str) -> tuple[str, ...]:
    """The allow rules that stored answers stand for here and now."""
    found = [
        approval.rule
        for approval in approvals
        if approval.rule is not None
        and approval.revoked is None
        and (
            approval.scope == "always"
            or (approval.scope == "project" and approval.workspace == workspace)
            or (approval.scope == "session" and approval.session_id == session_id)
        )
    ]
    return tuple(dict.fromkeys(found))


def revoke(approval: Approval, *, time: int) -> Approval:
    return approval if approval.revoked is not None else msgspec.structs.replace(approval, revoked=time)
