"""Redacts secrets in text, nested values and published events.

A secret is a known value or anything that matches a secret format, even if it is split over several chunks of a stream.
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import cache, lru_cache
from operator import attrgetter, is_
from re import Pattern
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin
from urllib.parse import quote, quote_plus

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from outrider.permissions.redaction.secret_patterns import (
    MIN_SECRET_LENGTH,
    Spans,
    contains_key_mark,
    find_marked_formats,
    find_open_value,
    find_secret_spans,
    split_names,
)
from outrider.types.codec import UnknownPart
from outrider.types.events import (
    Event,
    PartDeltaEvent,
    PartUpdatedEvent,
    ProcessExitedEvent,
    ProcessOutputEvent,
    ToolExecutionCompletedEvent,
    ToolInputDeltaEvent,
    ToolOutputEvent,
)
from outrider.types.parts import PartBase, ToolPart
from outrider.types.tool_state import ToolRunning

HIDDEN_SECRET = "[hidden secret]"
# Fields whose value is always a secret. Similar names are excluded: they hold the name of a key or a token count.
_SECRET_FIELD = re.compile(
    r"^(?:.*[_-])?(?:passw(?:or)?d|passphrase|(?:client_?)?secret|api_?key|access_?(?:key|token)|refresh_?token|private_?key|"
    r"authorization)$",
    re.IGNORECASE,
)
# Identifiers that other records refer to, digests, and opaque provider state that must be sent back unchanged.
_UNREDACTED_FIELDS = split_names(
    "id session_id message_id call_id parent_call_id parent_id part_id provider_state type digest"
)
_BULK_LENGTH = 4096
_BULK = re.compile(r"(?:data:[^,\s]{0,200},)?[A-Za-z0-9+/=]{4096,}")  # base64 data such as an image
_MAX_CACHED_LENGTH = 200
_MAX_CACHED_TEXTS = 1024
_MAX_RECENT_TEXTS = 8
_COMPLETE_FIELDS = ("metadata", "provider_state")  # of a part: the vendor sends them at its end
_TEXTLESS_TYPES = frozenset({int, float, bool, NoneType, Decimal})
_ALWAYS_CLEAN = (None, "")


class CleanTextCache:
    """Redacts texts and caches short ones without a secret.

    Agent, tool and model names, state names and tool results recur in many events, so most lookups hit the cache.
    """

    def __init__(self, redact_text: Callable[[str], str]) -> None:
        self._redact_text = redact_text
        self._clean: set[object] = set(_ALWAYS_CLEAN)
        self._recent: dict[int, str] = {}  # long clean texts by identity: a result is searched before it is stored
        self.are_clean = self._clean.issuperset
        """Returns whether all texts are cached as clean. Raises TypeError for an unhashable value, which is not a
        text."""

    def redact(self, text: str) -> str:
        """Returns the redacted text; the same object if it contains no secret."""
        if text in self._clean or self._recent.get(id(text)) is text:
            return text
        if len(text) > _BULK_LENGTH and _BULK.fullmatch(text):
            return text
        redacted = self._redact_text(text)
        if redacted != text:
            return redacted
        self.add_clean(text)
        return text

    def add_clean(self, clean: str) -> None:
        if len(clean) > _MAX_CACHED_LENGTH:
            if len(self._recent) >= _MAX_RECENT_TEXTS:
                self._recent.pop(next(iter(self._recent)), None)
            self._recent[id(clean)] = clean
            return
        if len(self._clean) >= _MAX_CACHED_TEXTS:
            self._clean.clear()
            self._clean.update(_ALWAYS_CLEAN)
        self._clean.add(clean)


Walker = Callable[[Any, CleanTextCache], Any]


def redact_nested(value: Any, texts: CleanTextCache) -> Any:
    """Returns the value with every text in it redacted; the same object if it contains no secret."""
    return _walkers[value.__class__](value, texts)


class _WalkerTable(dict[type[Any], Walker]):
    """Cache: class → its walker."""

    def __missing__(self, kind: type[Any]) -> Walker:
        self[kind] = walker = _find_walker(kind)
        return walker


_walkers = _WalkerTable()


def _find_walker(kind: type[Any]) -> Walker:
    if issubclass(kind, msgspec.Struct):
        return _struct_walker(kind)
    by_base: dict[type[Any], Walker] = {
        str: _walk_text,
        dict: _walk_mapping,
        list: _walk_sequence,
        tuple: _walk_sequence,
    }
    for base in kind.__mro__:
        if base in by_base:
            return by_base[base]
    if kind is UnknownPart or (hasattr(kind, "to_dict") and hasattr(kind, "from_dict")):  # or a custom part
        return _walk_custom_part
    return _walk_opaque


def _walk_opaque(value: Any, _: CleanTextCache) -> Any:
    return value


def _walk_text(value: str, texts: CleanTextCache) -> str:
    return texts.redact(value)


def _walk_sequence(value: list[Any] | tuple[Any, ...], texts: CleanTextCache) -> Any:
    clean = [redact_nested(item, texts) for item in value]
    if len(clean) == len(value) and all(map(is_, clean, value)):
        return value
    return tuple(clean) if isinstance(value, tuple) else clean


def _walk_mapping(value: dict[Any, Any], texts: CleanTextCache) -> dict[Any, Any]:
    if texts.are_clean(value):
        for key, item in value.items():
            if item.__class__ not in _TEXTLESS_TYPES and _walk_field(key, item, texts) is not item:
                break
        else:
            return value
    clean: dict[Any, Any] = {}
    unchanged = True
    for key, item in value.items():
        name = texts.redact(key) if isinstance(key, str) else key
        clean[name] = field_value = _walk_field(key, item, texts)
        unchanged = unchanged and name is key and field_value is item
    return value if unchanged else clean


def _walk_field(name: Any, value: Any, texts: CleanTextCache) -> Any:
    if isinstance(value, str):
        return HIDDEN_SECRET if value and isinstance(name, str) and _is_secret_field(name) else texts.redact(value)
    return redact_nested(value, texts)


@lru_cache(maxsize=1024)
def _is_secret_field(name: str) -> bool:
    """Returns whether a field name means a secret; cached, because the metadata of many values have the same names."""
    return _SECRET_FIELD.match(name) is not None


def _walk_custom_part(value: Any, texts: CleanTextCache) -> Any:
    raw = value.to_dict()
    clean = redact_nested(raw, texts)
    if clean is raw:
        return value
    return UnknownPart(clean) if isinstance(value, UnknownPart) else value.from_dict(clean)


def _struct_walker(kind: type[msgspec.Struct]) -> Walker:
    fields = _text_fields(kind)
    texts = [name for name, field_value in fields.items() if _is_text(field_value)]
    other_names = [name for name in fields if name not in texts]
    get_texts = attrgetter(*texts, texts[0]) if texts else _no_texts  # with two or more names it always returns a tuple
    get_others = _others_getter(other_names)

    def walk_texts(value: msgspec.Struct, texts: CleanTextCache) -> msgspec.Struct:
        try:
            if texts.are_clean(get_texts(value)):
                return value
        except TypeError:  # a field annotated as text contains a list or a dict
            pass
        return _with_fields(value, fields, texts)

    def walk(value: msgspec.Struct, texts: CleanTextCache) -> msgspec.Struct:
        try:
            is_clean = texts.are_clean(get_texts(value))
        except TypeError:
            is_clean = False
        if is_clean:
            for item in get_others(value):
                if item and _walkers[item.__class__](item, texts) is not item:
                    break
            else:
                return value
        return _with_fields(value, fields, texts)

    return walk if other_names else walk_texts


def _with_fields(value: msgspec.Struct, names: Iterable[str], texts: CleanTextCache) -> msgspec.Struct:
    changed: dict[str, Any] = {}
    for name in names:
        field_value = getattr(value, name)
        if field_value and (clean := _walkers[field_value.__class__](field_value, texts)) is not field_value:
            changed[name] = clean
    return msgspec.structs.replace(value, **changed) if changed else value


def _text_fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Returns the fields that may contain free text: no identifiers, numbers, timestamps or literals."""
    try:
        field_value = {field.name: field.type for field in msgspec.structs.fields(kind)}
    except NameError:  # a custom class with annotations that cannot be resolved
        field_value = dict.fromkeys(kind.__struct_fields__, Any)
    return {
        name: field_value[name]
        for name in field_value
        if name not in _UNREDACTED_FIELDS and not _is_textless(field_value[name])
    }


