"""Hides secrets in text, at one place: what looks like a key, and the values that somebody said are secret."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import cache, lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin
from urllib.parse import quote, quote_plus

import msgspec

from outrider.permissions.texts.formats import SHORTEST, Spans, marked_in, spans_in
from outrider.permissions.texts.names import names
from outrider.permissions.texts.unfinished import is_long_word, open_at
from outrider.types.codec import UnknownPart
from outrider.types.parts import PartBase

HIDDEN = "[hidden secret]"
Hide = Callable[[str], str]
Walker = Callable[[Any, Hide], Any]
_SHORTEST_WORD = 16  # one of letters alone is a word of the language below this length
_SHORTEST_BEGINNING = 4
_SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:key|token|secret|password|passwd|pwd|auth|credentials?|cookie|signature|private|dsn|bearer)s?(?:$|[_-])|"
    r"apikey|api_?key|authorization|access_?key|connection_?string",
    re.IGNORECASE,
)
_HARMLESS_NAMES = re.compile(r"^(?:.*_)?(?:PUBLIC_KEY|KEYBOARD.*|TOKENIZERS.*|SSH_AUTH_SOCK|XAUTHORITY|MAX_TOKENS)$")
# Fields that hold a secret whatever it looks like; others that sound like it hold names of keys and counts of tokens.
_SECRET_FIELD = re.compile(
    r"^(?:.*[_-])?(?:passw(?:or)?d|passphrase|(?:client_?)?secret|api_?key|access_?(?:key|token)|refresh_?token|private_?key|"
    r"authorization)$",
    re.IGNORECASE,
)
# A name that others point at, or bytes that a provider gets back as they were.
_KEPT_FIELDS = names("id session_id message_id call_id parent_call_id parent_id part_id provider_state type")
_BULKY = 4096
_NAME_LENGTH = 64
_MOST_NAMES = 4096
_CLEAN_PARTS = 512
_TEXTLESS = (int, float, bool, NoneType, Decimal)
_BULK = re.compile(r"(?:data:[^,\s]{0,200},)?[A-Za-z0-9+/=]{4096,}")  # a picture or the like, in letters
# As `html.escape` does it, whose module brings the names of 2,000 characters along.
_IN_PAGES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_PATH = re.compile(r"^(?:~|\.{1,2})?(?:/[\w.@+-]{0,40})+$")


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a variable, header or field of this name holds something that nobody else may know."""
    return _SECRET_NAME.search(name) is not None and not _HARMLESS_NAMES.match(name.upper())


def secret_values(named: Mapping[str, str]) -> list[str]:
    """The secrets among variables or headers, longest first so that none leaves a rest of another."""
    found = {named[name].strip() for name in named if is_secret_name(name)}
    return sorted(filter(_is_telling, found), key=len, reverse=True)


def _is_telling(value: str) -> bool:
    """Whether hiding the value hides a secret rather than a word, a path or a switch."""
    if len(value) < SHORTEST or _PATH.match(value):
        return False
    return len(value) >= _SHORTEST_WORD or not value.isalpha()


class Redactor:
    """Knows the secrets of one engine; give it every text before it is logged, traced, told or stored."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if len(secret) >= SHORTEST for form in _written(secret)}
        self.known = sorted(forms, key=len, reverse=True)
        self._clean: dict[int, PartBase] = {}
        self._words = _words_of(tuple(self.known))

    @classmethod
    def of_environment(cls, environment: Mapping[str, str], more: Iterable[str] = ()) -> "Redactor":
        return cls([*secret_values(environment), *more])

    def spans(self, text: str) -> Spans:
        """Where secrets stand: in order, and none touching another."""
        return self._words.spans(text)

    def spans_of_bytes(self, raw: bytes) -> Spans:
        """Where secrets stand in output that may be any bytes."""
        found = spans_in(raw.decode("latin-1"))
        for secret in self.known:
            at = raw.find(form := secret.encode(errors="replace"))
            while at >= 0:
                found.append((at, at + len(form)))
                at = raw.find(form, at + len(form))
        return _merged(found)

    def text(self, text: str) -> str:
        return _text(text, self._words.__getitem__)

    def open_at(self, text: str) -> int:
        """Where a secret may have begun that further text would complete."""
        begun = open_at(text)
        for secret in self.known:
            at = text.find(secret[:_SHORTEST_BEGINNING], max(0, len(text) - len(secret)))
            while 0 <= at < begun:
                if secret.startswith(text[at:]):
                    begun = at
                at = text.find(secret[:_SHORTEST_BEGINNING], at + 1)
        return begun

    def is_plain(self, text: str) -> bool:
        """Whether nothing in the text is a secret, nor the beginning of one; quickly, for the many texts that are."""
        if marked_in(text) or is_long_word(text):
            return False
        return not any(secret[:_SHORTEST_BEGINNING] in text for secret in self.known)

    def so_far(self, text: str) -> str:
        """For a text that goes on: what may be the beginning of a secret is left for later."""
        return self.text(text[: self.open_at(text)])

    def value(self, value: Any) -> Any:
        """The value with every text in it redacted: the same object where there was nothing to hide."""
        clean = _walked(value, self._words.__getitem__)
        if clean is value and isinstance(value, PartBase):
            self._clean[id(value)] = value
            while len(self._clean) > _CLEAN_PARTS:
                self._clean.pop(next(iter(self._clean)), None)
        return clean

    def is_clean(self, part: object) -> bool:
        """Whether this very part was lately found to have nothing to hide: what is stored is told next."""
        return self._clean.get(id(part)) is part

    def draft(self, value: Any) -> Any:
        return _walked(value, self.so_far)


def hide_patterns(text: str) -> str:
    """Hides what looks like a secret or is called one, whoever's it is."""
    return _hidden(text, _merged(spans_in(text)))


