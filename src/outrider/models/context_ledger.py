"""The context ledger of a stored session: the bytes of each request, where they come from, what they cost, and why the
provider's cache missed."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec.structs import replace

from outrider.context.lower import PromptProjection, end_with_user
from outrider.context.prompts import prompt_text
from outrider.context.request_ledger import (
    BEFORE_REQUEST,
    RequestBody,
    change_messages,
    common_prefix,
    digest_body,
    explain_miss,
    family_of,
    is_reported,
    iterate_tools,
    join_body,
    last_compaction,
    read_head,
    request_of,
    sent_head,
    system_text,
    tool_server,
)
from outrider.errors import ConfigurationError
from outrider.models.clients import encode_prompt, shared_catalog
from outrider.types.codec import AnyPart
from outrider.types.messages import INSTRUCTIONS, Message
from outrider.types.parts import (
    BodyEdit,
    CacheMiss,
    CacheTokens,
    CompactionPart,
    FilePart,
    ModelPart,
    ReasoningPart,
    SentRequestRecord,
    TextPart,
    Tokens,
    ToolPart,
    ToolResultPart,
    ToolUsePart,
)
from outrider.types.request import ModelMessage, Prompt
from outrider.types.tool_state import ToolCompleted, parse_data_url

WIRE = "wire syntax"
_BYTES_PER_TOKEN = 4
_MAX_FILE_TOKENS = 1_500
_KINDS = {"chat": "openai", "responses": "openai-responses"}  # other forms have the name of their provider kind
_PROMPT_FILES = ("agent", "local_agent", "agent_mode", "background_mode", "chat_mode", "plan_mode", "colleagues")
_INSTRUCTIONS_HEADER = re.compile(r"^# Instructions from (.+)$", re.MULTILINE)


class ContextSource(msgspec.Struct, frozen=True, order=True):
    """Where bytes of a request come from: a kind, such as `file read` or `tool schema`, and a name."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}" if self.name else self.kind


class SourceShare(msgspec.Struct, frozen=True):
    """What one source contributes: bytes, tokens and cost. The cost is None without a known price."""

    kind: str
    name: str
    bytes: int
    tokens: int
    cost: Decimal | None = None


class BodySpan(msgspec.Struct, frozen=True):
    """Consecutive bytes of a request that have one source."""

    source: ContextSource
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class SentRequestView(msgspec.Struct, frozen=True):
    """A request that was built again from a stored session. `body` is what was sent, `plain` is the same without cache
    marks. `exact` is True if the bytes have the recorded digest; they differ if secrets were redacted or if another
    version of the program sent them."""

    step: int
    message: Message
    record: SentRequestRecord
    form: tuple[str, ...]
    body: bytes
    plain: RequestBody
    exact: bool
    spans: tuple[BodySpan, ...]


class StepContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context of one step by source; the request for the summary of a compaction has the step 0.

    `cached` is the share of the prompt that came from the provider's cache, `achievable` the share that is equal to the
    request before. Without `recorded` only the message and its model are known."""

    step: int
    message_id: str
    model: str = ""
    recorded: bool = True
    exact: bool = True
    bytes: int = 0
    tokens: Tokens = Tokens()
    cost: Decimal | None = None
    created: int = 0
    cached: float = 0.0
    achievable: float = 0.0
    miss: CacheMiss | None = None
    sources: tuple[SourceShare, ...] = ()


class ContextReport(msgspec.Struct, frozen=True):
    """The steps of a session and the sum of their sources, the most expensive ones first."""

    session_id: str
    steps: tuple[StepContext, ...]
    totals: tuple[SourceShare, ...]


class SourceChange(msgspec.Struct, frozen=True):
    """A source whose size differs between two requests."""

    kind: str
    name: str
    before: int
    after: int


class RequestComparison(msgspec.Struct, frozen=True):
    """The difference between two requests: sources that changed, and where the bytes first differ."""

    changes: tuple[SourceChange, ...]
    equal_bytes: int
    miss: CacheMiss


def rebuild_requests(messages: Sequence[Message]) -> Iterator[SentRequestView | Message]:
    """Yields each request of a transcript, or the answer whose request was not recorded. The request for a summary has
    the step 0."""
    builder, step = _RequestBuilder(messages), 0
    for position, message in enumerate(messages):
        if message.role == "assistant":
            step += 1
            yield builder.build(position, step) or message
        elif request_of(message) is not None and (summary := builder.build(position, 0)):
            yield summary


class _RequestBuilder:
    """Builds the requests of one transcript in order; encoded messages are reused from step to step."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._head: SentRequestRecord | None = None
        self._projections: dict[str, PromptProjection] = {}
        self._later_count = 0  # changes after the request that is built, as in `_changed_later`
        self._changed_later = [time for message in messages for part in message.parts if (time := _changed_at(part))]
        self._sources = MessageSources(messages)
        self._head_cache: tuple[bytes, tuple[BodySpan, ...]] = (b"", ())
        self._spans: dict[int, tuple[ModelMessage, tuple[BodySpan, ...]]] = {}

    def build(self, position: int, step: int) -> SentRequestView | None:
        message = self._messages[position]
        record = request_of(message)
        if record is not None and record.head and step:
            self._head = record
        head_record = record if step == 0 else self._head  # the head of a summary is its own
        if record is None or head_record is None:
            return None
        form, head = head_record.form, sent_head(head_record.head, head_record.conversation)
        history = self._history(position, message)
        prompt = end_with_user(self._project(form, history), history)
        if record.rewrite and record.rewrite != BEFORE_REQUEST:
            prompt = _rewrite_prompt(prompt, record.rewrite)
        try:
            encoded = encode_prompt(form, prompt)
        except ConfigurationError:
            return None
        changed = change_messages(record, encoded)
        body = join_body(head, changed)
        plain = join_body(head, change_messages(record, encoded, marks=False)) if record.inserts else body
        plain_body = RequestBody(
            str(message.model),
            plain,
            len(head),
            message.time.created if message.time else 0,
            record.rewrite,
            last_compaction(history),
        )
        change = ContextSource("hook", BEFORE_REQUEST) if step else ContextSource("prompt file", "compaction.md")
        spans = self._all_spans(head, prompt, encoded, record, len(body), change)
        exact = len(body) == record.size and digest_body(body) == record.digest
        return SentRequestView(step, message, record, form, body, plain_body, exact, spans)

    def _history(self, position: int, message: Message) -> list[Message]:
        """Returns the messages as they were when the request was sent: with outputs that were removed and summaries
        that were undone later."""
        history = list(self._messages[:position])
        sent_at = message.time.created if message.time else 0
        later = sum(time > sent_at for time in self._changed_later)
        if later != self._later_count:
            self._later_count = later
            self._projections.clear()  # earlier messages differ from those of the request before
        if not later:
            return history
        return [replace(earlier, parts=[_part_at(part, sent_at) for part in earlier.parts]) for earlier in history]

    def _project(self, form: tuple[str, ...], history: Sequence[Message]) -> Prompt:
        family = family_of(form)
        return self._projections.setdefault(family, PromptProjection(family)).prompt(history)

    def _all_spans(
        self,
        head: bytes,
        prompt: Prompt,
        encoded: bytes | bytearray,
        record: SentRequestRecord,
        size: int,
        change: ContextSource,
    ) -> tuple[BodySpan, ...]:
        spans = [*self._head_spans(head), *self._message_spans(head, prompt, encoded)]
        if len(head) < size and encoded and not head.endswith(b"["):
            spans.append(BodySpan(ContextSource(WIRE), len(head), len(head) + 1))
        start = len(head) + bool(encoded and not head.endswith(b"["))
        if record.patch is not None:
            spans = _splice_spans(spans, start, record.patch, change)
        for insert in reversed(record.inserts):
            spans = _splice_spans(spans, start, insert, ContextSource(WIRE))
        return _fill_gaps(spans, size)

    def _head_spans(self, head: bytes) -> tuple[BodySpan, ...]:
        if self._head_cache[0] != head:
            self._head_cache = (head, tuple(head_spans(head, self._messages)))
        return self._head_cache[1]

    def _message_spans(self, head: bytes, prompt: Prompt, encoded: bytes | bytearray) -> Iterator[BodySpan]:
        first = len(head) + bool(encoded and not head.endswith(b"["))
        start = 0
        for number, (message, end) in enumerate(zip(prompt, prompt.message_ends(encoded), strict=True)):
            cached = self._spans.get(number)
            if cached is None or cached[0] is not message:
                content = bytes(encoded[start:end])
                self._spans[number] = cached = (message, tuple(self._sources.find_spans(message, content)))
            for span in cached[1]:
                yield BodySpan(span.source, first + start + span.start, first + start + span.end)
            start = end


