"""`run`: agents at work on one message, from plain code, from async code, or as a stream."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, ParamSpec, TypeVar, cast

import msgspec

from outrider._sync import run_sync
from outrider.agents.hooks import Hooks
from outrider.agents.output_type import OutputType
from outrider.agents.turn_state import TurnEnd
from outrider.engine.approval_gate import Approve
from outrider.engine.run_session import RunSession, RunSpec, open_workshop
from outrider.event_bus import EventBus
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.tools.tool import Tool
from outrider.tracing.console import EventLogger
from outrider.tracing.event_log import EventLog
from outrider.tracing.trace import Trace
from outrider.types.agents import Agent, AgentMessage, Limits, Mode, Provider
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    ErrorEvent,
    Event,
    LoopCompletedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
)
from outrider.types.parts import ToolPart, tool_result
from outrider.types.tool_state import Attachment, ToolPending
from outrider.types.usage import Usage


class RunResult:
    """`output` is the entry agent's last word (or the value of the output type), `messages` every forward and return,
    `session` the entry agent's transcript, `usage` that of all agents together."""

    def __init__(
        self,
        *,
        output: Any,
        messages: list[AgentMessage],
        event_log: EventLog,
        session: Session,
        usage: Usage,
        termination_reason: str,
    ) -> None:
        self.output = output
        self.messages = messages
        self.event_log = event_log
        self.session = session
        self.usage = usage
        self.termination_reason = termination_reason

    @cached_property
    def trace(self) -> Trace:
        return Trace(self.event_log)

    def format_trace(self) -> str:
        return self.trace.format_tree()

    def __repr__(self) -> str:
        return f"RunResult(output={self.output!r}, termination_reason={self.termination_reason!r})"


StreamKind = Literal["token", "reasoning", "tool_call", "tool_result", "agent_call", "agent_return", "finish", "error"]
_DELEGATES = ("call_agent", "finish")


class StreamEvent(msgspec.Struct, frozen=True):
    """`data` by type: token and reasoning {text}; tool_call {call_id, tool, input}; tool_result {call_id, tool,
    output, is_error}; agent_call {call_id, agent_name, message}; agent_return {call_id, agent_name, output};
    finish {output}; error {type, message}."""

    type: StreamKind
    agent_name: str
    data: dict[str, Any]


class Translator:
    """Bus events into stream events. Part updates do not name their agent, so sessions are remembered."""

    def __init__(self) -> None:
        self._agents: dict[str, str] = {}
        self._shown: set[str] = set()
        self._failed: dict[str, ErrorEvent] = {}

    def translate(self, event: Event) -> Iterator[StreamEvent]:
        if event.agent_name:
            self._agents[event.session_id] = event.agent_name
        agent = self._agents.get(event.session_id, "")
        match event:
            case PartDeltaEvent():
                yield StreamEvent("reasoning" if event.field == "reasoning" else "token", agent, {"text": event.delta})
            case PartUpdatedEvent(part=ToolPart() as part) if part.tool not in _DELEGATES:
                yield from self._call(part, agent)
            case AgentCalledEvent():
                data = {"call_id": event.call_id, "agent_name": event.callee, "message": event.message}
                yield StreamEvent("agent_call", agent, data)
            case AgentReturnedEvent():
                data = {"call_id": event.call_id, "agent_name": event.callee, "output": event.output}
                yield StreamEvent("agent_return", agent, data)
            case ErrorEvent():
                self._failed[event.session_id] = event
            case LoopCompletedEvent():
                yield self._end(event, agent)
            case _:
                pass

    def _call(self, part: ToolPart, agent: str) -> Iterator[StreamEvent]:
        if part.id not in self._shown and not (isinstance(part.state, ToolPending) and part.state.phase == "streaming"):
            self._shown.add(part.id)
            data = {"call_id": part.call_id, "tool": part.tool, "input": part.state.input}
            yield StreamEvent("tool_call", agent, data)
        result = tool_result(part)
        if result is not None:
            said = {"output": result.content, "is_error": result.is_error}
            yield StreamEvent("tool_result", agent, {"call_id": part.call_id, "tool": part.tool, **said})

    def _end(self, event: LoopCompletedEvent, agent: str) -> StreamEvent:
        error = self._failed.get(event.session_id)
        if error is not None and event.termination_reason == "error":
            return StreamEvent("error", agent, {"type": error.error_type, "message": error.message})
        return StreamEvent("finish", agent, {"output": event.output})


