"""Bodies of a conversation, kept once: each request repeats the one before it, and only what is new is written."""

from collections import OrderedDict
from typing import Any, cast

import msgspec

_REMEMBERED = 4  # conversations that go on side by side, such as those of agents that were called together


class Growth(msgspec.Struct, frozen=True, omit_defaults=True):
    """A body, as what it adds to that of exchange number `after`: fields that are the same, lists that go on, and the
    rest."""

    after: int
    same: tuple[str, ...] = ()
    goes_on: dict[str, tuple[int, list[Any]]] = {}
    new: dict[str, Any] = {}

    def upon(self, earlier: dict[str, Any]) -> dict[str, Any]:
        kept = {name: earlier[name] for name in self.same}
        grown = {name: [*earlier[name][:count], *rest] for name, (count, rest) in self.goes_on.items()}
        return kept | grown | self.new


class Bodies:
    """The last bodies that were written, by the numbers of their exchanges."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, dict[str, Any]] = OrderedDict()

    def shrink(self, number: int, body: Any) -> Growth | None:
        """The body as growth of the one that it repeats most of; None when it has to be written whole."""
        if not isinstance(body, dict):
            return None
        given = cast("dict[str, Any]", body)
        found = [(after, _shared(earlier, given)) for after, earlier in self._known.items()]
        after, shared = max(found, key=lambda one: one[1], default=(0, 0))
        growth = _growth(after, self._known[after], given) if shared else None
        if growth is not None:
            del self._known[after]  # the longer one stands for both
        self._known[number] = given
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return growth


def _shared(earlier: dict[str, Any], body: dict[str, Any]) -> int:
    return sum(_agreement(earlier.get(name), value) for name, value in body.items() if isinstance(value, list))


def _growth(after: int, earlier: dict[str, Any], body: dict[str, Any]) -> Growth:
    same = tuple(name for name, value in body.items() if name in earlier and earlier[name] == value)
    rest = {name: value for name, value in body.items() if name not in same}
    counts = {name: _agreement(earlier.get(name), value) for name, value in rest.items()}
    goes_on = {name: (count, rest[name][count:]) for name, count in counts.items() if count}
    return Growth(after, same, goes_on, {name: value for name, value in rest.items() if name not in goes_on})


def _agreement(earlier: Any, value: Any) -> int:
    """How many items two lists have in common at their head."""
    if not isinstance(earlier, list) or not isinstance(value, list):
        return 0
    pairs = zip(cast("list[Any]", earlier), cast("list[Any]", value), strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(earlier), len(value)))  # pyright: ignore
