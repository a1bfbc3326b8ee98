"""Recorded exchanges joined to conversations: each request continues from the answer before it."""

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from outrider import TextPart
from tests.recorded.api_adapters import SPOKEN
from tests.recorded.exchanges import Exchange, corpus


class Conversation:
    """Turns of a user; in each, a question and the steps before its answer. At least one call was made."""

    def __init__(self, turns: list[list[Exchange]]) -> None:
        self.turns = turns
        self.exchanges = [exchange for turn in turns for exchange in turn]
        self.id = self.exchanges[-1]["id"]
        self.first = self.exchanges[0]

    @property
    def api(self) -> str:
        return self.first["api"].partition(":")[0]

    def steps(self) -> Iterator[tuple[Exchange, Exchange]]:
        """An answer, and the exchange whose request carried the results of its calls."""
        for turn in self.turns:
            yield from pairwise(turn)


class Reel:
    """Splits a corpus into conversations for a replay server, without unrelated requests of the recorded client."""

    def __init__(self, conversations: list[Conversation]) -> None:
        self.meta: dict[str, Any] = {}
        self.conversations: dict[str, list[tuple[str, int]]] = {}
        self._cut: dict[tuple[str, int], Exchange] = {}
        for conversation in conversations:
            self.conversations[conversation.id] = [
                (conversation.id, number) for number in range(len(conversation.exchanges))
            ]
            for number, exchange in enumerate(conversation.exchanges):
                self._cut[conversation.id, number] = exchange | {"conversation_id": conversation.id, "seq": number}

    def get(self, place: tuple[str, int]) -> Exchange:
        return self._cut[place]


@cache
def conversations(shared: Path) -> list[Conversation]:
    """Every path through the recordings from a first question to a last answer with a call on its way."""
    found = corpus(shared)
    links: dict[str, list[str]] = {}
    for one in found.meta.values():
        if one.get("follows_kind") in ("tool", "text") and _same_api(one, found.meta[one["follows"]]):
            links.setdefault(one["follows"], []).append(one["id"])
    going_on = {name: [one for one in names if one not in _later_turns(shared, names)] for name, names in links.items()}
    for names in links.values():
        for name, answered in _later_turns(shared, names).items():
            going_on.setdefault(answered, []).append(name)
    later = {name for names in going_on.values() for name in names}
    paths = [path for name in found.meta if name not in later for path in _paths([name], going_on)]
    conversation = [_conversation(shared, path) for path in paths]
    return [one for one in conversation if any(len(turn) > 1 for turn in one.turns)]


def _later_turns(shared: Path, names: list[str]) -> dict[str, str]:
    """Of requests with the results of one answer: those that continue from the answer to another of them."""
    if len(names) < 2:
        return {}
    several = [corpus(shared).get(name) for name in names]
    return {
        later["id"]: earlier["id"]
        for later in several
        for earlier in several
        if later is not earlier and earlier["expected"]["text"] and earlier["expected"]["text"] == _last_text(later)
    }


def _last_text(exchange: Exchange) -> str:
    """The text of the last answer in a request, if the user spoke after it."""
    prompt = list(SPOKEN[exchange["api"].partition(":")[0]].request(exchange).prompt)
    if len(prompt) < 2 or any(part.type == "tool_result" for part in prompt[-1].content):
        return ""
    return "".join(part.text for part in prompt[-2].content if isinstance(part, TextPart))


def _same_api(one: Exchange, other: Exchange) -> bool:
    """A conversation that continues with another vendor is another one: its first answers are history there."""
    return one["api"].partition(":")[0] == other["api"].partition(":")[0]


def _paths(path: list[str], going_on: dict[str, list[str]]) -> Iterator[list[str]]:
    following = going_on.get(path[-1])
    if not following:
        yield path
    for name in following or ():
        yield from _paths([*path, name], going_on)


def _conversation(shared: Path, path: list[str]) -> Conversation:
    turns: list[list[Exchange]] = []
    for name in path:
        exchange = corpus(shared).get(name)
        if turns and exchange["follows_kind"] == "tool" and exchange["follows"] == turns[-1][-1]["id"]:
            turns[-1].append(exchange)
        else:
            turns.append([exchange])
    return Conversation(turns)
