"""Output of `outrider run`: progress on stderr, and text, JSON or stream-json printers on stdout.

Printers are event listeners. docs/stream-json.md describes the JSON formats, which are a public interface.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, Protocol, assert_never, cast

import msgspec

from outrider.cli import exit_codes
from outrider.cli.dispatch import exit_code_for
from outrider.cli.output import NOTICE_STYLES, Console, truncate_text
from outrider.engine.archive import TurnOutcome
from outrider.errors import OutriderError
from outrider.permissions.redaction.terminal import remove_escape_sequences
from outrider.presentation import approvals as reasons
from outrider.presentation.formats import clean_line
from outrider.presentation.items import Notice, event_notice, vendor_tool_notice
from outrider.presentation.tool_calls import call_title, vendor_tool_use
from outrider.types.codec import AnyPart
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    BudgetExceededEvent,
    ContextCompactionEvent,
    DeltasDroppedEvent,
    ErrorEvent,
    Event,
    FilesRestoredEvent,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    MessageAddedEvent,
    ModelSilentEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    ProcessExitedEvent,
    ProcessOutputEvent,
    ProcessStartedEvent,
    RetryScheduledEvent,
    SessionUpdatedEvent,
    StandardEvent,
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
from outrider.types.parts import (
    STORED_KINDS,
    AgentPart,
    CompactionPart,
    FilePart,
    Part,
    PartBase,
    PatchPart,
    ReasoningPart,
    RetryPart,
    SnapshotPart,
    StepFinishPart,
    StepStartPart,
    SubtaskPart,
    TextPart,
    ToolPart,
    is_withdrawn,
    tool_result,
)
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning, working_time
from outrider.types.usage import Tokens, Usage

_TOPICS_OF_SUMMARY = frozenset({"error", "limit", "end"})  # printed after the run, with its exit code


class ProgressPrinter:
    """Prints one line per tool call to stderr, another one if the call fails, and a line per notice. Notices of level
    `detail` are printed with `verbose` only."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        self._console = console
        self._verbose = verbose
        self._started_calls: set[str] = set()

    def on_event(self, event: Event) -> None:
        if isinstance(event, PartUpdatedEvent):
            self._print_part(event.part)
        elif isinstance(event, ToolApprovalRequestedEvent) and not event.server:
            return  # this process answers it
        elif (notice := event_notice(event)) is not None and notice.topic not in _TOPICS_OF_SUMMARY:
            self._print_notice(notice)

    def _print_part(self, part: AnyPart) -> None:
        if type(part) not in STORED_KINDS:
            self._print_notice(Notice("detail", "custom", clean_line(part.type or "part", 100)))
        else:
            self._print_standard_part(cast("Part", part))

    def _print_standard_part(self, part: Part) -> None:
        match part:
            case ToolPart():
                self._print_call(part)
            case ReasoningPart():
                if (notice := vendor_tool_notice(part)) is not None and not is_withdrawn(part):
                    self._print_notice(notice)
                elif self._verbose and part.time and part.time.end:
                    self._print_line(f"(thought: {part.text})")
            case TextPart():
                return  # printed to stdout
            case RetryPart() | CompactionPart() | SubtaskPart():
                return  # an event reports it too
            case FilePart() | PatchPart() | AgentPart() | StepStartPart() | StepFinishPart() | SnapshotPart():
                return  # a call reports what it changes; the rest is bookkeeping
            case _:
                assert_never(part)

    def _print_call(self, call: ToolPart) -> None:
        match call.state:
            case ToolRunning(input=arguments):
                if call.id not in self._started_calls:
                    self._started_calls.add(call.id)
                    self._print_line(f"▸ {call_title(call.tool, arguments)}")
            case ToolError() if is_withdrawn(call):
                return  # the line of the retry reports it
            case ToolError(reason=reason, error=error):
                self._print_line(f"✗ {call.tool} {reason}: {error}", "red")
            case ToolPending() | ToolCompleted():
                return
            case _:
                assert_never(call.state)

    def _print_notice(self, notice: Notice) -> None:
        if notice.level != "detail" or self._verbose:
            self._print_line(f"▸ {notice.text}", NOTICE_STYLES[notice.level])

    def _print_line(self, text: str, style: str = "dim") -> None:
        self._console.print_stderr(truncate_text(text, self._console.width), style)


_COMMON_EVENT_FIELDS = frozenset({"type", *Event.__struct_fields__})
CONTINUE_PROMPT = "continue"  # of `outrider run --continue` without a prompt, after a turn that ended
OUTPUT_VERSION = 1  # version of the `json` and `stream-json` formats


_UNATTENDED = (
    reasons.UNATTENDED_DENIAL,
    reasons.UNATTENDED_OUTCOME,
    reasons.UNATTENDED_WRITE,
    reasons.UNATTENDED_BLOCK.partition("{wanted}")[2],
)
_FORBIDDEN = reasons.RULE_FORBIDS.partition("{rule}")[0]


