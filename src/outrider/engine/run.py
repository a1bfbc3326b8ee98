"""`run`, `async_run` and their streams: let agents process one message from a program."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import msgspec

from outrider._sync import CALLBACK_SECONDS, run_sync
from outrider.agents.delegation import open_agent_context
from outrider.agents.hooks import Hooks
from outrider.agents.instructions import additional_instructions, describe_input
from outrider.agents.output_type import DEFAULT_ATTEMPTS, OutputType, OutputValidator, as_output_type
from outrider.agents.run_context import AgentContext, RunContext
from outrider.agents.turn import Turn
from outrider.agents.turn_state import TurnEnd, has_pending_calls
from outrider.engine.approval_gate import ApproveFunction, function_channel, relay_remote_approvals
from outrider.engine.results import (
    Out,
    RunResult,
    RunStream,
    StreamEvent,
    StreamState,
    StreamTranslator,
    SyncRunStream,
    final_event,
)
from outrider.engine.runtime import (
    EngineOptions,
    EngineRuntime,
    RunSpec,
    check_arguments,
    check_parts,
)
from outrider.errors import ConfigurationError, OutriderError, SessionNotFoundError
from outrider.event_bus import EventBus
from outrider.models.clients import find_peers
from outrider.providers.provider import CustomProvider
from outrider.sessions.journal import Journal
from outrider.sessions.records import SessionUpdate, check_metadata
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.tools.tool import Tool
from outrider.tracing.console import EventLogger
from outrider.tracing.event_log import EventLog
from outrider.types.agents import Agent, AgentMessage, Limits, Mode, Provider
from outrider.types.events import Event
from outrider.types.ids import now_ms
from outrider.types.messages import Message, MessageTime
from outrider.types.modes import ApprovalLevel
from outrider.types.parts import TextPart, attachment_part
from outrider.types.tool_state import Attachment, check_attachments
from outrider.types.validate import check_level, check_mode, check_names

if TYPE_CHECKING:
    from typing_extensions import TypeForm

USER = "user"
RunTools = Iterable[Tool | Callable[..., Any]]


class RunKeywords(TypedDict, total=False):
    """The keyword arguments of `run`, `async_run`, `run_stream` and `async_run_stream`, except for `output_type`.

    - `attachments`: files that are sent with the message.
    - `debug`: prints what the agents do.
    - `mode`: the mode of the session; the default is the entry agent's.
    - `session`: the session to continue, by its id in `store` or as an object.
    - `store`: where the session is stored; the default is in memory.
    - `bus`: the event bus that receives the events of the run.
    - `limits`: usage limits; the default is the entry agent's.
    - `approve`: decides about calls that need approval.
    - `hooks`: functions that observe or change the run.
    - `deps`: the value that tools and instruction functions find in their context.
    - `instructions`: added to the instructions of the entry agent for this run.
    - `approval`: which calls of agent mode need an approval.
    - `owner`, `metadata`: of a new session.
    - `callback_seconds`: limits each call of a function of the program, except for `approve`.
    - `output_validators`: functions of the output that return it, or raise ValueError with a message for the model,
      which then answers again.
    - `output_attempts`: how often the model may answer.
    """

    attachments: Sequence[Attachment] | None
    debug: bool
    mode: Mode | None
    session: Session | str | None
    store: Store | None
    bus: EventBus | None
    limits: Limits | None
    approve: ApproveFunction | None
    hooks: Hooks | None
    deps: Any
    instructions: str
    approval: ApprovalLevel | None
    owner: str
    metadata: Mapping[str, Any] | None
    callback_seconds: float | None
    output_validators: OutputValidator | Sequence[OutputValidator] | None
    output_attempts: int


class RunSession:
    """One run in progress."""

    def __init__(self, entry: Agent, run_context: RunContext, journal: Journal, runtime: EngineRuntime) -> None:
        self._entry = entry
        self._runtime = runtime
        self.run_context = run_context
        self.journal = journal
        self._context: AgentContext | None = None

    @property
    def value(self) -> Any:
        """The value of the output type, UNSET without one."""
        return self._context.output_value if self._context else msgspec.UNSET

    async def run_entry_agent(
        self,
        message: str,
        attachments: Sequence[Attachment] = (),
        output: OutputType | None = None,
        instructions: str = "",
    ) -> TurnEnd:
        """Gives the message to the entry agent and runs its turn. Calls of a stored session that still wait for an
        approval are decided first."""
        entry, session = self._entry, self.journal.session
        if session.messages and has_pending_calls(session.messages[-1]):
            await Turn(open_agent_context(entry, self.journal, self.run_context)).run()
        self.run_context.agent_messages.append(
            AgentMessage("forward", USER, entry.name, message, "", tuple(attachments))
        )
        parts = [TextPart(message), *map(attachment_part, attachments)]
        if instructions.strip():
            parts.append(additional_instructions(instructions))
        model = entry.model_ref
        input_message = Message("user", parts, agent=entry.name, model=model, mode=session.mode)
        await self._runtime.call_prompt_hook(session, input_message)
        run = self.run_context
        describe_input(input_message, session, entry, agents=run.agents, tools=run.tools, run=lambda: run)
        await self.journal.add_message(input_message)
        context = self._context = open_agent_context(entry, self.journal, self.run_context, output=output)
        end = await Turn(context).run()
        self.run_context.agent_messages.append(AgentMessage("return", entry.name, USER, end.output, ""))
        return end


@asynccontextmanager
async def open_run_session(
    spec: RunSpec,
    options: EngineOptions,
    bus: EventBus,
    *,
    store: Store | None,
    session: Session | str,
    mode: Mode | None,
    approval: ApprovalLevel | None,
    deps: Any,
) -> AsyncGenerator[RunSession, None]:
    """Opens the runtime and the session of one run, and closes them afterwards. `mode` and `approval` override
    the values of the session. A session in the caller's store is leased, as in an engine."""
    is_stored = store is not None
    runtime = EngineRuntime(spec, options, store=store, bus=bus, takes_leases=is_stored)
    runtime.approvals = function_channel(options.approve, runtime.store if is_stored else None)
    try:
        # A run cannot switch to another model, so providers without an agent may lack credentials.
        await runtime.open(unused_providers=False)
        async with (
            _reserve(session),
            _relay_approvals(bus, spec, options.approve),
            await _open_journal(session, runtime) as journal,
        ):
            if mode is not None and mode != journal.session.mode:
                await journal.update_session(SessionUpdate(mode=mode))
            if approval is not None and approval != journal.session.approval:
                await journal.update_session(SessionUpdate(approval=approval))
            run_context = runtime.create_run_context(journal.session, deps=deps)
            yield RunSession(spec.entry, run_context, journal, runtime)
    finally:
        await runtime.aclose()


