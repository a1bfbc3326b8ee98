"""The three forms in which a run is printed, each a listener with a last word."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, Protocol, cast

import msgspec

from outrider.cli import registry as exits
from outrider.cli.dispatch import code_of
from outrider.cli.output import Console, cut
from outrider.engine.approval_gate import NOBODY_THERE
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

_TELLING = ("command", "file_path", "path", "pattern", "url", "message", "description")


class Progress:
    """One line for each call, and one more where it did not go well."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        self._console = console
        self._verbose = verbose
        self._begun: set[str] = set()

    def hear(self, event: Event) -> None:
        match event:
            case PartUpdatedEvent(part=ToolPart() as call):
                self._call(call)
            case PartUpdatedEvent(part=ReasoningPart() as part) if self._verbose and part.time and part.time.end:
                self._say(f"(thought: {part.text})")
            case AgentCalledEvent():
                self._say(f"▸ {event.agent_name} asks {event.callee}: {event.message}")
            case RetryScheduledEvent():
                self._say(f"▸ trying again in {event.delay_ms / 1000:.0f} s: {event.error}", "yellow")
            case ToolApprovalRequestedEvent() if event.server:
                self._say(f"▸ {event.tool_name} waits for somebody's answer {event.description}", "yellow")
            case ContextCompactionEvent():
                self._say(f"▸ summed up: {event.tokens_before:,} → {event.tokens_after:,} tokens")
            case _:
                pass

    def _call(self, call: ToolPart) -> None:
        match call.state:
            case ToolRunning() if call.id not in self._begun:
                self._begun.add(call.id)
                self._say(f"▸ {call.tool} {telling(call.state.input)}")
            case ToolError():
                self._say(f"  ✗ {call.tool} {call.state.reason}: {call.state.error}", "red")
            case _:
                pass

    def _say(self, text: str, style: str = "dim") -> None:
        self._console.say(cut(text, self._console.width), style)


def telling(given: dict[str, Any]) -> str:
    """Of an input what a person looks for first."""
    found = next((given[name] for name in _TELLING if isinstance(given.get(name), str)), None)
    return found if found is not None else ", ".join(_told(name, value) for name, value in given.items())


def _told(name: str, value: Any) -> str:
    """A list by how much it holds: `3 todos`."""
    return f"{len(cast('list[Any]', value))} {name}" if isinstance(value, list) else f"{name}={value!r}"


VERSION = 1  # of everything that `json` and `stream-json` print


class Refused(msgspec.Struct, frozen=True):
    """A call that did not run. `reason` is denied (by a rule or mode, or for want of approval) or rejected."""

    call_id: str
    tool: str
    input: dict[str, Any]
    reason: str
    error: str
    session_id: str

    @property
    def for_want_of_approval(self) -> bool:
        """Also where a front end had to say it for a server, which took it for the word of a user."""
        return self.error.endswith(NOBODY_THERE)


class RunInfo(msgspec.Struct, frozen=True):
    """What was known when the work began."""

    session_id: str
    agent: str
    model: str
    mode: str
    cwd: str