def _rewrite_prompt(prompt: Prompt, form: str) -> Prompt:
    from outrider.providers.text_tool_calls import rewrite_as_text  # lazy: rarely needed

    return rewrite_as_text(prompt) if form == "text-tools" else prompt


def _changed_at(part: AnyPart) -> int:
    """Returns the time at which the output of a call was removed or a compaction was undone; 0 if neither happened."""
    if isinstance(part, CompactionPart):
        return part.undone.time if part.undone else 0
    state = part.state if isinstance(part, ToolPart) else None
    return (state.time.compacted or 0) if isinstance(state, ToolCompleted) else 0


def _part_at(part: AnyPart, sent_at: int) -> AnyPart:
    """Returns a part as it was when a request was sent."""
    if _changed_at(part) <= sent_at:
        return part
    if isinstance(part, CompactionPart) and part.undone:
        return replace(part, summary=part.undone.summary)
    if isinstance(part, ToolPart) and isinstance(state := part.state, ToolCompleted):
        return replace(part, state=replace(state, time=replace(state.time, compacted=None)))
    return part


def _splice_spans(spans: Iterable[BodySpan], first: int, edit: BodyEdit, source: ContextSource) -> list[BodySpan]:
    """Applies an edit of the messages, which start at `first`, to the spans of a body."""
    position, removed, added = first + edit.offset, edit.removed, len(edit.text.encode())
    result = [BodySpan(source, position, position + added)]
    for span in spans:
        if span.start < position:
            result.append(BodySpan(span.source, span.start, min(span.end, position)))
        if span.end > position + removed:
            start = max(span.start, position + removed)
            result.append(BodySpan(span.source, start - removed + added, span.end - removed + added))
    return result


def _fill_gaps(spans: Iterable[BodySpan], size: int) -> tuple[BodySpan, ...]:
    """Returns spans that cover a body: bytes between sources are syntax of the API."""
    filled: list[BodySpan] = []
    position = 0
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        if span.start > position:
            filled.append(BodySpan(ContextSource(WIRE), position, span.start))
        start, end = max(span.start, position), min(span.end, size)
        if end > start:
            filled.append(BodySpan(span.source, start, end))
            position = end
    if position < size:
        filled.append(BodySpan(ContextSource(WIRE), position, size))
    return tuple(filled)


def head_spans(head: bytes, messages: Sequence[Message]) -> Iterator[BodySpan]:
    """Yields the sources of a head: each tool, and the sections of the system text."""
    fields = read_head(head)
    names = [name for name, _ in iterate_tools(fields)]
    for name, (start, end) in zip(names, _tool_ranges(head), strict=False):
        server = tool_server(name)
        source = ContextSource("MCP server", server) if server else ContextSource("tool schema", name)
        yield BodySpan(source, start, end)
    text = system_text(fields)
    position = 0
    for source, section in _system_sections(text, messages):
        content = _json_text(section)
        start = head.find(content, position)
        if start >= 0:
            position = start + len(content)
            yield BodySpan(source, start, position)


def _tool_ranges(head: bytes) -> Iterator[tuple[int, int]]:
    """Yields the bytes of each tool definition. The text has one character per byte."""
    text = head.decode("latin-1") + "]}"
    for key, start, _ in _json_members(text, 0):
        if key != "tools":
            continue
        for item, end in _json_items(text, start):
            declarations = [
                declarations_start
                for name, declarations_start, _ in _json_members(text, item)
                if name == "functionDeclarations"
            ]
            if declarations:
                yield from _json_items(text, declarations[0])
            else:
                yield item, end


_decoder = json.JSONDecoder(strict=False)


