"""Hides secrets in text, at one place: what looks like a key, and the values that somebody said are secret."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import cache, lru_cache
from operator import attrgetter, is_
from re import Pattern
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin
from urllib.parse import quote, quote_plus

import msgspec

from outrider.permissions.redaction.secret_patterns import CERTAIN, FORMATS, SHORTEST, Spans, marked_in, names, spans_in
from outrider.types.codec import UnknownPart
from outrider.types.parts import PartBase

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


class CleanTextCache:
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


Walker = Callable[[Any, CleanTextCache], Any]


def walked(value: Any, words: CleanTextCache) -> Any:
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


def _as_it_is(value: Any, _: CleanTextCache) -> Any:
    return value


def _text(value: str, words: CleanTextCache) -> str:
    return words.hide(value)


def _items(value: list[Any] | tuple[Any, ...], words: CleanTextCache) -> Any:
    clean = [walked(item, words) for item in value]
    if len(clean) == len(value) and all(map(is_, clean, value)):
        return value
    return tuple(clean) if isinstance(value, tuple) else clean


def _mapping(value: dict[Any, Any], words: CleanTextCache) -> dict[Any, Any]:
    if words.are_clean(value) and _TEXTLESS.issuperset(map(type, value.values())):
        return value
    clean: dict[Any, Any] = {}
    same = True
    for key, item in value.items():
        name = words.hide(key) if isinstance(key, str) else key
        clean[name] = held = _field(key, item, words)
        same = same and name is key and held is item
    return value if same else clean


def _field(name: Any, value: Any, words: CleanTextCache) -> Any:
    if isinstance(name, str) and isinstance(value, str) and value and _SECRET_FIELD.match(name):
        return HIDDEN
    return walked(value, words)


def _made(value: Any, words: CleanTextCache) -> Any:
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

    def walk(value: msgspec.Struct, words: CleanTextCache) -> msgspec.Struct:
        try:
            left = others if words.are_clean(found(value)) else told
        except TypeError:  # where a text should be, there is something that holds others
            left = told
        return _with_fields(value, left, words) if left else value

    return walk


def _with_fields(value: msgspec.Struct, names: Iterable[str], words: CleanTextCache) -> msgspec.Struct:
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


LONGEST_HELD = 8_192
_PEM_BEGIN, _PEM_END = "-----BEGIN ", "-----END "
_LONG_WORD = 20  # in a word of this length a key may begin without a mark
_ALL_WORD = re.compile(rf"[\w.+/=:~%-]{{{_LONG_WORD}}}")


def open_at(text: str) -> int:
    """From here on, more text could make a secret of it; the length of the text where nothing has begun."""
    start = max(0, len(text) - LONGEST_HELD)
    tail = text[start:]
    begun = tail.rfind(_PEM_BEGIN)
    if begun >= 0 and _PEM_END not in tail[begun:]:
        return start + begun
    word = _last_word(tail)
    if is_long_word(tail) or _key().search(tail, word):
        return start + word
    opened = _open_word().search(tail)
    return len(text) if opened is None else start + opened.start("rest")


def is_long_word(text: str) -> bool:
    """Whether the text ends in a word so long that it may be a key."""
    return len(text) >= _LONG_WORD and _ALL_WORD.fullmatch(text, len(text) - _LONG_WORD) is not None


def _last_word(text: str) -> int:
    """Where the letters and signs of which keys are made begin, at the end of a text."""
    at = len(text)
    while at and (text[at - 1].isalnum() or text[at - 1] in "_.+/=:~%-"):
        at -= 1
    return at


@cache
def _key() -> Pattern[str]:
    """Compiled with the first text that streams, not before the first request leaves."""
    marks = {form.mark for form in FORMATS if not form.folded} - CERTAIN.keys() | {_PEM_BEGIN}
    certain = [re.escape(mark) + rest for mark, rest in CERTAIN.items()]
    return re.compile("|".join([*map(re.escape, sorted(marks)), *certain]))


@cache
def _open_word() -> Pattern[str]:
    return re.compile(
        r"(?:(?:bearer|basic|token|passw(?:or)?d)\s+|(?:authorization|cookie)\\?[\"']?\s*[:=]\s*\\?[\"']?(?:[a-z]+\s+)?|"
        r"(?:key|token|secret|passw(?:or)?d|passphrase|credentials?|string|pwd|dsn)[a-z0-9_]*\\?[\"']?\s*(?:=>?|:)\s*\\?[\"']?|"
        r"://|(?:sig|signature|code|auth)=|hooks\.|webhooks/|(?:-u|--user)[ =][\"']?)"
        r"(?P<rest>[^\s\"']*)\Z",
        re.IGNORECASE,
    )


_SHORTEST_WORD = 16  # one of letters alone is a word of the language below this length
_SHORTEST_BEGINNING = 4
_SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:key|token|secret|password|passwd|pwd|auth|credentials?|cookie|signature|private|dsn|bearer)s?(?:$|[_-])|"
    r"apikey|api_?key|authorization|access_?key|connection_?string",
    re.IGNORECASE,
)
_HARMLESS_NAMES = re.compile(r"^(?:.*_)?(?:PUBLIC_KEY|KEYBOARD.*|TOKENIZERS.*|SSH_AUTH_SOCK|XAUTHORITY|MAX_TOKENS)$")
_CLEAN_PARTS = 512
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
        self._beginnings = tuple({secret[:_SHORTEST_BEGINNING] for secret in self.known})
        self._clean: dict[int, PartBase] = {}
        self._secrets = _secrets(tuple(self.known))
        self._words = self._secrets.words

    @classmethod
    def of_environment(cls, environment: Mapping[str, str], more: Iterable[str] = ()) -> "Redactor":
        return cls([*secret_values(environment), *more])

    def spans(self, text: str) -> Spans:
        """Where secrets stand: in order, and none touching another."""
        return self._secrets.spans(text)

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
        return self._words.hide(text)

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
        for beginning in self._beginnings:  # noqa: SIM110  a generator takes longer than what it would look for
            if beginning in text:
                return False
        return True

    def is_plain_beginning(self, text: str) -> bool:
        """As `is_plain`, for the first piece of a text. Often it is all of it, and comes again as what is kept."""
        if not self.is_plain(text):
            return False
        self._words.remember(text)
        return True

    def so_far(self, text: str) -> str:
        """For a text that goes on: what may be the beginning of a secret is left for later."""
        return self.text(text[: self.open_at(text)])

    def value(self, value: Any) -> Any:
        """The value with every text in it redacted: the same object where there was nothing to hide."""
        return walked(value, self._words)

    def kept(self, value: Any) -> Any:
        """As `value`, for what is told next: a part with nothing to hide is known to be clean for a while."""
        clean = walked(value, self._words)
        if clean is value and isinstance(value, PartBase):
            self._clean[id(value)] = value
            while len(self._clean) > _CLEAN_PARTS:
                self._clean.pop(next(iter(self._clean)), None)
        return clean

    def is_clean(self, part: object) -> bool:
        """Whether this very part was lately `kept`, and found to have nothing to hide."""
        return self._clean.get(id(part)) is part

    def draft(self, value: Any) -> Any:
        return walked(value, CleanTextCache(self.so_far))


def hide_patterns(text: str) -> str:
    """Hides what looks like a secret or is called one, whoever's it is."""
    return _hidden(text, _merged(spans_in(text)))


def _hidden(text: str, spans: Spans) -> str:
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


class _Secrets:
    """Finds the secrets that are known, and all that look like one."""

    def __init__(self, known: tuple[str, ...]) -> None:
        self._pattern = re.compile("|".join(map(re.escape, known))) if known else None
        self.words = CleanTextCache(self._hidden)

    def spans(self, text: str) -> Spans:
        found = spans_in(text)
        if self._pattern is not None and self._pattern.search(text):
            found += (match.span() for match in self._pattern.finditer(text))
        return _merged(found) if found else found

    def _hidden(self, text: str) -> str:
        spans = self.spans(text)
        return _hidden(text, spans) if spans else text


@lru_cache(maxsize=4)
def _secrets(known: tuple[str, ...]) -> _Secrets:
    """Shared by all who know the same secrets: a program that runs agents again and again learns its words once."""
    return _Secrets(known)