def _no_texts(_: Any) -> tuple[Any, ...]:
    return ()


def _others_getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    return attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)


def _is_text(kind: Any) -> bool:
    if get_origin(kind) in (Union, UnionType):
        return set(get_args(kind)) == {str, NoneType}
    return kind is str


def _is_textless(kind: Any, enclosing: tuple[Any, ...] = ()) -> bool:
    if get_origin(kind) in (Union, UnionType):
        return all(_is_textless(option, enclosing) for option in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind) if kind not in enclosing else ()
        return all(field.name in _UNREDACTED_FIELDS or _is_textless(field.type, (*enclosing, kind)) for field in fields)
    return kind in _TEXTLESS_TYPES or get_origin(kind) is Literal


MAX_HELD_CHARS = 8_192
_PEM_BEGIN, _PEM_END = "-----BEGIN ", "-----END "
_LONG_WORD_LENGTH = 20  # a word of this length may contain a key without a known prefix
_LONG_WORD = re.compile(rf"[\w.+/=:~%-]{{{_LONG_WORD_LENGTH}}}")
_WORD_CHARACTERS = re.compile(r"[\w.+/=:~%-]*")


def find_unfinished_secret(text: str) -> int:
    """Returns where a secret may start that further text would complete; the length of the text if there is none."""
    start = max(0, len(text) - MAX_HELD_CHARS)
    tail = text[start:]
    begin = tail.rfind(_PEM_BEGIN)
    if begin >= 0 and _PEM_END not in tail[begin:]:
        return start + begin
    starts = [len(tail)]
    word = _last_word(tail)
    if ends_in_long_word(tail) or contains_key_mark(tail[word:]):
        starts.append(word)
    if (context := open_context_pattern().search(tail, last_words(tail))) is not None:
        starts.append(context.start("rest"))
    if (value := find_open_value(tail)) is not None:
        starts.append(value)
    return start + min(starts)