@asynccontextmanager
async def _reserve(session: Session | str) -> AsyncGenerator[None, None]:
    """Reserves a session that the program passed as an object, because the store has no lease for it."""
    with session.reserve() if isinstance(session, Session) else nullcontext():
        yield


def _relay_approvals(
    bus: EventBus, spec: RunSpec, approve: ApproveFunction | None
) -> AbstractAsyncContextManager[None]:
    """Relays approval requests if agents run on other servers and there is a function that approves."""
    if approve is None or not find_peers(spec.providers.values()):
        return nullcontext()
    return relay_remote_approvals(bus, spec.providers.values(), approve)


async def _open_journal(session: Session | str, runtime: EngineRuntime) -> Journal:
    """Opens a stored session, or stores a session in memory that is not in the store yet."""
    if isinstance(session, str):
        return await runtime.resume_session(session)
    try:
        await runtime.store.get(session.id)
    except SessionNotFoundError:
        messages = list(session.messages)
        journal = await runtime.create_session(session)
        if messages:
            await journal.lease.append(messages)
        return journal
    return await runtime.resume_session(session.id)


@overload
async def async_run(
    entry: Agent | str,
    message: str,
    agents: Iterable[Agent] = (),
    tools: RunTools = (),
    providers: Iterable[Provider | CustomProvider] = (),
    *,
    output_type: None = None,
    **options: Unpack[RunKeywords],
) -> RunResult[str]: ...
@overload
async def async_run(
    entry: Agent | str,
    message: str,
    agents: Iterable[Agent] = (),
    tools: RunTools = (),
    providers: Iterable[Provider | CustomProvider] = (),
    *,
    output_type: "TypeForm[Out]",
    **options: Unpack[RunKeywords],
) -> RunResult[Out]: ...
@overload
async def async_run(
    entry: Agent | str,
    message: str,
    agents: Iterable[Agent] = (),
    tools: RunTools = (),
    providers: Iterable[Provider | CustomProvider] = (),
    *,
    output_type: dict[str, Any],
    **options: Unpack[RunKeywords],
) -> RunResult[Any]: ...
async def async_run(
    entry: Any = None,
    message: Any = None,
    agents: Iterable[Agent] = (),
    tools: RunTools = (),
    providers: Iterable[Provider | CustomProvider] = (),
    *more: Any,
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
    deps: Any = None,
    instructions: str = "",
    approval: ApprovalLevel | None = None,
    owner: str = "",
    metadata: Mapping[str, Any] | None = None,
    callback_seconds: float | None = CALLBACK_SECONDS,
    output_validators: OutputValidator | Sequence[OutputValidator] | None = None,
    output_attempts: int = DEFAULT_ATTEMPTS,
    **unknown: Any,
) -> RunResult[Any]:
    """Runs agents on a message. With `output_type` the output is a value of that type; a JSON schema as a dict gives
    plain JSON values. `RunKeywords` describes the other arguments.

    Errors of models and tools are returned to the model. An error that ends the run is raised as OutriderError; its
    `details["result"]` holds the RunResult so far.
    """
    if unknown:
        check_names("run()", unknown, ("agents", "tools", "providers", "output_type", *RunKeywords.__annotations__))
    if more:
        raise ConfigurationError(
            "run() takes five arguments by position: entry, message, agents, tools and providers; write the others "
            "with their names"
        )
    check_parts("run()", agents, tools, providers)
    arguments: dict[str, Any] = {"limits": limits, "hooks": hooks, "bus": bus, "store": store, "session": session}
    arguments |= {"approve": approve, "owner": owner, "instructions": instructions, "debug": debug}
    check_arguments("run()", {**arguments, "callback_seconds": callback_seconds})
    check_mode(mode, "the run")
    if isinstance(session, Session):
        _check_session(session)
    check_level(approval, "the run")
    files = check_attachments(attachments)
    check_message(message, can_be_empty=bool(files) or session is not None)
    output = as_output_type(output_type, output_validators, output_attempts)
    spec = RunSpec.build(entry, agents, tools, providers)
    engine_options = EngineOptions(
        limits=limits, hooks=hooks or Hooks(), approve=approve, callback_seconds=callback_seconds
    )
    fresh = Session(
        workspace_directory=os.getcwd(),  # noqa: PTH109  each run needs it, and Path takes ten times as long
        mode=mode or spec.entry.mode,
        agent=spec.entry.name,
        approval=approval or "ask",
        owner=owner,
        metadata=check_metadata(metadata),
    )
    run_bus, log = _create_bus(bus, debug=debug), EventLog()
    log.attach(run_bus)
    async with open_run_session(
        spec,
        engine_options,
        run_bus,
        store=store,
        session=fresh if session is None else session,
        mode=mode,
        approval=approval,
        deps=deps,
    ) as run_session:
        try:
            end = await run_session.run_entry_agent(message, files, output, instructions)
        except OutriderError as error:  # before the turn: a hook refused the input, or it could not be stored
            end = TurnEnd("error", "", error)
        result: RunResult[Any] = RunResult(
            end,
            session=run_session.journal.session,
            usage=run_session.run_context.budget.usage,
            messages=run_session.run_context.agent_messages,
            event_log=lambda: log,
            output_type=output,
            value=run_session.value,
        )
    await run_bus.settled(callback_seconds)
    if end.reason == "error" and end.error is not None:
        end.error.details["result"] = result
        raise end.error
    return result


