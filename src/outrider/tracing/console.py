"""Prints what happens on a bus, one calm line per event; the text of models and tools is never obeyed."""

import sys
import threading
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, Protocol, TextIO

import msgspec

from outrider.event_bus import EventBus
from outrider.tracing.event_record import can_encode, cost_text, duration_text, encodable, one_line, visible
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    BudgetExceededEvent,
    ContextCompactionEvent,
    DeltasDroppedEvent,
    ErrorEvent,
    Event,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    MessageAddedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    ProcessExitedEvent,
    ProcessOutputEvent,
    ProcessStartedEvent,
    RetryScheduledEvent,
    SessionUpdatedEvent,
    StateChangedEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
    ToolExecutionCompletedEvent,
    ToolExecutionStartedEvent,
    ToolInputDeltaEvent,
    ToolOutputEvent,
    TurnCompletedEvent,
    TurnStartedEvent,
)

Mark = Literal["begin", "end", "ask", "answer", "run", "good", "bad", "wait", "call", "back", "dots"]
Tone = Literal["", "good", "bad", "warn", "agent", "model", "tool"]

MARKS: dict[Mark, str] = {
    "begin": "●", "end": "■", "ask": "→", "answer": "←", "run": "▸", "good": "✓",
    "bad": "✗", "wait": "?", "call": "⇒", "back": "⇐", "dots": "·",
}  # fmt: skip
ASCII_MARKS: dict[Mark, str] = {
    "begin": "*", "end": "=", "ask": ">", "answer": "<", "run": ">", "good": "+",
    "bad": "x", "wait": "?", "call": ">>", "back": "<<", "dots": ".",
}  # fmt: skip
DELTAS = (PartDeltaEvent, ToolInputDeltaEvent, ToolOutputEvent, ProcessOutputEvent)


class Line(msgspec.Struct, frozen=True):
    """`told` may hold foreign text, which has been made harmless."""

    mark: Mark
    what: str
    told: str = ""
    tone: Tone = ""
    agent: str = ""


def line_of(event: Event, *, verbose: bool) -> Line | None:
    """None for what is not worth a line, and for events of the user's own unless everything is wanted."""
    line = _loop_line(event, verbose) or _tool_line(event, verbose) or _other_line(event)
    if line is None and verbose:
        line = _fine_line(event)
    return None if line is None else msgspec.structs.replace(line, agent=one_line(event.agent_name, 24))


def said_in(event: Event) -> tuple[str, str]:
    """Where a delta belongs, and its text."""
    match event:
        case PartDeltaEvent() | ToolInputDeltaEvent():
            return event.part_id, event.delta
        case ToolOutputEvent():
            return f"{event.call_id} {event.stream}", event.output
        case ProcessOutputEvent():
            return f"{event.process_id} {event.stream}", event.output
        case _:
            return "", ""


def _loop_line(event: Event, verbose: bool) -> Line | None:  # noqa: FBT001  private, and read with its caller
    match event:
        case LoopStartedEvent():
            return Line("begin", "started", _long(event.user_message, verbose), "agent")
        case LoopCompletedEvent():
            took = _took(event.duration_ms)
            turns = f"{event.total_turns:,} turns" if event.total_turns else ""
            told = _joined(one_line(event.termination_reason, 60), turns, took)
            return Line("end", "ended", _joined(told, _long(event.output, verbose) if verbose else ""), "agent")
        case LLMRequestEvent():
            return Line("ask", "asks", _joined(_model(event), f"{event.message_count:,} messages"))
        case LLMResponseEvent():
            return Line("answer", "answer", _answer(event), "model")
        case AgentCalledEvent():
            return Line("call", f"calls {one_line(event.callee, 40)}", _long(event.message, verbose), "agent")
        case AgentReturnedEvent():
            took = _took(event.duration_ms)
            what = f"{one_line(event.callee, 40)} returned" if event.success else f"{one_line(event.callee, 40)} failed"
            return Line("back", what, _joined(took, _long(event.output, verbose)), "agent" if event.success else "bad")
        case _:
            return None


