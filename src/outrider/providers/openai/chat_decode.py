"""A chat answer, streamed or whole, read into deltas as it arrives."""

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any, Literal, assert_never, cast

import msgspec

from outrider.errors import MalformedAnswerError, NetworkError, OverloadedError, ProviderError, ServerError
from outrider.providers.openai.chat_chunks import (
    ABSENT,
    Audio,
    Call,
    Choice,
    Chunk,
    Function,
    Said,
    error_in,
    read_chunk,
    tokens_of,
)
from outrider.providers.openai.common import from_error
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
from outrider.types.request import ToolSpec

UNNAMED = "unnamed"  # a name must be sent back with the call, and no tool has this one
_FREE_TEXT, _FREE_TEXT_END = '{"input":"', '"}'  # input that is no JSON, made into an object while it streams
_LEGACY = -1  # the place of the one call that the older function_call field can hold


class _Draft:
    """A call while it streams. It is shown once its name is known; pieces that came before wait for that."""

    def __init__(self, given_id: str, call_id: str) -> None:
        self.given_id = given_id
        self.id = call_id
        self.name = self.shown = ""  # what it is called, and what it was called when it was shown
        self.pieces: list[str] = []
        self.part: int | None = None
        self.custom = False
        self.state: dict[str, Any] = {}

    def is_whole(self) -> bool:
        try:
            msgspec.json.decode("".join(self.pieces))
        except (msgspec.DecodeError, RecursionError):
            return False
        return True


class Calls:
    """The calls of one answer, in order of appearance. `numbers` gives the indexes of parts that begin, and `offered`
    are the tools that the model may know."""

    def __init__(self, numbers: Iterator[int], offered: Iterable[ToolSpec] = ()) -> None:
        self._numbers = numbers
        self._offered = offered
        self._drafts: list[_Draft] = []
        self._numbered: dict[int, _Draft] = {}
        self._ids: set[str] = set()
        self._shown = False

    def __bool__(self) -> bool:
        """Whether any was shown."""
        return self._shown

    def add(self, call: Call) -> list[Delta]:
        function, custom = _function(call)
        draft = self._draft(call.index, call.id or "", function.name or "")
        if function.name and function.name != draft.name:
            draft.name = self._longer(draft.name, function.name) or draft.name
        if call.extra_content:
            draft.state["extra_content"] = call.extra_content
        if custom and not draft.custom:
            draft.custom = draft.state["custom"] = True
            draft.pieces.append(_FREE_TEXT)
        return self._show(draft, _escaped(function.arguments) if draft.custom else _text(function.arguments))

    def add_legacy(self, function: Function) -> list[Delta]:
        """A piece of the older function_call field. Servers that fill both fields say the same in each."""
        if self._numbered.keys() - {_LEGACY} or not (function.name or function.arguments):
            return []
        return self.add(Call(_LEGACY, None, function))

    def end(self) -> list[Delta]:
        """The ends of all calls. One that has arguments and never got a name is still a call that must be answered."""
        deltas: list[Delta] = []
        for draft in self._drafts:
            if draft.part is None and draft.pieces:
                draft.name = UNNAMED
                deltas += self._show(draft, "")
            if draft.custom:
                deltas += self._show(draft, _FREE_TEXT_END)
            if draft.part is not None:
                deltas.append(PartEnd(draft.part, draft.state))
        return deltas

    def _draft(self, number: int | None, given_id: str, name: str) -> _Draft:
        found = self._numbered.get(number) if number is not None else self._unnumbered(given_id, name)
        if found is None or not self._goes_on(found, given_id, name):
            found = _Draft(given_id, self._unique(given_id))
            self._drafts.append(found)
        if number is not None:
            self._numbered[number] = found
        return found

    def _goes_on(self, draft: _Draft, given_id: str, name: str) -> bool:
        """Whether a piece under a call's number belongs to it, or begins another call under the same number."""
        if not name or not draft.name or (given_id and given_id == draft.given_id):
            return True
        if given_id and draft.given_id:
            return False
        if draft.pieces:
            return not draft.is_whole()
        return name == draft.name or self._longer(draft.name, name) is not None

    def _longer(self, known: str, piece: str) -> str | None:
        """The name that another piece of it makes, in the few servers that cut names; None for any other name."""
        if not known:
            return piece
        offered = {tool.name for tool in self._offered}
        if known + piece in offered and piece not in offered:
            return known + piece
        return piece if piece.startswith(known) and piece in offered and known not in offered else None

    def _unnumbered(self, given_id: str, name: str) -> _Draft | None:
        """The call that a piece without a number goes on with: the one of its id, else the last one."""
        if given_id:
            return next((draft for draft in self._drafts if draft.given_id == given_id), None)
        return self._drafts[-1] if self._drafts and not name else None

    def _unique(self, call_id: str) -> str:
        """The server's id, or one made up where it gave none or gave the same to two calls."""
        if not call_id or call_id in self._ids:
            call_id = f"call_{new_id().replace('-', '')}"
        self._ids.add(call_id)
        return call_id

    def _show(self, draft: _Draft, piece: str) -> list[Delta]:
        if piece:
            draft.pieces.append(piece)
        if draft.part is not None and draft.shown == draft.name:
            return [InputDelta(draft.part, piece)] if piece else []
        if not draft.name:
            return []
        draft.part, self._shown = next(self._numbers) if draft.part is None else draft.part, True
        draft.shown = draft.name
        begun: list[Delta] = [PartStart(draft.part, "tool", draft.id, draft.name)]
        waiting = "".join(draft.pieces)
        return [*begun, InputDelta(draft.part, waiting)] if waiting else begun