def _check_session(session: Session) -> None:
    """Raises ConfigurationError for values of a session that the program has set. Messages that it appended to the list
    become part of the session."""
    check_mode(session.mode, "the session")
    check_level(session.approval, "the session")
    check_metadata(session.metadata)
    for message in session.messages:
        if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"run(): session.messages has a {type(message).__name__}; add messages of an API with set_messages(…), "
                "and others with add_user_message(…) and add_assistant_message(…)"
            )
        if not message.session_id:
            message.join(session.id)
        message.time = message.time or MessageTime(created=now_ms())


def check_message(message: object, *, can_be_empty: bool = True) -> None:
    """Raises ConfigurationError if a message is not a string. Without `can_be_empty`, also if it is empty."""
    if not isinstance(message, str):
        raise ConfigurationError(
            f"the message of a run must be a string, got {type(message).__name__}; an earlier conversation is passed "
            "as session=Session(messages=…)"
        )
    if not message.strip() and not can_be_empty:
        raise ConfigurationError("the message of a run is empty; write what the agent should do, or pass attachments")


@overload
def run(
    entry: Agent | str,
    message: str,
    agents: Iterable[Agent] = (),
    tools: RunTools = (),
    providers: Iterable[Provider | CustomProvider] = (),
    *,
    output_type: None = None,
    **options: Unpack[RunKeywords],
) -> RunResult[str]: ...
@overload
def run(
    entry: Agent | str,
    message: str,
    agents: Iterable[Agent] = (),
    tools: RunTools = (),
    providers: Iterable[Provider | CustomProvider] = (),
    *,
    output_type: "TypeForm[Out]",
    **options: Unpack[RunKeywords],
) -> RunResult[Out]: ...
@overload
def run(
    entry: Agent | str,
    message: str,
    agents: Iterable[Agent] = (),
    tools: RunTools = (),
    providers: Iterable[Provider | CustomProvider] = (),
    *,
    output_type: dict[str, Any],
    **options: Unpack[RunKeywords],
) -> RunResult[Any]: ...
def run(*arguments: Any, **options: Any) -> RunResult[Any]:
    """Runs agents like `async_run`, for synchronous code. It also works inside a running event loop, for example in a
    notebook."""
    return run_sync(lambda: async_run(*arguments, **options))


