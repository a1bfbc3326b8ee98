"""A model whose answers are written down beforehand, for tests and demonstrations."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from outrider.errors import ConfigurationError, InvalidRequestError, ProviderError
from outrider.providers.message_rules import RULES, check
from outrider.types.agents import Provider
from outrider.types.deltas import (
    AnswerStart,
    Delta,
    Finish,
    InputDelta,
    PartEnd,
    PartStart,
    ReasoningDelta,
    Retry,
    TextDelta,
    UsageReport,
)
from outrider.types.ids import new_id
from outrider.types.parts import FilePart, ReasoningPart, TextPart, ToolPart, ToolUsePart
from outrider.types.request import Prompt, Request
from outrider.types.tool_state import ToolPending
from outrider.types.usage import Tokens

_CHARACTERS_PER_TOKEN = 4

Piece = (
    str | TextPart | ReasoningPart | ToolUsePart | ToolPart | FilePart | Mapping[str, Any]  # said
    | Tokens | Finish | Retry  # reported
    | asyncio.Event | Exception  # waited for, raised
)  # fmt: skip
"""A string is text. A mapping is what a configuration file can write: {"text": …}, {"reasoning": …} or
{"tool": name, "input": {…}}. An event is waited for before what follows it; an error breaks the answer there."""

Answer = str | Exception | list[Piece] | tuple[Piece, ...] | Mapping[str, Any] | Callable[[Request], Any]
"""One piece, several, or a function that gives them for a request."""


class ScriptedClient:
    """Gives the answers of a script in order; a script that is a function gives every answer.

    `requests` keeps what was asked. `rules` names the API whose rules every request must follow (see `pairing`).
    Text leaves in pieces of `chunk` characters, `delay` seconds apart.
    """

    def __init__(
        self,
        script: Iterable[Answer] | Callable[[Request], Any],
        *,
        name: str = "scripted",
        rules: str | None = None,
        chunk: int = 12,
        delay: float = 0.0,
    ) -> None:
        if rules is not None and rules not in RULES:
            raise ConfigurationError(f"no rules are called {rules!r}; there are {', '.join(RULES)}")
        self.name = name
        self.requests: list[Request] = []
        self._script = script if callable(script) else list(script)
        self._rules = rules
        self._chunk = chunk
        self._delay = delay

    def family(self, model: str) -> str:
        return "scripted"

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        # A prompt grows after it was sent; what is kept is what it was.
        request = msgspec.structs.replace(request, prompt=Prompt(request.prompt))
        self.requests.append(request)
        if self._rules:
            check(self._rules, request.prompt)
        pieces = self._answer(request)
        if isinstance(pieces[0], Exception):
            raise pieces[0]
        yield AnswerStart(f"scripted-{len(self.requests)}", request.model)
        for piece in self._play(pieces):
            match piece:
                case asyncio.Event():
                    await piece.wait()
                case Exception():
                    raise piece
                case _:
                    yield piece
                    await asyncio.sleep(self._delay)
        for delta in _closing(request, pieces):
            yield delta

    async def aclose(self) -> None:
        pass

    def _answer(self, request: Request) -> list[Piece]:
        number = len(self.requests)
        if callable(self._script):
            answer = self._script(request)
        elif number <= len(self._script):
            answer = self._script[number - 1]
        else:
            raise InvalidRequestError(f"the script has {len(self._script)} answers, this is request {number}")
        while callable(answer):
            answer = answer(request)
        return _pieces(answer)

    def _play(self, pieces: list[Piece]) -> Iterator[Delta | asyncio.Event | Exception]:
        """Strings that follow each other, with or without a pause between them, are one text part."""
        writing: int | None = None
        for index, piece in enumerate(pieces):
            if isinstance(piece, asyncio.Event | Exception):
                yield piece
                continue
            if isinstance(piece, str):
                if writing is None:
                    writing = index
                    yield PartStart(writing, "text")
                yield from self._text(writing, piece)
                continue
            if writing is not None:
                yield PartEnd(writing)
                writing = None
            yield from self._part(index, piece)
        if writing is not None:
            yield PartEnd(writing)

    def _text(self, index: int, text: str) -> Iterator[Delta]:
        return (TextDelta(index, chunk) for chunk in self._chunks(text))

    def _part(self, index: int, piece: Any) -> Iterator[Delta]:
        match piece:
            case TextPart(text=text):
                yield PartStart(index, "text")
                yield from self._text(index, text)
                yield PartEnd(index)
            case ReasoningPart(text=text, provider_state=state):
                yield PartStart(index, "reasoning")
                yield from (ReasoningDelta(index, chunk) for chunk in self._chunks(text))
                yield PartEnd(index, state={name: value for name, value in state.items() if name != "family"})
            case ToolUsePart() | ToolPart():
                yield from self._call(index, piece)
            case FilePart(mime=mime, url=url):
                yield PartStart(index, "file")
                yield PartEnd(index, mime=mime, url=url)
            case Tokens():
                yield UsageReport(piece)
            case Retry():
                yield piece
            case Finish():
                pass  # it comes last
            case _:
                raise ConfigurationError(f"a script cannot say {piece!r}")

    def _call(self, index: int, call: ToolUsePart | ToolPart) -> Iterator[Delta]:
        """A ToolPart whose input is still `raw` is written as it is: damaged, or cut off without an end."""
        use = call if isinstance(call, ToolUsePart) else call.use()
        state = call.state if isinstance(call, ToolPart) else ToolPending(phase="ready")
        raw = state.raw if isinstance(state, ToolPending) and state.raw else _json(use.tool_input)
        yield PartStart(index, "tool", use.tool_id, use.tool_name)
        yield from (InputDelta(index, chunk) for chunk in self._chunks(raw))
        if not (isinstance(state, ToolPending) and state.phase == "streaming"):
            yield PartEnd(index)

    def _chunks(self, text: str) -> Iterator[str]:
        return (text[start : start + self._chunk] for start in range(0, len(text), self._chunk))


def scripted_client(provider: Provider) -> ScriptedClient:
    """The client of a provider of kind "scripted"; its options are ScriptedClient's arguments."""
    options = dict(provider.options)
    try:
        return ScriptedClient(options.pop("script", ()), name=provider.name, **options)
    except TypeError as error:
        raise ConfigurationError(f"options of the scripted provider {provider.name!r}: {error}") from error


