"""A chat answer, streamed or whole, read into deltas as it arrives."""

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any, assert_never

import msgspec

from outrider.errors import MalformedAnswerError, NetworkError, OverloadedError, ProviderError, ServerError
from outrider.providers.openai.chat.calls import Calls
from outrider.providers.openai.chat.chunks import ABSENT, Audio, Choice, Chunk, Said, error_in, read_chunk
from outrider.providers.openai.chat.content import Picture, Text, Thinking, blocks_of
from outrider.providers.openai.chat.details import text_of_details
from outrider.providers.openai.chat.parts import Parts
from outrider.providers.openai.chat.usage import tokens_of
from outrider.providers.openai.endpoint import from_error
from outrider.types.request import ToolSpec
from outrider.types.stream import AnswerStart, Delta, Finish, FinishReason, UsageReport

_FINISHES: dict[str, FinishReason] = {
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
# Words with which servers end an answer that they could not finish.
_FAILURES: dict[str, type[ProviderError]] = {
    "error": ServerError,
    "network_error": NetworkError,
    "insufficient_system_resource": OverloadedError,
}


class ChatDecoder:
    """Reads one answer. Only the first choice counts.

    Parts end with the stream, not with the finish reason: some servers send more after it."""

    def __init__(self, audio_mime: str = "audio/wav", offered: Iterable[ToolSpec] = ()) -> None:
        numbers = count()
        self._parts = Parts(numbers)
        self._calls = Calls(numbers, offered)
        self._audio = Audio("", "", "")
        self._audio_mime = audio_mime
        self._citations: dict[str, msgspec.Raw] = {}
        self._id = self._model = ""
        self._reasoning_field = ""
        self._finish: str | None = None
        self._problem: ProviderError | None = None
        self._done = False
        self.closable = False

    def feed(self, event: str, data: bytes) -> Iterable[Delta]:
        if self._done:
            return ()
        if data[:1] != b"{":
            return self._read_other(event, data.strip())
        return self._read(data, is_error=event == "error")

    def whole(self, body: bytes) -> Iterable[Delta]:
        yield from self.feed("", body.strip())
        if self._finish is None and not self._has_content:
            raise MalformedAnswerError("the answer holds neither a message nor a reason for having none")
        yield from self._end()

    def close(self) -> Iterable[Delta]:
        if self._done:
            return ()
        if self._finish is None:
            raise NetworkError("the stream ended before the answer was whole")
        return self._end()

    def _read_other(self, event: str, data: bytes) -> Iterable[Delta]:
        """What is no object: the end, an error in plain words or in a list, or a sign of life."""
        if data == b"[DONE]":
            return self._end() if self._finish is not None or self._has_content else self.close()
        if data[:1] == b"{":
            return self._read(data, is_error=event == "error")
        if data[:5] == b"data:":  # written twice by a proxy
            return self.feed(event, data[5:].strip())
        problem = error_in(data) if data[:1] == b"[" else None
        if event == "error":
            problem = problem or from_error(data.decode(errors="replace"))
        return () if problem is None else self._fail([], problem)

    def _read(self, data: bytes, *, is_error: bool = False) -> Iterable[Delta]:
        chunk = read_chunk(data)
        if chunk.choices is None or chunk.error is not None or is_error:
            self._problem = error_in(data)
        deltas = self._read_chunk(chunk)
        if self._problem is None:
            return deltas
        if chunk.x_groq is not None and chunk.x_groq.error:
            self._problem = from_error(chunk.x_groq.error)
        return self._fail(deltas, self._problem)

    def _read_chunk(self, chunk: Chunk) -> list[Delta]:
        deltas: list[Delta] = []
        if (chunk.id and not self._id) or (chunk.model and not self._model):
            self._id, self._model = self._id or chunk.id or "", self._model or chunk.model or ""
            deltas.append(AnswerStart(self._id, self._model))
        for choice in chunk.choices or ():
            if not choice.index:
                self._read_choice(choice, deltas)
        usage = chunk.counts
        if usage is not None and usage.says_something:
            deltas.append(UsageReport(tokens_of(usage)))
        if chunk.citations is not ABSENT:
            self._citations["citations"] = chunk.citations.copy()
        if chunk.search_results is not ABSENT:
            self._citations["search_results"] = chunk.search_results.copy()
        return deltas

    def _read_choice(self, choice: Choice, deltas: list[Delta]) -> None:
        if choice.finish_reason is not None:
            self._finish = choice.finish_reason
            self.closable = bool(self._finish)
            if self._problem is None and self._finish in _FAILURES:
                self._problem = _FAILURES[self._finish](f"the model's server ended the answer with {self._finish!r}")
        if choice.error:
            self._problem = from_error(choice.error)
        said = choice.delta
        if choice.message is not None and not self._parts.said and not self._calls:
            said = choice.message if said is None or choice.finish_reason is not None else said
        if said is not None:
            self._read_said(said, deltas)

    def _read_said(self, said: Said, deltas: list[Delta]) -> None:
        if said.reasoning_content or said.reasoning or said.reasoning_details:
            self._read_reasoning(said, deltas)
        content = said.content
        if content:
            if type(content) is str:
                deltas += self._parts.text(content)
            else:
                self._read_blocks(content, deltas)
        if said.refusal:
            deltas += self._parts.refusal(said.refusal)
        if said.tool_calls:
            deltas += self._parts.close()
            for call in said.tool_calls:
                deltas += self._calls.add(call)
        self._read_rarities(said, deltas)

    def _read_rarities(self, said: Said, deltas: list[Delta]) -> None:
        if said.function_call is not None:
            deltas += self._calls.add_legacy(said.function_call)
        if said.annotations:
            self._parts.annotations(said.annotations)
        if said.images:
            self._read_blocks(said.images, deltas)
        if said.audio is not None:
            self._audio = Audio(
                self._audio.id or said.audio.id,
                f"{self._audio.data}{said.audio.data or ''}",
                f"{self._audio.transcript}{said.audio.transcript or ''}",
            )

    def _read_reasoning(self, said: Said, deltas: list[Delta]) -> None:
        """The same reasoning often comes under two names; the first one that carries text counts for all."""
        details = said.reasoning_details or ()
        for field, value in (
            ("reasoning_content", said.reasoning_content),
            ("reasoning", said.reasoning),
            ("details", text_of_details(details)),
        ):
            if isinstance(value, str) and value and self._reasoning_field in ("", field):
                self._reasoning_field = field
                deltas += self._parts.reasoning(value, "" if field == "details" else field)
        if details:
            deltas += self._parts.details(details)

    def _read_blocks(self, content: Any, deltas: list[Delta]) -> None:
        for block in blocks_of(content):
            match block:
                case Text(text):
                    deltas += self._parts.text(text) if text else ()
                case Thinking(text):
                    deltas += self._parts.reasoning(text, "content") if text else ()
                case Picture(url):
                    deltas += self._parts.file(block.mime, url, {"images": True})
                case _:
                    assert_never(block)

    @property
    def _has_content(self) -> bool:
        return self._parts.said or bool(self._calls)

    def _end(self) -> list[Delta]:
        self._done = True
        cited = {name: value for name, raw in self._citations.items() if (value := msgspec.json.decode(raw))}
        deltas = self._parts.end(cited)
        deltas += self._calls.end()
        if self._audio.data:
            url = f"data:{self._audio_mime};base64,{self._audio.data}"
            state = {"audio": self._audio.id, "transcript": self._audio.transcript}
            deltas += self._parts.file(self._audio_mime, url, state)
        return [*deltas, Finish(self._reason(), self._finish or "")]

    def _reason(self) -> FinishReason:
        """What the server's word means; calls are calls and a refusal is one, whatever the word."""
        named = _FINISHES.get((self._finish or "").lower(), "other")
        if self._parts.refused or named in ("length", "refusal"):
            return "refusal" if self._parts.refused else named
        if self._calls:
            return "tool_use"
        if self._finish == "" and self._parts.said:
            return "stop"
        return named if named != "tool_use" else "other"

    def _fail(self, deltas: list[Delta], problem: ProviderError) -> Iterator[Delta]:
        """What arrived before the error is still told. While there is nothing, asking again may help."""
        yield from deltas
        if self._finish is not None and self._has_content:
            yield from self._end()
        raise problem