def ends_in_long_word(text: str) -> bool:
    """Returns whether the text ends in a word that is long enough to be a key."""
    tail = text[-_LONG_WORD_LENGTH:]
    return " " not in tail and _LONG_WORD.fullmatch(tail) is not None


def _last_word(text: str) -> int:
    """Returns where the last run of characters that occur in keys starts."""
    start = len(text)
    while start and (text[start - 1].isalnum() or text[start - 1] in "_.+/=:~%-"):
        start -= 1
    return start


_CONTEXT_WORDS = 6  # an open context and its value contain at most five gaps: "secret is | | | | value"


def last_words(text: str) -> int:
    """Returns where an open context may start at the earliest. A draft is searched again whenever it has grown, so the
    cost must not depend on its length."""
    pieces = text.rsplit(maxsplit=_CONTEXT_WORDS)
    return len(pieces[0]) if len(pieces) > _CONTEXT_WORDS else 0


@cache
def open_context_pattern() -> Pattern[str]:
    """Returns the pattern of a context whose value is still open at the end of a text.

    It is compiled with the first streamed text, so that compiling does not delay the first request. `_CONTEXT_WORDS`
    depends on how many gaps a match may contain.
    """
    return re.compile(
        r"(?:(?:bearer|basic|token|passw(?:or)?d)\s+|(?:authorization|cookie)\\?[\"']?\s*[:=]\s*\\?[\"']?(?:[a-z]+\s+)?|"
        r"(?:key|token|secret|passw(?:or)?d|passphrase|credentials?|string|pwd|dsn)[a-z0-9_]*\\?[\"']?\s*(?:=>?|:)\s*\\?[\"']?|"
        r"(?:secret|key)(?: is)?[\"'`|,;\s]{1,8}|(?:AKIA|ASIA)[A-Z0-9]{12,}[\"'`|,;:\s]{1,8}|"
        r"://|(?:sig|signature|code|auth)=|hooks\.|webhooks/|(?:-u|--user)[ =][\"']?)"
        r"(?P<rest>[^\s\"']*)\Z",
        re.IGNORECASE,
    )


