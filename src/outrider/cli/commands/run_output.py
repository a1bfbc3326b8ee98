"""Output of `outrider run`: progress on stderr, and text, JSON or stream-json printers on stdout.

Printers are event listeners. docs/stream-json.md describes the JSON formats, which are a public interface.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, Protocol, cast

import msgspec

from outrider.cli import exit_codes
from outrider.cli.dispatch import exit_code_for
from outrider.cli.output import Console, truncate_text
from outrider.engine.approval_gate import UNATTENDED_DENIAL
from outrider.engine.archive import TurnEnd
from outrider.errors import OutriderError
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    BudgetExceededEvent,
    ContextCompactionEvent,
    ErrorEvent,
    Event,
    LLMResponseEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    RetryScheduledEvent,
    ToolApprovalRequestedEvent,
    ToolOutputEvent,
)
from outrider.types.parts import PartBase, ReasoningPart, TextPart, ToolPart, tool_result
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning
from outrider.types.usage import Tokens, Usage

_SUBJECT_FIELDS = ("command", "file_path", "path", "pattern", "url", "message", "description")


class ProgressPrinter:
    """Prints one line per tool call to stderr, and another one if the call fails."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        self._console = console
        self._verbose = verbose
        self._started_calls: set[str] = set()

    def on_event(self, event: Event) -> None:
        match event:
            case PartUpdatedEvent(part=ToolPart() as call):
                self._print_call(call)
            case PartUpdatedEvent(part=ReasoningPart() as part) if self._verbose and part.time and part.time.end:
                self._print_line(f"(thought: {part.text})")
            case AgentCalledEvent():
                self._print_line(f"▸ {event.agent_name} calls {event.callee}: {event.message}")
            case RetryScheduledEvent():
                self._print_line(f"▸ retrying in {event.delay_ms / 1000:.0f} s: {event.error}", "yellow")
            case ToolApprovalRequestedEvent() if event.server:
                self._print_line(f"▸ {event.tool_name} waits for approval {event.description}", "yellow")
            case ContextCompactionEvent():
                self._print_line(f"▸ compacted: {event.tokens_before:,} → {event.tokens_after:,} tokens")
            case _:
                pass

    def _print_call(self, call: ToolPart) -> None:
        match call.state:
            case ToolRunning() if call.id not in self._started_calls:
                self._started_calls.add(call.id)
                self._print_line(f"▸ {call.tool} {summarize_input(call.state.input)}")
            case ToolError():
                self._print_line(f"  ✗ {call.tool} {call.state.reason}: {call.state.error}", "red")
            case _:
                pass

    def _print_line(self, text: str, style: str = "dim") -> None:
        self._console.print_stderr(truncate_text(text, self._console.width), style)


def summarize_input(tool_input: dict[str, Any]) -> str:
    """Return the most informative field of a tool input (command, path, URL, …), else all fields in short form."""
    found = next((tool_input[name] for name in _SUBJECT_FIELDS if isinstance(tool_input.get(name), str)), None)
    return (
        found
        if found is not None
        else ", ".join(_summarize_argument(name, value) for name, value in tool_input.items())
    )


def _summarize_argument(name: str, value: Any) -> str:
    """Format one field; a list by its length: `3 todos`."""
    return f"{len(cast('list[Any]', value))} {name}" if isinstance(value, list) else f"{name}={value!r}"


OUTPUT_VERSION = 1  # version of the `json` and `stream-json` formats


class RefusedCall(msgspec.Struct, frozen=True):
    """A call that did not run. `reason` is "denied" (by a rule, the mode, or for lack of approval) or "rejected"."""

    call_id: str
    tool: str
    input: dict[str, Any]
    reason: str
    error: str
    session_id: str

    @property
    def needed_approval(self) -> bool:
        """Whether no user was available to approve it. Compares the end of the text: a remote server stores our denial
        as a user's answer with a prefix."""
        return self.error.endswith(UNATTENDED_DENIAL)


class RunInfo(msgspec.Struct, frozen=True):
    """What is known about a run when it starts; printed as the `start` line of stream-json."""

    session_id: str
    agent: str
    model: str
    mode: str
    cwd: str