class RefusedCall(msgspec.Struct, frozen=True):
    """A call that did not run, or whose outcome was dropped. `reason` is "denied" (by a rule, the mode, or for lack of
    approval) or "rejected"."""

    call_id: str
    tool: str
    input: dict[str, Any]
    reason: str
    error: str
    session_id: str

    @property
    def needed_approval(self) -> bool:
        """Whether no user was available to approve it. Searches the text: a remote server stores our denial as a user's
        answer with a prefix."""
        return any(text in self.error for text in _UNATTENDED)


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
        if isinstance(event, LLMResponseEvent):
            cost = None if event.cost is None else Decimal(event.cost)
            self.usage = self.usage.plus(event.tokens, cost)
            self.answers += 1
        elif isinstance(event, PartUpdatedEvent) and isinstance(event.part, ToolPart):
            call, state = event.part, event.part.state
            if isinstance(state, ToolError) and state.reason in ("denied", "rejected"):
                refused = (call.call_id, call.tool, state.input, state.reason, state.error, event.session_id)
                self.refused.append(RefusedCall(*refused))
            elif isinstance(state, ToolCompleted) and (wanted := state.metadata.get("not_approved")):
                error = reasons.UNATTENDED_BLOCK.format(wanted=wanted)
                self.refused.append(
                    RefusedCall(call.call_id, call.tool, state.input, "denied", error, event.session_id)
                )


class HeadlessResult(msgspec.Struct, frozen=True):
    """The result of one turn; `interrupted` is the exit code to use if it was aborted."""

    info: RunInfo
    end: TurnOutcome
    stats: RunStats
    duration_ms: int
    interrupted: int = exit_codes.INTERRUPTED

    @property
    def unapproved_calls(self) -> list[RefusedCall]:
        """The calls that an approval would have allowed. Background mode never asks: all but those that a rule forbids
        count."""
        never_asks = self.info.mode == "background"
        return [
            call for call in self.stats.refused if call.needed_approval or (never_asks and _FORBIDDEN not in call.error)
        ]

    @property
    def exit_code(self) -> int:
        """Return the exit code. A completed turn with unapproved calls is NOT_APPROVED."""
        match self.end.reason:
            case "completed":
                return exit_codes.NOT_APPROVED if self.unapproved_calls else exit_codes.SUCCESS
            case "limit" | "length":
                return exit_codes.LIMIT_REACHED
            case "aborted":
                return self.interrupted
            case "error" if self.end.error is not None:
                return exit_code_for(self.end.error)
            case "error" | "repetition" | "empty_answers" | "refusal":
                return exit_codes.FAILURE
            case _:
                assert_never(self.end.reason)

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

    def _event_lines(self, event: Event) -> Iterable[tuple[str, OutputLine]]:
        if is_standard_event(event):
            return self._standard_lines(cast("StandardEvent", event))
        fields = {name: value for name, value in event.to_dict().items() if name not in _COMMON_EVENT_FIELDS}
        return [("event", {"name": event.event_type, "data": fields})]

    def _standard_lines(self, event: StandardEvent) -> Iterable[tuple[str, OutputLine]]:
        """Return the objects of an event; docs/stream-json.md lists them."""
        match event:
            case PartDeltaEvent():
                self._streamed_parts.add(event.part_id)
                return [(event.field, {"text": event.delta, "part_id": event.part_id})]
            case PartUpdatedEvent():
                return self._part_lines(event.part)
            case ToolOutputEvent():
                return [("tool_output", {"call_id": event.call_id, "tool": event.tool_name, "text": event.output})]
            case LLMResponseEvent():
                return [("step", _step_fields(event))]
            case AgentCalledEvent():
                fields = {"call_id": event.call_id, "callee": event.callee, "message": event.message}
                return [("agent_call", fields)]
            case AgentReturnedEvent():
                result = {"output": event.output, "is_error": not event.success}
                return [("agent_return", {"call_id": event.call_id, "callee": event.callee, **result})]
            case RetryScheduledEvent():
                return [("retry", _retry_fields(event))]
            case ModelSilentEvent():
                return [("silent", {"silent_ms": event.silent_ms, "model": event.model})]
            case ContextCompactionEvent():
                return [("compaction", {"tokens_before": event.tokens_before, "tokens_after": event.tokens_after})]
            case BudgetExceededEvent():
                return [("limit", {"limit": event.limit, "maximum": event.maximum})]
            case ErrorEvent():
                return [("error", {"error_type": event.error_type, "message": event.message})]
            case (
                LoopStartedEvent()
                | LoopCompletedEvent()
                | TurnStartedEvent()
                | TurnCompletedEvent()
                | StateChangedEvent()
                | LLMRequestEvent()
                | SessionUpdatedEvent()
                | DeltasDroppedEvent()
            ):
                return ()  # `start`, `step` and `result` report a run and its steps
            case (
                MessageAddedEvent()
                | ToolInputDeltaEvent()
                | ToolExecutionStartedEvent()
                | ToolExecutionCompletedEvent()
                | ToolApprovalRequestedEvent()
                | ToolApprovalResultEvent()
                | ProcessStartedEvent()
                | ProcessOutputEvent()
                | ProcessExitedEvent()
                | FilesRestoredEvent()
            ):
                return ()  # the lines of the call report it, with its end
            case _:
                assert_never(event)

    def _part_lines(self, part: AnyPart) -> Iterable[tuple[str, OutputLine]]:
        if isinstance(part, ToolPart):
            return self._call_lines(part)
        if isinstance(part, TextPart) and self._is_unstreamed_text(part):
            self._streamed_parts.add(part.id)
            return [("text", {"text": part.text, "part_id": part.id})]
        if isinstance(part, ReasoningPart) and (used := vendor_tool_use(part.provider_state)) is not None:
            return [("vendor_tool", {"title": used.title, "body": used.body, "part_id": part.id})]
        return ()  # a `text`, `reasoning`, `retry`, `compaction` or `agent_call` line reports it, or it is bookkeeping

    def _call_lines(self, call: ToolPart) -> Iterator[tuple[str, OutputLine]]:
        """Yield the `tool_call` and `tool_result` objects of a call, each once."""
        call_fields: OutputLine = {"call_id": call.call_id, "tool": call.tool}
        state = call.state
        if is_withdrawn(call) and call.id not in self._reported_calls:
            return
        if call.id not in self._reported_calls and not (isinstance(state, ToolPending) and state.phase == "streaming"):
            self._reported_calls.add(call.id)
            yield "tool_call", {**call_fields, "input": state.input}
        result = tool_result(call)
        if result is not None and isinstance(state, ToolCompleted | ToolError):
            reason = state.reason if isinstance(state, ToolError) else None
            duration = working_time(state)
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
            and not part.ignored
            and part.time is not None
            and part.time.end is not None
        )


