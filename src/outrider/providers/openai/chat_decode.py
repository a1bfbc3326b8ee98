"""Decodes a Chat Completions response, streamed or complete, into deltas."""

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any, Literal, assert_never, cast

import msgspec

from outrider.errors import MalformedAnswerError, NetworkError, OverloadedError, ProviderError, ServerError
from outrider.providers.openai.chat_chunks import (
    ABSENT,
    REASONING_FIELDS,
    ChatAudio,
    ChatChoice,
    ChatChunk,
    ChatMessage,
    ChatToolCall,
    FunctionCall,
    decode_chunk,
    find_error,
    reasoning_of,
    tokens_from_usage,
)
from outrider.providers.openai.common import NO_VALUE, error_from_payload, reported_cost
from outrider.types.ids import new_id
from outrider.types.request import (
    AnswerStart,
    Delta,
    Finish,
    FinishReason,
    InputDelta,
    PartEnd,
    PartStart,
    ReasoningDelta,
    TextDelta,
    ToolSpec,
    UsageReport,
)
from outrider.types.tool_state import make_data_url, parse_data_url

UNNAMED_TOOL = "unnamed"  # the API requires a name in the replayed call; no tool has this one
_INPUT_OPENING, _INPUT_CLOSING = '{"input":"', '"}'  # wrap free-text input into a JSON object while it streams
_LEGACY_INDEX = -1  # index for the single call of the deprecated function_call field


class _CallDraft:
    """A tool call while it streams. Input is buffered until the name is known, then the part is announced."""

    def __init__(self, given_id: str, call_id: str) -> None:
        self.given_id = given_id
        self.id = call_id
        self.name = self.announced_name = ""  # the current name, and the name in the last start delta
        self.pieces: list[str] = []
        self.part: int | None = None
        self.custom = False
        self.state: dict[str, Any] = {}

    def is_complete(self) -> bool:
        try:
            msgspec.json.decode("".join(self.pieces))
        except (msgspec.DecodeError, RecursionError):
            return False
        return True


class ToolCallDecoder:
    """Decodes the tool calls of one response, in order of appearance.

    `part_indexes` supplies indexes for new parts; `offered` lists the request's tools, which is needed to join split
    names.
    """

    def __init__(self, part_indexes: Iterator[int], offered: Iterable[ToolSpec] = ()) -> None:
        self._part_indexes = part_indexes
        self._offered = offered
        self._drafts: list[_CallDraft] = []
        self._draft_by_number: dict[int, _CallDraft] = {}
        self._ids: set[str] = set()
        self._announced = False

    def __bool__(self) -> bool:
        """Returns True if at least one call was announced."""
        return self._announced

    def add_call(self, call: ChatToolCall) -> list[Delta]:
        function, custom = _called_function(call)
        draft = self._find_draft(call.index, call.id or "", function.name or "")
        if function.name and function.name != draft.name:
            draft.name = self._extend_name(draft.name, function.name) or draft.name
        if call.extra_content:
            draft.state["extra_content"] = call.extra_content
        if custom and not draft.custom:
            draft.custom = draft.state["custom"] = True
            draft.pieces.append(_INPUT_OPENING)
        return self._emit_input(
            draft, _escape_json(function.arguments) if draft.custom else _arguments_text(function.arguments)
        )

    def add_legacy(self, function: FunctionCall) -> list[Delta]:
        """Adds a chunk of the deprecated function_call field. It is ignored if `tool_calls` is present, since servers
        that fill both send the same call."""
        if self._draft_by_number.keys() - {_LEGACY_INDEX} or not (function.name or function.arguments):
            return []
        return self.add_call(ChatToolCall(_LEGACY_INDEX, None, function))

    def finish(self) -> list[Delta]:
        """Returns the end deltas of all calls. A call with arguments but no name is emitted too, because it needs an
        error result."""
        deltas: list[Delta] = []
        for draft in self._drafts:
            if draft.part is None and draft.pieces:
                draft.name = UNNAMED_TOOL
                deltas += self._emit_input(draft, "")
            if draft.custom:
                deltas += self._emit_input(draft, _INPUT_CLOSING)
            if draft.part is not None:
                deltas.append(PartEnd(draft.part, draft.state))
        return deltas

    def _find_draft(self, number: int | None, given_id: str, name: str) -> _CallDraft:
        draft = self._draft_by_number.get(number) if number is not None else self._find_unnumbered(given_id, name)
        if draft is None or not self._continues_call(draft, given_id, name):
            draft = _CallDraft(given_id, self._unique_id(given_id))
            self._drafts.append(draft)
        if number is not None:
            self._draft_by_number[number] = draft
        return draft

    def _continues_call(self, draft: _CallDraft, given_id: str, name: str) -> bool:
        """Returns True if the chunk continues this call; False if the server reuses the index for a new call."""
        if not name or not draft.name or (given_id and given_id == draft.given_id):
            return True
        if given_id and draft.given_id:
            return False
        if draft.pieces:
            return not draft.is_complete()
        return name == draft.name or self._extend_name(draft.name, name) is not None

    def _extend_name(self, name: str, chunk: str) -> str | None:
        """Returns the joined name if a server split it into chunks; None if `chunk` is a different name."""
        if not name:
            return chunk
        offered = {tool.name for tool in self._offered}
        if name + chunk in offered and chunk not in offered:
            return name + chunk
        return chunk if chunk.startswith(name) and chunk in offered and name not in offered else None

    def _find_unnumbered(self, given_id: str, name: str) -> _CallDraft | None:
        """Returns the call that a chunk without an index continues: the one with its id, else the last one."""
        if given_id:
            return next((draft for draft in self._drafts if draft.given_id == given_id), None)
        return self._drafts[-1] if self._drafts and not name else None

    def _unique_id(self, call_id: str) -> str:
        """Returns the server's id, or a generated one if it is missing or duplicate."""
        if not call_id or call_id in self._ids:
            call_id = f"call_{new_id().replace('-', '')}"
        self._ids.add(call_id)
        return call_id

    def _emit_input(self, draft: _CallDraft, chunk: str) -> list[Delta]:
        if chunk:
            draft.pieces.append(chunk)
        if draft.part is not None and draft.announced_name == draft.name:
            return [InputDelta(draft.part, chunk)] if chunk else []
        if not draft.name:
            return []
        draft.part, self._announced = next(self._part_indexes) if draft.part is None else draft.part, True
        draft.announced_name = draft.name
        started: list[Delta] = [PartStart(draft.part, "tool", draft.id, draft.name)]
        buffered = "".join(draft.pieces)
        return [*started, InputDelta(draft.part, buffered)] if buffered else started


