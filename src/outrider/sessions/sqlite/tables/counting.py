"""The rows that usage statistics are folded from."""

import sqlite3
from collections.abc import Iterator
from typing import Any

from outrider.sessions.records import Grouping, UsageRow
from outrider.sessions.rows import statistics
from outrider.sessions.sqlite.tables.reads import session_row


def usage(
    db: sqlite3.Connection, by: Grouping, since: int | None, until: int | None, session_id: str | None
) -> list[UsageRow]:
    session = session_row(db, session_id)["key"] if session_id else None
    inside = (since or 0, until if until is not None else 2**62, session, session)
    return statistics.by_tool(_calls(db, inside)) if by == "tool" else statistics.by_answer(_answers(db, inside), by)


def _calls(db: sqlite3.Connection, inside: tuple[Any, ...]) -> Iterator[statistics.CallUsage]:
    rows = db.execute(
        """SELECT tool, outcome, start, end FROM parts
        WHERE outcome IS NOT NULL AND start >= ? AND start < ? AND (? IS NULL OR session = ?)
        AND session NOT IN (SELECT key FROM sessions WHERE deleted = 1)""",
        inside,
    )
    for tool, outcome, start, end in rows:
        yield statistics.CallUsage(tool, outcome, start, end)


def _answers(db: sqlite3.Connection, inside: tuple[Any, ...]) -> Iterator[statistics.AnswerUsage]:
    rows = db.execute(
        """SELECT body FROM messages
        WHERE (role = 'assistant' OR instr(body, ?) > 0) AND created >= ? AND created < ?
        AND (? IS NULL OR session = ?) AND session NOT IN (SELECT key FROM sessions WHERE deleted = 1)""",
        (statistics.USED, *inside),
    )
    for (body,) in rows:
        answer = statistics.read_answer(body)
        if answer is not None:
            yield answer