def _retry_fields(event: RetryScheduledEvent) -> OutputLine:
    return {
        "attempt": event.attempt,
        "max_attempts": event.max_attempts,
        "delay_ms": event.delay_ms,
        "error": event.error,
        "withdrawn": list(event.withdrawn),
        "model": event.model or None,
    }


def _step_fields(event: LLMResponseEvent) -> OutputLine:
    return {
        "model": f"{event.provider}/{event.model}",
        "stop_reason": event.stop_reason,
        "usage": encode_usage(event.tokens),
        "cost": None if event.cost is None else float(event.cost),
    }


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
    """Streams the text of the main agent; the text of called agents is not printed.

    Text of an answer that breaks off is withdrawn. A terminal has shown it by then, and stderr says so; a pipe gets the
    text of a step at its end (`holds_back`), so that a program never reads it."""

    def __init__(self, pipe: StdoutPipe, *, only_last: bool = False, holds_back: bool = False) -> None:
        self._pipe = pipe
        self._only_last = only_last
        self._holds_back = holds_back
        self._session = ""
        self._streamed_parts: set[str] = set()
        self._step = ""
        self._last = ""

    def start(self, info: RunInfo) -> None:
        self._session = info.session_id

    def on_event(self, event: Event) -> None:
        if event.session_id != self._session or self._only_last:
            return
        if isinstance(event, PartDeltaEvent) and event.field == "text":
            self._streamed_parts.add(event.part_id)
            self._write_text(event.delta)
        elif isinstance(event, PartUpdatedEvent) and isinstance(event.part, TextPart):
            if self._is_unstreamed_text(event.part):
                self._write_text(event.part.text)
        elif isinstance(event, RetryScheduledEvent):
            self._withdraw_step()
        elif isinstance(event, LLMResponseEvent):
            self._end_step()

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
            and not part.ignored
        )

    def _write_text(self, text: str) -> None:
        self._step += text
        if not self._holds_back:
            self._pipe.write(text)

    def _withdraw_step(self) -> None:
        if self._step and not self._holds_back:
            self._pipe.write("\n")
        self._step = ""

    def _end_step(self) -> None:
        if self._holds_back:
            self._pipe.write(remove_escape_sequences(self._step))
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
            return RunTextPrinter(pipe, only_last=quiet, holds_back=not console.out_is_terminal)


class RunTarget(NamedTuple):
    """An open session, local or remote: `subscribe` adds an event listener, `prompt` runs a turn and returns its end,
    `abort` cancels it."""

    info: RunInfo
    subscribe: Callable[[Callable[[Event], None]], object]
    prompt: Callable[[Sequence[PartBase]], Awaitable[TurnOutcome]]
    abort: Callable[[], Awaitable[None]]