def _function(call: Call) -> tuple[Function, bool]:
    """What is called, and whether its input is free text. Some servers send an empty shape of the other kind along."""
    custom = Function(call.custom.name, call.custom.input) if call.custom is not None else None
    if custom is not None and (call.function is None or (custom.name and not call.function.name)):
        return custom, True
    return call.function or Function(), False


def _text(arguments: Any) -> str:
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return msgspec.json.encode(arguments).decode()


def _escaped(text: Any) -> str:
    return msgspec.json.encode(_text(text))[1:-1].decode()


class Text(msgspec.Struct, frozen=True):
    text: str


class Thinking(msgspec.Struct, frozen=True):
    text: str


class Picture(msgspec.Struct, frozen=True):
    url: str

    @property
    def mime(self) -> str:
        return self.url[5:].partition(";")[0] if self.url.startswith("data:") else "image/*"


Block = Text | Thinking | Picture


def blocks_of(content: Any) -> Iterator[Block]:
    if isinstance(content, list):
        for item in cast("list[Any]", content):
            yield from _block(item)
    else:
        yield Text(content if isinstance(content, str) else msgspec.json.encode(content).decode())


def _block(item: Any) -> Iterator[Block]:
    match item:
        case str(text) | {"type": "text" | "output_text", "text": str(text)}:
            yield Text(text)
        case {"type": "thinking" | "reasoning"}:
            yield Thinking(_inner(item.get("thinking") or item.get("summary") or item.get("text")))
        case {"image_url": {"url": str(url)}} | {"image_url": str(url)}:
            yield Picture(url)
        case _:
            pass  # references to sources and the like, which say nothing by themselves


def _inner(value: Any) -> str:
    match value:
        case str():
            return value
        case [*items]:
            return "".join(map(_inner, items))
        case {"text": text}:
            return _inner(text)
        case _:
            return ""


_GROWING = ("text", "summary")

Piece = dict[str, Any]


def merged_details(pieces: Iterable[Any]) -> list[Piece]:
    """The items that the pieces make up: text goes on until it is signed; encrypted items are whole as they come."""
    groups: list[list[Piece]] = []
    for piece in _objects(pieces):
        if groups and _goes_on(groups[-1], piece):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return [_joined(group) for group in groups]


def text_of_details(pieces: Iterable[Any]) -> str:
    return "".join(_grown(piece, field) for piece in _objects(pieces) for field in _GROWING)