def _json_members(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Yields the keys of the JSON object at `start`, with the ranges of their values. The JSON has no white space."""
    position = start + 1
    while text[position] != "}":
        key, position = _decoder.raw_decode(text, position)
        begin = position + 1
        _, position = _decoder.raw_decode(text, begin)
        yield key, begin, position
        position += text[position] == ","


def _json_items(text: str, start: int) -> Iterator[tuple[int, int]]:
    position = start + 1
    while text[position] != "]":
        begin = position
        _, position = _decoder.raw_decode(text, begin)
        yield begin, position
        position += text[position] == ","


def _json_text(text: str) -> bytes:
    return msgspec.json.encode(text)[1:-1]


def _system_sections(text: str, messages: Sequence[Message]) -> Iterator[tuple[ContextSource, str]]:
    """Yields the sections of the system text in order: prompt files, instructions, AGENTS.md files."""
    matches: list[tuple[int, int, ContextSource]] = []
    notes = next((message.system for message in messages if message.system), None) or ""
    if notes and (start := text.find(notes)) >= 0:
        headers = [*_INSTRUCTIONS_HEADER.finditer(notes)]
        for number, header in enumerate(headers):
            end = headers[number + 1].start() if number + 1 < len(headers) else len(notes)
            lines = notes.count("\n", header.end(), end)
            name = header[1] if header[1] != "the user" else "AGENTS.md of the user"
            source = ContextSource("instructions file", f"{name}, lines 1-{max(1, lines)}")
            matches.append((start + header.start(), start + end, source))
    for name, pattern in _prompt_patterns().items():
        match = pattern.search(text)
        if match and not any(low < match.end() and match.start() < high for low, high, _ in matches):
            matches.append((match.start(), match.end(), ContextSource("prompt file", f"{name}.md")))
    position = 0
    for start, end, source in [*sorted(matches), (len(text), len(text), ContextSource(""))]:
        if text[position:start].strip():
            yield ContextSource("instructions of the agent"), text[position:start]
        if end > start:
            yield source, text[start:end]
        position = end


@cache
def _prompt_patterns() -> Mapping[str, re.Pattern[str]]:
    """Returns a pattern for each prompt file, in which a field matches any text."""
    patterns: dict[str, re.Pattern[str]] = {}
    for name in _PROMPT_FILES:
        *leading_texts, last_text = re.split(r"\{\w+\}", prompt_text(name))
        field = ".*?" if last_text else r"[^\n]*"  # a field at the end ends with its line
        pattern = ".*?".join(map(re.escape, leading_texts)) + (field if leading_texts else "") + re.escape(last_text)
        patterns[name] = re.compile(pattern, re.DOTALL)
    return patterns


class MessageSources:
    """Finds the sources of the bytes of encoded messages."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._stored: dict[str, tuple[Message, AnyPart]] = {
            part.id: (message, part) for message in messages for part in message.parts
        }

    def find_spans(self, message: ModelMessage, content: bytes) -> Iterator[BodySpan]:
        """Yields the bytes of each part within an encoded message. An encoder may write parts in another order."""
        taken: list[tuple[int, int]] = []
        position = 0
        for part in message.content:
            source = self._source_of(message, part)
            for payload in _payloads(part):
                start = _find_free(content, payload, position, taken)
                if start < 0:
                    continue
                position = start + len(payload)
                taken.append((start, position))
                yield BodySpan(source, start, position)

    def _source_of(self, message: ModelMessage, part: ModelPart) -> ContextSource:
        owner, stored = self._stored.get(part.id, (None, None))
        match part:
            case TextPart():
                return _text_source(message, part, owner, stored)
            case ReasoningPart():
                return ContextSource("reasoning")
            case FilePart():
                return ContextSource("attached file", part.filename or part.mime)
            case ToolUsePart():
                return ContextSource("tool call", part.tool_name)
            case ToolResultPart():
                return _result_source(part, stored)


def _text_source(message: ModelMessage, part: TextPart, owner: Message | None, stored: AnyPart | None) -> ContextSource:
    if isinstance(stored, CompactionPart):
        return ContextSource("compaction", "summary")
    if message.role == "assistant":
        return ContextSource("answer", owner.agent or "" if owner else "")
    if not part.synthetic:
        return ContextSource("user message")
    if part.metadata.get(INSTRUCTIONS):
        return ContextSource("instructions of the agent")
    if part.text.startswith("<workspace_state>"):
        return ContextSource("workspace state")
    return ContextSource("note of the engine")


def _result_source(part: ToolResultPart, stored: AnyPart | None) -> ContextSource:
    tool_input: dict[str, Any] = stored.state.input if isinstance(stored, ToolPart) else {}
    name = part.tool_name or ""
    if name == "read" and tool_input.get("file_path"):
        return ContextSource("file read", str(PurePath(str(tool_input["file_path"]))))
    if name == "skill" and tool_input.get("name"):
        return ContextSource("skill", str(tool_input["name"]))
    server = tool_server(name)
    return ContextSource("output of an MCP server", server) if server else ContextSource("tool output", name)


