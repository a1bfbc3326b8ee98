"""Questions about calls on other servers, where an agent works for one of ours: heard here, and answered there."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from outrider.app.models.peers import peers_among, tell_peer
from outrider.bus import EventBus
from outrider.errors import NotFoundError
from outrider.providers.reading import decoded
from outrider.sessions.records import Approval
from outrider.types.agents import Provider
from outrider.types.events import LoopCompletedEvent, ToolApprovalRequestedEvent, ToolApprovalResultEvent

_read = msgspec.json.Decoder(Approval).decode


class Abroad:
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