_MIN_ALPHABETIC_LENGTH = 16  # a shorter value of letters only is probably a normal word
_KNOWN_PREFIX_LENGTH = 4
# Words that others contain (author, keyboard, monkey) must be whole or end in it; camel case separates words too.
_SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:pwd|[ox]?auth[nz]?\d*|credential|private|dsn|bearer|sig)s?(?:$|[_-])|"
    r"(?<!mon)(?<!tur)(?<!don)(?<!hot)keys?\d*(?:$|[_-])|api_?key|access_?key|"
    r"token(?!i[sz])|secret|pass_?w(?:or)?d|pass_?phrase|cookie|signature|authorization|authentication|connection_?string",
    re.IGNORECASE,
)
_HARMLESS_NAMES = re.compile(r"^(?:.*_)?(?:PUB(?:LIC)?_?KEY|SSH_AUTH_SOCK|MAX_TOKENS)$")
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MAX_CLEAN_PARTS = 512
# The table of `html.escape`; importing `html` would also load its 2,000 entity names.
_HTML_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_PATH = re.compile(r"^(?:~|\.{1,2})?(?:/[\w.@+-]{0,40})+$")


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Returns whether a variable, header, parameter or field of this name contains a secret."""
    separated = _CAMEL_CASE.sub("_", name)
    return _SECRET_NAME.search(separated) is not None and not _HARMLESS_NAMES.match(separated.upper())


def secret_values(named: Mapping[str, str]) -> list[str]:
    """Returns the secret values of variables or headers, longest first, so that no value leaves part of a longer
    one."""
    values = {named[name].strip() for name in named if is_secret_name(name)}
    return sorted(filter(_is_worth_redacting, values), key=len, reverse=True)


def _is_worth_redacting(value: str) -> bool:
    """Returns whether a value is specific enough to redact: not a normal word, a path or a switch."""
    if len(value) < MIN_SECRET_LENGTH or _PATH.match(value):
        return False
    return len(value) >= _MIN_ALPHABETIC_LENGTH or not value.isalpha()


class Redactor:
    """Redacts the known secrets of an engine and all secret formats before text is logged, published or stored."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.known_forms: list[str] = []
        self.add_secrets(secrets)

    def add_secrets(self, secrets: Iterable[str]) -> None:
        """Adds values that are redacted from now on."""
        forms = {form for secret in secrets if len(secret) >= MIN_SECRET_LENGTH for form in _encoded_forms(secret)}
        self.known_forms = sorted({*self.known_forms, *forms}, key=len, reverse=True)
        self._known_prefixes = tuple({secret[:_KNOWN_PREFIX_LENGTH] for secret in self.known_forms})
        self._clean: dict[int, PartBase] = {}
        self._scanner = _shared_scanner(tuple(self.known_forms))
        self.clean_texts = self._scanner.clean_texts

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], more: Iterable[str] = ()) -> "Redactor":
        return cls([*secret_values(environment), *more])

    def find_spans(self, text: str) -> Spans:
        """Returns the spans of all secrets, sorted and merged."""
        return self._scanner.find_spans(text)

    def find_spans_in_bytes(self, raw: bytes) -> Spans:
        """Returns the spans of all secrets in binary output; Latin-1 maps each byte to one character."""
        spans = find_secret_spans(raw.decode("latin-1"))
        for secret in self.known_forms:
            start = raw.find(form := secret.encode(errors="replace"))
            while start >= 0:
                spans.append((start, start + len(form)))
                start = raw.find(form, start + len(form))
        return _merge_spans(spans)

    def redact_text(self, text: str) -> str:
        return self.clean_texts.redact(text)

    def has_secret(self, text: str) -> bool:
        """Returns whether the text contains a secret."""
        return self.clean_texts.redact(text) is not text

    def find_unfinished_secret(self, text: str) -> int:
        """Returns where a known secret, or one in a secret format, may start that further text would complete."""
        begin = find_unfinished_secret(text)
        for secret in self.known_forms:
            start = text.find(secret[:_KNOWN_PREFIX_LENGTH], max(0, len(text) - len(secret)))
            while 0 <= start < begin:
                if secret.startswith(text[start:]):
                    begin = start
                start = text.find(secret[:_KNOWN_PREFIX_LENGTH], start + 1)
        return begin

    def is_plain(self, text: str) -> bool:
        """Returns whether the text contains neither a secret nor the start of one; a fast check for streamed chunks."""
        if find_marked_formats(text) or ends_in_long_word(text):
            return False
        if ("=" in text or ":" in text or ">" in text) and ("://" in text or find_open_value(text) is not None):
            return False
        for prefix in self._known_prefixes:  # noqa: SIM110  a generator costs more than the search
            if prefix in text:
                return False
        return True

    def is_plain_start(self, text: str) -> bool:
        """Returns whether the first chunk of a text is plain; caches it, because it is often the complete stored
        text."""
        if not self.is_plain(text):
            return False
        self.clean_texts.add_clean(text)
        return True

    def redact_complete(self, text: str) -> str:
        """Returns a redacted text that is still growing, without a tail that may be the start of a secret."""
        return self.redact_text(text[: self.find_unfinished_secret(text)])

    def redact_value(self, value: Any) -> Any:
        """Returns the value with every text in it redacted; the same object if it contains no secret."""
        return redact_nested(value, self.clean_texts)

    def redact_for_publish(self, value: Any) -> Any:
        """Returns the redacted value; remembers a clean part, so that publishing the same part skips the search."""
        clean = redact_nested(value, self.clean_texts)
        if clean is value and isinstance(value, PartBase):
            if len(self._clean) >= _MAX_CLEAN_PARTS:
                self._clean.pop(next(iter(self._clean)), None)
            self._clean[id(value)] = value
        return clean

    def is_clean(self, part: object) -> bool:
        """Returns whether `redact_for_publish` recently found this part object clean."""
        return self._clean.get(id(part)) is part

    def redact_draft(self, value: Any) -> Any:
        """Returns the redacted value, and cuts off the tails of growing texts that may be the start of a secret.

        The input of a running call and the vendor's fields do not grow. A crash makes the draft the stored part, so
        they must be complete: the vendor rejects other ids, and the model reads the input.
        """
        growing = CleanTextCache(self.redact_complete)
        if isinstance(value, ToolPart) and isinstance(value.state, ToolRunning):
            clean = self.redact_value(value)
            progress = redact_nested(value.state.metadata, growing)
            return replace(clean, state=replace(clean.state, metadata=progress))
        clean = redact_nested(value, growing)
        if not isinstance(value, PartBase):
            return clean
        complete = {name: getattr(value, name) for name in _COMPLETE_FIELDS if getattr(value, name, None)}
        return replace(clean, **self.redact_value(complete)) if complete else clean