def _hidden(text: str, spans: Spans) -> str:
    if not spans:
        return text
    pieces, at = list[str](), 0
    for start, end in spans:
        pieces += (text[at:start], HIDDEN)
        at = end
    return "".join((*pieces, text[at:]))


def _merged(spans: Spans) -> Spans:
    merged: Spans = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _written(secret: str) -> Iterable[str]:
    """A secret as it stands in JSON, in addresses, in pages, and line by line where it has several."""
    lines = [line for line in secret.splitlines() if len(line) >= _SHORTEST_WORD] if "\n" in secret else []
    for form in (secret, *lines):
        yield from (form, json.dumps(form)[1:-1], json.dumps(form, ensure_ascii=False)[1:-1])
        yield from (quote(form, safe=""), quote(form), quote_plus(form), form.translate(_IN_PAGES))


class _Words(dict[str, str]):
    """What becomes of a text. Names of agents, tools and models, and words of states, come with every event: those are
    remembered."""

    def __init__(self, known: tuple[str, ...]) -> None:
        super().__init__()
        self._pattern = re.compile("|".join(map(re.escape, known))) if known else None

    def spans(self, text: str) -> Spans:
        found = spans_in(text)
        if self._pattern is not None:
            found += (match.span() for match in self._pattern.finditer(text))
        return _merged(found) if found else found

    def __missing__(self, text: str) -> str:
        clean = _hidden(text, self.spans(text))
        if len(text) <= _NAME_LENGTH:
            if len(self) >= _MOST_NAMES:
                self.clear()
            self[text] = clean
        return clean


@lru_cache(maxsize=4)
def _words_of(known: tuple[str, ...]) -> _Words:
    """Shared by all who know the same secrets: a program that runs agents again and again learns its words once."""
    return _Words(known)


def _walked(value: Any, hide: Hide) -> Any:
    """The very value where nothing in it has to be hidden."""
    return _walker(value.__class__)(value, hide)


@cache
def _walker(kind: type[Any]) -> Walker:
    known: dict[type[Any], Walker] = {str: _text, dict: _mapping, list: _items, tuple: _items, msgspec.Struct: _struct}
    for base in kind.__mro__:
        if base in known:
            return known[base]
    if kind is UnknownPart or (hasattr(kind, "to_dict") and hasattr(kind, "from_dict")):  # or a part of the user's own
        return _made
    return _as_it_is


def _as_it_is(value: Any, _: Hide) -> Any:
    return value


def _text(value: str, hide: Hide) -> str:
    if len(value) > _BULKY and _BULK.fullmatch(value):
        return value
    clean = hide(value)
    return value if clean == value else clean  # what is remembered may be another object


def _items(value: list[Any] | tuple[Any, ...], hide: Hide) -> Any:
    clean = [_walked(item, hide) for item in value]
    if all(new is old for new, old in zip(clean, value, strict=True)):
        return value
    return tuple(clean) if isinstance(value, tuple) else clean


def _mapping(value: dict[Any, Any], hide: Hide) -> dict[Any, Any]:
    if not value:
        return value
    clean = {hide(key) if isinstance(key, str) else key: _field(key, item, hide) for key, item in value.items()}
    same = len(clean) == len(value) and all(clean.get(key, _mapping) is item for key, item in value.items())
    return value if same else clean


def _field(name: Any, value: Any, hide: Hide) -> Any:
    if isinstance(name, str) and isinstance(value, str) and value and _SECRET_FIELD.match(name):
        return HIDDEN
    return _walked(value, hide)


def _made(value: Any, hide: Hide) -> Any:
    raw = value.to_dict()
    clean = _walked(raw, hide)
    if clean is raw:
        return value
    return UnknownPart(clean) if isinstance(value, UnknownPart) else value.from_dict(clean)


def _struct(value: msgspec.Struct, hide: Hide) -> msgspec.Struct:
    changed: dict[str, Any] = {}
    for name in _told_fields(value.__class__):
        held = getattr(value, name)
        if held and (clean := _walker(held.__class__)(held, hide)) is not held:
            changed[name] = clean
    return msgspec.structs.replace(value, **changed) if changed else value


@cache
def _told_fields(cls: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields that may hold text of anybody: not names of things, numbers, times, nor words of a fixed list."""
    try:
        kinds = {field.name: field.type for field in msgspec.structs.fields(cls)}
    except NameError:  # a user's class that is annotated with names of elsewhere
        kinds = dict.fromkeys(cls.__struct_fields__, Any)
    return tuple(name for name, kind in kinds.items() if name not in _KEPT_FIELDS and not _is_textless(kind))


def _is_textless(kind: Any, within: tuple[Any, ...] = ()) -> bool:
    if get_origin(kind) in (Union, UnionType):
        return all(_is_textless(option, within) for option in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind) if kind not in within else ()
        return all(field.name in _KEPT_FIELDS or _is_textless(field.type, (*within, kind)) for field in fields)
    return kind in _TEXTLESS or get_origin(kind) is Literal
