"""Decodes a Gemini response, streamed or complete, into deltas, and error responses."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import msgspec

from outrider.errors import NetworkError, ProviderError
from outrider.providers.error_mapping import build_provider_error, parse_retry_after
from outrider.providers.response_json import decode_error_body, decode_json, error_fields, format_json
from outrider.types.ids import new_id
from outrider.types.partial_json import JsonPathWriter, PathStep
from outrider.types.parts import CacheTokens, Tokens
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
    UsageReport,
)
from outrider.types.tool_state import make_data_url


def error_from_response(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """Converts a response with an error status to a ProviderError. A streaming request returns the error in a list."""
    return error_from_payload(decode_error_body(body), status=status, headers=headers)


def error_from_payload(
    payload: Any, *, status: int | None = None, headers: Mapping[str, str] | None = None
) -> ProviderError:
    """Converts an error object, or an object or list that contains one, to a ProviderError. Errors inside a stream have
    no status."""
    fields = error_fields(payload)
    message, kind, code = fields.get("message"), fields.get("status"), fields.get("code")
    return build_provider_error(
        message if isinstance(message, str) else format_json(fields),
        status=status,
        type=kind if isinstance(kind, str) else None,
        code=code if isinstance(code, str | int) else None,
        headers=headers,
        retry_after=_retry_delay(fields.get("details")),
    )


def _retry_delay(details: Any) -> float | None:
    """Returns the seconds of a RetryInfo, whose value looks like `34.5s`."""
    for detail in cast("list[Any]", details) if isinstance(details, list) else []:
        delay = cast("dict[str, Any]", detail).get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str):
            return parse_retry_after({"retry-after": delay.removesuffix("s")})
    return None


# Matches .name, [0], ['name'] and ["name"].
_PATH_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")


def write_argument(writer: JsonPathWriter, pair: dict[str, Any]) -> str:
    """Returns the JSON text that one streamed path/value pair adds to the arguments of a call."""
    path = parse_json_path(pair.get("jsonPath") or "")
    if not path:
        return ""
    if "stringValue" in pair:
        return writer.write_string(path, pair["stringValue"], continues=bool(pair.get("willContinue")))
    return writer.write_value(path, pair.get("numberValue", pair.get("boolValue")))  # a missing value means null


def parse_json_path(path: str) -> list[PathStep]:
    """Parses `$.orders[0].name` into a list of keys and indexes."""
    steps: list[PathStep] = []
    for name, index, single, double in _PATH_STEP.findall(path):
        steps.append(int(index) if index else name or single or double)
    return steps


Fields = dict[str, Any]

# Prefix of ids that are generated for calls without an id. They are never sent to Google.
GENERATED_ID_PREFIX = "noid_"
_TEXT_FIELDS = {"text", "thought", "thoughtSignature"}


class PartReader:
    """Decodes content parts and passes the resulting deltas to the callback `emit`."""

    def __init__(self, emit: Callable[[Delta], object]) -> None:
        self._emit = emit
        self._next = 0
        self._text_index: int | None = None  # the open text or thought part
        self._is_thought = False
        self._call_index: int | None = None  # the open call part
        self._args = JsonPathWriter()
        self._call_state: Fields = {}
        self._call_ids: set[str] = set()

    @property
    def call_count(self) -> int:
        return len(self._call_ids)

    def read(self, part: Fields, response_id: str) -> None:
        text = part.get("text")
        if type(text) is str and "thoughtSignature" not in part:
            if text:
                self._write_text(text, thought=bool(part.get("thought")))
        elif "functionCall" in part:
            self._read_call(_as_object(part["functionCall"]), _signature_state(part), response_id)
        elif part.keys() <= _TEXT_FIELDS:
            self._read_signed_text(part)
        else:
            self._read_file_or_opaque(part)

    def add_state(self, state: Fields) -> None:
        """Emits a part without text that holds what the vendor reports about the answer."""
        self.finish()
        index = self._take_index()
        self._emit(PartStart(index, "reasoning"))
        self._emit(PartEnd(index, state))

    def finish(self) -> None:
        """Ends the open parts."""
        self._end_text()
        self._end_call()

    def _write_text(self, text: str, *, thought: bool) -> None:
        if self._text_index is None or self._is_thought is not thought:
            self.finish()
            self._text_index, self._is_thought = self._take_index(), thought
            self._emit(PartStart(self._text_index, "reasoning" if thought else "text"))
        self._emit(ReasoningDelta(self._text_index, text) if thought else TextDelta(self._text_index, text))

    def _end_text(self, state: Fields | None = None) -> None:
        if self._text_index is not None:
            self._emit(PartEnd(self._text_index, state or {}))
            self._text_index = None

    def _read_signed_text(self, part: Fields) -> None:
        state, thought = _signature_state(part), bool(part.get("thought"))
        text = _as_text(part.get("text"))
        if not state:
            if text:
                self._write_text(text, thought=thought)
            return
        self.finish()
        self._write_text(text, thought=thought)
        self._end_text(state)

    def _read_call(self, call: Fields, state: Fields, response_id: str) -> None:
        if call.get("name") or (self._call_index is None and call):  # a call without a name must end in an error result
            self.finish()
            self._call_index, self._args, self._call_state = self._take_index(), JsonPathWriter(), state
            call_id = self._call_id(call.get("id"), response_id)
            self._emit(PartStart(self._call_index, "tool", call_id, _as_text(call.get("name"))))
        if self._call_index is None:
            return  # the end marker of a call that has already ended
        self._call_state |= state
        text = "".join(write_argument(self._args, pair) for pair in call.get("partialArgs") or ())
        if call.get("args") is not None:
            text += _as_text(call["args"])
        if text:
            self._emit(InputDelta(self._call_index, text))
        if not call.get("willContinue"):
            self._end_call()

    def _call_id(self, sent_id: Any, response_id: str) -> str:
        """Returns the call's id, or a generated one if it is missing or duplicate: results are matched to
        calls by id."""
        call_id = _as_text(sent_id)
        if not call_id or call_id in self._call_ids:
            call_id = _generated_call_id(response_id, len(self._call_ids))
        self._call_ids.add(call_id)
        return call_id

    def _end_call(self) -> None:
        if self._call_index is None:
            return
        if closing := self._args.finish():
            self._emit(InputDelta(self._call_index, closing))
        self._emit(PartEnd(self._call_index, self._call_state))
        self._call_index = None

    def _read_file_or_opaque(self, part: Fields) -> None:
        """Emits a file that the model generated. A part of unknown type is stored unchanged and sent back in the next
        request."""
        self.finish()
        index = self._take_index()
        inline = _as_object(part.get("inlineData"))
        file = inline or _as_object(part.get("fileData"))
        if not file:
            self._emit(PartStart(index, "reasoning"))
            self._emit(PartEnd(index, {"part": part}))
            return
        mime: str = file.get("mimeType") or "application/octet-stream"
        url: str = make_data_url(mime, file.get("data", "")) if inline else file.get("fileUri", "")
        state: Fields = {"by_model": True} | ({"thought": True} if part.get("thought") else {})
        self._emit(PartStart(index, "file"))
        self._emit(PartEnd(index, state | _signature_state(part), mime, url))

    def _take_index(self) -> int:
        self._next += 1
        return self._next - 1


def _as_object(value: Any) -> Fields:
    return cast("Fields", value) if isinstance(value, dict) else {}


def _as_text(value: Any) -> str:
    """Returns the string itself, or the JSON text of a value of another type."""
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value).decode()


def _signature_state(part: Fields) -> Fields:
    signature = part.get("thoughtSignature")
    return {"thought_signature": signature} if signature else {}


def _generated_call_id(response_id: str, number: int) -> str:
    """Returns an id that is the same for the same response, whether streamed or complete."""
    return f"{GENERATED_ID_PREFIX}{re.sub(r'[^0-9A-Za-z_-]', '_', response_id)[:40] or new_id()}_{number}"


_FINISH_REASONS: dict[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "refusal",
    "RECITATION": "refusal",
    "BLOCKLIST": "refusal",
    "PROHIBITED_CONTENT": "refusal",
    "SPII": "refusal",
    "MODEL_ARMOR": "refusal",
    "IMAGE_SAFETY": "refusal",
    "IMAGE_PROHIBITED_CONTENT": "refusal",
    "IMAGE_RECITATION": "refusal",
}
# Some servers return enum numbers. Higher numbers differ between the developer API and Vertex.
_FINISH_BY_NUMBER = {1: "STOP", 2: "MAX_TOKENS", 3: "SAFETY", 4: "RECITATION"}


class _CandidateContent(msgspec.Struct):
    parts: list[dict[str, Any]] | None = None


class _ResponseCandidate(msgspec.Struct, rename="camel"):
    grounding_metadata: Any = None
    content: _CandidateContent | None = None
    finish_reason: str | int | None = None
    index: int | None = None


class _UsageMetadata(msgspec.Struct, rename="camel", frozen=True):
    prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None


class _ResponseChunk(msgspec.Struct, rename="camel"):
    candidates: list[_ResponseCandidate] | None = None
    prompt_feedback: dict[str, Any] | None = None
    usage_metadata: _UsageMetadata | None = None
    response_id: str | None = None
    model_version: str | None = None
    error: Any = None


_decode_chunk = msgspec.json.Decoder(_ResponseChunk).decode
_decode_chunk_list = msgspec.json.Decoder(list[_ResponseChunk]).decode


class GeminiDecoder:
    """Decodes one response. Its parts end with the stream."""

    def __init__(self) -> None:
        self._pending: list[Delta] = []
        self._parts = PartReader(self._emit)
        self._response_id = ""
        self._model = ""
        self._usage = _UsageMetadata()
        self._raw_finish: str | int | None = None
        self._block_reason: str | int | None = None
        self._grounding: Fields = {}
        self.is_complete = False

    def feed(self, event: str, data: bytes) -> Iterable[Delta]:
        for chunk in _decode_chunks(data):
            self._read_chunk(chunk)
        return self._take_deltas()

    def decode_body(self, body: bytes) -> Iterable[Delta]:
        """Decodes one object, or the array of chunks that the API returns for a stream without `alt=sse`."""
        for chunk in _decode_chunks(body):
            self._read_chunk(chunk)
            yield from self._take_deltas()
        yield from self.close()

    def close(self) -> Iterable[Delta]:
        """Ends the stream and emits the finish delta. It is emitted here because some servers send a finish reason in
        every chunk. Raises NetworkError if there was none."""
        if self._raw_finish is None and self._block_reason is None:
            raise NetworkError("the stream ended before the answer was complete")
        self._parts.finish()
        if self._grounding:
            self._parts.add_state({"grounding": self._grounding})
        self._emit(self._finish_delta())
        return self._take_deltas()

    def _emit(self, delta: Delta) -> None:
        self._pending.append(delta)

    def _take_deltas(self) -> list[Delta]:
        deltas = self._pending[:]
        self._pending.clear()
        return deltas

    def _read_chunk(self, chunk: _ResponseChunk) -> None:
        if chunk.error:
            raise error_from_payload(chunk.error)
        self._emit_start(chunk)
        for candidate in chunk.candidates or ():
            if not candidate.index:  # only the first candidate is used
                self._read_candidate(candidate)
        if chunk.prompt_feedback:
            self._block_reason = chunk.prompt_feedback.get("blockReason", self._block_reason)
        usage = chunk.usage_metadata
        if usage is not None and usage != self._usage and usage != _UsageMetadata():
            self._usage = usage
            self._emit(UsageReport(_tokens_from_usage(usage)))

    def _emit_start(self, chunk: _ResponseChunk) -> None:
        response_id, model = chunk.response_id or self._response_id, chunk.model_version or self._model
        if response_id != self._response_id or model != self._model:
            self._response_id, self._model = response_id, model
            self._emit(AnswerStart(response_id, model))

    def _read_candidate(self, candidate: _ResponseCandidate) -> None:
        if candidate.content is not None:
            for part in candidate.content.parts or ():
                self._parts.read(part, self._response_id)
        if metadata := _as_object(candidate.grounding_metadata):
            retained = {name: metadata[name] for name in ("webSearchQueries", "groundingChunks") if metadata.get(name)}
            self._grounding |= retained
        if candidate.finish_reason is not None:
            self._raw_finish = candidate.finish_reason
            self.is_complete = True

    def _finish_delta(self) -> Finish:
        raw = self._raw_finish
        if raw is None:
            return Finish("refusal", str(self._block_reason))
        reason = _FINISH_REASONS.get(_FINISH_BY_NUMBER.get(raw, "") if isinstance(raw, int) else raw, "other")
        if self._parts.call_count and reason in ("stop", "other"):
            reason = "tool_use"
        return Finish(reason, str(raw))


def _decode_chunks(data: bytes) -> list[_ResponseChunk]:
    """Returns the chunks in one event; an empty list for keep-alive text and for a `[DONE]` marker."""
    match data.lstrip()[:1]:
        case b"{":
            return [decode_json(_decode_chunk, data, mark_surrogates=True)]
        case b"[" if data.strip() != b"[DONE]":
            return decode_json(_decode_chunk_list, data, mark_surrogates=True)
        case _:
            return []


def _tokens_from_usage(usage: _UsageMetadata) -> Tokens:
    """Converts usage to disjoint counts: prompt tokens include cached tokens; thoughts and server-side tool input are
    separate."""
    cached = usage.cached_content_token_count or 0
    prompt = (usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0)
    return Tokens(
        input=max(prompt - cached, 0),
        output=usage.candidates_token_count or 0,
        reasoning=usage.thoughts_token_count or 0,
        cache=CacheTokens(read=cached),
    )
