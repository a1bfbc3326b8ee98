"""Prints one line per event. Text of models and tools is sanitised, so that a terminal does not interpret it."""

import sys
import threading
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO, assert_never

import msgspec

from outrider.event_bus import EventBus, check_bus
from outrider.presentation.formats import (
    escape_line,
    format_cost,
    format_count,
    format_milliseconds,
    format_time,
    format_token_usage,
)
from outrider.presentation.tool_calls import ending_facts
from outrider.tracing.records import can_encode, escape_unencodable, visible
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    CacheMissEvent,
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
    RequestChangedEvent,
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
    is_standard_event,
)
from outrider.types.parts import DisplayStatus, failed_status

if TYPE_CHECKING:
    from outrider.presentation.items import NoticeLevel

Mark = Literal["begin", "end", "ask", "answer", "run", "good", "bad", "stop", "warn", "wait", "call", "back", "dots"]
Tone = Literal["", "good", "bad", "warn", "agent", "model", "tool"]

MARKS: dict[Mark, str] = {
    "begin": "●", "end": "■", "ask": "→", "answer": "←", "run": "▸", "good": "✓",
    "bad": "✗", "stop": "⊘", "warn": "!", "wait": "?", "call": "⇒", "back": "⇐", "dots": "·",
}  # fmt: skip
ASCII_MARKS: dict[Mark, str] = {
    "begin": "*", "end": "=", "ask": ">", "answer": "<", "run": ">", "good": "+",
    "bad": "x", "stop": "o", "warn": "!", "wait": "?", "call": ">>", "back": "<<", "dots": ".",
}  # fmt: skip
DeltaEvent = PartDeltaEvent | ToolInputDeltaEvent | ToolOutputEvent | ProcessOutputEvent
LoopEvent = (
    LoopStartedEvent
    | LoopCompletedEvent
    | LLMRequestEvent
    | RequestChangedEvent
    | CacheMissEvent
    | LLMResponseEvent
    | AgentCalledEvent
    | AgentReturnedEvent
)
ToolEvent = (
    ToolExecutionStartedEvent | ToolExecutionCompletedEvent | ToolApprovalRequestedEvent | ToolApprovalResultEvent
)
ProcessEvent = ProcessStartedEvent | ProcessExitedEvent
VerboseEvent = (
    TurnStartedEvent
    | TurnCompletedEvent
    | StateChangedEvent
    | MessageAddedEvent
    | PartUpdatedEvent
    | SessionUpdatedEvent
    | DeltasDroppedEvent
)


_NOTICE_LOOKS: "dict[NoticeLevel, tuple[Mark, Tone]]" = {
    "detail": ("dots", ""),
    "info": ("dots", ""),
    "success": ("good", "good"),
    "warning": ("wait", "warn"),
    "error": ("bad", "bad"),
}
_STATUS_LOOKS: dict[str, tuple[Mark, Tone]] = {
    "done": ("good", "good"),
    "canceled": ("stop", "warn"),
    "errored": ("bad", "bad"),
}


class ConsoleLine(msgspec.Struct, frozen=True):
    """One line of output. `detail` may contain untrusted text, which is already sanitised."""

    mark: Mark
    headline: str
    detail: str = ""
    tone: Tone = ""
    agent: str = ""


def format_event(event: Event, *, verbose: bool) -> ConsoleLine | None:
    """Returns the line for an event; None for events that are shown in verbose mode only."""
    line = _event_line(event, verbose=verbose)
    return None if line is None else msgspec.structs.replace(line, agent=escape_line(event.agent_name, 24))


def _event_line(event: Event, *, verbose: bool) -> ConsoleLine | None:
    """Returns the line of an event. A class without a specific line is shown by its notice, as in every front end. If
    it has no notice either, such as a class that a program has added, verbose mode shows its name."""
    if isinstance(event, LoopEvent):
        return _loop_line(event, verbose)
    if isinstance(event, ToolEvent):
        return _tool_line(event, verbose)
    if isinstance(event, ProcessEvent):
        return _process_line(event)
    if isinstance(event, ErrorEvent):
        name = escape_line(event.error_type, 60) or "error"
        return ConsoleLine("bad", name, escape_line(event.message, 400), "bad")
    if is_standard_event(event) and (line := _notice_line(event, verbose)) is not None:
        return line
    if not verbose:
        return None
    return _verbose_line(event) if isinstance(event, VerboseEvent) else _name_line(event)


