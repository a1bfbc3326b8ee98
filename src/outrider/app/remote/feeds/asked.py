"""What models on a server ask: nobody keeps it, so after a break it is asked for."""

import msgspec

from outrider.app.inputs.questions import AskedQuestion
from outrider.app.remote.client import Client
from outrider.bus import EventBus
from outrider.types.events import Event, SessionUpdatedEvent


class OpenThere:
    """The questions that wait, as far as was heard; by the session that is followed."""

    def __init__(self, client: Client, bus: EventBus) -> None:
        self._client = client
        self._bus = bus
        self._known: dict[str, dict[str, str]] = {}

    def hear(self, followed: str, event: Event) -> None:
        """Of a session that is followed, or of one below it."""
        if not isinstance(event, SessionUpdatedEvent):
            return
        known = self._known.setdefault(followed, {})
        if question := event.changes.get("question"):
            known[question["id"]] = event.session_id
        elif settled := event.changes.get("settled"):
            known.pop(settled, None)

    def forget(self, followed: str) -> None:
        self._known.pop(followed, None)

    async def catch_up(self, followed: str) -> None:
        """Tell of what was asked and settled meanwhile, as when it happened."""
        path = "/api/questions"
        there: list[AskedQuestion] = await self._client.get(path, list[AskedQuestion], session_id=followed)
        known = self._known.get(followed, {})
        settled = known.keys() - {question.id for question in there}
        events = [SessionUpdatedEvent(session_id=known[gone], changes={"settled": gone}) for gone in settled]
        for question in there:
            if question.id not in known:
                changes = {"question": msgspec.to_builtins(question)}
                events.append(
                    SessionUpdatedEvent(session_id=question.session_id, agent_name=question.agent, changes=changes)
                )
        for event in events:
            self.hear(followed, event)
            self._bus.publish(event)