@overload
def async_run_stream(
    entry: Agent | str,
    message: str,
    agents: Iterable[Agent] = (),
    tools: RunTools = (),
    providers: Iterable[Provider | CustomProvider] = (),
    *,
    output_type: None = None,
    **options: Unpack[RunKeywords],
) -> RunStream[str]: ...
@overload
def async_run_stream(
    entry: Agent | str,
    message: str,
    agents: Iterable[Agent] = (),
    tools: RunTools = (),
    providers: Iterable[Provider | CustomProvider] = (),
    *,
    output_type: "TypeForm[Out]",
    **options: Unpack[RunKeywords],
) -> RunStream[Out]: ...
@overload
def async_run_stream(
    entry: Agent | str,
    message: str,
    agents: Iterable[Agent] = (),
    tools: RunTools = (),
    providers: Iterable[Provider | CustomProvider] = (),
    *,
    output_type: dict[str, Any],
    **options: Unpack[RunKeywords],
) -> RunStream[Any]: ...
def async_run_stream(
    *arguments: Any, bus: EventBus | None = None, debug: bool = False, **options: Any
) -> RunStream[Any]:
    """Runs agents and returns a stream of events. The last event is the entry agent's finish or error; after it, the
    stream has the `result`. Closing the stream cancels the run."""
    check_arguments("run()", {"bus": bus})
    state: StreamState[Any] = StreamState(StreamTranslator(as_output_type(options.get("output_type"))))
    entry: Any = options.get("entry", arguments[0] if arguments else "")
    agent = entry.name if isinstance(entry, Agent) else str(entry)
    run_bus = _create_bus(bus, debug=debug)
    return RunStream(_iterate_run(state, agent, run_bus, lambda: async_run(*arguments, bus=run_bus, **options)), state)


async def _iterate_run(
    state: StreamState[Any], agent: str, bus: EventBus, start_run: Callable[[], Any]
) -> AsyncGenerator[StreamEvent, None]:
    queue: asyncio.Queue[StreamEvent | None] = asyncio.Queue()

    def pass_on(event: Event) -> None:
        for translated in state.translator.translate_event(event):
            queue.put_nowait(translated)

    bus.subscribe_all(pass_on)
    task: asyncio.Task[RunResult[Any]] = asyncio.create_task(start_run())
    task.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (event := await queue.get()) is not None:
            yield event
        error = _failure_of(task)
        result = state.result = error.details["result"] if error else task.result()
        if result.is_typed and result.reason == "completed":  # not every delta is parsed
            state.translator.partial = result.output
        yield final_event(agent, state.result, error)
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()


def _failure_of(task: "asyncio.Task[RunResult[Any]]") -> OutriderError | None:
    """Returns the error that ended the run, or None. Raises an error that prevented its start."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, OutriderError) and "result" in error.details:
        return error
    task.result()
    return None


@overload
def run_stream(
    entry: Agent | str,
    message: str,
    agents: Iterable[Agent] = (),
    tools: RunTools = (),
    providers: Iterable[Provider | CustomProvider] = (),
    *,
    output_type: None = None,
    **options: Unpack[RunKeywords],
) -> SyncRunStream[str]: ...
@overload
def run_stream(
    entry: Agent | str,
    message: str,
    agents: Iterable[Agent] = (),
    tools: RunTools = (),
    providers: Iterable[Provider | CustomProvider] = (),
    *,
    output_type: "TypeForm[Out]",
    **options: Unpack[RunKeywords],
) -> SyncRunStream[Out]: ...
@overload
def run_stream(
    entry: Agent | str,
    message: str,
    agents: Iterable[Agent] = (),
    tools: RunTools = (),
    providers: Iterable[Provider | CustomProvider] = (),
    *,
    output_type: dict[str, Any],
    **options: Unpack[RunKeywords],
) -> SyncRunStream[Any]: ...
def run_stream(*arguments: Any, **options: Any) -> SyncRunStream[Any]:
    """Runs agents and returns a stream like `async_run_stream`, for synchronous code: iterate over the stream, or use
    it in a `with` block."""
    return SyncRunStream(lambda: async_run_stream(*arguments, **options))


for _function in (run, async_run_stream, run_stream):
    _function.__dict__["__wrapped__"] = async_run  # where `inspect` finds the parameters


def _create_bus(outer: EventBus | None, *, debug: bool) -> EventBus:
    """Creates a bus for this run, so that its log and stream receive only its own events. All events are forwarded to
    the caller's bus."""
    inner = EventBus()
    if outer is not None:
        inner.forward_to(outer)
    if debug:
        EventLogger(verbose=True).attach(inner)
    return inner