def redact_patterns(text: str) -> str:
    """Redacts everything that matches a secret format, without known secret values."""
    return _replace_spans(text, _merge_spans(find_secret_spans(text)))


def _replace_spans(text: str, spans: Spans) -> str:
    pieces, position = list[str](), 0
    for start, end in spans:
        pieces += (text[position:start], HIDDEN_SECRET)
        position = end
    return "".join((*pieces, text[position:]))


def _merge_spans(spans: Spans) -> Spans:
    merged: Spans = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _encoded_forms(secret: str) -> Iterable[str]:
    """Yields the secret as JSON, URL and HTML encode it, backwards, and each long line of a multi-line secret."""
    lines = [line for line in secret.splitlines() if len(line) >= _MIN_ALPHABETIC_LENGTH] if "\n" in secret else []
    for form in (secret, *lines):
        yield from (form, form[::-1], json.dumps(form)[1:-1], json.dumps(form, ensure_ascii=False)[1:-1])
        yield from (quote(form, safe=""), quote(form), quote_plus(form), form.translate(_HTML_ESCAPES))


class _SecretScanner:
    """Finds known secret values and all secret formats in a text."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        self._pattern = re.compile("|".join(map(re.escape, secrets))) if secrets else None
        self.clean_texts = CleanTextCache(self._redact)

    def find_spans(self, text: str) -> Spans:
        spans = find_secret_spans(text)
        if self._pattern is not None and self._pattern.search(text):
            spans += (match.span() for match in self._pattern.finditer(text))
        return _merge_spans(spans) if spans else spans

    def _redact(self, text: str) -> str:
        spans = self.find_spans(text)
        return _replace_spans(text, spans) if spans else text


@lru_cache(maxsize=4)
def _shared_scanner(secrets: tuple[str, ...]) -> _SecretScanner:
    """Returns one scanner for all redactors with the same secrets, so that repeated runs in one process reuse the cache
    of clean texts."""
    return _SecretScanner(secrets)


ChunkEvent = PartDeltaEvent | ToolInputDeltaEvent | ToolOutputEvent | ProcessOutputEvent
_MAX_STREAMS = 4_096
_CONTEXT = 64  # released characters that stay in the buffer, because a variable name before a secret identifies it


class _StreamState(Struct):
    """The buffer of one stream: the end of the released text, unredacted, and the text that is held back."""

    last: ChunkEvent
    released: str = ""
    held: str = ""


class RedactingEventFilter:
    """An event bus transform that redacts events.

    It holds back the end of a chunk that may be the start of a secret until the next chunk or the end of the stream
    decides it. The concatenated output chunks equal the redacted text.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._streams: OrderedDict[tuple[str, str], _StreamState] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> Sequence[Event]:
        return _find_handler(event.__class__)(self, event)

    def filter_chunk(self, event: ChunkEvent) -> Sequence[Event]:
        key, text = (event.session_id, _stream_key(event)), _chunk_text(event)
        with self._lock:
            stream = self._streams.get(key)
            if stream is None:
                stream = self._open_stream(key, event)
            stream.last = event
            output = self._release_chunk(stream, text)
        if output == text:
            return (event,)
        return (_with_text(event, output),) if output else ()

    def filter_part(self, event: PartUpdatedEvent) -> Sequence[Event]:
        flushed = self._flush_streams(event.session_id, getattr(event.part, "id", ""))
        return (*flushed, event if self._redactor.is_clean(event.part) else self._redactor.redact_value(event))

    def filter_tool_completion(self, event: ToolExecutionCompletedEvent) -> Sequence[Event]:
        flushed = self._flush_streams(event.session_id, f"{event.call_id} stdout", f"{event.call_id} stderr")
        return (*flushed, self._redactor.redact_value(event))

    def filter_process_exit(self, event: ProcessExitedEvent) -> Sequence[Event]:
        key = f"{event.process_id} process"
        flushed = self._flush_streams(event.session_id, f"{key} stdout", f"{key} stderr")
        return (*flushed, self._redactor.redact_value(event))

    def filter_event(self, event: Event) -> Sequence[Event]:
        return (_walkers[event.__class__](event, self._redactor.clean_texts),)

    def _open_stream(self, key: tuple[str, str], event: ChunkEvent) -> _StreamState:
        if len(self._streams) >= _MAX_STREAMS:
            self._streams.popitem(last=False)
        stream = self._streams[key] = _StreamState(event)
        return stream

    def _release_chunk(self, stream: _StreamState, text: str) -> str:
        if (
            ends_in_long_word(stream.held)
            and len(stream.held) + len(text) <= 2 * MAX_HELD_CHARS
            and _WORD_CHARACTERS.fullmatch(text)
        ):
            # The held word continues, so little of it can be released. A search of the whole word for every chunk would
            # cost time that grows with the square of its length.
            stream.held += text
            return ""
        buffer = stream.released + stream.held + text
        is_plain = self._redactor.is_plain if stream.released else self._redactor.is_plain_start
        if is_plain(buffer):
            output, stream.released, stream.held = stream.held + text, buffer[-_CONTEXT:], ""
            return output
        release_end = max(len(stream.released), self._redactor.find_unfinished_secret(buffer))
        if len(buffer) - release_end > MAX_HELD_CHARS:
            release_end = len(buffer)
        output = self._redact_unreleased(stream.released, buffer[:release_end])
        stream.released, stream.held = buffer[:release_end][-_CONTEXT:], buffer[release_end:]
        return output

    def _flush_streams(self, session_id: str, *keys: str) -> list[Event]:
        """Closes streams that have ended and returns their held-back text as events."""
        if not self._streams:
            return []
        with self._lock:
            ended = [self._streams.pop((session_id, key), None) for key in keys]
        return [
            _with_text(stream.last, self._redact_unreleased(stream.released, stream.released + stream.held))
            for stream in ended
            if stream is not None and stream.held
        ]

    def _redact_unreleased(self, released: str, text: str) -> str:
        """Returns the text after the released prefix with its secrets redacted, also those that start in the prefix."""
        chunks, position = list[str](), len(released)
        for start, end in self._redactor.find_spans(text):
            if end > position:
                chunks += (text[position : max(position, start)], HIDDEN_SECRET)
                position = end
        return "".join((*chunks, text[position:]))


