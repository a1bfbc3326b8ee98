"""Questions about calls: kept in the store, asked once, answered from any front end; the first answer counts."""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from time import monotonic

from outrider.app.approvals.abroad import Abroad
from outrider.app.approvals.grants import LASTING, Grant, holds_here
from outrider.bus import EventBus
from outrider.sessions import faults
from outrider.sessions.records import Approval, ApprovalScope, fingerprint
from outrider.sessions.store import Store
from outrider.types.events import ToolApprovalRequestedEvent, ToolApprovalResultEvent

POLL_SECONDS = 0.5  # for answers that another process puts into the store
STALE_SECONDS = 2.0  # after which it is looked whether another process took one back


class Desk:
    """`attended` says whether anybody is there to ask; with nobody there, ask means no."""

    def __init__(self, store: Store, bus: EventBus, attended: Callable[[], bool], abroad: Abroad | None = None) -> None:
        self._store = store
        self._bus = bus
        self._abroad = abroad or Abroad(bus, ())
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
            faults.reach("FP-mid-approval")
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
