"""What was sent to a model: the record of each request, the bytes that it describes, and why a prompt cache missed.

A request consists of a head (settings, tools, system text), the messages of the transcript, and closing brackets. The
transcript is stored anyway, so a record has only the head, if it changed, and a digest of the whole."""

import re
from binascii import b2a_base64
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, cast

import msgspec

from outrider._lazy import lazy_pattern
from outrider.context.lower import end_with_user, lower
from outrider.types.messages import Message
from outrider.types.parts import BodyEdit, CacheMiss, CompactionPart, SentRequestRecord, StepStartPart, Tokens
from outrider.types.request import BodyLayout, Prompt, Request

BEFORE_REQUEST = "before_request"
_CONVERSATION = "\x01"  # replaces the id of the conversation in a stored head; JSON never contains it
_CLOSING = b"]}"
_NOTHING_HASHED = blake2b(digest_size=12)


CacheCause = Literal[
    "model",
    "tools",
    "skills",
    "date",
    "instructions file",
    "system prompt",
    "settings",
    "compaction",
    "hook",
    "history",
    "expired",
    "vendor",
]


class RequestBody(msgspec.Struct, frozen=True):
    """A request, for a comparison with another one. `body` has no cache marks, because the servers ignore them when
    they compare prefixes. `compaction` is the id of the last compaction in the transcript."""

    model: str
    body: bytes
    head_size: int
    created: int
    rewrite: str = ""
    compaction: str = ""


def digest_body(body: bytes | bytearray) -> str:
    """Returns the digest of a request body, as the record of the request stores it."""
    return _encode_digest(blake2b(body, digest_size=12).digest())


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def _encode_digest(digest: bytes) -> str:
    return b2a_base64(digest, newline=False).translate(_URL_SAFE).decode()


def stored_head(layout: BodyLayout, conversation: str) -> str:
    """Returns the head as it is stored: equal for all sessions with the same prompt, tools and settings."""
    text = _read_head(layout.head).text
    return _share_head(text.replace(conversation, _CONVERSATION)) if conversation and conversation in text else text


@lru_cache(maxsize=8)
def _share_head(head: str) -> str:
    """Returns one object for all sessions with the same head, so that it is searched for secrets once."""
    return head


class _RequestHead(NamedTuple):
    """The text and the hash of a head. Sessions with the same agent send the same object."""

    text: str
    hash: blake2b


@lru_cache(maxsize=8)
def _read_head(head: bytes) -> _RequestHead:
    return _RequestHead(_share_head(head.decode("utf-8", "replace")), blake2b(head, digest_size=12))


def sent_head(stored: str, conversation: str) -> bytes:
    """Returns a stored head as it was sent, with the id of the conversation."""
    return stored.replace(_CONVERSATION, conversation).encode()


def request_of(message: Message) -> SentRequestRecord | None:
    """Returns the record of the request that a message answers, or of the request for the summary that a message has;
    None if it was not recorded."""
    for part in message.parts:
        if isinstance(part, StepStartPart) and part.request:
            return part.request
    return None


def find_head(history: Sequence[Message]) -> SentRequestRecord | None:
    """Returns the last record of a transcript that has a head."""
    for message in reversed(history):
        record = request_of(message) if message.role == "assistant" else None
        if record is not None and record.head:
            return record
    return None


def last_compaction(history: Sequence[Message]) -> str:
    """Returns the id of the last compaction with an effect, or an empty string."""
    for message in reversed(history):
        for part in message.parts:
            if isinstance(part, CompactionPart) and part.summary:
                return part.id
    return ""


def family_of(form: tuple[str, ...]) -> str:
    """Returns the model family whose private state is sent in messages of this form."""
    return "google" if form[:1] == ("google",) else "".join(form[1:2])


def join_body(head: bytes, messages: bytes | bytearray) -> bytes:
    """Returns the body of a request from its head and its encoded messages."""
    comma = b"," if messages and not head.endswith(b"[") else b""
    return b"".join((head, comma, messages, _CLOSING))


def change_messages(record: SentRequestRecord, messages: bytes | bytearray, *, marks: bool = True) -> bytes | bytearray:
    """Returns the encoded messages of the transcript as they were sent: changed by a hook and, with `marks`, with cache
    marks."""
    if record.patch is not None:
        messages = _apply_edit(messages, record.patch)
    for insert in reversed(record.inserts if marks else ()):
        messages = _apply_edit(messages, insert)
    return messages


