"""Sessions as rows of any database: their columns, which of them a filter wants, and pages of them."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from outrider.sessions.records import SessionFilter, SessionPage, StoredSession
from outrider.sessions.session import ForkPoint, SessionTime


class SessionRow(Protocol):
    """As a database gives it: values by the names of their columns."""

    def __getitem__(self, column: str, /) -> Any: ...


class _Rest(msgspec.Struct):
    """What of a session has no column of its own."""

    forked_from: ForkPoint | None = None
    compacting: int | None = None
    metadata: dict[str, Any] = {}


_rest = msgspec.json.Decoder(_Rest)


def columns_of(session: StoredSession) -> dict[str, Any]:
    times = session.time or SessionTime(0, 0)
    return {
        "id": session.id,
        "seq": session.seq,
        "changed": session.seq,
        "active": times.updated,
        "created": times.created,
        "title": session.title,
        "workspace": session.workspace_directory,
        "mode": session.mode,
        "agent": session.agent,
        "parent": session.parent_id,
        "archived": times.archived,
        "body": msgspec.json.encode(_Rest(session.forked_from, times.compacting, session.metadata)),
    }


def read_session(row: SessionRow) -> StoredSession:
    try:
        rest = _rest.decode(row["body"])
    except msgspec.DecodeError as error:
        rest = _Rest(metadata={"damaged": str(error)})
    return StoredSession(
        id=row["id"],
        title=row["title"],
        workspace_directory=row["workspace"],
        mode=row["mode"],
        agent=row["agent"],
        parent_id=row["parent"],
        forked_from=rest.forked_from,
        time=SessionTime(row["created"], row["active"], rest.compacting, row["archived"]),
        metadata=rest.metadata,
        seq=row["seq"],
    )


def conditions(filter: SessionFilter, mark: str) -> tuple[list[str], list[Any]]:
    """What a filter asks for, with the database's own mark for a value."""
    wanted, values = list[str](), list[Any]()
    for column, value in (
        ("workspace =", filter.workspace_directory),
        ("parent =", filter.parent_id),
        ("agent =", filter.agent),
        ("mode =", filter.mode),
        ("active >=", filter.active_since),
        ("active <", filter.active_before),
    ):
        if value is not None:
            wanted.append(f"{column} {mark}")
            values.append(value)
    if filter.roots:
        wanted.append("parent IS NULL")
    if filter.archived is not None:
        wanted.append("archived IS NOT NULL" if filter.archived else "archived IS NULL")
    return wanted, values


def after_mark(after: str) -> list[Any]:
    """Where a page ended: when the last session on it was active, and its id."""
    active, _, id = after.partition(".")
    return [int(active), id]


def page_of(rows: Sequence[SessionRow], limit: int) -> SessionPage:
    """Of one row more than fit, if there are more."""
    more = f"{rows[limit - 1]['active']}.{rows[limit - 1]['id']}" if len(rows) > limit else None
    return SessionPage(tuple(map(read_session, rows[:limit])), more)
