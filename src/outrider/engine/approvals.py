"""Questions about calls: kept in the store, asked once, answered from any front end; the first answer counts."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from time import monotonic
from typing import Any

import msgspec
from msgspec.structs import replace

from outrider.engine.approval_grants import LASTING, Grant, holds_here
from outrider.errors import NotFoundError
from outrider.event_bus import EventBus
from outrider.models.peers import peers_among, tell_peer
from outrider.providers.response_json import decoded
from outrider.sessions import failpoints as faults
from outrider.sessions.records import Approval, ApprovalScope, fingerprint
from outrider.sessions.store import Store
from outrider.types.agents import Provider
from outrider.types.events import LoopCompletedEvent, ToolApprovalRequestedEvent, ToolApprovalResultEvent

_read = msgspec.json.Decoder(Approval).decode


class RemoteApprovals:
    """They are kept where the call would run, which is also where the first answer counts; here they are only known as
    long as the turn lasts that waits for them."""

    def __init__(self, bus: EventBus, providers: Iterable[Provider]) -> None:
        self._bus = bus
        self._peers = peers_among(providers)
        self._open: dict[str, tuple[Approval, str]] = {}
        self._unsubscribe = self._listen() if self._peers else ()

    def close(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()

    def __contains__(self, approval_id: object) -> bool:
        return approval_id in self._open

    def waiting(self, session_id: str | None = None) -> list[Approval]:
        """Oldest first; of one session, or of all."""
        return [asked for asked, _ in self._open.values() if session_id in (None, asked.session_id)]

    async def answer(self, approval_id: str, **answer: Any) -> Approval:
        """What the server says that holds now: an answer that was given there before counts."""
        asked, server = self._open[approval_id]
        try:
            raw = await tell_peer(self._peers[server], f"/api/approvals/{approval_id}", answer)
        except NotFoundError:
            if approval_id in self._open:
                self._drop(approval_id)
            raise
        self._open.pop(approval_id, None)
        return replace(decoded(_read, raw), session_id=asked.session_id)

    def _listen(self) -> tuple[Any, ...]:
        return (
            self._bus.subscribe(ToolApprovalRequestedEvent, self._asked),
            self._bus.subscribe(ToolApprovalResultEvent, self._settled),
            self._bus.subscribe(LoopCompletedEvent, self._ended),
        )

    def _asked(self, event: ToolApprovalRequestedEvent) -> None:
        if event.server in self._peers:
            asked = Approval(
                session_id=event.session_id,
                call_id=event.call_id,
                tool=event.tool_name,
                input=event.tool_input,
                id=event.approval_id,
                description=event.description,
                offers=event.offers,
            )
            self._open[event.approval_id] = asked, event.server

    def _settled(self, event: ToolApprovalResultEvent) -> None:
        self._open.pop(event.approval_id, None)

    def _ended(self, event: LoopCompletedEvent) -> None:
        for asked in self.waiting(event.session_id):
            self._drop(asked.id)

    def _drop(self, approval_id: str) -> None:
        """Nobody needs an answer any more, and whoever shows the question hears of it."""
        asked, _ = self._open.pop(approval_id)
        self._bus.publish(
            ToolApprovalResultEvent(
                session_id=asked.session_id,
                call_id=asked.call_id,
                tool_name=asked.tool,
                approved=False,
                approval_id=asked.id,
            )
        )


POLL_SECONDS = 0.5  # for answers that another process puts into the store
STALE_SECONDS = 2.0  # after which it is looked whether another process took one back


class ApprovalQueue:
    """`attended` says whether anybody is there to ask; with nobody there, ask means no."""

    def __init__(
        self, store: Store, bus: EventBus, attended: Callable[[], bool], abroad: RemoteApprovals | None = None
    ) -> None:
        self._store = store
        self._bus = bus
        self._abroad = abroad or RemoteApprovals(bus, ())
        self.attended = attended
        self._waiting: dict[str, asyncio.Event] = {}
        self._lasting: dict[str, Approval] = {}
        self._loaded = 0.0

    async def load(self) -> None:
        """Answers that still hold: those for good, and those for sessions that may go on."""
        self._loaded = monotonic()
        for approval in await self._store.approvals():
            self._remember(approval)

    async def ask(self, question: Approval, agent: str, parent_call_id: str = "") -> tuple[bool, str]:
        """Wait for an answer, however long it takes; yes or no, and a word for the model."""
        asked = await self._store.ask(question)
        if asked.answer == "open":
            self._bus.publish(
                ToolApprovalRequestedEvent(
                    session_id=asked.session_id,
                    agent_name=agent,
                    call_id=asked.call_id,
                    parent_call_id=parent_call_id,
                    tool_name=asked.tool,
                    description=asked.description,
                    approval_id=asked.id,
                    tool_input=asked.input,
                    offers=asked.offers,
                    can_last=asked.can_last,
                )
            )
            faults.failpoint("FP-mid-approval")
            asked = await self._answered(asked)
        allowed = asked.answer == "allowed" and asked.fingerprint == fingerprint(question.tool, question.input)
        return allowed, asked.words

    async def answer(
        self, approval_id: str, *, allow: bool, scope: ApprovalScope = "once", by: str = "", words: str = ""
    ) -> Approval:
        """The first answer counts; a later one gets it back. A yes for longer is one for once where no rule says what
        it would cover."""
        if approval_id in self._abroad:
            return await self._abroad.answer(approval_id, allow=allow, scope=scope, words=words)
        if scope in LASTING and not (await self._asked(approval_id)).can_last:
            scope = "once"
        answer = "allowed" if allow else "denied"
        approval = await self._store.answer(approval_id, answer, scope=scope, by=by, words=words)
        self._remember(approval)
        waiting = self._waiting.get(approval_id)
        if waiting is not None:
            waiting.set()
        return approval

    async def waiting(self, session_id: str | None = None) -> list[Approval]:
        """What nobody has answered yet, here and where agents of other servers work for ours."""
        return [*await self._store.approvals(session_id, only_open=True), *self._abroad.waiting(session_id)]

    def close(self) -> None:
        self._abroad.close()

    async def withdraw(self, question: Approval) -> None:
        """The call that it is about was given up: nobody is asked any more."""
        asked = await self._store.ask(question)
        if asked.answer == "open":
            self._tell(await self._store.answer(asked.id, "revoked"))

    async def revoke(self, approval_id: str) -> Approval:
        self._lasting.pop(approval_id, None)
        return await self._store.answer(approval_id, "revoked")

    async def renew(self) -> None:
        """Somebody may have taken an answer back in another process."""
        if self._lasting and monotonic() - self._loaded > STALE_SECONDS:
            await self.load()

    def granted(self, sessions: Collection[str], workspace: str) -> Grant:
        """What answers stand for, here and now: in these sessions, in this workspace."""
        held = [approval for approval in self._lasting.values() if holds_here(approval, sessions, workspace)]
        return Grant.of(held)

    async def _asked(self, approval_id: str) -> Approval:
        found = (approval for approval in await self._store.approvals() if approval.id == approval_id)
        return next(found, Approval(session_id="", call_id="", tool=""))

    async def _answered(self, asked: Approval) -> Approval:
        answered = self._waiting.setdefault(asked.id, asyncio.Event())
        try:
            while asked.answer == "open":
                await _heard_or_due(answered)
                known = await self._store.approvals(asked.session_id)
                asked = next((approval for approval in known if approval.id == asked.id), asked)
        finally:
            self._waiting.pop(asked.id, None)
        self._remember(asked)
        self._tell(asked)
        return asked

    def _tell(self, asked: Approval) -> None:
        self._bus.publish(
            ToolApprovalResultEvent(
                session_id=asked.session_id,
                call_id=asked.call_id,
                tool_name=asked.tool,
                approved=asked.answer == "allowed",
                approval_id=asked.id,
                scope=asked.scope,
                answered_by=asked.answered_by,
            )
        )

    def _remember(self, approval: Approval) -> None:
        if approval.answer == "allowed" and approval.scope in LASTING:
            self._lasting[approval.id] = approval
        else:
            self._lasting.pop(approval.id, None)


async def _heard_or_due(answered: asyncio.Event) -> None:
    """An answer was given here, or it is time to look for one from elsewhere."""
    with suppress(TimeoutError):
        async with asyncio.timeout(POLL_SECONDS):
            await answered.wait()