def _payloads(part: ModelPart) -> Iterator[bytes]:
    """Yields the strings that an encoder may write for a part. APIs encode the input of a call as a JSON object or as a
    string."""
    match part:
        case TextPart():
            yield _json_text(part.text)
        case ReasoningPart():
            yield _json_text(part.text)
            yield from (_json_text(value) for value in _strings_in(part.provider_state) if len(value) > 16)
        case FilePart():
            data = parse_data_url(part.url)
            yield _json_text(data.payload if data is not None else part.url)
        case ToolUsePart():
            encoded_input = msgspec.json.encode(part.tool_input)
            yield _json_text(encoded_input.decode())
            yield encoded_input
            yield _json_text(part.tool_id)
            yield _json_text(part.tool_name)
        case ToolResultPart():
            yield _json_text(part.content)
            for attachment in part.attachments:
                yield _json_text(attachment.data or attachment.url or "")


def _strings_in(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for inner in value.values():  # pyright: ignore[reportUnknownVariableType]
                yield from _strings_in(inner)
        case list():
            for inner in value:  # pyright: ignore[reportUnknownVariableType]
                yield from _strings_in(inner)
        case _:
            return


def _find_free(content: bytes, payload: bytes, position: int, taken: Sequence[tuple[int, int]]) -> int:
    """Returns where a payload is in bytes that have no source yet, searching from `position` first; -1 if it is not
    there."""
    for begin in (position, 0) if payload else ():
        start = content.find(payload, begin)
        while start >= 0 and any(low < start + len(payload) and start < high for low, high in taken):
            start = content.find(payload, start + 1)
        if start >= 0:
            return start
    return -1


def build_report(session_id: str, messages: Sequence[Message]) -> ContextReport:
    """Returns the context of each step of a session."""
    steps: list[StepContext] = []
    previous: SentRequestView | None = None
    cached_models, number = set[str](), 0
    for request in rebuild_requests(messages):
        if isinstance(request, SentRequestView) and request.step == 0:  # no step continues the request for a summary
            steps.append(_step_context(request, None, caches=False))
            continue
        number += 1
        if isinstance(request, Message):
            previous = None
            steps.append(StepContext(step=number, message_id=request.id, model=str(request.model), recorded=False))
            continue
        tokens = request.message.tokens
        if tokens.cache.read or tokens.cache.write:
            cached_models.add(request.plain.model)
        steps.append(_step_context(request, previous, caches=request.plain.model in cached_models))
        previous = request
    return ContextReport(session_id, tuple(steps), sum_shares(steps))


def _step_context(request: SentRequestView, previous: SentRequestView | None, *, caches: bool) -> StepContext:
    message, tokens = request.message, request.message.tokens
    achievable, miss = 0.0, None
    if previous is not None:
        miss_report = explain_miss(previous.plain, request.plain, tokens)
        achievable = miss_report.achievable
        miss = miss_report if is_reported(miss_report, tokens, caches=caches) else None
    return StepContext(
        step=request.step,
        message_id=message.id,
        model=request.plain.model,
        exact=request.exact,
        bytes=len(request.body),
        tokens=tokens,
        cost=message.cost,
        created=request.plain.created,
        cached=tokens.cache.read / max(1, tokens.prompt),
        achievable=achievable,
        miss=miss,
        sources=share_sources(request),
    )


def share_sources(request: SentRequestView) -> tuple[SourceShare, ...]:
    """Returns what each source contributes to a request. The tokens add up to those that the provider reports; the
    first ones are those that were read from the cache, at their price."""
    tokens = request.message.tokens
    weights = [_estimate_tokens(span) for span in request.spans]
    scale = tokens.prompt / sum(weights) if tokens.prompt and weights else 1.0
    rates = _prompt_rates(request)
    sums: dict[ContextSource, tuple[int, float, Decimal]] = {}
    position = 0.0
    for span, weight in zip(request.spans, weights, strict=True):
        size = weight * scale
        cached = max(0.0, min(size, tokens.cache.read - position))
        position += size
        spent = Decimal(0) if rates is None else rates[0] * Decimal(cached) + rates[1] * Decimal(size - cached)
        total = sums.get(span.source, (0, 0.0, Decimal(0)))
        sums[span.source] = (total[0] + span.size, total[1] + size, total[2] + spent)
    shares = [
        SourceShare(source.kind, source.name, size, round(count), None if rates is None else round(cost, 8))
        for source, (size, count, cost) in sums.items()
    ]
    return tuple(sorted(shares, key=lambda share: (-share.tokens, share.kind, share.name)))


def _estimate_tokens(span: BodySpan) -> float:
    estimate = span.size / _BYTES_PER_TOKEN
    return min(estimate, _MAX_FILE_TOKENS) if span.source.kind == "attached file" else estimate


def _prompt_rates(request: SentRequestView) -> tuple[Decimal, Decimal] | None:
    """Returns the price of a token that was read from the cache, and of another one; scaled to the stored cost."""
    message, tokens = request.message, request.message.tokens
    kind, model = _KINDS.get(request.form[0], request.form[0]), message.model.model if message.model else ""
    catalog = shared_catalog()
    full_cost = catalog.cost_of(kind, model, tokens)
    if full_cost is None or not tokens.prompt:
        return None
    scale = message.cost / full_cost if message.cost is not None and full_cost else Decimal(1)
    cached_cost = catalog.cost_of(kind, model, Tokens(cache=CacheTokens(tokens.cache.read))) or Decimal(0)
    uncached = Tokens(tokens.input, cache=CacheTokens(0, tokens.cache.write))
    uncached_cost = catalog.cost_of(kind, model, uncached) or Decimal(0)
    return scale * cached_cost / max(1, tokens.cache.read), scale * uncached_cost / max(
        1, tokens.input + tokens.cache.write
    )


def sum_shares(steps: Iterable[StepContext]) -> tuple[SourceShare, ...]:
    """Returns the sum of the sources of several steps, the most expensive ones first. A source that was priced in no
    step has no cost."""
    sums: dict[tuple[str, str], SourceShare] = {}
    for step in steps:
        for share in step.sources:
            key = (share.kind, share.name)
            total = sums.get(key)
            sums[key] = share if total is None else _add_shares(total, share)
    return tuple(sorted(sums.values(), key=lambda share: (-(share.cost or 0), -share.tokens, share.kind, share.name)))


def _add_shares(total: SourceShare, share: SourceShare) -> SourceShare:
    cost = total.cost if share.cost is None else share.cost if total.cost is None else total.cost + share.cost
    return SourceShare(total.kind, total.name, total.bytes + share.bytes, total.tokens + share.tokens, cost)


def month_of(time: int) -> str:
    """Returns the month of a time in Unix milliseconds, such as 2026-11, in UTC."""
    return datetime.fromtimestamp(time / 1000, UTC).strftime("%Y-%m")


def find_request(messages: Sequence[Message], step: int | None = None) -> SentRequestView:
    """Returns the request of a step, or the last one that was recorded; for step 0, the last one for a summary. Raises
    ConfigurationError if there is none."""
    recorded: SentRequestView | None = None
    if step == 0:
        for request in rebuild_requests(messages):
            recorded = request if isinstance(request, SentRequestView) and request.step == 0 else recorded
        if recorded is None:
            raise ConfigurationError("the session has no summary whose request is recorded")
        return recorded
    answers = (entry for entry in rebuild_requests(messages) if isinstance(entry, Message) or entry.step)
    for number, request in enumerate(answers, 1):
        if isinstance(request, SentRequestView):
            recorded = request
        if number == step:
            if isinstance(request, SentRequestView):
                return request
            raise ConfigurationError(f"the request of step {step} is not recorded")
    if recorded is None or step is not None:
        raise ConfigurationError("no request is recorded" if step is None else f"there is no step {step}")
    return recorded


def compare_requests(before: SentRequestView, after: SentRequestView) -> RequestComparison:
    """Returns how two requests differ, of one session or of two."""
    old, new = _sizes(before), _sizes(after)
    changes = [
        SourceChange(source.kind, source.name, old.get(source, 0), new.get(source, 0))
        for source in dict.fromkeys((*old, *new))
        if old.get(source, 0) != new.get(source, 0)
    ]
    changes.sort(key=lambda change: -abs(change.after - change.before))
    miss = explain_miss(before.plain, after.plain, after.message.tokens)
    return RequestComparison(tuple(changes), common_prefix(before.plain.body, after.plain.body), miss)


def _sizes(request: SentRequestView) -> dict[ContextSource, int]:
    sizes: dict[ContextSource, int] = {}
    for span in request.spans:
        sizes[span.source] = sizes.get(span.source, 0) + span.size
    return sizes