class RunStats:
    """Hears the whole run, every agent in it."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.answers = 0
        self.refused: list[Refused] = []

    def hear(self, event: Event) -> None:
        match event:
            case LLMResponseEvent():
                cost = None if event.cost is None else Decimal(event.cost)
                self.usage = self.usage.plus(event.tokens, cost)
                self.answers += 1
            case PartUpdatedEvent(part=ToolPart(state=ToolError(reason="denied" | "rejected") as state) as call):
                refused = (call.call_id, call.tool, state.input, state.reason, state.error, event.session_id)
                self.refused.append(Refused(*refused))
            case _:
                pass


class Result(msgspec.Struct, frozen=True):
    """One turn and its end."""

    begun: RunInfo
    end: TurnEnd
    tally: RunStats
    duration_ms: int
    interrupted: int = exits.INTERRUPTED

    @property
    def exit_code(self) -> int:
        match self.end.reason:
            case "completed":
                refused = any(call.for_want_of_approval for call in self.tally.refused)
                return exits.NOT_APPROVED if refused else exits.DONE
            case "limit" | "length":
                return exits.LIMIT
            case "aborted":
                return self.interrupted
            case "error" if self.end.error is not None:
                return code_of(self.end.error)
            case _:
                return exits.FAILED

    def to_dict(self) -> dict[str, Any]:
        end, usage, tokens = self.end, self.tally.usage, self.tally.usage.tokens
        error = None if end.error is None else {"type": type(end.error).__name__, "message": str(end.error)}
        return {
            "type": "result",
            "version": VERSION,
            "output": end.output,
            "termination_reason": end.reason,
            "exit_code": self.exit_code,
            "error": error,
            **msgspec.structs.asdict(self.begun),
            "turns": self.tally.answers,
            "duration_ms": self.duration_ms,
            "usage": usage_dict(tokens),
            "cost": None if usage.total_cost is None else float(usage.total_cost),
            "refused_calls": [msgspec.to_builtins(call) for call in self.tally.refused],
        }


def usage_dict(tokens: Tokens) -> dict[str, int]:
    return {
        "input_tokens": tokens.input,
        "output_tokens": tokens.output,
        "reasoning_tokens": tokens.reasoning,
        "cache_read_tokens": tokens.cache.read,
        "cache_write_tokens": tokens.cache.write,
    }


Line = dict[str, Any]


class Lines:
    """Part updates do not name their agent, and come more than once, so both are remembered."""

    def __init__(self) -> None:
        self._agents: dict[str, str] = {}
        self._called: set[str] = set()
        self._said: set[str] = set()

    def of(self, event: Event) -> Iterator[Line]:
        if event.agent_name:
            self._agents[event.session_id] = event.agent_name
        for kind, fields in self._made_of(event):
            agent = self._agents.get(event.session_id, "")
            yield {"type": kind, "session_id": event.session_id, "agent": agent, "time": event.timestamp, **fields}

    def _made_of(self, event: Event) -> Iterator[tuple[str, Line]]:
        match event:
            case PartDeltaEvent():
                self._said.add(event.part_id)
                yield event.field, {"text": event.delta}
            case PartUpdatedEvent(part=ToolPart() as call):
                yield from self._call(call)
            case PartUpdatedEvent(part=TextPart() as part) if self._is_whole(part):
                self._said.add(part.id)
                yield "text", {"text": part.text}
            case _:
                yield from _told_stream(event)

    def _call(self, call: ToolPart) -> Iterator[tuple[str, Line]]:
        named: Line = {"call_id": call.call_id, "tool": call.tool}
        state = call.state
        if call.id not in self._called and not (isinstance(state, ToolPending) and state.phase == "streaming"):
            self._called.add(call.id)
            yield "tool_call", {**named, "input": state.input}
        result = tool_result(call)
        if result is not None and isinstance(state, ToolCompleted | ToolError):
            reason = state.reason if isinstance(state, ToolError) else None
            took = state.time.end - state.time.start
            ended = {"output": result.content, "is_error": result.is_error, "reason": reason, "duration_ms": took}
            yield "tool_result", {**named, **ended}

    def _is_whole(self, part: TextPart) -> bool:
        return part.id not in self._said and not part.synthetic and part.time is not None and part.time.end is not None


def _told_stream(event: Event) -> Iterator[tuple[str, Line]]:
    match event:
        case ToolOutputEvent():
            yield "tool_output", {"call_id": event.call_id, "tool": event.tool_name, "text": event.output}
        case LLMResponseEvent():
            cost = None if event.cost is None else float(event.cost)
            model = f"{event.provider}/{event.model}"
            yield (
                "step",
                {"model": model, "stop_reason": event.stop_reason, "usage": usage_dict(event.tokens), "cost": cost},
            )
        case AgentCalledEvent():
            yield "agent_call", {"call_id": event.call_id, "callee": event.callee, "message": event.message}
        case AgentReturnedEvent():
            came = {"output": event.output, "is_error": not event.success}
            yield "agent_return", {"call_id": event.call_id, "callee": event.callee, **came}
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


class Printer(Protocol):
    def begin(self, begun: RunInfo) -> None: ...

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

    def begin(self, begun: RunInfo) -> None:
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

    def begin(self, begun: RunInfo) -> None:
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

    def begin(self, begun: RunInfo) -> None:
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


class RunTarget(NamedTuple):
    """`subscribe` lets a listener hear everything that happens; `prompt` gives the end of the turn."""

    begun: RunInfo
    subscribe: Callable[[Callable[[Event], None]], object]
    prompt: Callable[[Sequence[PartBase]], Awaitable[TurnEnd]]
    abort: Callable[[], Awaitable[None]]
