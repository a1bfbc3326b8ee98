"""An open session: its journal and the worker task that processes its inbox, one turn after the other."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import Context, copy_context
from inspect import CORO_CREATED, getcoroutinestate
from typing import TYPE_CHECKING, Any, cast

from msgspec import to_builtins
from msgspec.structs import replace

from outrider._sync import describe_exception, is_interruption, wait_to_end
from outrider.agents.compaction import ContextCompactor
from outrider.agents.delegation import open_agent_context
from outrider.agents.instructions import describe_input
from outrider.agents.output_type import OutputType
from outrider.agents.run_context import AgentContext
from outrider.agents.turn import Turn
from outrider.agents.turn_state import TurnEnd, has_pending_calls, is_cut_off, last_text, turn_start
from outrider.context.request_ledger import RequestRecorder
from outrider.engine.child_sessions import called_sessions
from outrider.engine.inbox import AbortListener, InputOrigin, SessionInbox
from outrider.engine.plans import PlanAnswer, ProposedPlan, answer_id, answer_message, open_plan, require_same_answer
from outrider.engine.results import RunResult
from outrider.engine.runtime import EngineRuntime, OpenDependencies
from outrider.errors import (
    ConfigurationError,
    LeaseLostError,
    OutriderError,
    SessionInUseError,
    StorageFullError,
)
from outrider.sessions.journal import Journal
from outrider.sessions.records import InboxItem, SessionTranscript, SessionUpdate, StoredSession
from outrider.sessions.session import Session
from outrider.types.agents import Agent, Provider
from outrider.types.events import ErrorEvent, SessionUpdatedEvent
from outrider.types.ids import now_ms
from outrider.types.messages import Message
from outrider.types.modes import REASONING_EFFORTS, ReasoningEffort
from outrider.types.parts import CompactionPart, ModelRef, TextPart, UndoneSummary

if TYPE_CHECKING:
    from outrider.tracing.event_log import EventLog


class PendingCompaction:
    """The pending request for a compaction, if there is one; its truth value says so. Concurrent requests share one
    future, and one summary follows the instructions of all of them."""

    def __init__(self) -> None:
        self._end: asyncio.Future[CompactionPart | None] | None = None
        self._instructions: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self._end is not None

    @property
    def instructions(self) -> str:
        return "\n".join(dict.fromkeys(self._instructions))

    def request_compaction(self, instructions: str) -> "asyncio.Future[CompactionPart | None]":
        """Returns the future of the pending request, or of a new one."""
        if instructions:
            self._instructions += (instructions,)
        self._end = self._end or asyncio.get_running_loop().create_future()
        return self._end

    def resolve(self, outcome: CompactionPart | OutriderError | None) -> None:
        """Sets the result or the exception of the future. Does nothing without a pending request."""
        end, self._end, self._instructions = self._end, None, ()
        if end is None:
            return
        if isinstance(outcome, OutriderError):
            end.set_exception(outcome)
            end.exception()  # marks it as retrieved, if the waiter was cancelled
        else:
            end.set_result(outcome)


RESUMED_TURN = "the turn that was cut off"
CHOSEN_MODEL = "outrider.model"  # names in the metadata of a session
CHOSEN_EFFORT = "outrider.effort"

_log = logging.getLogger("outrider.engine")


def _read_choices(
    metadata: Mapping[str, Any], providers: Mapping[str, Provider]
) -> tuple[ModelRef | None, ReasoningEffort | None]:
    """Returns the stored model and effort of a session; None for a model of a provider that is not configured."""
    provider, _, model = str(metadata.get(CHOSEN_MODEL) or "").partition("/")
    effort: Any = metadata.get(CHOSEN_EFFORT)
    chosen: ReasoningEffort | None = effort if effort in REASONING_EFFORTS else None
    return ModelRef(provider, model) if model and provider in providers else None, chosen


class LiveSession:
    """A session that this engine owns. All input goes through the inbox queue: "queue" input waits for the end of the
    turn, "steer" input is added before the next model request. A turn runs with the context variables of the task that
    added its input, or with `base_variables`, those of the engine, if that was another process. `deps` are the
    dependencies of the session and what closes them."""

    def __init__(
        self,
        journal: Journal,
        runtime: EngineRuntime,
        abort_listener: AbortListener,
        *,
        deps: OpenDependencies,
        base_variables: Context,
    ) -> None:
        self.journal = journal
        self.session_tools = runtime.create_session_tools(journal.session)
        self._runtime = runtime
        self._bus, self._store = runtime.bus, runtime.store
        self._abort_listener = abort_listener
        self._context: AgentContext | None = None
        self._request_recorder = RequestRecorder()
        self._worker: asyncio.Task[None] | None = None
        self.inbox = SessionInbox(journal, runtime.store, self)
        self._base_variables = base_variables
        self._worker_variables: Context | None = None  # of the running worker, until its first turn
        self._deps, self._close_deps = deps
        self._compaction = PendingCompaction()
        self._wake_requested = False
        self._resume_requested = False
        self.in_turn = False
        self._aborted: RunResult[Any] | None = None  # of a cancelled turn, until it is reported
        self.model: ModelRef | None
        self.effort: ReasoningEffort | None
        self.model, self.effort = _read_choices(journal.session.metadata, runtime.spec.providers)
        self._closed = False

    @property
    def has_all_messages(self) -> bool:
        """Whether all messages are in memory; older answers of a long session may be only in the store."""
        return self.journal.has_all_messages

    @property
    def is_busy(self) -> bool:
        return self._worker is not None and not self._worker.done()

    @property
    def agent(self) -> Agent:
        """The agent that answers, with the model and the reasoning effort that were chosen for this session."""
        return self._runtime.session_agent(self.session, self.model, self.effort)

    @property
    def session(self) -> Session:
        return self.journal.session

    async def use_model(self, model: ModelRef | None) -> None:
        """Uses another model than the agent's own until the session is closed."""
        self.model = model

    async def use_effort(self, effort: ReasoningEffort | None) -> None:
        """Uses another reasoning effort than the agent's own until the session is closed."""
        self.effort = effort

    async def store_choices(self) -> None:
        """Stores the chosen model and effort, so that they are used again when the session is opened again."""
        metadata = dict(self.session.metadata)
        model = str(self.model) if self.model else None
        for name, value in ((CHOSEN_MODEL, model), (CHOSEN_EFFORT, self.effort)):
            if value is None:
                metadata.pop(name, None)
            else:
                metadata[name] = value
        if metadata != self.session.metadata:
            await self.journal.update_session(SessionUpdate(metadata=metadata))

    @property
    def prompts(self) -> Mapping[str, str]:
        """The user's prompt overrides by name."""
        return self.session_tools.prompts if self.session_tools else {}

    async def put(self, item: InboxItem, output: OutputType | None = None) -> asyncio.Future[RunResult[Any]]:
        """Stores the input and wakes the worker. The future resolves to the end of its turn."""
        if self._closed:
            raise ConfigurationError(f"session {self.session.id} is being closed and takes no input")
        if self.session_tools is not None and not self.session.messages:
            self.session_tools.prefetch_state()
        if self.session_tools is not None:
            await self.session_tools.expand_input(item.message)
        variables = copy_context()
        _, end = await self.inbox.put(item, InputOrigin(variables, output))
        if self._closed:  # while the input was stored; the next owner processes it
            self.inbox.resolve_all(self.make_result(TurnEnd("aborted")))
        self.wake(variables)
        return end

    async def withdraw(self, input_id: str) -> bool:
        """Removes waiting input. Returns False if it is already in the transcript, or is unknown."""
        return await self.inbox.withdraw(input_id)

    def reject_own_turn(self) -> None:
        """Raises SessionInUseError if the caller is a function of the running turn: it would wait for its own end."""
        if self._is_called_by_turn():
            raise SessionInUseError(
                "a tool or another function of a turn cannot wait for the next turn of the same session: add input "
                "with Engine.enqueue() and do not await its future, or use another session"
            )

    def _is_called_by_turn(self) -> bool:
        """Returns whether the caller is a function of the running turn."""
        task = asyncio.current_task()
        in_turn = self.in_turn and self._context is not None and task in self._context.run.program.tasks
        return in_turn or (task is self._worker and task is not None)

    def plan(self) -> ProposedPlan | None:
        """Returns the unanswered plan of the last turn, or None."""
        return None if self.in_turn else open_plan(self.journal.session)

    async def answer_plan(
        self, answer: PlanAnswer, text: str = "", *, sender: str = ""
    ) -> asyncio.Future[RunResult[Any]]:
        """Answers the open plan; the first answer wins. The future resolves to the end of the turn that follows."""
        plan = self.plan()
        if plan is None:
            raise OutriderError("this session has no unanswered plan")
        message = answer_message(plan, answer, text, self.prompts)
        item = InboxItem(session_id=self.session.id, message=message, id=answer_id(plan), sender=sender)
        stored, end = await self.inbox.put(item)
        require_same_answer(item, stored)
        self.wake()
        return end

    async def compact(self, instructions: str) -> CompactionPart | None:
        """Compacts the context before the next turn. Returns None if nothing can be summarized."""
        end = self._compaction.request_compaction(instructions)
        self.wake()
        await asyncio.wait([end])
        return end.result()

    async def undo_compaction(self) -> bool:
        """Undoes the last compaction: its messages are in the prompt again. Returns False if there is none."""
        if self.is_busy:
            raise OutriderError("a turn is running; undo the compaction when it has ended")
        messages = self.journal.session.messages
        compactions = ((m, p) for m in reversed(messages) for p in m.get_parts_by_type(CompactionPart) if p.summary)
        if (latest := next(compactions, None)) is None:
            return False
        message, part = latest
        undone = UndoneSummary(part.summary, now_ms())
        await self.journal.put_part(replace(part, summary="", undone=undone), message)
        await self.journal.reload_messages()
        self._context = None  # its prompt was built with the summary
        return True

    def wake(self, variables: Context | None = None) -> None:
        """Makes the worker check the inbox again, even if it is about to stop. A closed session starts no worker; its
        input waits for the next owner. With `variables`, the context variables of an input, a new worker can run the
        turn of the input in its own task."""
        self._wake_requested = True
        if not self.is_busy and not self._closed:
            self._worker_variables = variables or self._base_variables
            self._worker = asyncio.create_task(self._run_worker(), context=self._worker_variables.copy())

    def resume_turn(self, output: OutputType | None = None) -> "asyncio.Future[RunResult[Any]]":
        """Resumes the last turn if it was interrupted. The future resolves to its end."""
        self._resume_requested = True
        self.inbox.mark_taken(RESUMED_TURN, output)
        end = self.inbox.expect_end(RESUMED_TURN, output)
        self.wake()
        return end

    async def abort(self) -> None:
        """Cancels the running turn. Queued input stays queued until the session is woken."""
        worker = self._worker
        if worker is None or worker.done():
            return
        worker.cancel()
        if getcoroutinestate(cast("Coroutine[Any, Any, None]", worker.get_coro())) == CORO_CREATED:
            self._report_end(
                self.make_result(TurnEnd("aborted"))
            )  # a task cancelled before its first step never runs its finally block
        limit = self._runtime.callback_seconds
        finished, _ = await asyncio.wait([worker], timeout=limit)
        if not finished:
            raise OutriderError(
                f"the turn in session {self.session.id} did not end within {limit:g} s after it was cancelled: a tool "
                "or another function of the program ignores the cancellation, or the store does not respond"
            )

    def hold_turn(self) -> None:
        """Prevents further model requests: the turn waits after its running calls have ended, until it is closed."""
        if self._context is not None:
            self._context.held = True

    async def close(self) -> None:
        """Cancels the running turn, and releases waiters, processes and the lease. Open approval requests stay pending
        for the next owner."""
        self._closed = True
        if self._context is not None:
            self._context.closing = True
        tools = () if self.session_tools is None else (self.session_tools.aclose,)
        await _call_all(self._abort_and_resolve, self._close_deps, *tools, self.journal.close)
        self._context = None  # it takes input from this session; without the cycle both are freed at once

    async def _abort_and_resolve(self) -> None:
        """Aborts the turn, then resolves the futures of waiting input. The turn ends before the journal is closed, even
        if the caller is cancelled meanwhile, unless the turn itself waits for the caller."""
        is_own = self._is_called_by_turn()
        try:
            await self.abort()
        except asyncio.CancelledError:
            if self._worker is not None and not is_own:
                await wait_to_end(asyncio.wait([self._worker], timeout=self._runtime.callback_seconds))
            raise
        finally:
            self.inbox.resolve_all(self.make_result(TurnEnd("aborted")))

    async def _run_worker(self) -> None:
        """Processes the inbox until it is empty. Resolves the futures of its input even after an exception or a
        cancellation."""
        end: TurnEnd | None = None
        # With an eager task factory this runs before `wake` has assigned the task.
        worker = self._worker = asyncio.current_task()
        self.journal.lease.on_lost = worker.cancel if worker else None  # without the lease nothing may be written
        self._abort_listener.add_session(self)
        try:
            while self._wake_requested:
                self._wake_requested = False
                await self._process_inbox()
            end = TurnEnd("completed", self.inbox.last_text())
        except BaseException as error:  # a bug must neither look like an abort nor stop the engine
            if is_interruption(error, worker):
                raise
            end = TurnEnd("error", error=_as_outrider_error(error, self.session.id))
        finally:
            self._abort_listener.remove_session(self)
            self.journal.lease.on_lost = None
            aborted, self._aborted = self._aborted, None
            if end is not None or aborted is None:
                aborted = self.make_result(end or TurnEnd("aborted", self._text_of_turn()))
            self._report_end(aborted)

    def _text_of_turn(self) -> str:
        """Returns what the agent wrote in a turn that was aborted."""
        return last_text(self.session.messages[turn_start(self.session.messages[:-1]) :], "assistant")

    def _report_end(self, end: "RunResult[Any]") -> None:
        """Resolves the futures of the input in progress. After an error, or without the lease, also resolves the
        futures of queued input, because nothing processes it until a caller wakes the session."""
        self.inbox.resolve_taken(end)
        # The journal has published these two errors already.
        if end.error is not None and not isinstance(end.error, StorageFullError | LeaseLostError):
            error_type, message = type(end.error).__name__, end.error.message
            self._bus.publish(ErrorEvent(session_id=self.session.id, error_type=error_type, message=message))
        if end.reason == "error" or self.journal.is_lost:
            self.inbox.resolve_all(end)
        self._compaction.resolve(OutriderError("the compaction was aborted"))

    async def _process_inbox(self) -> None:
        await self._run_compaction()
        while await self._prepare_turn():
            self.inbox.resolve_taken(end := await self._run_turn_of_input())
            await self._run_compaction()
            if end.reason == "error" and self._has_pending_calls():
                break  # the pending call would fail again at once

    async def _prepare_turn(self) -> bool:
        """Returns whether there is work: pending calls after a restart, a turn to resume, or the next input."""
        resume, self._resume_requested = self._resume_requested, False
        if self._has_pending_calls() or (resume and is_cut_off(self.journal.session.messages)):
            await self.inbox.discard_aborts()
            return True
        return await self.inbox.take_next()

    async def _run_turn_of_input(self) -> "RunResult[Any]":
        """Runs the turn with the context variables of the task that added its input. Runs it in this task if the task
        was started with these variables and has run no turn yet, else in a new task."""
        origin = self.inbox.current
        variables = origin.variables if origin else self._base_variables
        unused, self._worker_variables = self._worker_variables, None
        if variables is unused:
            return await self._run_turn(origin)
        return await asyncio.create_task(self._run_turn(origin), context=variables.copy())

    async def _run_turn(self, origin: InputOrigin | None) -> "RunResult[Any]":
        self.in_turn = True
        try:
            if self.session_tools is not None:
                if await self.session_tools.refresh_mcp_tools():
                    self._context = None
                await self.session_tools.announce_mcp_servers(self.journal)
            context = self._agent_context()
            context.output = origin.output if origin else None
            task = cast("asyncio.Task[Any]", asyncio.current_task())
            context.run.program.tasks.add(task)
            first = turn_start(self.session.messages)
            try:
                end = await Turn(context).run()
            except asyncio.CancelledError:
                end = TurnEnd("aborted", self._text_of_turn())
                self._aborted = self._turn_result(end, context, self.session.messages[first:])
                raise
            except BaseException as error:  # a bug ends the turn, not the session
                if is_interruption(error, task):
                    raise
                end = TurnEnd("error", self._text_of_turn(), _as_outrider_error(error, self.session.id))
            messages = self.session.messages[first:]
            called = called_sessions(messages) if context.run.agent_messages else []
            return self._turn_result(end, context, messages, [await self._store.load(child_id) for child_id in called])
        except BaseException as error:
            # SystemExit of a function of the program would otherwise end the event loop.
            if isinstance(error, Exception) or is_interruption(error, asyncio.current_task()):
                raise
            raise OutriderError(describe_exception(error)) from error
        finally:
            self.in_turn = False
            if self._context is not None:
                self._context.run.program.tasks.clear()
            if plan := self.plan():
                self.publish_update(plan=to_builtins(plan))

    async def _take_steering(self) -> list[Message]:
        """Takes input of a running turn. The calls that follow run with the context variables of its sender."""
        before = self.inbox.current
        messages = await self.inbox.take_steering()
        origin = self.inbox.current
        if self._context is not None and origin is not before:
            self._context.call_context = origin.variables if origin else self._base_variables
        return messages

    def make_result(self, end: TurnEnd) -> "RunResult[Any]":
        """Returns the result of input that started no turn."""
        return RunResult(self._runtime.redact(end), session=self.session)

    def _turn_result(
        self, end: TurnEnd, context: AgentContext, messages: list[Message], children: Sequence[SessionTranscript] = ()
    ) -> "RunResult[Any]":
        """Returns the result of a turn. Its event log is built from the transcript on first use."""
        run, session = context.run, StoredSession.from_session(self.session)

        def read_log() -> "EventLog":
            from outrider.engine.session_trace import log_of_turn  # lazy: few programs read it

            return log_of_turn(SessionTranscript(session, messages), children)

        return RunResult(
            self._runtime.redact(end),
            session=self.session,
            usage=run.budget.usage,
            messages=self._runtime.redact(run.agent_messages),
            event_log=read_log,
            output_type=context.output,
            value=context.output_value,
        )

    def open_side_context(self) -> AgentContext:
        """Opens a second agent context for operations outside a turn, such as previews and manual calls."""
        return open_agent_context(
            self.agent,
            self.journal,
            self._runtime.create_run_context(self.session, self.session_tools, deps=self._deps),
        )

    def _agent_context(self) -> AgentContext:
        """Returns the agent context with a new run context. System prompt and tools are reused while agent and mode
        stay the same."""
        run, agent, mode = (
            self._runtime.create_run_context(self.session, self.session_tools, deps=self._deps),
            self.agent,
            self.journal.session.mode,
        )
        if self._context is None or self._context.agent != agent or self._context.mode != mode:
            self._context = open_agent_context(
                agent, self.journal, run, take_input=self._take_steering, request_recorder=self._request_recorder
            )
        self._context.start_turn(run)
        return self._context

    async def _run_compaction(self) -> None:
        """Runs the requested compaction, but not while a call waits for an approval."""
        if self._compaction and not self._has_pending_calls():
            # Not with the variables of the worker, which are those of an input.
            await asyncio.create_task(self._compact_context(), context=self._base_variables.copy())

    async def _compact_context(self) -> None:
        compactor, part = ContextCompactor(self._agent_context()), None
        try:
            if compactor.can_compact(auto=False):
                part = await compactor.compact(auto=False, instructions=self._compaction.instructions)
            self._compaction.resolve(part)
        except OutriderError as error:
            self._compaction.resolve(error)

    def _has_pending_calls(self) -> bool:
        messages = self.journal.session.messages
        return bool(messages) and has_pending_calls(messages[-1])

    @property
    def workspace_notes(self) -> str:
        return self.session_tools.workspace_notes if self.session_tools else ""

    async def initial_state(self) -> TextPart | None:
        agent = self.agent
        return await self.session_tools.initial_state(str(agent.model_ref)) if self.session_tools else None

    def describe_input(self, message: Message) -> None:
        spec = self._runtime.spec
        describe_input(
            message,
            self.session,
            self.agent,
            agents=spec.agents,
            tools={**self.session_tools.tools, **spec.tools} if self.session_tools else spec.tools,
            run=lambda: self._runtime.create_run_context(self.session, self.session_tools),
        )

    def publish_update(self, **changes: Any) -> None:
        self._bus.publish(SessionUpdatedEvent(session_id=self.journal.session.id, changes=changes))


async def _call_all(first: Callable[[], Awaitable[object]], *remaining: Callable[[], Awaitable[object]]) -> None:
    """Calls functions in order. An error does not stop the others; it is raised at the end."""
    try:
        await first()
    finally:
        if remaining:
            await _call_all(*remaining)


def _as_outrider_error(error: BaseException, session_id: str) -> OutriderError:
    if isinstance(error, OutriderError):
        return error
    _log.error("the worker of session %s failed", session_id, exc_info=error)
    return OutriderError(describe_exception(error))