def delta_text(event: DeltaEvent) -> tuple[str, str]:
    """Returns the id of the stream that a delta belongs to, and its text."""
    match event:
        case PartDeltaEvent() | ToolInputDeltaEvent():
            return event.part_id, event.delta
        case ToolOutputEvent():
            return f"{event.call_id} {event.stream}", event.output
        case ProcessOutputEvent():
            return f"{event.process_id} {event.stream}", event.output
    assert_never(event)


def _name_line(event: Event) -> ConsoleLine:
    return ConsoleLine("dots", escape_line(event.event_type, 60))


def _loop_line(event: LoopEvent, verbose: bool) -> ConsoleLine:  # noqa: FBT001  as above
    match event:
        case LoopStartedEvent():
            return ConsoleLine("begin", "started", _shorten(event.user_message, verbose), "agent")
        case LoopCompletedEvent():
            took = _format_duration(event.duration_ms)
            turns = format_count(event.total_turns, "turn") if event.total_turns else ""
            detail = _join_words(escape_line(event.termination_reason, 60), turns, took)
            return ConsoleLine(
                "end", "ended", _join_words(detail, _shorten(event.output, verbose) if verbose else ""), "agent"
            )
        case LLMRequestEvent():
            messages = format_count(event.message_count, "message")
            return ConsoleLine("ask", "asks", _join_words(_model_name(event), messages))
        case RequestChangedEvent(messages_before=old_count, messages_after=new_count):
            cached = f"{event.cached_messages:,} of {event.previous_messages:,} in the cache"
            return ConsoleLine("ask", "changed", f"{old_count:,} to {format_count(new_count, 'message')}, {cached}")
        case CacheMissEvent(cause=cause, detail=detail):
            return ConsoleLine("answer", "cache miss", escape_line(f"{cause}: {detail}".rstrip(": "), 200), "warn")
        case LLMResponseEvent():
            return ConsoleLine("answer", "answer", _format_answer(event), "model")
        case AgentCalledEvent():
            return ConsoleLine(
                "call", f"calls {escape_line(event.callee, 40)}", _shorten(event.message, verbose), "agent"
            )
        case AgentReturnedEvent():
            took = _format_duration(event.duration_ms)
            headline = (
                f"{escape_line(event.callee, 40)} returned"
                if event.success
                else f"{escape_line(event.callee, 40)} failed"
            )
            return ConsoleLine(
                "back",
                headline,
                _join_words(took, _shorten(event.output, verbose)),
                "agent" if event.success else "bad",
            )
    assert_never(event)


def _tool_line(event: ToolEvent, verbose: bool) -> ConsoleLine:  # noqa: FBT001  as above
    match event:
        case ToolExecutionStartedEvent():
            return ConsoleLine(
                "run", escape_line(event.tool_name, 60), _format_input(event.tool_input, verbose), "tool"
            )
        case ToolExecutionCompletedEvent():
            return _call_end_line(event, verbose)
        case ToolApprovalRequestedEvent():
            return ConsoleLine(
                "wait",
                f"{escape_line(event.tool_name, 60)} needs approval",
                _shorten(event.description, verbose),
                "warn",
            )
        case ToolApprovalResultEvent():
            answer = "was approved" if event.approved else "was refused"
            by = f"by {escape_line(event.answered_by, 40)}" if event.answered_by else ""
            tone: Tone = "good" if event.approved else "bad"
            return ConsoleLine(tone, f"{escape_line(event.tool_name, 60)} {answer}", by, tone)
    assert_never(event)


def _call_end_line(event: ToolExecutionCompletedEvent, verbose: bool) -> ConsoleLine:  # noqa: FBT001  as above
    """Returns the line of an ended call. It contains the status in the words of all front ends, unless the mark already
    shows that the call succeeded."""
    status: DisplayStatus = "done" if event.success else failed_status(event.reason)
    facts = [fact.text for fact in ending_facts(event.exit_code, event.reason, status)]
    notes = facts if event.success else [status, *facts]
    preview = _shorten(event.output_preview, verbose) if verbose or not event.success else ""
    detail = _join_words(*(escape_line(word, 40) for word in notes), _format_duration(event.duration_ms), preview)
    mark, tone = ("warn", "warn") if event.success and event.exit_code else _STATUS_LOOKS[status]
    return ConsoleLine(mark, escape_line(event.tool_name, 60), detail, tone)


