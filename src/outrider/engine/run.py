"""`run`, `async_run` and `async_run_stream`: let agents process one message from a program."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, cast

import msgspec

from outrider._sync import run_sync
from outrider.agents.delegation import open_agent_context
from outrider.agents.hooks import Hooks
from outrider.agents.output_type import MAX_REPAIRS, OutputType
from outrider.agents.run_context import AgentContext, RunContext
from outrider.agents.turn import Turn
from outrider.agents.turn_state import TurnEnd
from outrider.config.environment import redactor_for
from outrider.engine.approval_gate import ApproveFunction, function_channel, relay_remote_approvals
from outrider.engine.runtime import EngineOptions, EngineRuntime, RunSpec, check_mode, create_memory_store
from outrider.errors import OutputMismatch, SessionNotFoundError
from outrider.event_bus import EventBus
from outrider.models.clients import find_peers
from outrider.sessions.journal import Journal, create_journal, resume_journal
from outrider.sessions.records import SessionUpdate
from outrider.sessions.redacted_store import redact_store
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
    RetryScheduledEvent,
)
from outrider.types.messages import Message
from outrider.types.parts import FilePart, TextPart, ToolPart, is_withdrawn, tool_result
from outrider.types.tool_state import Attachment, ToolPending
from outrider.types.usage import Usage

USER = "user"


class RunSession:
    """One run in progress."""

    def __init__(self, entry: Agent, run_context: RunContext, journal: Journal) -> None:
        self._entry = entry
        self.run_context = run_context
        self.journal = journal
        self.value: Any = msgspec.UNSET

    async def run_entry_agent(
        self, message: str, attachments: Sequence[Attachment] = (), output: OutputType | None = None
    ) -> TurnEnd:
        """Give the message to the entry agent and run its turn. With `output`, parse the answer into `value`."""
        entry = self._entry
        self.run_context.agent_messages.append(
            AgentMessage("forward", USER, entry.name, message, "", tuple(attachments))
        )
        files = [_file_part(attachment) for attachment in attachments]
        await self.journal.add_message(Message("user", [TextPart(message), *files], agent=entry.name))
        context = open_agent_context(entry, self.journal, self.run_context, output=output.schema if output else None)
        end = await Turn(context).run()
        if output is not None:
            end, self.value = await self._parse_output(end, output, context)
        self.run_context.agent_messages.append(AgentMessage("return", entry.name, USER, end.output, ""))
        return end

    async def _parse_output(self, end: TurnEnd, output: OutputType, context: AgentContext) -> tuple[TurnEnd, Any]:
        """Parse the answer as the output type. The model may repair an invalid answer `MAX_REPAIRS` times."""
        for repairs_left in range(MAX_REPAIRS, -1, -1):
            if end.reason != "completed":
                return end, msgspec.UNSET
            try:
                return end, output.parse_answer(end.output)
            except OutputMismatch as problem:
                if not repairs_left:
                    return TurnEnd("error", end.output, problem), msgspec.UNSET
                repair = TextPart(output.repair_prompt(problem), synthetic=True)
            await self.journal.add_message(Message("user", [repair]))
            context.finish_output = None
            end = await Turn(context).run()
        return end, msgspec.UNSET


@asynccontextmanager
async def open_run_session(
    spec: RunSpec,
    options: EngineOptions,
    bus: EventBus,
    *,
    store: Store | None = None,
    session: Session | str | None = None,
    mode: Mode | None = None,
    approve: ApproveFunction | None = None,
) -> AsyncGenerator[RunSession, None]:
    """Open the runtime and the session of one run, and close them afterwards. `mode` overrides that of the session."""
    redactor = redactor_for(spec.providers.values(), options.secrets)
    run_store = redact_store(store or create_memory_store(), redactor)
    runtime = EngineRuntime(
        spec, options, store=run_store, bus=bus, redactor=redactor, approvals=function_channel(approve)
    )
    try:
        # A run cannot switch to another model, so providers without an agent may lack credentials.
        await runtime.open(unused_providers=False)
        async with (
            _relay_approvals(bus, spec, approve),
            await _open_journal(session, spec.entry, mode, run_store, bus) as journal,
        ):
            if mode is not None and mode != journal.session.mode:
                await journal.update_session(SessionUpdate(mode=mode))
            yield RunSession(spec.entry, runtime.create_run_context(journal.session), journal)
    finally:
        await runtime.aclose()


def _relay_approvals(
    bus: EventBus, spec: RunSpec, approve: ApproveFunction | None
) -> AbstractAsyncContextManager[None]:
    """Relay approval requests if agents run on other servers and there is a function that approves."""
    if approve is None or not find_peers(spec.providers.values()):
        return nullcontext()
    return relay_remote_approvals(bus, spec.providers.values(), approve)


async def _open_journal(
    session: Session | str | None, entry: Agent, mode: Mode | None, store: Store, bus: EventBus
) -> Journal:
    """Open a new session, a stored one, or one in memory that is not in the store yet."""
    if isinstance(session, str):
        return await resume_journal(session, store, bus)
    if session is None:
        fresh = Session(workspace_directory=str(Path.cwd()), mode=mode or entry.mode, agent=entry.name)
        return await create_journal(fresh, store, bus)
    try:
        await store.get(session.id)
    except SessionNotFoundError:
        journal = await create_journal(session, store, bus)
        if session.messages:
            await store.append(session.id, session.messages)
        return journal
    return await resume_journal(session.id, store, bus)


def _file_part(attachment: Attachment) -> FilePart:
    url = attachment.url or f"data:{attachment.mime_type};base64,{attachment.data}"
    return FilePart(attachment.mime_type, url, attachment.name)


class RunResult:
    """The result of a run. `output` is the entry agent's last text or the value of the output type, `messages` all
    calls and returns between agents, `session` the entry agent's transcript, `usage` the total of all agents."""

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
        """The tree of spans, built from the event log on first use."""
        return Trace(self.event_log)

    def format_trace(self) -> str:
        """Return the trace as an indented text."""
        return self.trace.format_tree()

    def __repr__(self) -> str:
        return f"RunResult(output={self.output!r}, termination_reason={self.termination_reason!r})"