def _goes_on(group: list[Piece], piece: Piece) -> bool:
    last = group[-1]
    same = last.get("type") == piece.get("type") and last.get("index") == piece.get("index")
    return same and "data" not in piece and not (last.get("signature") and text_of_details([piece]))


def _joined(group: list[Piece]) -> Piece:
    item: Piece = {}
    for piece in group:
        item |= {name: value for name, value in piece.items() if value is not None or name not in item}
    grown = {field: "".join(_grown(piece, field) for piece in group) for field in _GROWING if field in item}
    return item | grown


def _grown(piece: Piece, field: str) -> str:
    value = piece.get(field)
    return value if isinstance(value, str) else ""


def _objects(pieces: Iterable[Any]) -> Iterator[Piece]:
    return (cast("Piece", piece) for piece in pieces if isinstance(piece, dict))


Kind = Literal["text", "refusal", "reasoning"]


class Parts:
    """The parts that are not calls. `numbers` gives the indexes of parts that begin."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._kind: Kind | None = None
        self._index = 0
        self._field = ""
        self._details: list[Any] = []
        self._late_details: list[Any] = []
        self._annotations: list[Any] = []
        self.said = False
        self.refused = False

    def text(self, text: str) -> list[Delta]:
        if self._kind == "text":
            return [TextDelta(self._index, text)]
        return [*self._switch("text"), TextDelta(self._index, text)]

    def refusal(self, text: str) -> list[Delta]:
        self.refused = True
        return [*self._switch("refusal"), TextDelta(self._index, text)]

    def reasoning(self, text: str, field: str) -> list[Delta]:
        """`field` is where the server put it, and where it wants to see it again."""
        begun = self._switch("reasoning")
        self._field = field
        return [*begun, ReasoningDelta(self._index, text)]

    def details(self, details: Iterable[Any]) -> list[Delta]:
        """Structured reasoning, kept word for word. What comes after the reasoning has ended gets a part at the end."""
        late = self._kind != "reasoning" and self.said
        begun = [] if late else self._switch("reasoning")
        (self._late_details if late else self._details).extend(details)
        return begun

    def annotations(self, annotations: Iterable[Any]) -> None:
        self._annotations.extend(annotations)

    def file(self, mime: str, url: str, state: dict[str, Any]) -> list[Delta]:
        ended = self.close()
        index = next(self._numbers)
        return [*ended, PartStart(index, "file"), PartEnd(index, state, mime, url)]

    def close(self) -> list[Delta]:
        """The end of the part that is open, since something else begins."""
        if self._kind is None:
            return []
        ended = PartEnd(self._index, self._state())
        self._kind, self._field, self._details = None, "", []
        return [ended]

    def end(self, citations: dict[str, Any]) -> list[Delta]:
        """The ends of all parts; what the answer cites stands with its last text."""
        if self._annotations:
            citations = citations | {"annotations": self._annotations}
        if citations and self._kind == "text":
            deltas: list[Delta] = [PartEnd(self._index, citations)]
            self._kind = None
        else:
            deltas = self.close()
            if citations:
                deltas += self._bare("text", citations)
        if self._late_details:
            deltas += self._bare("reasoning", {"details": merged_details(self._late_details)})
        return deltas

    def _switch(self, kind: Kind) -> list[Delta]:
        if self._kind == kind:
            return []
        ended = self.close()
        self._kind, self._index, self.said = kind, next(self._numbers), True
        return [*ended, PartStart(self._index, "reasoning" if kind == "reasoning" else "text")]

    def _state(self) -> dict[str, Any]:
        match self._kind:
            case "refusal":
                return {"refusal": True}
            case "reasoning":
                field = {"field": self._field} if self._field else {}
                return field | ({"details": merged_details(self._details)} if self._details else {})
            case "text" | None:
                return {}

    def _bare(self, kind: Literal["text", "reasoning"], state: dict[str, Any]) -> list[Delta]:
        """A part that holds nothing but state."""
        index = next(self._numbers)
        return [PartStart(index, kind), PartEnd(index, state)]


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