def _process_line(event: ProcessEvent) -> ConsoleLine:
    match event:
        case ProcessStartedEvent():
            return ConsoleLine("run", "process", escape_line(event.command), "tool")
        case ProcessExitedEvent():
            ended = f"signal {escape_line(event.signal, 20)}" if event.signal else f"exit code {event.exit_code}"
            return ConsoleLine("end", "process", f"{escape_line(event.process_id, 40)} ended with {ended}", "tool")
    assert_never(event)


def _notice_line(event: Event, verbose: bool) -> ConsoleLine | None:  # noqa: FBT001  as above
    """Returns the line of an event that every front end shows as a notice; None if it has none to show here."""
    from outrider.presentation.items import event_notice  # lazy: `import outrider` needs no notices

    notice = event_notice(event)
    if notice is None or (notice.level == "detail" and not verbose):
        return None
    mark, tone = _NOTICE_LOOKS[notice.level]
    return ConsoleLine(mark, notice.topic, escape_line(notice.text, 2_000 if verbose else 1_000), tone)


def _verbose_line(event: VerboseEvent) -> ConsoleLine:
    match event:
        case TurnStartedEvent():
            of = f" of {event.max_turns}" if event.max_turns else ""
            return ConsoleLine("dots", "turn", f"{event.turn_number}{of}")
        case TurnCompletedEvent():
            calls = format_count(event.tool_calls_count, "call")
            return ConsoleLine("dots", "turn", f"{event.turn_number} made {calls}")
        case StateChangedEvent():
            return ConsoleLine(
                "dots", "state", f"{escape_line(event.old_state, 40)} became {escape_line(event.new_state, 40)}"
            )
        case MessageAddedEvent():
            parts = format_count(event.part_count, "part")
            return ConsoleLine("dots", "message", f"{escape_line(event.role, 20)}, {parts}")
        case PartUpdatedEvent():
            return ConsoleLine("dots", "part", escape_line(str(getattr(event.part, "type", "")), 40))
        case SessionUpdatedEvent():
            return ConsoleLine("dots", "session", _format_input(event.changes, verbose=True))
        case DeltasDroppedEvent():
            return ConsoleLine("dots", "missed", format_count(event.count, "delta"))
    assert_never(event)


def _format_answer(event: LLMResponseEvent) -> str:
    tokens = format_token_usage(event.tokens)
    took = _format_duration(event.duration_ms)
    return _join_words(
        _model_name(event), escape_line(event.stop_reason or "", 40), tokens, _format_cost(event.cost), took
    )


def _model_name(event: LLMRequestEvent | LLMResponseEvent) -> str:
    return escape_line(event.model, 60)


def _format_cost(cost: str | None) -> str:
    try:
        return "" if cost is None else format_cost(Decimal(cost))
    except InvalidOperation:
        return ""


def _format_input(values: dict[str, Any], verbose: bool) -> str:  # noqa: FBT001  as above
    limit = 2_000 if verbose else 60
    return escape_line(", ".join(f"{key}={escape_line(str(value), limit)}" for key, value in values.items()), limit * 2)


def _shorten(text: str, verbose: bool) -> str:  # noqa: FBT001  as above
    return escape_line(text, 2_000 if verbose else 100)


def _format_duration(ms: int) -> str:
    """Returns an empty string if the duration was not measured."""
    return format_milliseconds(ms) if ms else ""


def _join_words(*words: str) -> str:
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


class LinePrinter(Protocol):
    """Output for lines: a rich console or a text file."""

    def print_line(self, time: str, line: ConsoleLine) -> None: ...


