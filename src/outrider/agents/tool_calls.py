"""Runs the tool calls of one answer, with the hooks of the run: checks each call, runs it and stores its end once."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, nullcontext, suppress
from copy import deepcopy
from typing import Any

import msgspec

from outrider._sync import CallbackRunner, describe_exception, describe_value, run_to_end
from outrider.agents.hooks import HOOK_ASKS, HookDecision, HookedCall, HookedStop
from outrider.agents.run_context import AgentContext, ApprovalVerdict
from outrider.agents.turn_state import TurnEnd, turn_start
from outrider.errors import CallbackError, OutriderError, PartValidationError
from outrider.sessions.failpoints import failpoint
from outrider.tools.runner import ToolRunner, unknown_tool_message
from outrider.tools.schema import InvalidArguments
from outrider.tools.tool import ForwardingTool, Progress, Tool, ToolContext
from outrider.types.events import ErrorEvent, ToolExecutionCompletedEvent, ToolExecutionStartedEvent, ToolOutputEvent
from outrider.types.messages import Message
from outrider.types.origins import describe_origins
from outrider.types.parts import TextPart, ToolPart
from outrider.types.tool_state import (
    DISPLAY,
    FORWARDED_BY,
    ToolCompleted,
    ToolError,
    ToolErrorReason,
    ToolPending,
    ToolRunning,
    exit_code_of,
    working_time,
)
from outrider.types.validate import find_json_problem, is_object

_log = logging.getLogger("outrider.hooks")


class HookRunner:
    """Calls the hooks of a run for one agent. An exception in a hook never ends the turn."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._hooks = context.run.program.hooks
        self._reported = turn_start(context.session.messages)

    async def run_before_call(self, call: ToolPart) -> dict[str, Any] | str | HookDecision:
        """Returns the input with which the call may run, a string with the reason why it is denied, or the decision
        that it needs an approval."""
        hook = self._hooks.before_call
        if hook is None:
            return call.state.input
        returned, failure = await self._call_hook("before_call", hook, self._describe_call(call))
        if failure:
            return f"This call was refused: {failure}. It was not run."
        if returned is None:
            return call.state.input
        if isinstance(returned, HookDecision):
            return returned if returned.effect == "ask" else f"This call was refused: {returned.reason}"
        if isinstance(returned, str):
            return f"This call was refused: {returned}"
        problem = find_json_problem(returned) if is_object(returned) else ""
        if is_object(returned) and not problem:
            return returned
        reason = f"the hook before_call returned {f'arguments {problem}' if problem else describe_value(returned)}"
        self._context.emit_event(ErrorEvent, error_type="HookFailed", message=reason)
        return f"This call was refused: {reason}. It was not run."

    async def run_after_call(self, call: ToolPart, output: str, *, is_error: bool) -> str:
        """Returns the result text that the model reads: the output, or the hook's replacement for it."""
        hook = self._hooks.after_call
        if hook is None:
            return output
        returned = await self._call_text_hook("after_call", hook, self._describe_call(call, output, is_error=is_error))
        return output if returned is None else returned

    async def report_messages(self) -> None:
        """Calls `on_message` for each message that was added since the last call of this method."""
        hook, messages = self._hooks.on_message, self._context.session.messages
        if hook is not None:
            for message in messages[self._reported :]:
                await self._call_hook("on_message", hook, message)
        self._reported = len(messages)

    async def continues_after_stop(self, end: TurnEnd) -> bool:
        """Calls the `on_stop` hook. If it returns text, adds the text as a user message, so that the agent continues,
        and returns True."""
        text = await self.run_on_stop(end)
        if text is None or not text.strip():
            return False
        self._context.finish_output = None
        await self._context.journal.add_message(Message("user", [TextPart(text, synthetic=True)]))
        return True

    async def run_on_stop(self, end: TurnEnd) -> str | None:
        if self._hooks.on_stop is None:
            return None
        context = self._context
        stop = HookedStop(
            agent=context.agent.name,
            session_id=context.session.id,
            reason=end.reason,
            output=end.output,
            parent_session_id=context.session.parent_id or "",
        )
        return await self._call_text_hook("on_stop", self._hooks.on_stop, stop)

    async def _call_text_hook(self, name: str, hook: Callable[[Any], Any], value: Any) -> str | None:
        """Returns the text of a hook, None without one. Another value is reported as an error."""
        returned, _ = await self._call_hook(name, hook, value)
        if returned is None or isinstance(returned, str):
            return returned
        problem = f"the hook {name} returned {describe_value(returned)}; it must return a string or None"
        self._context.emit_event(ErrorEvent, error_type="HookFailed", message=problem)
        return None

    async def _call_hook(self, name: str, hook: Callable[[Any], Any], value: Any) -> tuple[Any, str]:
        """Returns the value of the hook and "", or None and a description of the problem."""
        try:
            return await self._context.run.program.callbacks.call(f"the hook {name}", hook, value), ""
        except CallbackError as error:
            _log.exception("the hook %s failed", name)
            self._context.emit_event(ErrorEvent, error_type="HookFailed", message=error.message)
            return None, error.message

    def _describe_call(self, call: ToolPart, output: str = "", *, is_error: bool = False) -> HookedCall:
        return HookedCall(
            tool=call.tool,
            input=deepcopy(call.state.input),
            call_id=call.call_id,
            agent=self._context.agent.name,
            session_id=self._context.session.id,
            output=output,
            is_error=is_error,
        )