def _called_function(call: ChatToolCall) -> tuple[FunctionCall, bool]:
    """Returns the called function and whether its input is free text. Some servers also send an empty object of the
    other kind."""
    custom = FunctionCall(call.custom.name, call.custom.input) if call.custom is not None else None
    if custom is not None and (call.function is None or (custom.name and not call.function.name)):
        return custom, True
    return call.function or FunctionCall(), False


def _arguments_text(arguments: Any) -> str:
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return msgspec.json.encode(arguments).decode()


def _escape_json(text: Any) -> str:
    return msgspec.json.encode(_arguments_text(text))[1:-1].decode()


class TextBlock(msgspec.Struct, frozen=True):
    text: str


class ThinkingBlock(msgspec.Struct, frozen=True):
    text: str


class ImageBlock(msgspec.Struct, frozen=True):
    url: str

    @property
    def media_type(self) -> str:
        data = parse_data_url(self.url)
        return data.mime if data is not None else "image/*"


ContentBlock = TextBlock | ThinkingBlock | ImageBlock


def content_blocks(content: Any) -> Iterator[ContentBlock]:
    if isinstance(content, list):
        for item in cast("list[Any]", content):
            yield from _read_block(item)
    else:
        yield TextBlock(content if isinstance(content, str) else msgspec.json.encode(content).decode())


def _read_block(item: Any) -> Iterator[ContentBlock]:
    match item:
        case str(text) | {"type": "text" | "output_text", "text": str(text)}:
            yield TextBlock(text)
        case {"type": "thinking" | "reasoning"}:
            yield ThinkingBlock(_nested_text(item.get("thinking") or item.get("summary") or item.get("text")))
        case {"image_url": {"url": str(url)}} | {"image_url": str(url)}:
            yield ImageBlock(url)
        case _:
            pass  # references to sources and similar blocks have no text


def _nested_text(value: Any) -> str:
    match value:
        case str():
            return value
        case [*items]:
            return "".join(map(_nested_text, items))
        case {"text": text}:
            return _nested_text(text)
        case _:
            return ""


_TEXT_FIELDS = ("text", "summary")

DetailChunk = dict[str, Any]


