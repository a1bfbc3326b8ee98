"""What others are told when a run has ended: kept with its report, and posted until somebody took it or nobody will."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from outrider.background.database import Database
from outrider.errors import ToolFailure
from outrider.processes.sandbox.proxy import Rules
from outrider.tools.web_client import Gate, checked, is_public
from outrider.types.ids import now_ms

SECONDS = 10.0
_USUAL_PORTS = {"http": 80, "https": 443}


async def post(url: str, body: str, key: str, hosts: Sequence[str] = ()) -> None:
    """`hosts` are those of the user's own network that may be called. Raises ToolFailure for anything but a yes."""
    import aiohttp

    gate = Gate((lambda _: True) if _is_named(checked(url), hosts) else is_public)
    connector = aiohttp.TCPConnector(socket_factory=gate.open_socket, use_dns_cache=False, force_close=True)
    headers = {"content-type": "application/json", "user-agent": "outrider", "idempotency-key": key}
    try:
        async with (
            asyncio.timeout(SECONDS),
            aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.post(url, data=body.encode(), headers=headers, allow_redirects=False) as answer,
        ):
            if not 200 <= answer.status < 300:
                raise ToolFailure(f"it answered with {answer.status}")
    except TimeoutError as error:
        raise ToolFailure(f"it did not answer within {SECONDS:g} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if gate.refused is not None:
            raise ToolFailure(f"it leads to {gate.refused}, which is not a public address") from error
        raise ToolFailure(f"{type(error).__name__} on the way") from error


def _is_named(url: str, hosts: Sequence[str]) -> bool:
    parts = urlsplit(url)
    return Rules(hosts).allow(parts.hostname or "", parts.port or _USUAL_PORTS[parts.scheme])


ATTEMPTS = 6
FIRST_PAUSE = 5_000  # milliseconds until the second attempt; each one after it waits four times as long
# Milliseconds in which nobody else tries; an attempt takes far less, unless it is cut off.
CLAIM = round(SECONDS * 6_000)

_log = logging.getLogger("outrider.worker")


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """`id` is the same for the same end, however many workers come to it and however often it is posted: receivers can
    tell a repetition by it. `due` is when somebody else may try."""

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

    def count(self, db: sa.Connection, run_id: str) -> int:
        """How many ends of a run others were, or are to be, told of."""
        statement = f"SELECT count(*) FROM {self._table} WHERE id LIKE :ids"
        return db.execute(sa.text(statement), {"ids": f"{run_id}:%"}).scalar_one()

    def are_left(self) -> bool:
        """Whether some are to be posted, now or later."""
        statement = f"SELECT id FROM {self._table} WHERE due IS NOT NULL LIMIT 1"
        with self._engine.connect() as db:
            return db.execute(sa.text(statement)).first() is not None

    async def tell(self, hosts: Sequence[str]) -> None:
        """Post what is due. Whoever has enough of it waits for what is under way: cut off, it would be posted twice."""
        posting = asyncio.ensure_future(self._post_all(hosts))
        try:
            await asyncio.shield(posting)
        except asyncio.CancelledError:
            await posting
            raise

    async def _post_all(self, hosts: Sequence[str]) -> None:
        """Side by side: nobody waits for the deaf receiver of another."""
        due = await asyncio.to_thread(self.claim, now_ms())
        async with asyncio.TaskGroup() as posting:
            for notice in due:
                posting.create_task(self.deliver(notice, hosts))

    async def deliver(self, notice: Notice, hosts: Sequence[str]) -> None:
        try:
            await post(notice.url, notice.body, notice.id, hosts)
        except ToolFailure as problem:
            last = notice.tries >= ATTEMPTS
            words = "it is not tried again" if last else "it is tried again later"
            host = urlsplit(notice.url).hostname  # the rest of the address may be a secret
            _log.warning("the notice %s could not be posted to %s; %s: %s", notice.id, host, words, problem)
            await self._record(notice, None if last else now_ms() + FIRST_PAUSE * 4 ** (notice.tries - 1))
        else:
            await self._record(notice, None)

    def claim(self, now: int) -> Sequence[Notice]:
        """Those that are due, each for one worker: whoever claims one has it for longer than an attempt takes. Only a
        worker that is cut off between its attempt and its record of it leaves one to be posted again."""
        statement = f"SELECT id, url, body, tries, due FROM {self._table} WHERE due <= :now ORDER BY due LIMIT 20"
        with self._engine.connect() as db:
            if not (found := db.execute(sa.text(statement), {"now": now}).all()):
                return ()
        return [notice for row in found if (notice := self._claimed(row, now))]

    def _claimed(self, row: Any, now: int) -> Notice | None:
        later = now + CLAIM
        statement = f"UPDATE {self._table} SET tries = tries + 1, due = :later WHERE id = :id AND due = :due"
        with self._engine.begin() as db:
            if not db.execute(sa.text(statement), {"later": later, "id": row.id, "due": row.due}).rowcount:
                return None
        return Notice(id=row.id, url=row.url, body=row.body, tries=row.tries + 1, due=later)

    async def _record(self, notice: Notice, due: int | None) -> None:
        """When it is tried next, or that it is not."""
        try:
            await asyncio.to_thread(self._set, notice, due)
        except SQLAlchemyError as problem:
            _log.warning("what became of the notice %s is not kept; it may be posted again: %s", notice.id, problem)

    def _set(self, notice: Notice, due: int | None) -> None:
        """One that was taken is done with, whoever has claimed it since."""
        given: dict[str, Any] = {"due": due, "id": notice.id}
        statement = f"UPDATE {self._table} SET due = :due WHERE id = :id"
        if due is not None:
            statement, given = f"{statement} AND due = :claimed", {**given, "claimed": notice.due}
        with self._engine.begin() as db:
            db.execute(sa.text(statement), given)
