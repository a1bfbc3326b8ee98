"""An answer of Gemini, streamed or whole, read into deltas."""

from collections.abc import Iterable
from typing import Any

import msgspec

from outrider.errors import NetworkError
from outrider.providers.google.parts import PartReader
from outrider.providers.google.refused import from_error
from outrider.providers.reading import decoded
from outrider.types.stream import AnswerStart, Delta, Finish, FinishReason, UsageReport
from outrider.types.usage import CacheTokens, Tokens

_FINISHES: dict[str, FinishReason] = {
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
# Some clients of the service ask for numbers. Beyond these the developer API and Vertex number differently.
_NUMBERED = {1: "STOP", 2: "MAX_TOKENS", 3: "SAFETY", 4: "RECITATION"}


class _Content(msgspec.Struct):
    parts: list[dict[str, Any]] | None = None


class _Candidate(msgspec.Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | int | None = None
    index: int | None = None


class _Usage(msgspec.Struct, rename="camel", frozen=True):
    prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None


class _Chunk(msgspec.Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    prompt_feedback: dict[str, Any] | None = None
    usage_metadata: _Usage | None = None
    response_id: str | None = None
    model_version: str | None = None
    error: Any = None


_read_chunk = msgspec.json.Decoder(_Chunk).decode
_read_chunks = msgspec.json.Decoder(list[_Chunk]).decode


class GeminiDecoder:
    def __init__(self) -> None:
        self._out: list[Delta] = []
        self._parts = PartReader(self._emit)
        self._response_id = ""
        self._model = ""
        self._usage = _Usage()
        self._finish: str | int | None = None
        self._blocked: str | int | None = None
        self.closable = False

    def feed(self, event: str, data: bytes) -> Iterable[Delta]:
        for chunk in _chunks(data):
            self._read(chunk)
        return self._taken()

    def whole(self, body: bytes) -> Iterable[Delta]:
        """One object, or the array of chunks that a stream is when it does not come as events."""
        for chunk in _chunks(body):
            self._read(chunk)
            yield from self._taken()
        yield from self.close()

    def close(self) -> Iterable[Delta]:
        """Only now is the finish told, since some servers give a reason in every chunk."""
        if self._finish is None and self._blocked is None:
            raise NetworkError("the stream ended before the answer was whole")
        self._parts.end()
        self._emit(self._finished())
        return self._taken()

    def _emit(self, delta: Delta) -> None:
        self._out.append(delta)

    def _taken(self) -> list[Delta]:
        out = self._out[:]
        self._out.clear()
        return out

    def _read(self, chunk: _Chunk) -> None:
        if chunk.error:
            raise from_error(chunk.error)
        self._name(chunk)
        for candidate in chunk.candidates or ():
            if not candidate.index:  # of several candidates the first one counts
                self._read_candidate(candidate)
        if chunk.prompt_feedback:
            self._blocked = chunk.prompt_feedback.get("blockReason", self._blocked)
        usage = chunk.usage_metadata
        if usage is not None and usage != self._usage and usage != _Usage():
            self._usage = usage
            self._emit(UsageReport(_tokens(usage)))

    def _name(self, chunk: _Chunk) -> None:
        response_id, model = chunk.response_id or self._response_id, chunk.model_version or self._model
        if response_id != self._response_id or model != self._model:
            self._response_id, self._model = response_id, model
            self._emit(AnswerStart(response_id, model))

    def _read_candidate(self, candidate: _Candidate) -> None:
        if candidate.content is not None:
            for part in candidate.content.parts or ():
                self._parts.read(part, self._response_id)
        if candidate.finish_reason is not None:
            self._finish = candidate.finish_reason
            self.closable = True

    def _finished(self) -> Finish:
        raw = self._finish
        if raw is None:
            return Finish("refusal", str(self._blocked))
        reason = _FINISHES.get(_NUMBERED.get(raw, "") if isinstance(raw, int) else raw, "other")
        if self._parts.calls and reason in ("stop", "other"):
            reason = "tool_use"
        return Finish(reason, str(raw))


def _chunks(data: bytes) -> list[_Chunk]:
    """None for what is no JSON: signs of life, and a mark of the end that does not belong here."""
    match data.lstrip()[:1]:
        case b"{":
            return [decoded(_read_chunk, data)]
        case b"[" if data.strip() != b"[DONE]":
            return decoded(_read_chunks, data)
        case _:
            return []


def _tokens(usage: _Usage) -> Tokens:
    """Here the prompt includes what a cache gave, while thoughts and what tools of Google's own read are apart."""
    read = usage.cached_content_token_count or 0
    prompt = (usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0)
    return Tokens(
        input=max(prompt - read, 0),
        output=usage.candidates_token_count or 0,
        reasoning=usage.thoughts_token_count or 0,
        cache=CacheTokens(read=read),
    )
