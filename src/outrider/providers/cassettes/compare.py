"""Whether two bodies mean the same, and if not, where they first differ."""

import re
from collections.abc import Collection
from typing import Any, cast

_SHOWN = 120
_INDEX = re.compile(r"\[\d+\]")
_OWN_ID = re.compile(
    r"[0-9a-f]{8}(?P<dash>-?)[0-9a-f]{4}(?P=dash)7[0-9a-f]{3}(?P=dash)[89ab][0-9a-f]{3}(?P=dash)[0-9a-f]{12}"
)


def first_difference(recorded: Any, sent: Any, ignore: Collection[str] = (), path: str = "") -> str | None:
    """In words, or None. Order of fields and spacing mean nothing. `ignore` names fields by their dotted path,
    without positions: "metadata.user_id", "messages.content.id"."""
    if _INDEX.sub("", path) in ignore:
        return None
    if isinstance(recorded, dict) and isinstance(sent, dict):
        return _in_fields(cast("dict[str, Any]", recorded), cast("dict[str, Any]", sent), ignore, path)
    if isinstance(recorded, list) and isinstance(sent, list):
        return _in_items(cast("list[Any]", recorded), cast("list[Any]", sent), ignore, path)
    same_kind = isinstance(recorded, bool) == isinstance(sent, bool)  # True is 1 in Python, not in JSON
    return None if same_kind and recorded == sent else f"{path or 'body'}: {_words(recorded, sent)}"


def without_own_ids(body: Any) -> Any:
    """The body with every id of ours (a UUID of version 7) replaced by the number of its first appearance: ids are new
    in every run, and mean only that what has the same one belongs together."""
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return numbers.setdefault(found[0], f"<id {len(numbers) + 1}>")

    def walk(value: Any) -> Any:
        match value:
            case str():
                return _OWN_ID.sub(number, value)
            case [*items]:
                return [walk(item) for item in items]
            case {**fields}:
                return {name: walk(fields[name]) for name in sorted(fields)}
            case _:
                return value

    return walk(body)


def _in_fields(recorded: dict[str, Any], sent: dict[str, Any], ignore: Collection[str], path: str) -> str | None:
    for name in [*recorded, *(name for name in sent if name not in recorded)]:
        place = f"{path}.{name}" if path else name
        if _INDEX.sub("", place) in ignore:
            continue
        if name not in sent:
            return f"{place}: recorded {_shown(recorded[name])}, not sent"
        if name not in recorded:
            return f"{place}: not recorded, sent {_shown(sent[name])}"
        if found := first_difference(recorded[name], sent[name], ignore, place):
            return found
    return None


def _in_items(recorded: list[Any], sent: list[Any], ignore: Collection[str], path: str) -> str | None:
    for position, (first, second) in enumerate(zip(recorded, sent, strict=False)):
        if found := first_difference(first, second, ignore, f"{path}[{position}]"):
            return found
    if len(recorded) != len(sent):
        return f"{path or 'body'}: recorded {len(recorded)} items, sent {len(sent)}"
    return None


def _words(recorded: Any, sent: Any) -> str:
    """Long texts are shown from where they part."""
    if not (isinstance(recorded, str) and isinstance(sent, str)):
        return f"recorded {_shown(recorded)}, sent {_shown(sent)}"
    pairs = enumerate(zip(recorded, sent, strict=False))
    place = next((at for at, (a, b) in pairs if a != b), min(len(recorded), len(sent)))
    if place < _SHOWN // 2:
        return f"recorded {_shown(recorded)}, sent {_shown(sent)}"
    start = place - 20
    return f"from character {place}: recorded …{_shown(recorded[start:])}, sent …{_shown(sent[start:])}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