def merge_reasoning_details(chunks: Iterable[Any]) -> list[DetailChunk]:
    """Joins chunks of `reasoning_details` into items. Text continues until a signature arrives; encrypted items are
    never split."""
    groups: list[list[DetailChunk]] = []
    for chunk in _only_objects(chunks):
        if groups and _continues_detail(groups[-1], chunk):
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    return [_join_details(group) for group in groups]


def reasoning_details_text(chunks: Iterable[Any]) -> str:
    return "".join(_text_field(chunk, field) for chunk in _only_objects(chunks) for field in _TEXT_FIELDS)


def _continues_detail(group: list[DetailChunk], chunk: DetailChunk) -> bool:
    previous = group[-1]
    same_item = previous.get("type") == chunk.get("type") and previous.get("index") == chunk.get("index")
    return same_item and "data" not in chunk and not (previous.get("signature") and reasoning_details_text([chunk]))


def _join_details(group: list[DetailChunk]) -> DetailChunk:
    item: DetailChunk = {}
    for chunk in group:
        item |= {name: value for name, value in chunk.items() if value is not None or name not in item}
    texts = {field: "".join(_text_field(chunk, field) for chunk in group) for field in _TEXT_FIELDS if field in item}
    return item | texts


def _text_field(chunk: DetailChunk, field: str) -> str:
    value = chunk.get(field)
    return value if isinstance(value, str) else ""


def _only_objects(chunks: Iterable[Any]) -> Iterator[DetailChunk]:
    return (cast("DetailChunk", chunk) for chunk in chunks if isinstance(chunk, dict))


ContentKind = Literal["text", "refusal", "reasoning"]


class ContentDecoder:
    """Decodes all parts except tool calls. `part_indexes` supplies indexes for new parts."""

    def __init__(self, part_indexes: Iterator[int]) -> None:
        self._part_indexes = part_indexes
        self._kind: ContentKind | None = None
        self._index = 0
        self._field = ""
        self._details: list[Any] = []
        self._late_details: list[Any] = []
        self._annotations: list[Any] = []
        self.has_content = False
        self.refused = False

    def add_text(self, text: str) -> list[Delta]:
        if self._kind == "text":
            return [TextDelta(self._index, text)]
        return [*self._open_part("text"), TextDelta(self._index, text)]

    def add_refusal(self, text: str) -> list[Delta]:
        self.refused = True
        return [*self._open_part("refusal"), TextDelta(self._index, text)]

    def add_reasoning(self, text: str, field: str) -> list[Delta]:
        """Adds reasoning text. `field` is the response field it came from, which the next request must use too."""
        started = self._open_part("reasoning")
        self._field = field
        return [*started, ReasoningDelta(self._index, text)]

    def add_details(self, details: Iterable[Any]) -> list[Delta]:
        """Stores structured reasoning unchanged. Details that arrive after the reasoning part has ended get a separate
        part at the end."""
        late = self._kind != "reasoning" and self.has_content
        started = [] if late else self._open_part("reasoning")
        (self._late_details if late else self._details).extend(details)
        return started

    def add_annotations(self, annotations: Iterable[Any]) -> None:
        self._annotations.extend(annotations)

    def add_file(self, mime: str, url: str, state: dict[str, Any]) -> list[Delta]:
        ended = self.close_part()
        index = next(self._part_indexes)
        return [*ended, PartStart(index, "file"), PartEnd(index, state, mime, url)]

    def close_part(self) -> list[Delta]:
        """Returns the end delta of the open part, if any."""
        if self._kind is None:
            return []
        ended = PartEnd(self._index, self._part_state())
        self._kind, self._field, self._details = None, "", []
        return [ended]

    def finish(self, citations: dict[str, Any]) -> list[Delta]:
        """Returns the end deltas of all parts. Citations are attached to the last text part."""
        if self._annotations:
            citations = citations | {"annotations": self._annotations}
        if citations and self._kind == "text":
            deltas: list[Delta] = [PartEnd(self._index, citations)]
            self._kind = None
        else:
            deltas = self.close_part()
            if citations:
                deltas += self._state_only_part("text", citations)
        if self._late_details:
            deltas += self._state_only_part("reasoning", {"details": merge_reasoning_details(self._late_details)})
        return deltas

    def _open_part(self, kind: ContentKind) -> list[Delta]:
        if self._kind == kind:
            return []
        ended = self.close_part()
        self._kind, self._index, self.has_content = kind, next(self._part_indexes), True
        return [*ended, PartStart(self._index, "reasoning" if kind == "reasoning" else "text")]

    def _part_state(self) -> dict[str, Any]:
        match self._kind:
            case "refusal":
                return {"refusal": True}
            case "reasoning":
                field = {"field": self._field} if self._field else {}
                return field | ({"details": merge_reasoning_details(self._details)} if self._details else {})
            case "text" | None:
                return {}

    def _state_only_part(self, kind: Literal["text", "reasoning"], state: dict[str, Any]) -> list[Delta]:
        """Returns the deltas of a part that has state but no text."""
        index = next(self._part_indexes)
        return [PartStart(index, kind), PartEnd(index, state)]