class RunStats:
    """Counts usage, model responses and refused calls of a run, called agents included."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.answers = 0
        self.refused: list[RefusedCall] = []

    def on_event(self, event: Event) -> None:
        match event:
            case LLMResponseEvent():
                cost = None if event.cost is None else Decimal(event.cost)
                self.usage = self.usage.plus(event.tokens, cost)
                self.answers += 1
            case PartUpdatedEvent(part=ToolPart(state=ToolError(reason="denied" | "rejected") as state) as call):
                refused = (call.call_id, call.tool, state.input, state.reason, state.error, event.session_id)
                self.refused.append(RefusedCall(*refused))
            case _:
                pass


class HeadlessResult(msgspec.Struct, frozen=True):
    """The result of one turn; `interrupted` is the exit code to use if it was aborted."""

    info: RunInfo
    end: TurnEnd
    stats: RunStats
    duration_ms: int
    interrupted: int = exit_codes.INTERRUPTED

    @property
    def exit_code(self) -> int:
        """Return the exit code. A completed turn with unapproved calls is NOT_APPROVED."""
        match self.end.reason:
            case "completed":
                refused = any(call.needed_approval for call in self.stats.refused)
                return exit_codes.NOT_APPROVED if refused else exit_codes.SUCCESS
            case "limit" | "length":
                return exit_codes.LIMIT_REACHED
            case "aborted":
                return self.interrupted
            case "error" if self.end.error is not None:
                return exit_code_for(self.end.error)
            case _:
                return exit_codes.FAILURE

    def to_dict(self) -> dict[str, Any]:
        """Return the result as the JSON object that `json` and `stream-json` print last."""
        end, usage, tokens = self.end, self.stats.usage, self.stats.usage.tokens
        error = None if end.error is None else {"type": type(end.error).__name__, "message": str(end.error)}
        return {
            "type": "result",
            "version": OUTPUT_VERSION,
            "output": end.output,
            "termination_reason": end.reason,
            "exit_code": self.exit_code,
            "error": error,
            **msgspec.structs.asdict(self.info),
            "turns": self.stats.answers,
            "duration_ms": self.duration_ms,
            "usage": encode_usage(tokens),
            "cost": None if usage.total_cost is None else float(usage.total_cost),
            "refused_calls": [msgspec.to_builtins(call) for call in self.stats.refused],
        }


def encode_usage(tokens: Tokens) -> dict[str, int]:
    """Return token counts as a JSON object."""
    return {
        "input_tokens": tokens.input,
        "output_tokens": tokens.output,
        "reasoning_tokens": tokens.reasoning,
        "cache_read_tokens": tokens.cache.read,
        "cache_write_tokens": tokens.cache.write,
    }


OutputLine = dict[str, Any]


class StreamEventEncoder:
    """Converts events to stream-json objects. Part updates carry no agent name and arrive more than once, so the agent
    of each session and the reported calls and texts are stored."""

    def __init__(self) -> None:
        self._agents: dict[str, str] = {}
        self._reported_calls: set[str] = set()
        self._streamed_parts: set[str] = set()

    def encode_event(self, event: Event) -> Iterator[OutputLine]:
        if event.agent_name:
            self._agents[event.session_id] = event.agent_name
        for kind, fields in self._event_lines(event):
            agent = self._agents.get(event.session_id, "")
            yield {"type": kind, "session_id": event.session_id, "agent": agent, "time": event.timestamp, **fields}

    def _event_lines(self, event: Event) -> Iterator[tuple[str, OutputLine]]:
        match event:
            case PartDeltaEvent():
                self._streamed_parts.add(event.part_id)
                yield event.field, {"text": event.delta}
            case PartUpdatedEvent(part=ToolPart() as call):
                yield from self._call_lines(call)
            case PartUpdatedEvent(part=TextPart() as part) if self._is_unstreamed_text(part):
                self._streamed_parts.add(part.id)
                yield "text", {"text": part.text}
            case _:
                yield from _other_event_lines(event)

    def _call_lines(self, call: ToolPart) -> Iterator[tuple[str, OutputLine]]:
        """Yield the `tool_call` and `tool_result` objects of a call, each once."""
        call_fields: OutputLine = {"call_id": call.call_id, "tool": call.tool}
        state = call.state
        if call.id not in self._reported_calls and not (isinstance(state, ToolPending) and state.phase == "streaming"):
            self._reported_calls.add(call.id)
            yield "tool_call", {**call_fields, "input": state.input}
        result = tool_result(call)
        if result is not None and isinstance(state, ToolCompleted | ToolError):
            reason = state.reason if isinstance(state, ToolError) else None
            duration = state.time.end - state.time.start
            result_fields = {
                "output": result.content,
                "is_error": result.is_error,
                "reason": reason,
                "duration_ms": duration,
            }
            yield "tool_result", {**call_fields, **result_fields}

    def _is_unstreamed_text(self, part: TextPart) -> bool:
        """Whether the part is a complete text that was not streamed as deltas."""
        return (
            part.id not in self._streamed_parts
            and not part.synthetic
            and part.time is not None
            and part.time.end is not None
        )


def _other_event_lines(event: Event) -> Iterator[tuple[str, OutputLine]]:
    """Yield the object of an event that needs no state; other event types yield nothing."""
    match event:
        case ToolOutputEvent():
            yield "tool_output", {"call_id": event.call_id, "tool": event.tool_name, "text": event.output}
        case LLMResponseEvent():
            cost = None if event.cost is None else float(event.cost)
            model = f"{event.provider}/{event.model}"
            yield (
                "step",
                {"model": model, "stop_reason": event.stop_reason, "usage": encode_usage(event.tokens), "cost": cost},
            )
        case AgentCalledEvent():
            yield "agent_call", {"call_id": event.call_id, "callee": event.callee, "message": event.message}
        case AgentReturnedEvent():
            result = {"output": event.output, "is_error": not event.success}
            yield "agent_return", {"call_id": event.call_id, "callee": event.callee, **result}
        case RetryScheduledEvent():
            yield "retry", {"attempt": event.attempt, "delay_ms": event.delay_ms, "error": event.error}
        case ContextCompactionEvent():
            yield "compaction", {"tokens_before": event.tokens_before, "tokens_after": event.tokens_after}
        case BudgetExceededEvent():
            yield "limit", {"limit": event.limit, "maximum": event.maximum}
        case ErrorEvent():
            yield "error", {"error_type": event.error_type, "message": event.message}
        case _:
            pass


class RunPrinter(Protocol):
    """The interface of an output format; `on_event` receives every event of the run."""

    def start(self, info: RunInfo) -> None: ...

    def on_event(self, event: Event) -> None: ...

    def finish(self, result: HeadlessResult) -> None: ...


class StdoutPipe:
    """Writes to stdout until writing fails (closed pipe, full disk), then discards the rest, so that the turn
    continues. `Console.write_error` stores the failure for the exit code."""

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


class RunTextPrinter:
    """Streams the text of the main agent; the text of called agents is not printed."""

    def __init__(self, pipe: StdoutPipe, *, only_last: bool = False) -> None:
        self._pipe = pipe
        self._only_last = only_last
        self._session = ""
        self._streamed_parts: set[str] = set()
        self._step = ""
        self._last = ""

    def start(self, info: RunInfo) -> None:
        self._session = info.session_id

    def on_event(self, event: Event) -> None:
        if event.session_id != self._session or self._only_last:
            return
        match event:
            case PartDeltaEvent(field="text"):
                self._streamed_parts.add(event.part_id)
                self._write_text(event.delta)
            case PartUpdatedEvent(part=TextPart() as part) if self._is_unstreamed_text(part):
                self._write_text(part.text)
            case LLMResponseEvent():
                self._end_step()
            case _:
                pass

    def finish(self, result: HeadlessResult) -> None:
        """Print the final output if it was not streamed, as when an agent ends with a `finish` call."""
        self._end_step()
        if result.end.output and result.end.output.strip() != self._last.strip():
            self._write_text(result.end.output)
            self._end_step()

    def _is_unstreamed_text(self, part: TextPart) -> bool:
        """Whether the part is a complete text without deltas, from a model that does not stream."""
        return (
            part.id not in self._streamed_parts
            and part.time is not None
            and part.time.end is not None
            and not part.synthetic
        )

    def _write_text(self, text: str) -> None:
        self._step += text
        self._pipe.write(text)

    def _end_step(self) -> None:
        if self._step and not self._step.endswith("\n"):
            self._pipe.write("\n")
        if self._step:
            self._last, self._step = self._step, ""


class RunJsonPrinter:
    """Prints one JSON object at the end."""

    def __init__(self, pipe: StdoutPipe) -> None:
        self._pipe = pipe

    def start(self, info: RunInfo) -> None:
        pass

    def on_event(self, event: Event) -> None:
        pass

    def finish(self, result: HeadlessResult) -> None:
        self._pipe.write(encode_json_line(result.to_dict()))


class RunStreamPrinter:
    """Prints one JSON object per event, as docs/stream-json.md specifies."""

    def __init__(self, pipe: StdoutPipe) -> None:
        self._pipe = pipe
        self._encoder = StreamEventEncoder()

    def start(self, info: RunInfo) -> None:
        self._pipe.write(encode_json_line({"type": "start", "version": OUTPUT_VERSION, **msgspec.structs.asdict(info)}))

    def on_event(self, event: Event) -> None:
        for line in self._encoder.encode_event(event):
            self._pipe.write(encode_json_line(line))

    def finish(self, result: HeadlessResult) -> None:
        self._pipe.write(encode_json_line(result.to_dict()))


def encode_json_line(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode() + "\n"


def create_printer(output_format: str, console: Console, *, quiet: bool) -> RunPrinter:
    """Return the printer of an output format; `quiet` prints only the last answer."""
    pipe = StdoutPipe(console)
    match output_format:
        case "json":
            return RunJsonPrinter(pipe)
        case "stream-json":
            return RunStreamPrinter(pipe)
        case _:
            return RunTextPrinter(pipe, only_last=quiet)


class RunTarget(NamedTuple):
    """An open session, local or remote: `subscribe` adds an event listener, `prompt` runs a turn and returns its end,
    `abort` cancels it."""

    info: RunInfo
    subscribe: Callable[[Callable[[Event], None]], object]
    prompt: Callable[[Sequence[PartBase]], Awaitable[TurnEnd]]
    abort: Callable[[], Awaitable[None]]
