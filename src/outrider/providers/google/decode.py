"""An answer of Gemini, streamed or whole, read into deltas."""

import re
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec

from outrider.errors import NetworkError
from outrider.providers.google.errors import from_error
from outrider.providers.response_json import decoded
from outrider.types.deltas import (
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
from outrider.types.ids import new_id
from outrider.types.usage import CacheTokens, Tokens

Step = str | int

# .name, [0], ['name'] and ["name"]
_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")


class ArgsWriter:
    """Paths come in the order in which the model writes, so the text only ever grows."""

    def __init__(self) -> None:
        self._open: list[Step] = []  # the way to the innermost open container
        self._closers: list[str] = []  # what closes each open container, the outermost first
        self._filled: list[bool] = []  # whether it already holds something
        self._string: list[Step] | None = None  # where a string is being written

    def write(self, piece: dict[str, Any]) -> str:
        """The text that one piece adds."""
        path = steps(piece.get("jsonPath") or "")
        if not path:
            return ""
        if "stringValue" in piece:
            return self._write_string(path, piece["stringValue"], goes_on=bool(piece.get("willContinue")))
        value = piece.get("numberValue", piece.get("boolValue"))  # what is left is null
        return self._lead_to(path) + _json(value)

    def end(self) -> str:
        """What closes the object; nothing when it was never begun."""
        text = self._close_string() + "".join(reversed(self._closers))
        self._open, self._closers, self._filled = [], [], []
        return text

    def _write_string(self, path: list[Step], value: str, *, goes_on: bool) -> str:
        escaped = _json(value)[1:-1]
        text = escaped if path == self._string else f'{self._lead_to(path)}"{escaped}'
        self._string = path
        return text if goes_on else text + self._close_string()

    def _close_string(self) -> str:
        closing = "" if self._string is None else '"'
        self._string = None
        return closing

    def _lead_to(self, path: list[Step]) -> str:
        """Close what the path has left and open what it enters, up to its value."""
        text = self._close_string()
        if not self._closers:
            text += self._enter("{")
        while self._open != path[: len(self._open)] or len(self._open) >= len(path):
            self._open.pop()
            self._filled.pop()
            text += self._closers.pop()
        for depth in range(len(self._open), len(path) - 1):
            text += self._name(path[depth]) + self._enter("[" if isinstance(path[depth + 1], int) else "{")
            self._open.append(path[depth])
        return text + self._name(path[-1])

    def _enter(self, opener: str) -> str:
        self._closers.append("]" if opener == "[" else "}")
        self._filled.append(False)
        return opener

    def _name(self, step: Step) -> str:
        comma = "," if self._filled[-1] else ""
        self._filled[-1] = True
        return comma if isinstance(step, int) else f"{comma}{_json(step)}:"


def steps(path: str) -> list[Step]:
    """`$.orders[0].name` as its steps."""
    found: list[Step] = []
    for name, index, single, double in _STEP.findall(path):
        found.append(int(index) if index else name or single or double)
    return found


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


Fields = dict[str, Any]

# Ids of calls that came without one begin like this, and never leave for Google.
MADE_UP = "noid_"
_TEXT_FIELDS = {"text", "thought", "thoughtSignature"}


class PartReader:
    """Gives the deltas of the parts it reads to `emit`."""

    def __init__(self, emit: Callable[[Delta], object]) -> None:
        self._emit = emit
        self._next = 0
        self._text: int | None = None  # the text or thought that goes on
        self._is_thought = False
        self._call: int | None = None  # the call whose arguments go on
        self._args = ArgsWriter()
        self._call_state: Fields = {}
        self._call_ids: set[str] = set()

    @property
    def calls(self) -> int:
        return len(self._call_ids)

    def read(self, part: Fields, response_id: str) -> None:
        text = part.get("text")
        if type(text) is str and "thoughtSignature" not in part:
            if text:
                self._write(text, thought=bool(part.get("thought")))
        elif "functionCall" in part:
            self._read_call(_fields(part["functionCall"]), _state(part), response_id)
        elif part.keys() <= _TEXT_FIELDS:
            self._read_signed(part)
        else:
            self._read_other(part)

    def end(self) -> None:
        """Nothing goes on any more."""
        self._end_text()
        self._end_call()

    def _write(self, text: str, *, thought: bool) -> None:
        if self._text is None or self._is_thought is not thought:
            self.end()
            self._text, self._is_thought = self._take(), thought
            self._emit(PartStart(self._text, "reasoning" if thought else "text"))
        self._emit(ReasoningDelta(self._text, text) if thought else TextDelta(self._text, text))

    def _end_text(self, state: Fields | None = None) -> None:
        if self._text is not None:
            self._emit(PartEnd(self._text, state or {}))
            self._text = None

    def _read_signed(self, part: Fields) -> None:
        state, thought = _state(part), bool(part.get("thought"))
        text = _text(part.get("text"))
        if not state:
            if text:
                self._write(text, thought=thought)
            return
        self.end()
        self._write(text, thought=thought)
        self._end_text(state)

    def _read_call(self, call: Fields, state: Fields, response_id: str) -> None:
        if call.get("name") or (self._call is None and call):  # a call without a name ends in error, not in silence
            self.end()
            self._call, self._args, self._call_state = self._take(), ArgsWriter(), state
            call_id = self._call_id(call.get("id"), response_id)
            self._emit(PartStart(self._call, "tool", call_id, _text(call.get("name"))))
        if self._call is None:
            return  # the end of a call that has ended
        self._call_state |= state
        text = "".join(self._args.write(piece) for piece in call.get("partialArgs") or ())
        if call.get("args") is not None:
            text += _text(call["args"])
        if text:
            self._emit(InputDelta(self._call, text))
        if not call.get("willContinue"):
            self._end_call()

    def _call_id(self, given: Any, response_id: str) -> str:
        """The call's id, or one made up where there is none or two calls got the same: results are paired by it."""
        call_id = _text(given)
        if not call_id or call_id in self._call_ids:
            call_id = _made_up(response_id, len(self._call_ids))
        self._call_ids.add(call_id)
        return call_id

    def _end_call(self) -> None:
        if self._call is None:
            return
        if rest := self._args.end():
            self._emit(InputDelta(self._call, rest))
        self._emit(PartEnd(self._call, self._call_state))
        self._call = None

    def _read_other(self, part: Fields) -> None:
        """A file that the model made, or something of Google's own, which is kept and goes back whole."""
        self.end()
        index = self._take()
        inline = _fields(part.get("inlineData"))
        file = inline or _fields(part.get("fileData"))
        if not file:
            self._emit(PartStart(index, "reasoning"))
            self._emit(PartEnd(index, {"part": part}))
            return
        mime: str = file.get("mimeType") or "application/octet-stream"
        url: str = f"data:{mime};base64,{file.get('data', '')}" if inline else file.get("fileUri", "")
        own: Fields = {"by_model": True} | ({"thought": True} if part.get("thought") else {})
        self._emit(PartStart(index, "file"))
        self._emit(PartEnd(index, own | _state(part), mime, url))

    def _take(self) -> int:
        self._next += 1
        return self._next - 1


def _fields(value: Any) -> Fields:
    return cast("Fields", value) if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    """The text, also where something else stands in its place."""
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value).decode()


def _state(part: Fields) -> Fields:
    signature = part.get("thoughtSignature")
    return {"thought_signature": signature} if signature else {}


def _made_up(response_id: str, number: int) -> str:
    """The same for the same answer, however it arrives."""
    return f"{MADE_UP}{re.sub(r'[^0-9A-Za-z_-]', '_', response_id)[:40] or new_id()}_{number}"


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
