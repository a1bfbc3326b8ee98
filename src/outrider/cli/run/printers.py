"""The three forms in which a run is printed, each a listener with a last word."""

from typing import Any, Protocol

import msgspec

from outrider.cli.console import Console
from outrider.cli.run.result import VERSION, Begun, Result
from outrider.cli.run.stream import Lines
from outrider.errors import OutriderError
from outrider.types.events import Event, LLMResponseEvent, PartDeltaEvent, PartUpdatedEvent
from outrider.types.parts import TextPart


class Printer(Protocol):
    def begin(self, begun: Begun) -> None: ...

    def hear(self, event: Event) -> None: ...

    def end(self, result: Result) -> None: ...


class Pipe:
    """stdout, until nobody reads it any more or it is full; that is no reason to stop the work."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open = True

    def write(self, text: str) -> None:
        if not self._open:
            return
        try:
            self._console.write(text)
        except (BrokenPipeError, OutriderError):
            self._open = False


class TextPrinter:
    """The words of the agent that was asked, as they come; those of the agents that it calls are its own affair."""

    def __init__(self, pipe: Pipe, *, only_last: bool = False) -> None:
        self._pipe = pipe
        self._only_last = only_last
        self._session = ""
        self._begun_parts: set[str] = set()
        self._step = ""
        self._last = ""

    def begin(self, begun: Begun) -> None:
        self._session = begun.session_id

    def hear(self, event: Event) -> None:
        if event.session_id != self._session or self._only_last:
            return
        match event:
            case PartDeltaEvent(field="text"):
                self._begun_parts.add(event.part_id)
                self._say(event.delta)
            case PartUpdatedEvent(part=TextPart() as part) if self._is_new(part):
                self._say(part.text)
            case LLMResponseEvent():
                self._end_step()
            case _:
                pass

    def end(self, result: Result) -> None:
        """What ends with words that were not streamed (a result that was handed over) has them printed now."""
        self._end_step()
        if result.end.output and result.end.output.strip() != self._last.strip():
            self._say(result.end.output)
            self._end_step()

    def _is_new(self, part: TextPart) -> bool:
        """A whole text that came without deltas, from a model that does not stream."""
        return (
            part.id not in self._begun_parts
            and part.time is not None
            and part.time.end is not None
            and not part.synthetic
        )

    def _say(self, text: str) -> None:
        self._step += text
        self._pipe.write(text)

    def _end_step(self) -> None:
        if self._step and not self._step.endswith("\n"):
            self._pipe.write("\n")
        if self._step:
            self._last, self._step = self._step, ""


class JsonPrinter:
    """One object, at the end."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def begin(self, begun: Begun) -> None:
        pass

    def hear(self, event: Event) -> None:
        pass

    def end(self, result: Result) -> None:
        self._pipe.write(line_of(result.to_dict()))


class StreamPrinter:
    """One event a line, as docs/stream-json.md describes them."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._lines = Lines()

    def begin(self, begun: Begun) -> None:
        self._pipe.write(line_of({"type": "start", "version": VERSION, **msgspec.structs.asdict(begun)}))

    def hear(self, event: Event) -> None:
        for line in self._lines.of(event):
            self._pipe.write(line_of(line))

    def end(self, result: Result) -> None:
        self._pipe.write(line_of(result.to_dict()))


def line_of(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode() + "\n"


def printer_of(form: str, console: Console, *, quiet: bool) -> Printer:
    pipe = Pipe(console)
    match form:
        case "json":
            return JsonPrinter(pipe)
        case "stream-json":
            return StreamPrinter(pipe)
        case _:
            return TextPrinter(pipe, only_last=quiet)