def call(tool: str, call_id: str = "", /, **tool_input: Any) -> ToolUsePart:
    """A call to put into a script: `call("read_file", path="a.txt")`."""
    return ToolUsePart(tool_id=call_id or f"call_{new_id()}", tool_name=tool, tool_input=tool_input)


def _pieces(answer: Any) -> list[Piece]:
    several = isinstance(answer, list | tuple)
    given = cast("Sequence[Piece]", answer) if several else [cast("Piece", answer)]
    return [_read(piece) if isinstance(piece, Mapping) else piece for piece in given] or [""]


def _read(piece: Mapping[str, Any]) -> Piece:
    match dict(piece):
        case {"text": str(text), **rest} if not rest:
            return text
        case {"reasoning": str(text), **rest} if not rest:
            return ReasoningPart(text)
        case {"tool": str(tool), **rest} if not rest.keys() - {"input", "id"}:
            return call(tool, rest.get("id", ""), **rest.get("input", {}))
        case {"error": str(message), **rest} if not rest:
            return ProviderError(message, provider="scripted")
        case _:
            raise ConfigurationError(f"a script says text, reasoning, tool (with input) or error, not {piece!r}")


def _closing(request: Request, pieces: list[Piece]) -> Iterator[Delta]:
    """What every answer ends with, unless the script says it itself."""
    calls = any(isinstance(piece, ToolUsePart | ToolPart) for piece in pieces)
    if not any(isinstance(piece, Tokens) for piece in pieces):
        yield UsageReport(_estimate(request, pieces))
    said = [piece for piece in pieces if isinstance(piece, Finish)]
    yield said[-1] if said else Finish("tool_use" if calls else "stop", "scripted")


def _estimate(request: Request, pieces: list[Piece]) -> Tokens:
    sent = sum(len(str(part.to_api_format())) for message in request.prompt for part in message.content)
    written = sum(_length(piece) for piece in pieces)
    return Tokens(input=sent // _CHARACTERS_PER_TOKEN + 1, output=written // _CHARACTERS_PER_TOKEN + 1)


def _length(piece: Piece) -> int:
    match piece:
        case str(text) | TextPart(text=text) | ReasoningPart(text=text):
            return len(text)
        case ToolUsePart(tool_name=name, tool_input=given):
            return len(name) + len(_json(given))
        case _:
            return 0


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