def _apply_edit(content: bytes | bytearray, edit: BodyEdit) -> bytes:
    return b"".join((content[: edit.offset], edit.text.encode(), content[edit.offset + edit.removed :]))


def common_prefix(first: bytes | bytearray, second: bytes | bytearray) -> int:
    """Returns the number of equal bytes at the start."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low


class _SentBody(msgspec.Struct, frozen=True):
    """A request that was sent, by reference: its messages are those of a prompt that may have grown since."""

    model: str
    head: bytes
    messages: bytes | bytearray
    length: int
    created: int
    rewrite: str
    position: int  # the number of messages of the transcript before it

    def to_body(self, transcript: Sequence[Message]) -> RequestBody:
        body = join_body(self.head, self.messages[: self.length])
        compaction = last_compaction(transcript[: self.position])
        return RequestBody(self.model, body, len(self.head), self.created, self.rewrite, compaction)

    def continues(self, previous: "_SentBody") -> bool:
        """Whether this request starts with the bytes of the previous one."""
        if self.head != previous.head or self.length < previous.length:
            return False
        length, same = previous.length, self.messages is previous.messages
        return same or self.messages[:length] == previous.messages[:length]


class RequestRecorder:
    """Records the requests of one agent in one session and compares each with the one before.

    The digest of a request that continues the one before is computed from the new bytes only."""

    def __init__(self) -> None:
        self._stored_head: str | None = None
        self._stored_form: tuple[str, ...] = ()
        self._stored_conversation = ""
        self._stored_with = 0  # the step whose record has the stored head
        self._last_head = b""
        self._hash = _NOTHING_HASHED
        self._hashed: _SentBody | None = None  # the request whose bytes the hash has read
        self._current: _SentBody | None = None
        self._previous: _SentBody | None = None
        self._cached_models = set[str]()

    def record(
        self, body: bytes, layout: BodyLayout, request: Request, transcript: Sequence[Message]
    ) -> SentRequestRecord:
        """Returns the record of the request that the last message of the transcript answers. `layout` describes
        the body that was encoded from `request`."""
        rewrite, patch = _find_change(layout, request.prompt)
        answer = transcript[-1]
        created = answer.time.created if answer.time else 0
        current = _SentBody(
            str(answer.model), layout.head, layout.messages, len(layout.messages), created, rewrite, len(transcript) - 1
        )
        digest = self._digest(body, layout, current)
        if self._current is None:
            self._previous = _restore_request(layout, transcript[:-1])
        elif self._current.position != current.position:  # else the step is repeated
            self._previous = self._current
        self._current = current
        head, form = self._changed_head(layout, request.conversation, transcript)
        inserts = tuple(BodyEdit(offset, text.decode()) for offset, text in layout.inserts)
        conversation = request.conversation if _CONVERSATION in head else ""
        return SentRequestRecord(len(body), digest, head, form, rewrite, patch, inserts, conversation)

    def explain(self, tokens: Tokens, transcript: Sequence[Message]) -> CacheMiss | None:
        """Returns why the last request missed the cache, from the usage that the answer reports; None if it did not, or
        if there is no request before it."""
        current, previous = self._current, self._previous
        if tokens.cache.read or tokens.cache.write:
            self._cached_models.add(current.model if current else "")
        if current is None or previous is None:
            return None
        caches = current.model in self._cached_models
        if current.model == previous.model and current.continues(previous):
            achievable = (len(previous.head) + previous.length) / (len(current.head) + current.length)
            if not caches or not is_unexpected(tokens, achievable):  # the usual case, without a copy of the bytes
                return None
        miss = explain_miss(previous.to_body(transcript), current.to_body(transcript), tokens)
        return miss if is_reported(miss, tokens, caches=caches) else None

    def _digest(self, body: bytes, layout: BodyLayout, current: _SentBody) -> str:
        if layout.inserts:
            return digest_body(body)
        hashed = self._hashed
        if hashed is None or hashed.head is not current.head or hashed.messages is not current.messages:
            self._hash = _read_head(layout.head).hash.copy()
            self._hash.update(memoryview(body)[len(layout.head) : -len(_CLOSING)])
        else:
            self._hash.update(current.messages[hashed.length : current.length])
        self._hashed = current if current.length else None
        final_hash = self._hash.copy()
        final_hash.update(_CLOSING)
        return _encode_digest(final_hash.digest())

    def _changed_head(
        self, layout: BodyLayout, conversation: str, transcript: Sequence[Message]
    ) -> tuple[str, tuple[str, ...]]:
        """Returns head and form if they differ from those of the last stored step."""
        step = len(transcript)
        if layout.head is self._last_head and layout.form == self._stored_form and self._stored_with != step:
            return "", ()
        if self._stored_head is None:
            record = find_head(transcript[:-1])
            self._stored_head, self._stored_form = (record.head, record.form) if record else ("", ())
            self._stored_conversation = record.conversation if record else ""
        self._last_head = layout.head
        head = stored_head(layout, conversation)
        # A fork has the same stored head as its origin, but another id.
        stored_conversation = conversation if _CONVERSATION in head else ""
        stored = self._stored_head, self._stored_form, self._stored_conversation
        if (head, layout.form, stored_conversation) == stored and self._stored_with != step:
            return "", ()
        self._stored_head, self._stored_form, self._stored_with = head, layout.form, step
        self._stored_conversation = stored_conversation
        return head, layout.form


def record_single(body: bytes, layout: BodyLayout, prompt: Prompt, conversation: str) -> SentRequestRecord:
    """Returns the record of a request that is not a step, such as the request for a summary. It has its own head.
    `prompt` is the prompt of the transcript; differences to it are stored as a patch."""
    rewrite, patch = _find_change(layout, prompt)
    head = stored_head(layout, conversation)
    inserts = tuple(BodyEdit(offset, text.decode()) for offset, text in layout.inserts)
    stored_conversation = conversation if _CONVERSATION in head else ""
    return SentRequestRecord(
        len(body), digest_body(body), head, layout.form, rewrite, patch, inserts, stored_conversation
    )


def _restore_request(layout: BodyLayout, history: Sequence[Message]) -> _SentBody | None:
    """Returns the last stored request, which another process or an earlier run has sent; None if there is none, or if
    it has another form, such as that of another API."""
    recorded = (index for index in range(len(history) - 1, -1, -1) if request_of(history[index]) is not None)
    position = next((index for index in recorded if history[index].role == "assistant"), None)
    head_record = None if position is None else find_head(history)
    if position is None or head_record is None or head_record.form != layout.form:
        return None
    answer, record = history[position], request_of(history[position])
    if record is None or (record.rewrite and record.rewrite != BEFORE_REQUEST):
        return None
    head = sent_head(head_record.head, head_record.conversation)
    length = record.size - len(head) - len(_CLOSING) - (not head.endswith(b"["))
    messages: bytes | bytearray = layout.messages
    is_plain = record.patch is None and not record.inserts
    if not is_plain or digest_body(join_body(head, messages[:length])) != record.digest:
        earlier = history[:position]
        family = family_of(layout.form)
        prompt = end_with_user(lower(earlier, family=family), earlier)
        messages = change_messages(record, layout.encode(prompt), marks=False)
        length = len(messages)
    created = answer.time.created if answer.time else 0
    return _SentBody(str(answer.model), head, messages, length, created, record.rewrite, position)


def _find_change(layout: BodyLayout, prompt: Prompt) -> tuple[str, BodyEdit | None]:
    """Returns the name of what changed the messages of the transcript, or "", and the bytes that a hook replaced."""
    if layout.prompt is prompt:
        return "", None
    form = prompt.find_rewrite(layout.prompt)
    if form is not None:
        return form, None
    expected, sent = bytes(layout.encode(prompt)), bytes(layout.messages)
    if expected == sent:  # the hook changed the head only
        return BEFORE_REQUEST, None
    start = common_prefix(expected, sent)
    while start and start < len(sent) and sent[start] & 0xC0 == 0x80:  # not inside of a character
        start -= 1
    end = common_prefix(expected[: start - 1 if start else None : -1], sent[: start - 1 if start else None : -1])
    while end and sent[len(sent) - end] & 0xC0 == 0x80:
        end -= 1
    text = sent[start : len(sent) - end].decode("utf-8", "replace")
    return BEFORE_REQUEST, BodyEdit(start, text, len(expected) - start - end)


_MIN_CACHEABLE_TOKENS = 1024  # the shortest prefix that vendors cache
_MIN_CACHED_SHARE = 0.5
_CACHE_LIFETIME_MS = 5 * 60_000  # the shortest lifetime of a cached prefix


def is_unexpected(tokens: Tokens, achievable: float) -> bool:
    """Whether the provider read less than half of the bytes from its cache that it could have."""
    expected = tokens.prompt * achievable
    return expected >= _MIN_CACHEABLE_TOKENS and tokens.cache.read < expected * _MIN_CACHED_SHARE


def explain_miss(previous: RequestBody, current: RequestBody, tokens: Tokens) -> CacheMiss:
    """Returns the first difference between two consecutive requests and its cause. If the second one continues the
    first, the provider has not used its cache. Settings that do not change what the model reads are not a cause."""
    cause, offset = None, common_prefix(previous.body, current.body)
    if previous.model != current.model:
        cause = ("model", f"{previous.model} → {current.model}")
    elif previous.body[: previous.head_size] != current.body[: current.head_size]:
        cause = _compare_heads(previous, current)
        if cause is not None and previous.compaction != current.compaction:
            cause = ("compaction", f"it also changed the {cause[0]}")
    if cause is None:
        old_messages = previous.body[previous.head_size : -len(_CLOSING)]
        shared = common_prefix(old_messages, current.body[current.head_size :])
        offset = current.head_size + shared
        cause = (
            _compare_messages(previous, current) if shared < len(old_messages) else _explain_expiry(previous, current)
        )
    achievable = 0.0 if cause[0] == "model" else offset / len(current.body)
    return CacheMiss(cause[0], cause[1], offset, tokens.cache.read / max(1, tokens.prompt), achievable)


def is_reported(miss: CacheMiss, tokens: Tokens, *, caches: bool) -> bool:
    """Returns whether a miss is worth a report. A miss without a cause in the request is reported only if the vendor
    `caches` requests of this model at all."""
    return miss.cause not in ("expired", "vendor") or (caches and is_unexpected(tokens, miss.achievable))


def _compare_messages(previous: RequestBody, current: RequestBody) -> tuple[CacheCause, str]:
    if previous.compaction != current.compaction:
        return "compaction", "a summary replaced old messages"
    if BEFORE_REQUEST in (previous.rewrite, current.rewrite):
        return "hook", "before_request changed messages that were sent before"
    return "history", "messages that were sent before are changed or removed"


def _explain_expiry(previous: RequestBody, current: RequestBody) -> tuple[CacheCause, str]:
    waited = current.created - previous.created
    if waited > _CACHE_LIFETIME_MS:
        return "expired", f"{waited // 60_000} minutes after the request before"
    return "vendor", "the request continues the one before, but the provider did not read it from its cache"


_MISSING = object()
# Fields that the model does not read: a cached prefix stays valid if they change.
_UNCACHED_FIELDS = frozenset(
    {
        "cache_control", "maxOutputTokens", "max_completion_tokens", "max_output_tokens", "max_tokens", "metadata",
        "service_tier", "stop", "stopSequences", "stop_sequences", "stream", "stream_options", "temperature", "topP",
        "top_p", "user",
    }
)  # fmt: skip
_SYSTEM_FIELDS = ("system", "messages", "instructions", "systemInstruction", "input")
_INSTRUCTIONS_HEADER = lazy_pattern(r"^# Instructions from (.+)$", re.MULTILINE)
_DATE = lazy_pattern(
    r"\d{4}-\d\d?-\d\d?|\d\d?[./]\d\d?[./]\d{2,4}|\d\d?:\d\d|\b\d{10,13}\b"
    r"|\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\b|\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b",
)


def _compare_heads(previous: RequestBody, current: RequestBody) -> tuple[CacheCause, str] | None:
    """Returns the first field that differs; None if a cache ignores all fields that differ."""
    cause = _first_changed_field(previous, current)
    if cause and BEFORE_REQUEST in (previous.rewrite, current.rewrite) and cause[0] in ("tools", "system prompt"):
        return "hook", f"before_request changed the {cause[0]}"
    return cause


def _first_changed_field(previous: RequestBody, current: RequestBody) -> tuple[CacheCause, str] | None:
    previous_head, current_head = (
        read_head(previous.body[: previous.head_size]),
        read_head(current.body[: current.head_size]),
    )
    for field in dict.fromkeys((*current_head, *previous_head)):
        old, new = previous_head.get(field, _MISSING), current_head.get(field, _MISSING)
        if old == new or field in _UNCACHED_FIELDS:
            continue
        if field == "model":
            return "model", f"{old} → {new}"
        if field == "tools":
            if (tools := _compare_tools(previous_head, current_head)) is not None:
                return tools
            continue
        if field in _SYSTEM_FIELDS:
            return _compare_system_texts(system_text(previous_head), system_text(current_head))
        if field == "generationConfig":
            old, new = (_cached_settings(value) for value in (old, new))
            if old == new:
                continue
        return "settings", field
    return None


def _cached_settings(value: Any) -> Any:
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return {name: setting for name, setting in fields.items() if name not in _UNCACHED_FIELDS}


def read_head(head: bytes) -> dict[str, Any]:
    """Returns the fields of a head. Its list of messages has at most the system message."""
    try:
        return msgspec.json.decode(head + _CLOSING, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def iterate_tools(head: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the name and the definition of each tool."""
    for tool in cast("list[dict[str, Any]]", head.get("tools", ())):
        declared = tool.get("functionDeclarations")
        for entry in declared if isinstance(declared, list) else [tool]:  # pyright: ignore[reportUnknownVariableType]
            fields = cast("dict[str, Any]", entry)
            name = fields.get("name") or cast("dict[str, Any]", fields.get("function") or {}).get("name")
            yield str(name or fields.get("type") or next(iter(fields), "")), fields


