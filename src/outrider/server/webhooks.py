"""Webhooks about the turns of interactive sessions: what is posted, and the file of webhooks and their notices."""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

import msgspec

from outrider._sync import do_nothing
from outrider.config.file import WEBHOOK_EVENTS, WebhookEvent
from outrider.config.settings import Settings
from outrider.engine.archive import StoredSession
from outrider.engine.engine import Engine
from outrider.errors import ConfigurationError, OutriderError, SessionNotFoundError, ToolFailure
from outrider.server.event_stream import find_root_session
from outrider.server.users import Requester, UserDirectory
from outrider.types.events import (
    ErrorEvent,
    Event,
    LoopCompletedEvent,
    SessionUpdatedEvent,
    ToolApprovalRequestedEvent,
)
from outrider.types.ids import new_id, now_ms

if TYPE_CHECKING:
    import sqlalchemy as sa

    from outrider.background.webhooks import WebhookNotice, WebhookOutbox

_log = logging.getLogger("outrider.server")


class WebhookSession(msgspec.Struct, frozen=True, kw_only=True):
    """The session of a notice; approvals and questions of agents that it called are part of it."""

    id: str
    title: str = ""
    owner: str = ""
    workspace: str = ""


class WebhookApproval(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for an answer to `POST /api/approvals/{id}`."""

    id: str
    tool: str
    description: str = ""


class WebhookQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question of a model that waits for an answer to `POST /api/questions/{id}`."""

    id: str
    text: str
    options: tuple[str, ...] = ()


class WebhookError(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    message: str


class TurnNotice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a webhook receives about a turn, without secrets. `notice` is the same each time it is posted; `time` is in
    Unix milliseconds. `reason` is why a turn ended, `output` its last text (up to 10,000 characters)."""

    notice: str
    event: WebhookEvent
    time: int
    session: WebhookSession
    reason: str = ""
    output: str = ""
    error: WebhookError | None = None
    approval: WebhookApproval | None = None
    question: WebhookQuestion | None = None


class ServerWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook of the configuration, whose id is its name, or one that was added to the running server."""

    id: str
    url: str
    events: tuple[WebhookEvent, ...] = WEBHOOK_EVENTS
    user: str = ""
    secret: str = ""
    is_configured: bool = False


MAX_NOTICE_TEXT = 10_000
WEBHOOK_POLL_SECONDS = 2.0  # interval of the poll for notices that are due again
WEBHOOK_FILE = "webhooks.sqlite"
MAX_WEBHOOKS = 100
DELIVERED_DAYS = 7  # how long delivered notices are stored, so that none is posted twice
_WEBHOOK_TABLES = (
    "CREATE TABLE IF NOT EXISTS webhooks (id TEXT PRIMARY KEY, definition TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS notices (id TEXT PRIMARY KEY, url TEXT NOT NULL, body TEXT NOT NULL, "
    "tries INTEGER NOT NULL, due BIGINT)",
    "CREATE INDEX IF NOT EXISTS notices_due ON notices (due)",
)


class TurnWebhooks:
    """Notifies webhooks about turns that run on this server. Notices are stored in `folder` before they are posted, so
    that they survive a restart. A notice for a user's webhook is stored and posted only if the user may see the session
    at that moment."""

    def __init__(self, engine: Engine, users: UserDirectory, folder: Path, settings: Settings) -> None:
        self._engine = engine
        self._users = users
        self._path = folder / WEBHOOK_FILE
        self._limits = settings.background
        self._configured = [
            ServerWebhook(id=name, is_configured=True, **msgspec.structs.asdict(table))
            for name, table in settings.webhooks.items()
        ]
        self._database: sa.Engine | None = None
        self._opening = threading.Lock()
        self._events: asyncio.Queue[tuple[Event, WebhookError | None]] = asyncio.Queue()
        self._errors: dict[str, WebhookError] = {}
        self._is_due = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._unsubscribe: Callable[[], object] = do_nothing

    async def __aenter__(self) -> Self:
        """Raises ConfigurationError for a webhook of the configuration that cannot be used."""
        for webhook in self._configured:
            self._check(webhook)
        loop = asyncio.get_running_loop()
        classes: tuple[type[Event], ...] = (
            LoopCompletedEvent, ToolApprovalRequestedEvent, ErrorEvent, SessionUpdatedEvent,
        )  # fmt: skip
        self._unsubscribe = self._engine.bus.subscribe(
            classes,
            lambda event: loop.call_soon_threadsafe(self._note_event, event) if self._is_wanted(event) else None,
        )
        self._tasks = [asyncio.create_task(self._keep_storing()), asyncio.create_task(self._keep_posting())]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._unsubscribe()
        await asyncio.sleep(0)  # events of other threads
        await self._events.join()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        if self._database is not None:
            self._database.dispose()

    @property
    def _is_used(self) -> bool:
        return bool(self._configured) or self._database is not None or self._path.exists()

    def _is_wanted(self, event: Event) -> bool:
        return (not isinstance(event, SessionUpdatedEvent) or "question" in event.changes) and self._is_used

    def _note_event(self, event: Event) -> None:
        """Queues the event. The error of a turn is published directly before its end, so it is held until then."""
        match event:
            case ErrorEvent():
                self._errors[event.session_id] = WebhookError(type=event.error_type, message=event.message)
            case LoopCompletedEvent():
                self._events.put_nowait((event, self._errors.pop(event.session_id, None)))
            case _:
                self._events.put_nowait((event, None))

    async def _keep_storing(self) -> None:
        while True:
            event, error = await self._events.get()
            try:
                await self._store_notices(event, error)
            except Exception:  # noqa: BLE001  one event must not end the notices of all others
                _log.exception("cannot store the webhook notices of %s", event.event_type)
            finally:
                self._events.task_done()

    async def _store_notices(self, event: Event, error: WebhookError | None) -> None:
        stored = await self._engine.store.get(event.session_id)
        if isinstance(event, LoopCompletedEvent) and stored.parent_id is not None:
            return  # a called agent: the turn of its caller continues
        root = await self._engine.store.get(await find_root_session(self._engine, event.session_id))
        event_id, notice = self._describe(event, root, error)
        chosen = [
            webhook
            for webhook in await self.list_webhooks()
            if notice.event in webhook.events and self._may_see(webhook, root)
        ]
        if chosen:
            await asyncio.to_thread(self._insert_notices, chosen, event_id, notice)
            self._is_due.set()

    def _describe(self, event: Event, root: StoredSession, error: WebhookError | None) -> tuple[str, TurnNotice]:
        session = WebhookSession(id=root.id, title=root.title, owner=root.owner, workspace=root.workspace_directory)
        described = TurnNotice(notice="", event="turn.completed", time=now_ms(), session=session)
        replace = msgspec.structs.replace
        match event:
            case LoopCompletedEvent():
                kinds: dict[str, WebhookEvent] = {"completed": "turn.completed", "aborted": "turn.aborted"}
                reason, output = event.termination_reason, event.output[:MAX_NOTICE_TEXT]
                event_id, kind = new_id(), kinds.get(reason, "turn.failed")
                error = error if kind == "turn.failed" else None  # other turns continue after an error, as of a hook
                described = replace(described, event=kind, reason=reason, output=output, error=error)
            case ToolApprovalRequestedEvent():
                event_id = event.approval_id
                approval = WebhookApproval(
                    id=event_id, tool=event.tool_name, description=event.description[:MAX_NOTICE_TEXT]
                )
                described = replace(described, event="approval.requested", approval=approval)
            case _:
                question = msgspec.convert(cast("SessionUpdatedEvent", event).changes["question"], WebhookQuestion)
                event_id = question.id
                described = replace(described, event="question.asked", question=question)
        return event_id, msgspec.convert(self._engine.redact(msgspec.to_builtins(described)), TurnNotice)

    def _may_see(self, webhook: ServerWebhook, root: StoredSession) -> bool:
        if not webhook.user:
            return True
        user = self._users.get(webhook.user)
        requester = Requester.from_user(user) if user is not None else None
        return requester is not None and self._users.access_level(requester, root.id, root.owner) is not None

    def _insert_notices(self, webhooks: Sequence[ServerWebhook], event_id: str, notice: TurnNotice) -> None:
        from outrider.background.webhooks import WebhookNotice

        oldest = f"{now_ms() - DELIVERED_DAYS * 86_400_000:012x}"  # ids begin with the time
        with self._open().begin() as db:
            db.exec_driver_sql("DELETE FROM notices WHERE due IS NULL AND id < ?", (f"{oldest[:8]}-{oldest[8:]}",))
            for webhook in webhooks:
                named = msgspec.structs.replace(notice, notice=f"{event_id}:{webhook.id}")
                body = msgspec.json.encode(named).decode()
                self._outbox().add_notice(db, WebhookNotice(id=named.notice, url=webhook.url, body=body))

    async def _keep_posting(self) -> None:
        while True:
            if self._is_used:
                try:
                    await self._post_due()
                except Exception:  # noqa: BLE001  such as a full disk: the notices are posted later
                    _log.exception("cannot post webhook notices")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_due.wait(), WEBHOOK_POLL_SECONDS)
            self._is_due.clear()

    async def _post_due(self) -> None:
        outbox = await asyncio.to_thread(self._outbox)
        await outbox.post_due(self._limits.webhooks, self._limits.webhook_secret)

    async def _send(self, notice: "WebhookNotice", hosts: Sequence[str], secret: str) -> None:
        """Posts a notice, unless its webhook was removed or its user may not see the session any more. Raises
        ToolFailure if it has to be posted again."""
        from outrider.background.webhooks import post_notice

        webhooks = {webhook.id: webhook for webhook in await self.list_webhooks()}
        webhook = webhooks.get(notice.id.partition(":")[2])
        session_id = msgspec.json.decode(notice.body, type=TurnNotice).session.id
        if webhook is None:
            return
        try:
            root = await self._engine.store.get(session_id)
        except SessionNotFoundError:
            return
        except OutriderError as error:
            raise ToolFailure(f"cannot read its session: {error}") from error
        if self._may_see(webhook, root):
            await post_notice(webhook.url, notice.body, notice.id, hosts, webhook.secret or secret)

    async def list_webhooks(self) -> list[ServerWebhook]:
        added_webhooks = await asyncio.to_thread(self._read_added) if self._is_used else []
        return [*self._configured, *added_webhooks]

    def _read_added(self) -> list[ServerWebhook]:
        with self._open().connect() as db:
            rows = db.exec_driver_sql("SELECT definition FROM webhooks ORDER BY id").all()
        return [msgspec.json.decode(row[0], type=ServerWebhook) for row in rows]

    async def count_pending(self) -> Counter[str]:
        """Returns how many notices of each webhook wait for their receiver."""

        def count() -> Counter[str]:
            with self._open().connect() as db:
                rows = db.exec_driver_sql("SELECT id FROM notices WHERE due IS NOT NULL").all()
            return Counter(row[0].partition(":")[2] for row in rows)

        return await asyncio.to_thread(count) if self._is_used else Counter()

    async def add(self, webhook: ServerWebhook) -> None:
        """Adds a webhook. Raises ConfigurationError if it cannot be used, or if there are too many."""
        self._check(webhook)
        if len(await self.list_webhooks()) >= MAX_WEBHOOKS:
            raise ConfigurationError(f"this server has {MAX_WEBHOOKS} webhooks; remove one first")

        def insert() -> None:
            with self._open().begin() as db:
                definition = msgspec.json.encode(webhook).decode()
                db.exec_driver_sql("INSERT INTO webhooks VALUES (?, ?)", (webhook.id, definition))

        await asyncio.to_thread(insert)

    async def remove(self, webhook_id: str) -> bool:
        """Removes an added webhook with its waiting notices. Returns False if there is no such webhook. Raises
        ConfigurationError for one of the configuration."""
        if any(webhook.id == webhook_id for webhook in self._configured):
            raise ConfigurationError(f"the webhook {webhook_id} is in config.toml; remove it there")

        def delete() -> bool:
            with self._open().begin() as db:
                if not db.exec_driver_sql("DELETE FROM webhooks WHERE id = ?", (webhook_id,)).rowcount:
                    return False
                statement = "DELETE FROM notices WHERE due IS NOT NULL AND substr(id, instr(id, ':') + 1) = ?"
                db.exec_driver_sql(statement, (webhook_id,))
                return True

        return await asyncio.to_thread(delete) if self._is_used else False

    def _check(self, webhook: ServerWebhook) -> None:
        if find_spec("sqlalchemy") is None:
            raise ConfigurationError("webhooks are not installed: pip install 'outrider[background]'")
        from outrider.background.webhooks import check_url, sign_notice

        try:
            check_url(webhook.url)
            sign_notice(webhook.secret, "id", "", 0)
        except ToolFailure as error:
            raise ConfigurationError(f"the webhook {webhook.id}: {error}") from None
        except ValueError:
            raise ConfigurationError(
                f"the webhook {webhook.id}: its secret starts with whsec_, but is not base64"
            ) from None
        if webhook.user and self._users.get(webhook.user) is None:
            raise ConfigurationError(f"the webhook {webhook.id}: there is no user {webhook.user!r}")

    def _outbox(self) -> "WebhookOutbox":
        from outrider.background.webhooks import WebhookOutbox

        return WebhookOutbox(self._open(), "notices", self._send)

    def _open(self) -> "sa.Engine":
        """Opens the file, which contains secrets, on first use."""
        with self._opening:
            if self._database is None:
                from outrider.background.webhooks import open_webhook_file  # lazy: most servers have no webhooks

                self._database = open_webhook_file(self._path, _WEBHOOK_TABLES)
            return self._database
