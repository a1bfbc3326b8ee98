"""THE LOOP: process one user input until the agent has finished.

    input ─▶ prompt ─▶ model ─▶ answer ─▶ no tool calls? done
               ▲                   └────▶ run the tool calls ───┐
               └──────────────── tool results ◀─────────────────┘

The journal stores every change before the loop acts on it. A turn can therefore be cancelled, or its process can
crash, at any await, and `Engine.resume` resumes it.
"""

import asyncio
from time import monotonic

from outrider._sync import describe_exception, is_interruption
from outrider.agents.compaction import ContextCompactor, wait_for_budget
from outrider.agents.instructions import apply_instructions
from outrider.agents.run_context import AgentContext
from outrider.agents.step import ModelStep
from outrider.agents.stop_policy import StopPolicy
from outrider.agents.tool_calls import HookRunner, ToolCallRunner
from outrider.agents.turn_state import (
    StepReporter,
    TerminationReason,
    TurnEnd,
    TurnState,
    has_pending_calls,
    last_text,
    note_before_request,
)
from outrider.errors import ContextOverflowError, LimitReachedError, OutriderError
from outrider.types.events import BudgetExceededEvent, ErrorEvent, LoopCompletedEvent, LoopStartedEvent
from outrider.types.messages import Message

_FINAL_STATES: dict[TerminationReason, TurnState] = {"error": "failed", "aborted": "aborted"}


class Turn:
    """One turn of one agent. Each turn needs a new instance, created inside a running event loop."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._budget = context.run.budget
        context.state, context.waiting_calls = "idle", 0
        self._hooks = HookRunner(context)
        self._stop_policy = StopPolicy(context)
        self._compactor = ContextCompactor(context)
        self._steps = StepReporter(context.emit_event)

    async def run(self) -> TurnEnd:
        """Runs steps until the turn ends and returns how it ended. Returns errors and limits too. Raises a
        cancellation, and exceptions that are bugs, after everything that has arrived is stored."""
        started, task = monotonic(), asyncio.current_task()
        self._context.emit_event(LoopStartedEvent, user_message=last_text(self._context.session.messages, "user"))
        end: TurnEnd | None = None
        try:
            async with asyncio.timeout(self._budget.seconds_left):
                end = await self._run_steps()
        except (LimitReachedError, TimeoutError) as reached:
            limit = self._budget.as_limit_error(reached)
            fields = {name: str(limit.details[name]) for name in ("limit", "maximum", "reached")}
            self._context.emit_event(BudgetExceededEvent, **fields)
            end = TurnEnd("limit", self._last_text(), limit)
        except OutriderError as error:
            self._context.emit_event(ErrorEvent, error_type=type(error).__name__, message=error.message)
            end = TurnEnd("error", self._last_text(), error)
        except BaseException as error:
            if not is_interruption(error, task):  # a bug must not look like an abort
                failure = OutriderError(describe_exception(error))
                self._context.emit_event(ErrorEvent, error_type="OutriderError", message=failure.message)
                end = TurnEnd("error", self._last_text(), failure)
            raise
        finally:
            self._steps.close()
            end = end or TurnEnd("aborted", self._last_text())
            self._context.enter_state(_FINAL_STATES.get(end.reason, "done"))
            self._context.emit_event(
                LoopCompletedEvent,
                termination_reason=end.reason,
                total_turns=self._steps.number,
                duration_ms=round((monotonic() - started) * 1000),
                output=end.output,
            )
        await self._context.journal.flush_events()
        if end.reason != "completed":
            await self._hooks.run_on_stop(end)
        return end

    async def _run_steps(self) -> TurnEnd:
        await apply_instructions(self._context)
        while True:
            answer = self._unfinished_answer() or await self._request_answer()
            calls = answer.get_calls()
            if not all(call.ended for call in calls):
                self._context.enter_state("running_tools")
                calls = await ToolCallRunner(self._context, self._hooks, answer).run()
            self._steps.end(len(calls))
            await self._hooks.report_messages()
            end = await self._stop_policy.end_after(answer, calls)
            if end is not None and not await self._continues(end):
                return end

    def _unfinished_answer(self) -> Message | None:
        """Returns the last answer if its calls still wait, for example for an approval across a restart."""
        messages = self._context.session.messages
        return messages[-1] if messages and has_pending_calls(messages[-1]) else None

    async def _request_answer(self) -> Message:
        """Runs one model step. On a context overflow, shortens the context and retries, at most twice.

        New input is added here, before a request, and never while calls are pending: the loop looks for pending calls
        in the last message only."""
        await self._take_input()
        if (note := note_before_request(self._context.session.messages)) is not None:
            await self._context.journal.add_message(note)
        self._steps.start(self._budget.begin_turn(), self._budget.limits.turns)
        if self._compactor.is_due():
            self._context.enter_state("compacting")
            await self._compactor.compact()
        for again in (False, True):
            try:
                return await self._run_step()
            except ContextOverflowError as error:
                self._context.enter_state("compacting")
                await self._compactor.make_room(error, again=again)
        return await self._run_step()

    async def _run_step(self) -> Message:
        self._context.enter_state("calling_model")
        await wait_for_budget(self._context)
        return await ModelStep(self._context).run()

    async def _take_input(self) -> bool:
        """Moves new user input into the session and returns whether there was any."""
        messages = await self._context.take_input() if self._context.take_input else []
        await self._hooks.report_messages()
        return bool(messages)

    async def _continues(self, end: TurnEnd) -> bool:
        """Returns whether a completed agent continues: after an invalid answer, with new input, or because of a
        hook."""
        return end.reason == "completed" and (
            await self._stop_policy.requests_repair(end)
            or await self._take_input()
            or await self._hooks.continues_after_stop(end)
        )

    def _last_text(self) -> str:
        return last_text(self._context.session.messages, "assistant")
