"""Feeds text in chunks to a stream filter and joins its output."""

from collections.abc import AsyncGenerator, Callable, Iterable

from outrider.providers.provider import AnswerAssembler, ModelClient
from outrider.providers.stream_filters import TextScanner, TextSplitFilter, create_think_filter, filter_stream
from outrider.types.parts import FilePart, ReasoningPart, TextPart, ToolPart
from outrider.types.request import Answer, Delta, Finish, PartEnd, PartStart, Request, TextDelta


class ThinkingClient:
    """A client whose answers hold reasoning between tags, read as such."""

    def __init__(self, client: ModelClient) -> None:
        self.name = client.name
        self._client = client

    def model_family(self, model: str) -> str:
        return self._client.model_family(model)

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        return filter_stream(self._client.stream(request), create_think_filter(request))

    async def aclose(self) -> None:
        await self._client.aclose()


def chunks_of(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def deltas_of(scanner: Callable[[], TextScanner], chunks: Iterable[str]) -> list[Delta]:
    """What leaves a stage for an answer of one text part."""
    stage = TextSplitFilter(scanner)
    sent: list[Delta] = [PartStart(0, "text"), *(TextDelta(0, chunk) for chunk in chunks), PartEnd(0), Finish("stop")]
    given = [out for delta in sent for out in stage.feed(delta)]
    assert list(stage.close()) == []
    return given


def answer_of(scanner: Callable[[], TextScanner], chunks: Iterable[str]) -> Answer:
    assembler = AnswerAssembler("test")
    for delta in deltas_of(scanner, chunks):
        assembler.add(delta)
    return assembler.build_answer()


def parts_of(scanner: Callable[[], TextScanner], chunks: Iterable[str]) -> list[tuple[object, ...]]:
    """Kind and content of every part, without the ids."""
    return [_plain(part) for part in answer_of(scanner, chunks).message.parts]


def _plain(part: object) -> tuple[object, ...]:
    match part:
        case TextPart(text=text):
            return ("text", text)
        case ReasoningPart(text=text):
            return ("reasoning", text)
        case ToolPart(tool=tool, state=state, metadata=metadata):
            return ("tool", tool, state.input, *(["damaged"] if "input_error" in metadata else []))
        case FilePart(url=url):
            return ("file", url)
    raise AssertionError(part)