StreamKind = Literal[
    "token", "reasoning", "tool_call", "tool_result", "agent_call", "agent_return", "retry", "finish", "error"
]
_DELEGATION_TOOLS = ("call_agent", "finish")


class StreamEvent(msgspec.Struct, frozen=True):
    """One event of `async_run_stream`. `data` by type: token and reasoning {text}; tool_call {call_id, tool, input};
    tool_result {call_id, tool, output, is_error}; agent_call {call_id, agent_name, message}; agent_return {call_id,
    agent_name, output}; retry {attempt, delay_ms, error, withdrawn, model}; finish {output}; error {type, message}.

    A retry with `withdrawn` takes back the text, reasoning and calls of this agent since its last step, because the
    answer broke off; none of these calls has run. With `model` (PROVIDER/MODEL) another model continues."""

    type: StreamKind
    agent_name: str
    data: dict[str, Any]


class StreamTranslator:
    """Translates bus events into stream events. Part events have no agent name, so the agent of each session is
    cached."""

    def __init__(self) -> None:
        self._agents: dict[str, str] = {}
        self._shown: set[str] = set()
        self._failed: dict[str, ErrorEvent] = {}

    def translate_event(self, event: Event) -> Iterator[StreamEvent]:
        """Yield the stream events for one bus event; most types of events have none."""
        if event.agent_name:
            self._agents[event.session_id] = event.agent_name
        agent = self._agents.get(event.session_id, "")
        match event:
            case PartDeltaEvent():
                yield StreamEvent("reasoning" if event.field == "reasoning" else "token", agent, {"text": event.delta})
            case PartUpdatedEvent(part=ToolPart() as part) if part.tool not in _DELEGATION_TOOLS:
                yield from self._translate_call(part, agent)
            case RetryScheduledEvent():
                data: dict[str, Any] = {"attempt": event.attempt, "delay_ms": event.delay_ms, "error": event.error}
                data |= {"withdrawn": bool(event.withdrawn), "model": event.model or None}
                yield StreamEvent("retry", agent, data)
            case AgentCalledEvent():
                data = {"call_id": event.call_id, "agent_name": event.callee, "message": event.message}
                yield StreamEvent("agent_call", agent, data)
            case AgentReturnedEvent():
                data = {"call_id": event.call_id, "agent_name": event.callee, "output": event.output}
                yield StreamEvent("agent_return", agent, data)
            case ErrorEvent():
                self._failed[event.session_id] = event
            case LoopCompletedEvent():
                yield self._translate_end(event, agent)
            case _:
                pass

    def _translate_call(self, part: ToolPart, agent: str) -> Iterator[StreamEvent]:
        if is_withdrawn(part) and part.id not in self._shown:
            return
        if part.id not in self._shown and not (isinstance(part.state, ToolPending) and part.state.phase == "streaming"):
            self._shown.add(part.id)
            data = {"call_id": part.call_id, "tool": part.tool, "input": part.state.input}
            yield StreamEvent("tool_call", agent, data)
        result = tool_result(part)
        if result is not None:
            result_fields = {"output": result.content, "is_error": result.is_error}
            yield StreamEvent("tool_result", agent, {"call_id": part.call_id, "tool": part.tool, **result_fields})

    def _translate_end(self, event: LoopCompletedEvent, agent: str) -> StreamEvent:
        error = self._failed.get(event.session_id)
        if error is not None and event.termination_reason == "error":
            return StreamEvent("error", agent, {"type": error.error_type, "message": error.message})
        return StreamEvent("finish", agent, {"output": event.output})