def tool_server(name: str) -> str:
    """Returns the MCP server of a tool, or an empty string."""
    return name.split("__")[1] if name.startswith("mcp__") and name.count("__") > 1 else ""


def _compare_tools(previous_head: dict[str, Any], current_head: dict[str, Any]) -> tuple[CacheCause, str] | None:
    """Returns what changed in the tools. The cache mark of the last tool is ignored."""
    lists = [
        [(name, _cached_settings(tool)) for name, tool in iterate_tools(head)] for head in (previous_head, current_head)
    ]
    if lists[0] == lists[1]:
        return None
    old, new = map(dict, lists)
    changes = {
        "added": [name for name in new if name not in old],
        "removed": [name for name in old if name not in new],
        "changed": [name for name in new if name in old and new[name] != old[name]],
    }
    names = [name for group in changes.values() for name in group]
    if names == ["skill"]:
        return "skills", "the list of skills changed"
    if not names:
        return "tools", "the order of the tools changed"
    servers = sorted({tool_server(name) for name in names} - {""})
    by = f"by the MCP server {', '.join(servers)}: " if servers else ""
    summary = "; ".join(f"{verb} {', '.join(group[:5])}" for verb, group in changes.items() if group)
    return "tools", f"{by}{summary}"


def system_text(head: dict[str, Any]) -> str:
    """Returns the system text of a head in any API."""
    for field in _SYSTEM_FIELDS:
        if text := _join_texts(head.get(field)):
            return text
    return ""


