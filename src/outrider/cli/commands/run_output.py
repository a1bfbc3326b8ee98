"""Output of `outrider run`: progress on stderr, and text, JSON or stream-json printers on stdout.

Printers are event listeners. docs/stream-json.md describes the JSON formats, which are a public interface.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, assert_never, cast

import msgspec

from outrider.cli import exit_codes
from outrider.cli.dispatch import exit_code_for
from outrider.cli.output import NOTICE_STYLES, Console, truncate_text
from outrider.engine.archive import TurnOutcome
from outrider.errors import OutriderError
from outrider.presentation import approvals as reasons
from outrider.presentation.formats import clean_line, text_for_pipe
from outrider.presentation.items import Notice, event_notice, next_step, vendor_tool_notice
from outrider.presentation.tool_calls import call_title
from outrider.types.codec import AnyPart
from outrider.types.events import (
    Event,
    LLMResponseEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    RetryScheduledEvent,
    ToolApprovalRequestedEvent,
)
from outrider.types.modes import ApprovalLevel, Mode
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
)
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning
from outrider.types.usage import Tokens, Usage

if TYPE_CHECKING:
    from outrider.presentation.activity import SessionActivity

_STATUS_SECONDS = 0.25
_TOPICS_OF_SUMMARY = frozenset({"error", "limit", "end"})  # printed after the run, with its exit code


class ProgressPrinter:
    """Prints one line per tool call to stderr, another one if the call fails, and a line per notice. Notices of level
    `detail` are printed with `verbose` only. `session_id` is that of the main agent, whose text before calls is printed
    too. On a terminal the last line shows what the main agent does, for how long, and the tokens so far."""

    def __init__(self, console: Console, *, verbose: bool, session_id: str = "") -> None:
        self._console = console
        self._verbose = verbose
        self._session = session_id
        self._started_calls: set[str] = set()
        self._text = ""  # of the main agent; printed when a call follows, because the last one goes to stdout
        self._activity = _create_activity() if console.err_is_terminal and session_id else None
        self._timer: asyncio.TimerHandle | None = None

    def on_event(self, event: Event) -> None:
        self._print_event(event)
        if self._activity is not None:
            self._activity.apply(event, own=event.session_id == self._session)
            self._show_activity(self._activity)

    def _show_activity(self, activity: "SessionActivity") -> None:
        """Show the activity four times a second while a turn runs."""
        if not activity.busy:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._console.clear_status()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_STATUS_SECONDS, self._tick, activity)

    def _tick(self, activity: "SessionActivity") -> None:
        self._timer = None
        tokens = f" · {activity.tokens:,} tokens" if activity.tokens else ""
        self._console.show_status(f"{activity.retry_text or activity.label} · {activity.seconds:.0f} s{tokens}")
        self._show_activity(activity)

    def _print_event(self, event: Event) -> None:
        if isinstance(event, PartUpdatedEvent):
            self._print_part(event.part)
        elif isinstance(event, LLMResponseEvent):
            if event.session_id == self._session and not event.has_tool_use:
                self._text = ""
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
                if part.session_id == self._session and not part.synthetic:
                    self._text = "" if part.ignored else part.text
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
                    self._print_intermediate_text(call)
                    self._print_line(f"▸ {call_title(call.tool, arguments)}")
            case ToolError() if is_withdrawn(call):
                return  # the line of the retry reports it
            case ToolError(reason=reason, error=error):
                self._print_line(f"✗ {call.tool} {reason}: {error}", "red")
            case ToolPending() | ToolCompleted():
                return
            case _:
                assert_never(call.state)

    def _print_intermediate_text(self, call: ToolPart) -> None:
        if self._text.strip() and call.session_id == self._session:
            self._console.print_stderr(self._text.strip())
            self._text = ""

    def _print_notice(self, notice: Notice) -> None:
        if notice.level != "detail" or self._verbose:
            self._print_line(f"▸ {notice.text}", NOTICE_STYLES[notice.level])

    def _print_line(self, text: str, style: str = "dim") -> None:
        self._console.print_stderr(truncate_text(text, self._console.width), style)


def _create_activity() -> "SessionActivity":
    from outrider.presentation.activity import SessionActivity  # lazy: pipes need none

    return SessionActivity(monotonic)


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


class ServerInfo(msgspec.Struct, frozen=True):
    """An MCP server and the state of its connection, with the cause of a failure."""

    name: str
    status: str
    error: str = ""


class RunInfo(msgspec.Struct, frozen=True):
    """What is known about a run when it starts; printed as the `start` line of stream-json. Only the stream formats
    fill in the tools and the connection states of MCP servers by name."""

    session_id: str
    agent: str
    model: str
    mode: str
    cwd: str
    program_version: str = ""
    tools: tuple[str, ...] = ()
    servers: tuple[ServerInfo, ...] = ()


_ONLY_IN_START = frozenset({"program_version", "tools", "servers"})


class RunStats:
    """Counts usage, model responses and refused calls of a run, called agents included."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.answers = 0
        self.api_ms = 0
        self.refused: list[RefusedCall] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, LLMResponseEvent):
            cost = None if event.cost is None else Decimal(event.cost)
            self.usage = self.usage.plus(event.tokens, cost)
            self.answers += 1
            self.api_ms += event.duration_ms
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
    """The result of one turn; `interrupted` is the exit code to use if it was aborted, `input_id` the id that an input
    line gave to its prompt. `value` is the value of the output schema: None with `value_error` if it was not obtained,
    UNSET if none was requested."""

    info: RunInfo
    end: TurnOutcome
    stats: RunStats
    duration_ms: int
    interrupted: int = exit_codes.INTERRUPTED
    input_id: str = ""
    value: Any = msgspec.UNSET
    value_error: str = ""

    @property
    def text(self) -> str:
        """The last answer as text. `RunResult.output` would be the value of the output schema."""
        return getattr(self.end, "text", "") if self.value is not msgspec.UNSET else self.end.output

    @property
    def next_step(self) -> str:
        """What to do after a turn that did not complete."""
        error = self.end.error
        return "" if self.end.reason == "completed" else next_step(self.end.reason, type(error).__name__)

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
            case "completed" if self.value_error:
                return exit_codes.FAILURE
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
        info = msgspec.structs.asdict(self.info)
        error = None if end.error is None else {"type": type(end.error).__name__, "message": str(end.error)}
        return {
            "type": "result",
            "version": OUTPUT_VERSION,
            "output": self.text,
            "termination_reason": end.reason,
            "exit_code": self.exit_code,
            "error": error,
            **{name: value for name, value in info.items() if name not in _ONLY_IN_START},
            "turns": self.stats.answers,
            "duration_ms": self.duration_ms,
            "usage": encode_usage(tokens),
            "cost": None if usage.total_cost is None else float(usage.total_cost),
            "refused_calls": [msgspec.to_builtins(call) for call in self.stats.refused],
            **({"input_id": self.input_id} if self.input_id else {}),
            **({"next_step": self.next_step} if self.next_step else {}),
            **({} if self.value is msgspec.UNSET else {"structured_output": self.value}),
            **({"structured_output_error": self.value_error} if self.value_error else {}),
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
    """Prints the final answer of the main agent, or the value of the output schema as JSON. If the turn has no final
    answer, prints the last text that arrived."""

    def __init__(self, pipe: StdoutPipe, *, for_terminal: bool) -> None:
        self._pipe = pipe
        self._for_terminal = for_terminal
        self._session = ""
        self._step: list[str] = []  # joined when it is needed: adding to a long text copies it
        self._last: list[str] = []

    def start(self, info: RunInfo) -> None:
        self._session = info.session_id

    def on_event(self, event: Event) -> None:
        if event.session_id != self._session:
            return
        if isinstance(event, PartDeltaEvent) and event.field == "text":
            self._step.append(event.delta)
        elif isinstance(event, RetryScheduledEvent):
            self._step = []  # withdrawn
        elif isinstance(event, LLMResponseEvent):
            self._last, self._step = self._step or self._last, []

    def finish(self, result: HeadlessResult) -> None:
        if result.value is not msgspec.UNSET:
            if result.value is not None or not result.value_error:
                self._pipe.write(encode_json_line(result.value))
            return
        text = result.text or "".join(self._step or self._last)
        if text and not text.endswith("\n"):
            text += "\n"
        self._pipe.write(text if self._for_terminal else text_for_pipe(text))


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


def encode_json_line(value: Any) -> str:
    return msgspec.json.encode(value).decode() + "\n"


class RunTarget(NamedTuple):
    """An open session, local or remote: `subscribe` adds an event listener, `prompt` runs a turn and returns its end,
    `abort` cancels it. The others carry out input lines: `steer` adds input to the running turn, `answer` has the
    parameters of `Engine.answer`."""

    info: RunInfo
    subscribe: Callable[[Callable[[Event], None]], object]
    prompt: Callable[[Sequence[PartBase]], Awaitable[TurnOutcome]]
    abort: Callable[[], Awaitable[None]]
    steer: Callable[[Sequence[PartBase]], Awaitable[object]]
    answer: Callable[..., Awaitable[object]]
    answer_question: Callable[[str, Sequence[str]], Awaitable[object]]
    set_mode: Callable[[Mode], Awaitable[None]]
    set_approval: Callable[[ApprovalLevel], Awaitable[None]]