async def prepare_call(
    call: ToolPart, tool: Tool, hooks: HookRunner, clock: Callable[[], int], callbacks: CallbackRunner
) -> ToolPart:
    """Validates the input of a call and runs the `before_call` hook. Returns the call with the input that is then
    checked, shown and run, or an ended call if it may not run.

    A call that awaited its approval across a restart is returned unchanged, because it was prepared before the restart.
    """
    pending = call.state
    if not isinstance(pending, ToolPending) or pending.phase == "awaiting_approval":
        return call
    call = await _prepare_input(_mark_display(call, tool), pending, tool, clock, callbacks)
    if not isinstance(call.state, ToolPending):
        return call
    new_input = await hooks.run_before_call(call)
    if isinstance(new_input, HookDecision):
        return msgspec.structs.replace(call, metadata={**call.metadata, HOOK_ASKS: new_input.reason})
    if isinstance(new_input, str):
        return call.with_state(call.state.fail(new_input, clock(), reason="denied"))
    if new_input == call.state.input:
        return call
    return await _prepare_input(call, call.state.ready(new_input), tool, clock, callbacks)


def _mark_display(call: ToolPart, tool: Tool) -> ToolPart:
    """Stores in the part how the call is shown: front ends in other processes, or at a later time, do not have the
    tool."""
    if tool.stored_display is None:
        return call
    return msgspec.structs.replace(call, metadata={**call.metadata, DISPLAY: tool.stored_display})


async def _prepare_input(
    call: ToolPart, pending: ToolPending, tool: Tool, clock: Callable[[], int], callbacks: CallbackRunner
) -> ToolPart:
    try:
        prepared = await tool.preprocess(pending.input, callbacks)
    except CallbackError as error:  # the model reads the error and can retry
        cause = error.__cause__
        message = describe_exception(cause) if cause and not isinstance(cause, TimeoutError) else error.message
        return call.with_state(pending.fail(message, clock(), reason="invalid_input"))
    return call if prepared == call.state.input else call.update_state(pending.ready(prepared))


def _refusal_reason(verdict: ApprovalVerdict) -> ToolErrorReason:
    match verdict.reason:
        case "rejected" | "invalid_input" | "failed":
            return verdict.reason
        case _:
            return "denied"


MAX_PREVIEW = 200


def _check_arguments(call: ToolPart, tool: Tool) -> ApprovalVerdict | None:
    """Returns the verdict about a call with invalid arguments. The user is not asked about it, and its reason is not a
    lack of rights."""
    try:
        tool.check_arguments(call.state.input)
    except InvalidArguments as error:
        return ApprovalVerdict(allowed=False, reason="invalid_input", message=error.message)
    return None