Parameters = ParamSpec("Parameters")
ReturnType = TypeVar("ReturnType")


async def async_run(
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
    approve: ApproveFunction | None = None,
    output_type: Any = None,
    hooks: Hooks | None = None,
) -> RunResult:
    """Run agents on a message. With `output_type` the output is a value of that type.

    Errors of models and tools are returned to the model. An error that ends the run is raised as OutriderError; its
    `details["result"]` holds the RunResult so far.
    """
    check_mode(mode, "the run")
    output = None if output_type in (None, str) else OutputType(output_type)
    spec = RunSpec.build(entry, agents, tools, providers)
    options = EngineOptions(limits=limits, hooks=hooks or Hooks())
    run_bus, log = _create_bus(bus, debug=debug), EventLog()
    log.attach(run_bus)
    async with open_run_session(
        spec, options, run_bus, store=store, session=session, mode=mode, approve=approve
    ) as run_session:
        end = await run_session.run_entry_agent(message, attachments or (), output)
        result = _create_result(run_session, end, log)
    await run_bus.settled()
    if end.reason == "error" and end.error is not None:
        end.error.details["result"] = result
        raise end.error
    return result


def _with_parameters_of(
    template: Callable[Parameters, Any],
) -> Callable[[Callable[..., ReturnType]], Callable[Parameters, ReturnType]]:
    """Give a function the parameters of another one, for editors, type checkers and `help`."""

    def named(function: Callable[..., ReturnType]) -> Callable[Parameters, ReturnType]:
        function.__wrapped__ = template  # type: ignore[attr-defined]  where `inspect` finds the parameters
        return cast("Callable[Parameters, ReturnType]", function)

    return named


@_with_parameters_of(async_run)
def run(*arguments: Any, **options: Any) -> RunResult:
    """`async_run` for synchronous code. It also works inside a running event loop, for example in a notebook."""
    return run_sync(lambda: async_run(*arguments, **options))


@_with_parameters_of(async_run)
async def async_run_stream(
    *arguments: Any, bus: EventBus | None = None, debug: bool = False, **options: Any
) -> AsyncGenerator[StreamEvent, None]:
    """Run agents and yield events as they happen. The last event is the entry agent's finish or error. Closing the
    generator cancels the run."""
    run_bus, translator = _create_bus(bus, debug=debug), StreamTranslator()
    queue: asyncio.Queue[StreamEvent | None] = asyncio.Queue()

    def pass_on(event: Event) -> None:
        for translated in translator.translate_event(event):
            queue.put_nowait(translated)

    run_bus.subscribe_all(pass_on)
    task = asyncio.create_task(async_run(*arguments, bus=run_bus, **options))
    task.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        has_ended = False
        while (event := await queue.get()) is not None:
            has_ended = event.type in ("finish", "error")
            yield event
        if not has_ended:
            task.result()
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()


def _create_bus(outer: EventBus | None, *, debug: bool) -> EventBus:
    """Create a bus for this run, so that log and stream receive its events only; all events are forwarded to the
    caller's bus."""
    inner = EventBus()
    if outer is not None:
        inner.subscribe_all(outer.publish)
    if debug:
        EventLogger(verbose=True).attach(inner)
    return inner


def _create_result(run_session: RunSession, end: TurnEnd, log: EventLog) -> RunResult:
    return RunResult(
        output=end.output if run_session.value is msgspec.UNSET else run_session.value,
        messages=run_session.run_context.agent_messages,
        event_log=log,
        session=run_session.journal.session,
        usage=run_session.run_context.budget.usage,
        termination_reason=end.reason,
    )