def _tool_line(event: Event, verbose: bool) -> Line | None:  # noqa: FBT001  as above
    match event:
        case ToolExecutionStartedEvent():
            return Line("run", one_line(event.tool_name, 60), _given(event.tool_input, verbose), "tool")
        case ToolExecutionCompletedEvent(success=True):
            preview = _long(event.output_preview, verbose) if verbose else ""
            return Line("good", one_line(event.tool_name, 60), _joined(_took(event.duration_ms), preview), "good")
        case ToolExecutionCompletedEvent():
            told = _joined(one_line(event.reason, 40), _took(event.duration_ms), _long(event.output_preview, verbose))
            return Line("bad", one_line(event.tool_name, 60), told, "bad")
        case ToolApprovalRequestedEvent():
            return Line(
                "wait", f"{one_line(event.tool_name, 60)} needs approval", _long(event.description, verbose), "warn"
            )
        case ToolApprovalResultEvent():
            answer = "was approved" if event.approved else "was refused"
            by = f"by {one_line(event.answered_by, 40)}" if event.answered_by else ""
            tone: Tone = "good" if event.approved else "bad"
            return Line(tone, f"{one_line(event.tool_name, 60)} {answer}", by, tone)
        case _:
            return None


def _other_line(event: Event) -> Line | None:
    match event:
        case RetryScheduledEvent():
            of = f" of {event.max_attempts}" if event.max_attempts else ""
            told = f"attempt {event.attempt}{of} in {duration_text(event.delay_ms)}: {one_line(event.error)}"
            return Line("wait", "retries", told, "warn")
        case BudgetExceededEvent():
            told = f"{one_line(event.limit, 40)} reached {one_line(event.reached, 40)} of {one_line(event.maximum, 40)}"
            return Line("bad", "limit", told, "warn")
        case ContextCompactionEvent():
            return Line("dots", "compacted", f"{event.tokens_before:,} tokens became {event.tokens_after:,}")
        case ProcessStartedEvent():
            return Line("run", "process", one_line(event.command), "tool")
        case ProcessExitedEvent():
            ended = f"signal {one_line(event.signal, 20)}" if event.signal else f"exit code {event.exit_code}"
            return Line("end", "process", f"{one_line(event.process_id, 40)} ended with {ended}", "tool")
        case ErrorEvent():
            return Line("bad", one_line(event.error_type, 60) or "error", one_line(event.message, 400), "bad")
        case _:
            return None


def _fine_line(event: Event) -> Line:
    match event:
        case TurnStartedEvent():
            of = f" of {event.max_turns}" if event.max_turns else ""
            return Line("dots", "turn", f"{event.turn_number}{of}")
        case TurnCompletedEvent():
            return Line("dots", "turn", f"{event.turn_number} made {event.tool_calls_count} calls")
        case StateChangedEvent():
            return Line("dots", "state", f"{one_line(event.old_state, 40)} became {one_line(event.new_state, 40)}")
        case MessageAddedEvent():
            return Line("dots", "message", f"{one_line(event.role, 20)}, {event.part_count} parts")
        case PartUpdatedEvent():
            return Line("dots", "part", one_line(str(getattr(event.part, "type", "")), 40))
        case SessionUpdatedEvent():
            return Line("dots", "session", _given(event.changes, verbose=True))
        case DeltasDroppedEvent():
            return Line("dots", "missed", f"{event.count:,} deltas")
        case _:
            return Line("dots", one_line(event.event_type, 60))


def _answer(event: LLMResponseEvent) -> str:
    used = event.tokens
    tokens = f"{used.prompt:,} tokens in, {used.output + used.reasoning:,} out"
    took = _took(event.duration_ms)
    return _joined(_model(event), one_line(event.stop_reason or "", 40), tokens, _cost(event.cost), took)


def _model(event: LLMRequestEvent | LLMResponseEvent) -> str:
    return one_line(event.model, 60)


def _cost(cost: str | None) -> str:
    try:
        return "" if cost is None else cost_text(Decimal(cost))
    except InvalidOperation:
        return ""


def _given(values: dict[str, Any], verbose: bool) -> str:  # noqa: FBT001  as above
    limit = 2_000 if verbose else 60
    return one_line(", ".join(f"{key}={one_line(str(value), limit)}" for key, value in values.items()), limit * 2)


def _long(text: str, verbose: bool) -> str:  # noqa: FBT001  as above
    return one_line(text, 2_000 if verbose else 100)


def _took(ms: int) -> str:
    """Nothing for a duration that was not measured."""
    return duration_text(ms) if ms else ""