Taken = ParamSpec("Taken")
Given = TypeVar("Given")


async def async_run(  # noqa: PLR0913  they are what can be said about a run
    entry: Agent | str,
    message: str,
    agents: Iterable[Agent] = (),
    tools: Iterable[Tool | Callable[..., Any]] = (),
    providers: Iterable[Provider] = (),
    *,
    attachments: Sequence[Attachment] | None = None,
    debug: bool = False,
    mode: Mode | None = None,
    session: Session | str | None = None,
    store: Store | None = None,
    bus: EventBus | None = None,
    limits: Limits | None = None,
    approve: Approve | None = None,
    output_type: Any = None,
    hooks: Hooks | None = None,
) -> RunResult:
    """Let agents work on a message. With `output_type` the output is a value of that type.

    What a model or a tool does wrong comes back to the model; what it cannot mend is raised as an OutriderError whose
    `details["result"]` holds all that was done."""
    plan = RunSpec.of(
        entry,
        agents,
        tools,
        providers,
        mode=mode,
        limits=limits,
        approve=approve,
        output=None if output_type in (None, str) else OutputType(output_type),
        hooks=hooks or Hooks(),
    )
    run_bus, log = _bus(bus, debug=debug), EventLog()
    log.attach(run_bus)
    async with open_workshop(plan, run_bus, store=store, session=session) as workshop:
        end = await workshop.work(message, attachments or ())
        result = _result(workshop, end, log)
    await run_bus.settled()
    if end.reason == "error" and end.error is not None:
        end.error.details["result"] = result
        raise end.error
    return result


def _taking_what(like: Callable[Taken, Any]) -> Callable[[Callable[..., Given]], Callable[Taken, Given]]:
    """A function with the parameters of another one, for editors, type checkers and `help` too."""

    def named(function: Callable[..., Given]) -> Callable[Taken, Given]:
        function.__wrapped__ = like  # type: ignore[attr-defined]  where `inspect` finds the parameters
        return cast("Callable[Taken, Given]", function)

    return named


@_taking_what(async_run)
def run(*given: Any, **options: Any) -> RunResult:
    """`async_run` for plain code; it also works where an event loop already runs, as in a notebook."""
    return run_sync(lambda: async_run(*given, **options))


@_taking_what(async_run)
async def async_run_stream(
    *given: Any, bus: EventBus | None = None, debug: bool = False, **options: Any
) -> AsyncGenerator[StreamEvent, None]:
    """What happens, as it happens; the last event is the entry agent's finish or error. Leaving early ends the run."""
    run_bus, translator = _bus(bus, debug=debug), Translator()
    queue: asyncio.Queue[StreamEvent | None] = asyncio.Queue()

    def pass_on(event: Event) -> None:
        for translated in translator.translate(event):
            queue.put_nowait(translated)

    run_bus.subscribe_all(pass_on)
    working = asyncio.create_task(async_run(*given, bus=run_bus, **options))
    working.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        told = False
        while (event := await queue.get()) is not None:
            told = event.type in ("finish", "error")
            yield event
        if not told:
            working.result()
    finally:
        working.cancel()
        await asyncio.wait([working])
        if not working.cancelled():
            working.exception()


def _bus(outer: EventBus | None, *, debug: bool) -> EventBus:
    """A bus of the run's own, so that its log and stream hear this run only; the caller's bus hears all of it."""
    own = EventBus()
    if outer is not None:
        own.subscribe_all(outer.publish)
    if debug:
        EventLogger(verbose=True).attach(own)
    return own


def _result(workshop: RunSession, end: TurnEnd, log: EventLog) -> RunResult:
    return RunResult(
        output=end.output if workshop.value is msgspec.UNSET else workshop.value,
        messages=workshop.crew.forwards,
        event_log=log,
        session=workshop.journal.session,
        usage=workshop.crew.budget.usage,
        termination_reason=end.reason,
    )