def _join_texts(value: Any) -> str:
    match value:
        case str():
            return value
        case list():
            return "\n\n".join(filter(None, map(_join_texts, cast("list[Any]", value))))
        case {"text": str(text)}:
            return text
        case {"content": content}:
            return _join_texts(content)
        case {"parts": parts}:
            return _join_texts(parts)
        case _:
            return ""


def _compare_system_texts(old: str, new: str) -> tuple[CacheCause, str]:
    start = common_prefix(old.encode("utf-32-le"), new.encode("utf-32-le")) // 4
    line = new.count("\n", 0, start) + 1
    if _DATE.search(_word_at(old, start)) and _DATE.search(_word_at(new, start)):
        return "date", f"{_word_at(old, start).strip()!r} → {_word_at(new, start).strip()!r} in line {line}"
    headers = [*_INSTRUCTIONS_HEADER.finditer(new, 0, max(start, 0) + 1)]
    if not headers and (header := _INSTRUCTIONS_HEADER.search(old, max(0, start - 1))) and header.start() <= start + 1:
        headers = [header]
    if headers:
        inside = new.count("\n", headers[-1].end(), start)
        return "instructions file", f"{headers[-1][1]}, line {max(1, inside)}"
    return "system prompt", f"line {line}"


def _word_at(text: str, position: int) -> str:
    """Returns the text around a position, within its line."""
    start = max(text.rfind("\n", 0, position) + 1, position - 12)
    end = text.find("\n", position)
    return text[start : min(len(text) if end < 0 else end, position + 12)]
