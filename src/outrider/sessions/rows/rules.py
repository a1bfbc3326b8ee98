"""Rules that hold in every store: who may write, what binds a question to its call, what a fork begins with."""

from typing import NoReturn

import msgspec

from outrider.errors import LeaseLostError, SessionInUseError, SessionNotFoundError, StoreError
from outrider.sessions.records import Approval, Lease, StoredSession, fingerprint
from outrider.sessions.session import ForkPoint, SessionTime
from outrider.types.ids import new_id


def check_token(session_id: str, token: int | None, current: int, owned: Lease | None) -> None:
    if token is None and owned is not None:
        raise in_use(owned)
    if token is not None and token != current:
        raise LeaseLostError(f"session {session_id} was taken over; this owner may no longer write")


def in_use(lease: Lease) -> SessionInUseError:
    owner = lease.owner
    return SessionInUseError(
        f"session {lease.session_id} is in use by process {owner.pid} on {owner.host}",
        session_id=lease.session_id,
        host=owner.host,
        pid=owner.pid,
        since=lease.since,
    )


def bound(approval: Approval, at: int) -> Approval:
    """A question with the fingerprint of what it asks about; that of the call as it runs, where its input is kept with
    secrets hidden."""
    given = approval.fingerprint or fingerprint(approval.tool, approval.input)
    return msgspec.structs.replace(approval, fingerprint=given, created=approval.created or at)


def forked(source: StoredSession, at: str, title: str | None, now: int) -> StoredSession:
    return msgspec.structs.replace(
        source,
        id=new_id(),
        title=source.title if title is None else title,
        parent_id=None,
        forked_from=ForkPoint(source.id, at),
        time=SessionTime(created=now, updated=now),
        seq=0,
    )


def no_message(message_id: str) -> NoReturn:
    raise StoreError(f"there is no message {message_id} in this session")


def no_session(session_id: str) -> NoReturn:
    raise SessionNotFoundError(f"there is no session {session_id}", session_id=session_id)