class ToolCallRunner:
    """Runs the calls of one message: those of parallel tools concurrently and all others alone. One call that awaits an
    approval does not block the others of its group."""

    def __init__(self, context: AgentContext, hooks: HookRunner, message: Message) -> None:
        self._context = context
        self._run = context.run
        self._message = message
        self._hook_runner = hooks
        self._loop = asyncio.get_running_loop()

    async def run(self) -> list[ToolPart]:
        """Runs every open call of the message and returns all its calls, ended. A cancellation ends the open calls as
        canceled."""
        self._forward_calls()
        try:
            for group in self._parallel_groups():
                await self._run_group(group)
        except asyncio.CancelledError:
            await run_to_end(self._cancel_remaining())
            raise
        except OutriderError as error:
            self._fail_unstarted(error)
            raise
        return self._message.get_calls()

    def _forward_calls(self) -> None:
        """Replaces calls of a forwarding tool with calls of the tools that they name. The changed calls are stored with
        the first call that runs, before it has an effect."""
        for call in self._message.get_calls():
            tool = self._context.tools.get(call.tool)
            if not isinstance(tool, ForwardingTool) or not isinstance(call.state, ToolPending):
                continue
            if (target := tool.find_target(call.state.input, self._context.tools)) is not None:
                metadata = {**call.metadata, FORWARDED_BY: call.tool}
                sent = msgspec.structs.replace(call, tool=target[0], metadata=metadata)
                self._context.journal.put_part_soon(sent.update_state(call.state.ready(target[1])), self._message)

    async def _cancel_remaining(self) -> None:
        """Cancels calls whose task did not start: a task that is cancelled before its first step never runs its except
        blocks."""
        for call in self._message.get_calls():
            await self._cancel_call(call.id)

    def _fail_unstarted(self, error: OutriderError) -> None:
        """Fails calls that did not start. Nothing is awaited here, because the error may be that the store rejects
        writes."""
        for call in self._message.get_calls():
            if isinstance(call.state, ToolPending) and not self._stays_pending(call.state):
                ended = call.state.fail(f"not run: {error.message}", self._run.clock(), reason="canceled")
                self._context.journal.put_part_soon(call.with_state(ended), self._message)

    async def _run_group(self, group: list[ToolPart]) -> None:
        """Runs calls concurrently. A tool error becomes a result and is not raised; errors that reach this method come
        from the journal, and one of them is raised for all."""
        variables = self._context.call_context
        if len(group) == 1 and variables is None:
            await self._run_call(group[0])
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                for call in group:
                    task = tasks.create_task(self._run_call(call), context=variables.copy() if variables else None)
                    self._run.program.tasks.add(task)
                    task.add_done_callback(self._run.program.tasks.discard)
        except BaseExceptionGroup as errors:
            raise next((error for error in errors.exceptions if isinstance(error, OutriderError)), errors) from None

    def _parallel_groups(self) -> Iterator[list[ToolPart]]:
        group: list[ToolPart] = []
        for call in self._message.get_calls():
            tool = self._context.tools.get(call.tool)
            if tool is None or tool.options.parallel:
                group.append(call)
                continue
            if group:
                yield group
            yield [call]
            group = []
        if group:
            yield group

    async def _run_call(self, call: ToolPart) -> None:
        if not isinstance(call.state, ToolPending):
            return
        try:
            admitted = await self._admit_call(call)
            if admitted is not None:
                async with self._concurrency_slot(admitted):
                    await self._execute_call(admitted)
        except asyncio.CancelledError:
            await run_to_end(self._cancel_call(call.id))
            raise
        except Exception as error:
            if isinstance(error, OutriderError) and not isinstance(error, PartValidationError):
                raise  # an error of the store ends the turn
            await self._fail_call(call.id, error)

    async def _fail_call(self, part_id: str, error: Exception) -> None:
        """Ends a call that cannot be run or stored, for example because a value of the program cannot be encoded. Every
        call ends."""
        _log.error("a call failed in the engine", exc_info=error)
        call = next(part for part in self._message.get_calls() if part.id == part_id)
        if isinstance(call.state, ToolPending | ToolRunning):
            message = f"The call failed: {describe_exception(error)}"
            await self._record_call(call.with_state(call.state.fail(message, self._run.clock(), reason="failed")))

    def _concurrency_slot(self, call: ToolPart) -> AbstractAsyncContextManager[Any]:
        """Returns the semaphore of parallel calls. Delegating calls do not take a slot: the calls of their callee would
        wait for it."""
        tool = self._context.tools.get(call.tool)
        return nullcontext() if tool is not None and tool.options.delegates else self._run.budget.calls

    async def _admit_call(self, call: ToolPart) -> ToolPart | None:
        """Returns the call as it will run, or None if it was denied and has ended."""
        tool = self._context.tools.get(call.tool)
        if tool is None or "input_error" in call.metadata:
            return call  # the runner builds the error result
        call = await self._prepare_call(call, tool)
        if not isinstance(call.state, ToolPending):
            return None
        verdict = _check_arguments(call, tool) or await self._run.gate.admit(call, tool, self._context)
        if verdict.allowed:
            return call
        reason = _refusal_reason(verdict)
        await self._record_call(call.with_state(call.state.fail(verdict.message, self._run.clock(), reason=reason)))
        return None

    async def _prepare_call(self, call: ToolPart, tool: Tool) -> ToolPart:
        """Stores the prepared input before the check, so that the stored input is the one that is checked and run."""
        prepared = await prepare_call(call, tool, self._hook_runner, self._run.clock, self._run.program.callbacks)
        if prepared is not call:
            await self._record_call(prepared)
        return prepared

    async def _execute_call(self, call: ToolPart) -> None:
        emit = self._context.emit_event
        emit(ToolExecutionStartedEvent, call_id=call.call_id, tool_name=call.tool, tool_input=call.state.input)
        ended = await self._tool_runner().run(call, self._tool_context(call))
        state = ended.state
        assert isinstance(state, ToolCompleted | ToolError)
        emit(
            ToolExecutionCompletedEvent,
            call_id=call.call_id,
            tool_name=call.tool,
            success=isinstance(state, ToolCompleted),
            duration_ms=working_time(state),
            output_preview=state.text[:MAX_PREVIEW],
            reason=state.reason if isinstance(state, ToolError) else "",
            origins=describe_origins(ended.origins),
            exit_code=exit_code_of(state),
        )

    def _tool_runner(self) -> ToolRunner:
        """Returns the runner of one call. It is not stored here: it refers to this object, so that would be a reference
        cycle."""
        run = self._run
        return ToolRunner(
            self._context.tools,
            self._record_call,
            save_output=run.calls.save_output,
            save_draft=self._schedule_draft,
            call_scope=self._wrap_call,
            filter_result=self._hook_runner.run_after_call,
            explain_unknown=self._unknown_tool_message,
            is_left_open=self._is_suspended,
            labels=run.calls.labels,
            clock=run.clock,
        )

    def _tool_context(self, call: ToolPart) -> ToolContext:
        def report(progress: Progress) -> None:
            failpoint("FP-tool-mid")
            if progress.output:
                self._run.bus.publish(
                    self._context.make_event(
                        ToolOutputEvent, call_id=call.call_id, tool_name=call.tool, output=progress.output
                    )
                )

        return self._context.tool_context(call.call_id, report)

    def _wrap_call(self, call: ToolPart, tool: Tool) -> AbstractAsyncContextManager[None]:
        scopes, wrapped = self._run.bus.call_scopes, self._run.calls.wrap_call(call, tool, self._context)
        return self._enter_scopes(wrapped, call) if scopes else wrapped

    @asynccontextmanager
    async def _enter_scopes(
        self, wrapped: AbstractAsyncContextManager[None], call: ToolPart
    ) -> AsyncGenerator[None, None]:
        """Enters the call scopes of the bus around a call, for example to make its span the current one."""
        async with wrapped:
            with ExitStack() as stack:
                for scope in tuple(self._run.bus.call_scopes):
                    stack.enter_context(scope(self._context.session.id, call.call_id))
                yield

    def _schedule_draft(self, part_id: str, characters: int, current: Callable[[], ToolPart]) -> None:
        """Stores progress from any thread. A tool function in a thread may outlive its call and the event loop."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._store_draft, part_id, characters, current)

    def _store_draft(self, part_id: str, characters: int, current: Callable[[], ToolPart]) -> None:
        if any(part.id == part_id and not part.ended for part in self._message.get_calls()):
            self._context.journal.buffer_draft(part_id, characters, current)

    async def _cancel_call(self, part_id: str) -> None:
        """Fails a call that was cancelled before its tool started. The runner ends calls whose tool was running."""
        call = next(part for part in self._message.get_parts_by_type(ToolPart) if part.id == part_id)
        if isinstance(call.state, ToolPending) and not self._stays_pending(call.state):
            await self._record_call(
                call.with_state(call.state.fail("canceled before it started", self._run.clock(), reason="canceled"))
            )

    def _stays_pending(self, state: ToolPending) -> bool:
        """Returns whether a cancelled call stays open because its approval is answered after the session is
        reopened."""
        return self._context.will_resume and state.phase == "awaiting_approval"

    def _is_suspended(self, call: ToolPart) -> bool:
        """Returns whether the call, or the agent that it started, waits for an answer and continues when the session is
        reopened."""
        if call.asks and self._context.will_resume:
            self._context.suspended_calls.add(call.call_id)
        return call.call_id in self._context.suspended_calls

    def _unknown_tool_message(self, name: str) -> str:
        """Returns the error for an unknown tool. It lists the advertised tools only."""
        if name in self._run.agents:
            return f"There is an agent called {name!r}, not a tool. Use call_agent with agent_name={name!r}."
        sent = [spec.name for spec in self._context.tool_specs]
        if name in sent:  # for a mode that the session had before
            return f"The tool {name!r} is not available in {self._context.effective_mode} mode."
        return unknown_tool_message(name, sent)

    async def _record_call(self, call: ToolPart) -> None:
        """Stores the state of a call. Before a call that may change files starts, waits for the fsync."""
        tool = self._context.tools.get(call.tool)
        synced = isinstance(call.state, ToolRunning) and not (tool is not None and tool.read_only)
        await self._context.journal.put_part(call, self._message, synced=synced)