_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "tool_use": "tool_use",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "refusal",
    "refusal": "refusal",
    "safety": "refusal",
    "sensitive": "refusal",
}
# Finish reasons that report a server failure. Both tables have lower-case words; servers use either case.
_FAILURE_REASONS: dict[str, type[ProviderError]] = {
    "error": ServerError,
    "network_error": NetworkError,
    "insufficient_system_resource": OverloadedError,
}


class ChatDecoder:
    """Decodes one response. Only the first choice is used.

    Parts end with the stream and not with the finish reason, because some servers send more content after it.
    """

    def __init__(self, audio_mime: str = "audio/wav", offered: Iterable[ToolSpec] = ()) -> None:
        numbers = count()
        self._content = ContentDecoder(numbers)
        self._calls = ToolCallDecoder(numbers, offered)
        self._audio = ChatAudio("", "", "")
        self._audio_mime = audio_mime
        self._citations: dict[str, msgspec.Raw] = {}
        self._id = self._model = ""
        self._reasoning_field = ""
        self._raw_finish: str | None = None
        self._error: ProviderError | None = None
        self._done = False
        self.is_complete = False

    def feed(self, event: str, data: bytes) -> Iterable[Delta]:
        if self._done:
            return ()
        if data[:1] != b"{":
            return self._read_non_object(event, data.strip())
        return self._read_object(data, is_error=event == "error")

    def decode_body(self, body: bytes) -> Iterable[Delta]:
        yield from self.feed("", body.strip())
        if self._raw_finish is None and not self._has_content:
            raise MalformedAnswerError("the answer holds neither a message nor a reason for having none")
        yield from self._finish_answer()

    def close(self) -> Iterable[Delta]:
        if self._done:
            return ()
        if self._raw_finish is None:
            raise NetworkError("the stream ended before the answer was complete")
        return self._finish_answer()

    def _read_non_object(self, event: str, data: bytes) -> Iterable[Delta]:
        """Handles an event that is not a JSON object: the end marker, an error as text or list, or a keep-alive."""
        if data == b"[DONE]":
            return self._finish_answer() if self._raw_finish is not None or self._has_content else self.close()
        if data[:1] == b"{":
            return self._read_object(data, is_error=event == "error")
        if data[:5] == b"data:":  # a proxy added the prefix twice
            return self.feed(event, data[5:].strip())
        error = find_error(data) if data[:1] == b"[" else None
        if event == "error":
            error = error or error_from_payload(data.decode(errors="replace"))
        return () if error is None else self._emit_then_raise([], error)

    def _read_object(self, data: bytes, *, is_error: bool = False) -> Iterable[Delta]:
        chunk = decode_chunk(data)
        if chunk.choices is None or chunk.error is not None or is_error:
            self._error = find_error(data)
        deltas = self._read_chunk(chunk)
        if self._error is None:
            return deltas
        if chunk.x_groq is not None and chunk.x_groq.error:
            self._error = error_from_payload(chunk.x_groq.error)
        return self._emit_then_raise(deltas, self._error)

    def _read_chunk(self, chunk: ChatChunk) -> list[Delta]:
        deltas: list[Delta] = []
        if (chunk.id and not self._id) or (chunk.model and not self._model):
            self._id, self._model = self._id or chunk.id or "", self._model or chunk.model or ""
            deltas.append(AnswerStart(self._id, self._model))
        for choice in chunk.choices or ():
            if not choice.index:
                self._read_choice(choice, deltas)
        usage = chunk.reported_usage
        if usage is not None and usage.has_counts:
            cost = None if usage.cost is NO_VALUE else reported_cost(usage.cost, usage.is_byok, usage.cost_details)
            deltas.append(UsageReport(tokens_from_usage(usage), cost))
        if chunk.citations is not ABSENT:
            self._citations["citations"] = chunk.citations.copy()
        if chunk.search_results is not ABSENT:
            self._citations["search_results"] = chunk.search_results.copy()
        return deltas

    def _read_choice(self, choice: ChatChoice, deltas: list[Delta]) -> None:
        if choice.finish_reason is not None:
            self._raw_finish = choice.finish_reason
            self.is_complete = bool(self._raw_finish)
            if self._error is None and (failure := _FAILURE_REASONS.get(self._raw_finish.lower())):
                self._error = failure(f"the model's server ended the answer with {self._raw_finish!r}")
        if choice.error:
            self._error = error_from_payload(choice.error)
        message = choice.delta
        if choice.message is not None and not self._content.has_content and not self._calls:
            message = choice.message if message is None or choice.finish_reason is not None else message
        if message is not None:
            self._read_message(message, deltas)

    def _read_message(self, message: ChatMessage, deltas: list[Delta]) -> None:
        if any(reasoning_of(message)):
            self._read_reasoning(message, deltas)
        content = message.content
        if content:
            if type(content) is str:
                deltas += self._content.add_text(content)
            else:
                self._read_blocks(content, deltas)
        if message.refusal:
            deltas += self._content.add_refusal(message.refusal)
        if message.tool_calls:
            deltas += self._content.close_part()
            for call in message.tool_calls:
                deltas += self._calls.add_call(call)
        self._read_rare_fields(message, deltas)

    def _read_rare_fields(self, message: ChatMessage, deltas: list[Delta]) -> None:
        if message.function_call is not None:
            deltas += self._calls.add_legacy(message.function_call)
        if message.annotations:
            self._content.add_annotations(message.annotations)
        if message.images:
            self._read_blocks(message.images, deltas)
        if message.audio is not None:
            self._audio = ChatAudio(
                self._audio.id or message.audio.id,
                f"{self._audio.data}{message.audio.data or ''}",
                f"{self._audio.transcript}{message.audio.transcript or ''}",
            )

    def _read_reasoning(self, message: ChatMessage, deltas: list[Delta]) -> None:
        """Adds reasoning. Servers often send the same text in two fields; the first field that contains text is used
        for the whole response."""
        *values, details = reasoning_of(message)
        details = details or ()
        fields = zip((*REASONING_FIELDS, "details"), (*values, reasoning_details_text(details)), strict=True)
        for field, value in fields:
            if isinstance(value, str) and value and self._reasoning_field in ("", field):
                self._reasoning_field = field
                deltas += self._content.add_reasoning(value, "" if field == "details" else field)
        if details:
            deltas += self._content.add_details(details)

    def _read_blocks(self, content: Any, deltas: list[Delta]) -> None:
        for block in content_blocks(content):
            match block:
                case TextBlock(text):
                    deltas += self._content.add_text(text) if text else ()
                case ThinkingBlock(text):
                    deltas += self._content.add_reasoning(text, "content") if text else ()
                case ImageBlock(url):
                    deltas += self._content.add_file(block.media_type, url, {"images": True})
                case _:
                    assert_never(block)

    @property
    def _has_content(self) -> bool:
        return self._content.has_content or bool(self._calls)

    def _finish_answer(self) -> list[Delta]:
        self._done = True
        citations = {name: value for name, raw in self._citations.items() if (value := msgspec.json.decode(raw))}
        deltas = self._content.finish(citations)
        deltas += self._calls.finish()
        if self._audio.data:
            url = make_data_url(self._audio_mime, self._audio.data)
            state = {"audio": self._audio.id, "transcript": self._audio.transcript}
            deltas += self._content.add_file(self._audio_mime, url, state)
        return [*deltas, Finish(self._finish_reason(), self._raw_finish or "")]

    def _finish_reason(self) -> FinishReason:
        """Maps the server's finish reason. Tool calls and refusals take precedence over the reported value."""
        reason = _FINISH_REASONS.get((self._raw_finish or "").lower(), "other")
        if self._content.refused or reason in ("length", "refusal"):
            return "refusal" if self._content.refused else reason
        if self._calls:
            return "tool_use"
        if self._raw_finish == "" and self._content.has_content:
            return "stop"
        return reason if reason != "tool_use" else "other"

    def _emit_then_raise(self, deltas: list[Delta], error: ProviderError) -> Iterator[Delta]:
        """Emits the deltas that arrived before the error, then raises it. Without any content the request can be
        retried."""
        yield from deltas
        if self._raw_finish is not None and self._has_content:
            yield from self._finish_answer()
        raise error
