"""What others are told when a run has ended: kept with its report, and posted until somebody took it or nobody will."""

import logging
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
import sqlalchemy as sa

from outrider.background.database import Database
from outrider.background.endings.posting import post
from outrider.errors import ToolFailure
from outrider.types.ids import now_ms

ATTEMPTS = 6
FIRST_PAUSE = 5_000  # milliseconds until the second attempt; each one after it waits four times as long

_log = logging.getLogger("outrider.worker")


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """`id` is the same for the same end, however many workers come to it: receivers can tell a repetition by it."""

    id: str
    url: str
    body: str
    tries: int = 0
    due: int = 0


class Notices:
    """A table of them; one that was taken stays, so that it is not sent again, and one that nobody took as well."""

    def __init__(self, database: Database) -> None:
        self._engine = database.engine
        self._table = f"{database.prefix}notices"

    def keep(self, db: sa.Connection, notice: Notice) -> None:
        """In the transaction in which the end of the run is kept."""
        statement = f"INSERT INTO {self._table} VALUES (:id, :url, :body, 0, :due) ON CONFLICT DO NOTHING"
        db.execute(sa.text(statement), {"id": notice.id, "url": notice.url, "body": notice.body, "due": now_ms()})

    async def deliver(self, notice: Notice, hosts: Sequence[str]) -> None:
        try:
            await post(notice.url, notice.body, notice.id, hosts)
        except ToolFailure as problem:
            last = notice.tries >= ATTEMPTS
            words = "it is not tried again" if last else "it is tried again later"
            host = urlsplit(notice.url).hostname  # the rest of the address may be a secret
            _log.warning("the notice %s could not be posted to %s; %s: %s", notice.id, host, words, problem)
            if last:
                self._end(notice)
        else:
            self._end(notice)

    def claim(self, now: int) -> Sequence[Notice]:
        """Those that are due, each for one worker: whoever claims one has it until the next attempt is due."""
        statement = f"SELECT id, url, body, tries, due FROM {self._table} WHERE due <= :now ORDER BY due LIMIT 20"
        with self._engine.connect() as db:
            if not (found := db.execute(sa.text(statement), {"now": now}).all()):
                return ()
        return [notice for row in found if (notice := self._claimed(row, now))]

    def _claimed(self, row: Any, now: int) -> Notice | None:
        later = now + FIRST_PAUSE * 4**row.tries
        statement = f"UPDATE {self._table} SET tries = tries + 1, due = :later WHERE id = :id AND due = :due"
        with self._engine.begin() as db:
            if not db.execute(sa.text(statement), {"later": later, "id": row.id, "due": row.due}).rowcount:
                return None
        return Notice(id=row.id, url=row.url, body=row.body, tries=row.tries + 1, due=later)

    def _end(self, notice: Notice) -> None:
        with self._engine.begin() as db:
            db.execute(sa.text(f"UPDATE {self._table} SET due = NULL WHERE id = :id"), {"id": notice.id})
