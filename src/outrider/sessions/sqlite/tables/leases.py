"""One owner per session: a lease with a fencing token, judged by the machine's clock and by living processes."""

import sqlite3

import msgspec

from outrider.errors import LeaseLostError
from outrider.sessions.records import Lease, Owner
from outrider.sessions.rows.rules import check_token, in_use
from outrider.sessions.sqlite.owners import is_alive, machine_ms, same_machine
from outrider.sessions.sqlite.tables.reads import session_row

__all__ = ["acquire", "check", "holder", "in_use", "release", "renew"]

_decoder = msgspec.json.Decoder(Lease)


def check(db: sqlite3.Connection, session_id: str, token: int | None) -> None:
    """Raises unless this token may write. A lease that has ended is forgotten for a writer that needs none."""
    row = session_row(db, session_id)
    check_token(session_id, token, row["token"], holder(row))
    if token is None and row["lease"] is not None:
        _forget(db, session_id)


def holder(row: sqlite3.Row) -> Lease | None:
    """Who owns the session now. Another machine's owner counts until it is taken over: its clock is not ours."""
    if row["lease"] is None:
        return None
    lease = _decoder.decode(row["lease"])
    if is_alive(lease.owner) is False:
        return None
    return lease if not same_machine(lease.owner) or machine_ms() < row["expires"] else None


def acquire(db: sqlite3.Connection, session_id: str, owner: Owner, now: int, *, ttl_ms: int, take_over: bool) -> Lease:
    row = session_row(db, session_id)
    current = holder(row)
    if current is not None and current.owner != owner and not take_over:
        raise in_use(current)
    lease = Lease(session_id, row["token"] + 1, owner, now, ttl_ms)
    _keep(db, lease)
    return lease


def renew(db: sqlite3.Connection, lease: Lease) -> Lease:
    row = session_row(db, lease.session_id)
    if row["token"] != lease.token:
        raise LeaseLostError(f"session {lease.session_id} was taken over", session_id=lease.session_id)
    _keep(db, lease)
    return lease


def release(db: sqlite3.Connection, lease: Lease) -> None:
    db.execute("UPDATE sessions SET lease = NULL WHERE id = ? AND token = ?", (lease.session_id, lease.token))


def _keep(db: sqlite3.Connection, lease: Lease) -> None:
    db.execute(
        "UPDATE sessions SET token = ?, lease = ?, expires = ? WHERE id = ?",
        (lease.token, msgspec.json.encode(lease), machine_ms() + lease.ttl_ms, lease.session_id),
    )


def _forget(db: sqlite3.Connection, session_id: str) -> None:
    """An owner that expired must not come back unnoticed after somebody else has written."""
    db.execute("UPDATE sessions SET lease = NULL, token = token + 1 WHERE id = ?", (session_id,))