_HANDLERS: dict[type[Event], Callable[[RedactingEventFilter, Any], Sequence[Event]]] = {
    PartDeltaEvent: RedactingEventFilter.filter_chunk,
    ToolInputDeltaEvent: RedactingEventFilter.filter_chunk,
    ToolOutputEvent: RedactingEventFilter.filter_chunk,
    ProcessOutputEvent: RedactingEventFilter.filter_chunk,
    PartUpdatedEvent: RedactingEventFilter.filter_part,
    ToolExecutionCompletedEvent: RedactingEventFilter.filter_tool_completion,
    ProcessExitedEvent: RedactingEventFilter.filter_process_exit,
}
# The filter needs these events even without another listener: chunks fill its buffers, the others flush them.
FILTERED_EVENTS = tuple(_HANDLERS)


@cache
def _find_handler(kind: type[Event]) -> Callable[[RedactingEventFilter, Any], Sequence[Event]]:
    """Returns the handler of a class; cached, because seven isinstance checks take longer than the search for
    secrets."""
    return next((_HANDLERS[base] for base in kind.__mro__ if base in _HANDLERS), RedactingEventFilter.filter_event)


def _stream_key(event: ChunkEvent) -> str:
    match event:
        case PartDeltaEvent() | ToolInputDeltaEvent():
            return event.part_id
        case ToolOutputEvent():
            return f"{event.call_id} {event.stream}"
        case ProcessOutputEvent():
            return f"{event.process_id} process {event.stream}"


def _chunk_text(event: ChunkEvent) -> str:
    return event.delta if isinstance(event, PartDeltaEvent | ToolInputDeltaEvent) else event.output


def _with_text(event: ChunkEvent, text: str) -> ChunkEvent:
    if isinstance(event, PartDeltaEvent | ToolInputDeltaEvent):
        return replace(event, delta=text)
    return replace(event, output=text)