class EventLogger:
    """Prints events to a console. `console` is a rich Console or a text file; the default is a Console on stderr, or
    plain stderr if rich is not installed (`pip install outrider[console]`). `verbose` adds inputs, outputs and
    deltas."""

    def __init__(self, console: Any = None, verbose: bool = False) -> None:  # noqa: FBT001, FBT002  part of the contract
        self.verbose = verbose
        self._printer = _printer_for(console, whole_lines=verbose)
        self._streamed: dict[str, tuple[Event, str]] = {}
        self._lock = threading.RLock()
        self._attached: list[Callable[[], None]] = []

    def attach(self, bus: EventBus) -> Callable[[], None]:
        """Prints every event of the bus from now on. Returns a function that detaches from this bus."""
        check_bus(bus, "EventLogger.attach()")
        unsubscribe = bus.subscribe_all(self.show)
        self._attached.append(unsubscribe)
        return unsubscribe

    def detach(self) -> None:
        """Prints what is still buffered, and no further events of any bus."""
        attached, self._attached = self._attached, []
        for unsubscribe in attached:
            unsubscribe()
        with self._lock:
            self._flush_deltas()

    def show(self, event: Event) -> None:
        """Prints one event. Deltas are collected and printed only if `verbose` is set."""
        with self._lock:
            if isinstance(event, DeltaEvent):
                if self.verbose:
                    self._buffer_delta(event)
                return
            line = format_event(event, verbose=self.verbose)
            if line is not None:
                self._flush_deltas()
                self._print_line(event, line)

    def _buffer_delta(self, event: DeltaEvent) -> None:
        """Buffers deltas, which are often single words, and prints complete lines."""
        stream_id, delta = delta_text(event)
        text = self._streamed.pop(stream_id, (event, ""))[1] + delta
        *lines, partial_line = text.split("\n")
        for line in lines:
            self._print_delta(event, line)
        if len(partial_line) >= _DELTA_LENGTH or len(self._streamed) > 100:
            self._print_delta(event, partial_line)
        elif partial_line:
            self._streamed[stream_id] = event, partial_line

    def _flush_deltas(self) -> None:
        waiting, self._streamed = self._streamed, {}
        for event, text in waiting.values():
            self._print_delta(event, text)

    def _print_delta(self, event: Event, text: str) -> None:
        if text.strip():
            self._print_line(event, ConsoleLine("dots", "", visible(text), agent=escape_line(event.agent_name, 24)))

    def _print_line(self, event: Event, line: ConsoleLine) -> None:
        self._printer.print_line(_format_time(event.timestamp), line)


class RichPrinter:
    def __init__(self, console: Any, *, whole_lines: bool) -> None:
        from rich.text import Text

        self._text = Text
        self._console = console
        self._whole_lines = whole_lines
        self._marks = MARKS if can_encode("".join(MARKS.values()), console.encoding) else ASCII_MARKS

    def print_line(self, time: str, line: ConsoleLine) -> None:
        """Uses `Text`, which is not parsed for markup. A terminal gets one line, a file the complete text."""
        style = _STYLES[line.tone]
        parts = [(time, "dim"), ("  ", ""), (f"{line.agent:<12}", "bold" if line.agent else ""), (" ", "")]
        parts += [(f"{self._marks[line.mark]} ", style), (line.headline, style)]
        parts += [(" " if line.headline else "", ""), (line.detail, "")] if line.detail else []
        text = self._text(end="")
        for fragment, look in parts:
            text.append(escape_unencodable(fragment, self._console.encoding), look)
        cut = self._console.is_terminal and not self._whole_lines
        self._console.print(text, no_wrap=cut, overflow="ellipsis" if cut else None, crop=cut, soft_wrap=not cut)


class PlainPrinter:
    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def print_line(self, time: str, line: ConsoleLine) -> None:
        stream = self._stream or sys.stderr
        encoding = getattr(stream, "encoding", None) or "utf-8"
        marks = MARKS if can_encode("".join(MARKS.values()), encoding) else ASCII_MARKS
        text = f"{time}  {line.agent:<12} {marks[line.mark]} {line.headline} {line.detail}".rstrip()
        stream.write(escape_unencodable(text, encoding) + "\n")
        stream.flush()


def _printer_for(console: Any, *, whole_lines: bool) -> LinePrinter:
    if hasattr(console, "write"):
        return PlainPrinter(console)
    if console is None:
        try:
            from rich.console import Console
        except ImportError:
            return PlainPrinter()
        console = Console(stderr=True)
    return RichPrinter(console, whole_lines=whole_lines)


def _format_time(timestamp: int) -> str:
    return format_time(timestamp, "%H:%M:%S") or "--:--:--"
