"""Output of `outrider run` on stdout: the result, and printers of text, JSON and stream-json.

Printers are event listeners. docs/stream-json.md describes the JSON formats, which are a public interface.
"""

from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, assert_never

import msgspec

from outrider.cli import exit_codes
from outrider.cli.main import exit_code_for
from outrider.cli.output import Console
from outrider.errors import OutriderError
from outrider.presentation.formats import text_for_pipe
from outrider.types.events import (
    Event,
    LLMResponseEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    RetryScheduledEvent,
)
from outrider.types.modes import ApprovalLevel, Mode
from outrider.types.parts import (
    PartBase,
    Tokens,
    ToolPart,
    Usage,
)
from outrider.types.tool_state import ToolCompleted, ToolError

if TYPE_CHECKING:
    from outrider.engine.archive import TurnOutcome

CONTINUE_PROMPT = "continue"  # of `outrider run --continue` without a prompt, after a turn that ended
OUTPUT_VERSION = 1  # version of the `json` and `stream-json` formats


class RefusedCall(msgspec.Struct, frozen=True):
    """A call that did not run, or whose outcome was dropped.

    - `call_id`: the id of the call.
    - `tool`: the name of the tool.
    - `input`: the arguments of the call.
    - `reason`: "denied" (by a rule, by the mode or for lack of approval) or "rejected" by a user.
    - `error`: what the model reads about it.
    - `session_id`: the session of the call, which may be that of a called agent.
    """

    call_id: str
    tool: str
    input: dict[str, Any]
    reason: str
    error: str
    session_id: str

    @property
    def needed_approval(self) -> bool:
        """Whether no user was available to approve the call."""
        from outrider.presentation.approvals import was_unattended  # lazy: most runs have no refused call

        return was_unattended(self.error)

    @property
    def is_forbidden(self) -> bool:
        """Whether a rule forbids the call, so that no approval would allow it."""
        from outrider.presentation.approvals import is_forbidden_by_rule

        return is_forbidden_by_rule(self.error)


class ServerInfo(msgspec.Struct, frozen=True):
    """An MCP server and the state of its connection, with the cause of a failure."""

    name: str
    status: str
    error: str = ""


class RunInfo(msgspec.Struct, frozen=True):
    """What is known about a run when it starts; printed as the `start` line of stream-json.

    - `session_id`: the session of the run.
    - `agent`: the name of the agent that answers.
    - `model`: its model, as PROVIDER/MODEL.
    - `mode`: the mode of the session.
    - `cwd`: the folder of the session.
    - `program_version`: the version of this program; only in the stream formats.
    - `tools`: the names of the session's tools; only in the stream formats.
    - `servers`: the MCP servers and the states of their connections; only in the stream formats.
    """

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
    """Counts usage, model responses and refused calls of a run, including those of called agents."""

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
                fields = (call.call_id, call.tool, state.input, state.reason, state.error, event.session_id)
                self.refused.append(RefusedCall(*fields))
            elif isinstance(state, ToolCompleted) and (access := state.metadata.get("not_approved")):
                from outrider.presentation.approvals import UNATTENDED_BLOCK

                error = UNATTENDED_BLOCK.format(wanted=access)
                self.refused.append(
                    RefusedCall(call.call_id, call.tool, state.input, "denied", error, event.session_id)
                )


class HeadlessResult(msgspec.Struct, frozen=True):
    """The result of one turn.

    - `info`: what was known when the run started.
    - `end`: how the turn ended, with its output.
    - `stats`: usage, number of answers and refused calls.
    - `duration_ms`: how long the turn took.
    - `interrupted`: the exit code to use if the turn was aborted.
    - `input_id`: the id that an input line gave to the prompt.
    - `value`: the value of the output schema; None if it was not obtained, UNSET if none was requested.
    - `value_error`: why the value was not obtained.
    """

    info: RunInfo
    end: "TurnOutcome"
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
        if self.end.reason == "completed":
            return ""
        from outrider.presentation.items import next_step

        return next_step(self.end.reason, type(self.end.error).__name__)

    @property
    def unapproved_calls(self) -> list[RefusedCall]:
        """The calls that an approval would have allowed. Background mode never asks, so these are all refused calls
        that no rule forbids."""
        never_asks = self.info.mode == "background"
        return [call for call in self.stats.refused if call.needed_approval or (never_asks and not call.is_forbidden)]

    @property
    def exit_code(self) -> int:
        """Returns the exit code. A completed turn with unapproved calls is NOT_APPROVED."""
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
        """Returns the result as the JSON object that `json` and `stream-json` print last."""
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
    """Returns token counts as a JSON object."""
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
    """Writes to stdout until writing fails (closed pipe, full disk), then discards all output, so that the turn
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
    answer, prints the last text of the model."""

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
    """An open session, local or remote. The functions after `abort` execute input lines.

    - `info`: what is known about the run.
    - `subscribe`: adds an event listener.
    - `prompt`: runs a turn and returns its end.
    - `abort`: cancels the turn.
    - `steer`: adds input to the running turn.
    - `answer`: answers an approval, with the parameters of `Engine.answer`.
    - `answer_question`: answers a question of the model.
    - `set_mode`: changes the mode of the session.
    - `set_approval`: changes the approval level of the session.
    """

    info: RunInfo
    subscribe: Callable[[Callable[[Event], None]], object]
    prompt: Callable[[Sequence[PartBase]], Awaitable["TurnOutcome"]]
    abort: Callable[[], Awaitable[None]]
    steer: Callable[[Sequence[PartBase]], Awaitable[object]]
    answer: Callable[..., Awaitable[object]]
    answer_question: Callable[[str, Sequence[str]], Awaitable[object]]
    set_mode: Callable[[Mode], Awaitable[None]]
    set_approval: Callable[[ApprovalLevel], Awaitable[None]]