def _joined(*words: str) -> str:
    return ", ".join(word for word in words if word)


_DELTA_LENGTH = 200


_STYLES: dict[Tone, str] = {
    "": "dim",
    "good": "green",
    "bad": "bold red",
    "warn": "yellow",
    "agent": "magenta",
    "model": "cyan",
    "tool": "blue",
}


class Printer(Protocol):
    """Where lines go: a rich console, or what stands in for one."""

    def line(self, time: str, line: Line) -> None: ...


class EventLogger:
    """`console` is a rich Console or a text file; by default a Console on stderr, or plain stderr where rich is not
    installed (`pip install outrider[console]`). `verbose` adds inputs, outputs, previews and what is being streamed."""

    def __init__(self, console: Any = None, verbose: bool = False) -> None:  # noqa: FBT001, FBT002  part of the contract
        self.verbose = verbose
        self._printer = _printer_for(console, whole_lines=verbose)
        self._streamed: dict[str, tuple[Event, str]] = {}
        self._lock = threading.RLock()

    def attach(self, bus: EventBus) -> Callable[[], None]:
        """Print what the bus says from now on. Returns what ends that."""
        return bus.subscribe_all(self.show)

    def show(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, DELTAS):
                if self.verbose:
                    self._gather(event)
                return
            line = line_of(event, verbose=self.verbose)
            if line is not None:
                self._print_streamed()
                self._print(event, line)

    def _gather(self, event: Event) -> None:
        """Deltas are single words; they are shown by the line."""
        place, delta = said_in(event)
        text = self._streamed.pop(place, (event, ""))[1] + delta
        *lines, rest = text.split("\n")
        for line in lines:
            self._print_delta(event, line)
        if len(rest) >= _DELTA_LENGTH or len(self._streamed) > 100:
            self._print_delta(event, rest)
        elif rest:
            self._streamed[place] = event, rest

    def _print_streamed(self) -> None:
        waiting, self._streamed = self._streamed, {}
        for event, text in waiting.values():
            self._print_delta(event, text)

    def _print_delta(self, event: Event, text: str) -> None:
        if text.strip():
            self._print(event, Line("dots", "", visible(text), agent=one_line(event.agent_name, 24)))

    def _print(self, event: Event, line: Line) -> None:
        self._printer.line(_clock(event.timestamp), line)


class RichPrinter:
    def __init__(self, console: Any, *, whole_lines: bool) -> None:
        from rich.text import Text

        self._text = Text
        self._console = console
        self._whole_lines = whole_lines
        self._marks = MARKS if can_encode("".join(MARKS.values()), console.encoding) else ASCII_MARKS

    def line(self, time: str, line: Line) -> None:
        """`Text` is not parsed for markup. A terminal shows what fits on one line; a file gets all."""
        style = _STYLES[line.tone]
        parts = [(time, "dim"), ("  ", ""), (f"{line.agent:<12}", "bold" if line.agent else ""), (" ", "")]
        parts += [(f"{self._marks[line.mark]} ", style), (line.what, style)]
        parts += [(" " if line.what else "", ""), (line.told, "")] if line.told else []
        text = self._text(end="")
        for words, look in parts:
            text.append(encodable(words, self._console.encoding), look)
        cut = self._console.is_terminal and not self._whole_lines
        self._console.print(text, no_wrap=cut, overflow="ellipsis" if cut else None, crop=cut, soft_wrap=not cut)


class PlainPrinter:
    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def line(self, time: str, line: Line) -> None:
        stream = self._stream or sys.stderr
        encoding = getattr(stream, "encoding", None) or "utf-8"
        marks = MARKS if can_encode("".join(MARKS.values()), encoding) else ASCII_MARKS
        words = f"{time}  {line.agent:<12} {marks[line.mark]} {line.what} {line.told}".rstrip()
        stream.write(encodable(words, encoding) + "\n")
        stream.flush()


def _printer_for(console: Any, *, whole_lines: bool) -> Printer:
    if hasattr(console, "write"):
        return PlainPrinter(console)
    if console is None:
        try:
            from rich.console import Console
        except ImportError:
            return PlainPrinter()
        console = Console(stderr=True)
    return RichPrinter(console, whole_lines=whole_lines)


def _clock(timestamp: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp / 1000).strftime("%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "--:--:--"
