"""Webhooks: an outbox table, and retries until the receiver accepts. Notices of ended runs are stored with the report,
those of interactive turns in a file of the server."""

import asyncio
import base64
import hmac
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from outrider._sync import wait_to_end
from outrider.errors import ConfigurationError, NetworkError, ToolFailure
from outrider.http.client import HttpClient, is_public
from outrider.http.connection import AddressRefusedError, IpAddress
from outrider.http.transport import HttpRequest
from outrider.processes.sandbox.proxy import HostRules
from outrider.sessions.database_files import configure_connection, prepare_file, prepare_folder
from outrider.tools.web_client import check_url
from outrider.types.ids import now_ms

TIMEOUT_SECONDS = 10.0
_DEFAULT_PORTS = {"http": 80, "https": 443}


def sign_notice(secret: str, key: str, body: str, seconds: int) -> dict[str, str]:
    """Returns the headers of the Standard Webhooks specification. A secret that starts with `whsec_` is base64."""
    raw = (
        base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        if secret.startswith("whsec_")
        else secret.encode()
    )
    signature = hmac.digest(raw, f"{key}.{seconds}.{body}".encode(), "sha256")
    encoded = base64.b64encode(signature).decode()
    return {"webhook-id": key, "webhook-timestamp": str(seconds), "webhook-signature": f"v1,{encoded}"}


async def post_notice(url: str, body: str, key: str, hosts: Sequence[str] = (), secret: str = "") -> None:
    """Posts a notice, signed if there is a secret. `hosts` lists private addresses that the user allows. Raises
    ToolFailure unless the status is 2xx."""
    is_allowed = _allow_any if _is_allowed_host(check_url(url), hosts) else is_public
    headers = {"content-type": "application/json", "user-agent": "outrider", "idempotency-key": key}
    try:
        if secret:
            headers |= sign_notice(secret, key, body, now_ms() // 1000)
        async with asyncio.timeout(TIMEOUT_SECONDS), aclosing(HttpClient(is_allowed=is_allowed)) as client:
            response = await client.send(HttpRequest(url.strip(), headers, body.encode()))
            response.close()
    except TimeoutError as error:
        raise ToolFailure(f"the receiver did not respond within {TIMEOUT_SECONDS:g} s") from error
    except AddressRefusedError as error:
        raise ToolFailure(f"the host resolves to {error.address}, which is not a public address") from error
    except (ConfigurationError, NetworkError, OSError, ValueError) as error:
        raise ToolFailure(f"{type(error).__name__}") from error  # its text may contain the URL, which may be secret
    if not 200 <= response.status < 300:
        raise ToolFailure(f"the receiver returned status {response.status}")


def _allow_any(address: IpAddress) -> bool:
    return True


def _is_allowed_host(url: str, hosts: Sequence[str]) -> bool:
    parts = urlsplit(url)
    return HostRules(hosts).allows(parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme])


MAX_ATTEMPTS = 6
FIRST_RETRY_MS = 5_000  # delay before the second attempt; each further delay is four times as long
# How long a claim excludes other workers; an attempt takes far less unless its worker dies.
CLAIM_MS = round(TIMEOUT_SECONDS * 6_000)

_log = logging.getLogger("outrider.worker")


class WebhookNotice(msgspec.Struct, frozen=True, kw_only=True):
    """One message. `id` is the same for the same end of a run, however many workers report it and however often it is
    posted, so that receivers can detect duplicates. `due` is when another worker may try."""

    id: str
    url: str
    body: str
    tries: int = 0
    due: int = 0


async def send_to_url(notice: WebhookNotice, hosts: Sequence[str], secret: str) -> None:
    await post_notice(notice.url, notice.body, notice.id, hosts, secret)


def open_webhook_file(path: Path, statements: Sequence[str]) -> sa.Engine:
    """Opens the SQLite file of a server's webhooks, which has their secrets, and creates its tables."""
    prepare_folder(path)
    prepare_file(path)
    engine = sa.create_engine(f"sqlite:///{path}")

    def configure(connection: sqlite3.Connection, _: object) -> None:
        configure_connection(connection, path)

    event.listen(engine, "connect", configure)
    with engine.begin() as db:
        for statement in statements:
            db.exec_driver_sql(statement)
    return engine


