"""Goes through values of any shape, and through every text in them that may be somebody's."""

import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import cache
from operator import attrgetter, is_
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from outrider.permissions.texts.names import names
from outrider.types.codec import UnknownPart

HIDDEN = "[hidden secret]"
# Fields that hold a secret whatever it looks like; others that sound like it hold names of keys and counts of tokens.
_SECRET_FIELD = re.compile(
    r"^(?:.*[_-])?(?:passw(?:or)?d|passphrase|(?:client_?)?secret|api_?key|access_?(?:key|token)|refresh_?token|private_?key|"
    r"authorization)$",
    re.IGNORECASE,
)
# A name that others point at, or bytes that a provider gets back as they were.
_KEPT_FIELDS = names("id session_id message_id call_id parent_call_id parent_id part_id provider_state type")
_BULKY = 4096
_BULK = re.compile(r"(?:data:[^,\s]{0,200},)?[A-Za-z0-9+/=]{4096,}")  # a picture or the like, in letters
_SHORT = 200
_MOST_REMEMBERED = 1024
_TEXTLESS = frozenset({int, float, bool, NoneType, Decimal})
_NOTHING_TO_HIDE = (None, "")


class Words:
    """What becomes of texts. Names of agents, tools and models, words of states, and what a call gave back come again
    and again: short ones in which nothing has to be hidden are remembered."""

    def __init__(self, hidden: Callable[[str], str]) -> None:
        self._hidden = hidden
        self._clean: set[object] = set(_NOTHING_TO_HIDE)
        self.are_clean = self._clean.issuperset
        """Whether all of these are remembered; raises TypeError where one of them cannot be a text."""

    def hide(self, text: str) -> str:
        """The very text where nothing in it has to be hidden."""
        if text in self._clean or (len(text) > _BULKY and _BULK.fullmatch(text)):
            return text
        hidden = self._hidden(text)
        if hidden != text:
            return hidden
        self.remember(text)
        return text

    def remember(self, clean: str) -> None:
        if len(clean) > _SHORT:
            return
        if len(self._clean) >= _MOST_REMEMBERED:
            self._clean.clear()
            self._clean.update(_NOTHING_TO_HIDE)
        self._clean.add(clean)


Walker = Callable[[Any, Words], Any]


def walked(value: Any, words: Words) -> Any:
    """The very value where nothing in it has to be hidden."""
    return _walker(value.__class__)(value, words)


@cache
def _walker(kind: type[Any]) -> Walker:
    if issubclass(kind, msgspec.Struct):
        return _struct_walker(kind)
    known: dict[type[Any], Walker] = {str: _text, dict: _mapping, list: _items, tuple: _items}
    for base in kind.__mro__:
        if base in known:
            return known[base]
    if kind is UnknownPart or (hasattr(kind, "to_dict") and hasattr(kind, "from_dict")):  # or a part of the user's own
        return _made
    return _as_it_is


def _as_it_is(value: Any, _: Words) -> Any:
    return value


def _text(value: str, words: Words) -> str:
    return words.hide(value)


def _items(value: list[Any] | tuple[Any, ...], words: Words) -> Any:
    clean = [walked(item, words) for item in value]
    if len(clean) == len(value) and all(map(is_, clean, value)):
        return value
    return tuple(clean) if isinstance(value, tuple) else clean


def _mapping(value: dict[Any, Any], words: Words) -> dict[Any, Any]:
    if words.are_clean(value) and _TEXTLESS.issuperset(map(type, value.values())):
        return value
    clean: dict[Any, Any] = {}
    same = True
    for key, item in value.items():
        name = words.hide(key) if isinstance(key, str) else key
        clean[name] = held = _field(key, item, words)
        same = same and name is key and held is item
    return value if same else clean


def _field(name: Any, value: Any, words: Words) -> Any:
    if isinstance(name, str) and isinstance(value, str) and value and _SECRET_FIELD.match(name):
        return HIDDEN
    return walked(value, words)


def _made(value: Any, words: Words) -> Any:
    raw = value.to_dict()
    clean = walked(raw, words)
    if clean is raw:
        return value
    return UnknownPart(clean) if isinstance(value, UnknownPart) else value.from_dict(clean)


def _struct_walker(kind: type[msgspec.Struct]) -> Walker:
    told = _told_fields(kind)
    texts = [name for name, held in told.items() if _is_text(held)]
    others = [name for name in told if name not in texts]
    found = attrgetter(*texts, texts[0]) if texts else _no_texts  # of two names or more it always makes a tuple

    def walk(value: msgspec.Struct, words: Words) -> msgspec.Struct:
        try:
            left = others if words.are_clean(found(value)) else told
        except TypeError:  # where a text should be, there is something that holds others
            left = told
        return _with_fields(value, left, words) if left else value

    return walk


def _with_fields(value: msgspec.Struct, names: Iterable[str], words: Words) -> msgspec.Struct:
    changed: dict[str, Any] = {}
    for name in names:
        held = getattr(value, name)
        if held and (clean := _walker(held.__class__)(held, words)) is not held:
            changed[name] = clean
    return msgspec.structs.replace(value, **changed) if changed else value


def _told_fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields that may hold text of anybody: not names of things, numbers, times, nor words of a fixed list."""
    try:
        held = {field.name: field.type for field in msgspec.structs.fields(kind)}
    except NameError:  # a user's class that is annotated with names of elsewhere
        held = dict.fromkeys(kind.__struct_fields__, Any)
    return {name: held[name] for name in held if name not in _KEPT_FIELDS and not _is_textless(held[name])}


def _no_texts(_: Any) -> tuple[Any, ...]:
    return ()


def _is_text(kind: Any) -> bool:
    if get_origin(kind) in (Union, UnionType):
        return set(get_args(kind)) == {str, NoneType}
    return kind is str


def _is_textless(kind: Any, within: tuple[Any, ...] = ()) -> bool:
    if get_origin(kind) in (Union, UnionType):
        return all(_is_textless(option, within) for option in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind) if kind not in within else ()
        return all(field.name in _KEPT_FIELDS or _is_textless(field.type, (*within, kind)) for field in fields)
    return kind in _TEXTLESS or get_origin(kind) is Literal
