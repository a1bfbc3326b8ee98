"""`/fork`: a copy of the session, whole or up to something that was said, which can then be said in other words."""

from collections.abc import Sequence
from itertools import pairwise
from time import time

import msgspec

from outrider.tui.commands.sessions import open_session
from outrider.tui.commands.stage import Stage
from outrider.tui.conversation.entries import Said
from outrider.tui.conversation.reading import entries_of
from outrider.tui.rendering.words import age
from outrider.tui.widgets.picker import Item
from outrider.types.messages import Message

_WHOLE = "whole"


class Place(msgspec.Struct, frozen=True):
    """Something that was said, by the message that came before it: a copy ends there."""

    before: str
    text: str
    when: int


async def fork(stage: Stage, title: str) -> None:
    helm = stage.helm
    if helm.session_id not in helm.engine.live:
        stage.tell("there is nothing to fork yet", "warn")
        return
    places = {place.before: place for place in places_of(await helm.transcript())}
    chosen = await stage.pick("Fork: what the copy holds", _items(list(places.values()))) if places else _WHOLE
    if chosen is None:
        return
    place = places.get(chosen)
    made = await helm.archive.fork(helm.session_id, at=place.before if place else None, title=title or None)
    await open_session(stage, made.id)
    stage.tell("a fork: the session that it came from stays as it is", "good")
    if place is not None:
        stage.offer(place.text)


def places_of(messages: Sequence[Message]) -> list[Place]:
    """Newest first. A copy up to the first words would be empty, and is a new session."""
    found: list[Place] = []
    for before, message in pairwise(messages):
        said = next((entry for entry in entries_of(message) if isinstance(entry, Said)), None)
        if message.role == "user" and said is not None:
            found.append(Place(before.id, said.text, message.time.created if message.time else 0))
    return found[::-1]


def _items(places: Sequence[Place]) -> list[Item]:
    now = time()
    until = [Item(place.before, f"all before: {place.text}", age(max(now - place.when / 1000, 0))) for place in places]
    return [Item(_WHOLE, "everything so far"), *until]