class WebhookOutbox:
    """The table of notices. A delivered or abandoned notice stays in it with `due` NULL, so that it is not sent again.
    `send` posts one notice to a receiver, and raises ToolFailure if that has to be repeated."""

    def __init__(
        self,
        engine: sa.Engine,
        table: str,
        send: Callable[[WebhookNotice, Sequence[str], str], Awaitable[None]] = send_to_url,
    ) -> None:
        self._engine = engine
        self._table = table
        self._send = send

    def add_notice(self, db: sa.Connection, notice: WebhookNotice) -> None:
        """Inserts a notice in the caller's transaction, which also stores the report."""
        statement = f"INSERT INTO {self._table} VALUES (:id, :url, :body, 0, :due) ON CONFLICT DO NOTHING"
        db.execute(sa.text(statement), {"id": notice.id, "url": notice.url, "body": notice.body, "due": now_ms()})

    def count_notices(self, db: sa.Connection, run_id: str) -> int:
        """Returns how many ends of the run have a notice."""
        statement = f"SELECT count(*) FROM {self._table} WHERE id LIKE :ids"
        return db.execute(sa.text(statement), {"ids": f"{run_id}:%"}).scalar_one()

    def has_pending(self) -> bool:
        """Returns whether a notice is to be posted, now or later."""
        statement = f"SELECT id FROM {self._table} WHERE due IS NOT NULL LIMIT 1"
        with self._engine.connect() as db:
            return db.execute(sa.text(statement)).first() is not None

    async def post_due(self, hosts: Sequence[str], secret: str = "") -> None:
        """Posts the due notices. If the caller is cancelled, it first waits for posts in progress: an interrupted post
        would be sent twice."""
        await wait_to_end(self._post_claimed(hosts, secret))

    async def _post_claimed(self, hosts: Sequence[str], secret: str) -> None:
        """Posts in parallel, so that a slow receiver does not delay the others."""
        due = await asyncio.to_thread(self.claim_due, now_ms())
        async with asyncio.TaskGroup() as posting:
            for notice in due:
                posting.create_task(self.deliver_notice(notice, hosts, secret))

    async def deliver_notice(self, notice: WebhookNotice, hosts: Sequence[str], secret: str = "") -> None:
        """Posts a notice. If it was not accepted, it is due again later, a limited number of times."""
        try:
            await self._send(notice, hosts, secret)
        except ToolFailure as problem:
            is_last = notice.tries >= MAX_ATTEMPTS
            consequence = "no further attempt" if is_last else "will retry"
            host = urlsplit(notice.url).hostname  # the rest of the URL may contain a secret
            _log.warning("cannot post webhook notice %s to %s (%s): %s", notice.id, host, consequence, problem)
            await self._record_result(notice, None if is_last else now_ms() + FIRST_RETRY_MS * 4 ** (notice.tries - 1))
        else:
            await self._record_result(notice, None)

    def claim_due(self, now: int) -> Sequence[WebhookNotice]:
        """Claims the due notices, each for one worker, for longer than an attempt takes. A notice is posted twice only
        if a worker dies between the attempt and recording its result."""
        statement = f"SELECT id, url, body, tries, due FROM {self._table} WHERE due <= :now ORDER BY due LIMIT 20"
        with self._engine.connect() as db:
            if not (rows := db.execute(sa.text(statement), {"now": now}).all()):
                return ()
        return [notice for row in rows if (notice := self._claim_notice(row, now))]

    def _claim_notice(self, row: Any, now: int) -> WebhookNotice | None:
        later = now + CLAIM_MS
        statement = f"UPDATE {self._table} SET tries = tries + 1, due = :later WHERE id = :id AND due = :due"
        with self._engine.begin() as db:
            if not db.execute(sa.text(statement), {"later": later, "id": row.id, "due": row.due}).rowcount:
                return None
        return WebhookNotice(id=row.id, url=row.url, body=row.body, tries=row.tries + 1, due=later)

    async def _record_result(self, notice: WebhookNotice, retry_at: int | None) -> None:
        """Stores when the next attempt is due; None for no further attempt."""
        try:
            await asyncio.to_thread(self._set_due, notice, retry_at)
        except SQLAlchemyError as problem:
            _log.warning("cannot store the result of webhook notice %s; it may be posted again: %s", notice.id, problem)

    def _set_due(self, notice: WebhookNotice, retry_at: int | None) -> None:
        """Stores the result of an attempt. A delivered notice is final even if another worker has claimed it since; a
        retry time is stored only if this worker's claim is still valid."""
        parameters: dict[str, Any] = {"due": retry_at, "id": notice.id}
        statement = f"UPDATE {self._table} SET due = :due WHERE id = :id"
        if retry_at is not None:
            statement, parameters = f"{statement} AND due = :claimed", {**parameters, "claimed": notice.due}
        with self._engine.begin() as db:
            db.execute(sa.text(statement), parameters)
