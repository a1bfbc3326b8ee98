"""THE LOOP: one user input, carried to its end.

    input ─▶ prompt ─▶ model ─▶ answer ─▶ no calls? done
               ▲                   └────▶ calls, run to their ends ─┐
               └──────────────── results ◀──────────────────────────┘

Everything that happens is recorded by the journal before it counts, so that a turn can be cut anywhere and go on later.
"""

import asyncio
from time import monotonic
from typing import Any

import msgspec

from outrider.agents.compaction import Compactor, build_request
from outrider.agents.hook_runner import HookRunner
from outrider.agents.run_context import AgentContext, RunContext
from outrider.agents.step import Step
from outrider.agents.tool_calls import ToolCallRunner
from outrider.agents.turn_state import (
    TerminationReason,
    TurnEnd,
    TurnState,
    TurnStateTracker,
    has_pending_calls,
    is_paused,
)
from outrider.errors import ContextOverflowError, LimitReachedError, OutriderError
from outrider.types.events import (
    BudgetExceededEvent,
    ErrorEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    StateChangedEvent,
    TurnCompletedEvent,
    TurnStartedEvent,
)
from outrider.types.messages import Message
from outrider.types.parts import ToolPart, tool_result

SAME_CALL = 3
CHANGING_CALL = 8  # a die is rolled again, a job is asked about again: the results say that something moves
EMPTY_ANSWERS = 2


class RepetitionDetector:
    """Fed with each answer's calls, ended; says when the same calls came too often in a row: `SAME_CALL` times with
    the same results, `CHANGING_CALL` times with any."""

    def __init__(self) -> None:
        self._calls = _Streak()
        self._results = _Streak()
        self._empty = 0

    def same_calls(self, calls: list[ToolPart]) -> bool:
        if not calls:
            return False
        asked = [_asked(call) for call in calls]
        given = [words + _given(call) for words, call in zip(asked, calls, strict=True)]
        times_asked, times_given = self._calls.add(sorted(asked)), self._results.add(sorted(given))
        return times_given >= SAME_CALL or times_asked >= CHANGING_CALL

    def empty_answers(self, *, empty: bool) -> bool:
        self._empty = self._empty + 1 if empty else 0
        return self._empty >= EMPTY_ANSWERS


class _Streak:
    def __init__(self) -> None:
        self._last: Any = None
        self._times = 0

    def add(self, value: Any) -> int:
        self._times = self._times + 1 if value == self._last else 1
        self._last = value
        return self._times


def _asked(call: ToolPart) -> bytes:
    return msgspec.json.encode((call.tool, call.state.input), order="sorted")


def _given(call: ToolPart) -> bytes:
    result = tool_result(call)
    return result.content.encode("utf-8", "surrogatepass") if result else b""


class StopPolicy:
    def __init__(self, seat: AgentContext) -> None:
        self._seat = seat
        self._repetition = RepetitionDetector()

    def after(self, answer: Message) -> TurnEnd | None:
        """The end that this answer, with its calls ended, is; None as long as the model has to be asked again."""
        calls = answer.get_parts_by_type(ToolPart)
        return self._after_calls(calls) if calls else self._without_calls(answer)

    def _after_calls(self, calls: list[ToolPart]) -> TurnEnd | None:
        if self._seat.finished is not None:
            return TurnEnd("completed", self._seat.finished)
        if self._repetition.same_calls(calls):
            return TurnEnd("repetition", f"The same call of {calls[0].tool} was made again and again.")
        return None

    def _without_calls(self, answer: Message) -> TurnEnd | None:
        text = answer.get_text_content()
        if is_paused(answer):
            return None
        if answer.finish == "refusal" or answer.finish == "length":
            return TurnEnd(answer.finish, text)
        if text.strip():
            return TurnEnd("completed", text)
        return TurnEnd("empty_answers") if self._repetition.empty_answers(empty=True) else None


_STATES: dict[TerminationReason, TurnState] = {"error": "failed", "aborted": "aborted"}


class Turn:
    def __init__(self, seat: AgentContext, crew: RunContext) -> None:
        self._seat = seat
        self._crew = crew
        self._states = seat.states = TurnStateTracker(self._changed)
        self._calls = ToolCallRunner(seat, crew)
        self._hooked = HookRunner(seat, crew)
        self._stopping = StopPolicy(seat)
        self._compactor = Compactor(seat, crew)
        self._number = 0

    async def run(self) -> TurnEnd:
        """Never raises for what a model, a tool or a limit does; a cancellation goes on once all is kept."""
        started = monotonic()
        self._seat.tell(LoopStartedEvent, user_message=self._last_words("user"))
        end = TurnEnd("aborted")
        try:
            async with asyncio.timeout(self._crew.budget.seconds_left):
                end = await self._to_the_end()
        except (LimitReachedError, TimeoutError) as reached:
            limit = self._crew.budget.as_limit(reached)
            self._seat.tell(BudgetExceededEvent, limit=limit.limit, maximum=str(limit.details["maximum"]))
            end = TurnEnd("limit", self._last_words("assistant"), limit)
        except OutriderError as error:
            self._seat.tell(ErrorEvent, error_type=type(error).__name__, message=error.message)
            end = TurnEnd("error", self._last_words("assistant"), error)
        finally:
            self._states.enter(_STATES.get(end.reason, "done"))
            duration = round((monotonic() - started) * 1000)
            self._seat.tell(
                LoopCompletedEvent,
                termination_reason=end.reason,
                total_turns=self._number,
                duration_ms=duration,
                output=end.output,
            )
        await self._seat.journal.told()
        if end.reason != "completed":
            await self._hooked.stopped(end)
        return end

    async def _to_the_end(self) -> TurnEnd:
        while True:
            answer = self._interrupted() or await self._answer()
            calls = answer.get_parts_by_type(ToolPart)
            if not all(call.ended for call in calls):
                self._states.enter("running_tools")
                calls = await self._calls.run(answer)
            self._seat.tell(TurnCompletedEvent, turn_number=self._number, tool_calls_count=len(calls))
            await self._hooked.messages()
            end = self._stopping.after(answer)
            if end is not None and not await self._goes_on(end):
                return end

    def _interrupted(self) -> Message | None:
        """An answer whose calls still wait, as a restart leaves one that somebody was asked about."""
        last = self._seat.session.messages[-1] if self._seat.session.messages else None
        return last if last is not None and has_pending_calls(last) else None

    async def _answer(self) -> Message:
        """One answer of the model; a context that overflows is compacted, once, and the model asked again. Input comes
        before it and never before calls that still wait: nobody would look at those again."""
        await self._take_input()
        self._number = self._crew.budget.begin_turn()
        self._seat.tell(TurnStartedEvent, turn_number=self._number, max_turns=self._crew.budget.limits.turns)
        if self._compactor.due():
            await self._compact(overflow=False)
        try:
            return await self._step()
        except ContextOverflowError:
            await self._compact(overflow=True)
            return await self._step()

    async def _step(self) -> Message:
        self._states.enter("calling_model")
        request, reserved = build_request(self._seat, self._crew)
        step = Step(self._seat, self._crew, request)
        try:
            return await step.run()
        finally:
            self._crew.budget.settle(reserved, step.message.tokens, step.message.cost, step.turns)

    async def _compact(self, *, overflow: bool) -> None:
        self._states.enter("compacting")
        await self._compactor.compact(overflow=overflow)

    async def _take_input(self) -> bool:
        """New input of the user, at a moment when it disturbs nothing; says whether there was any."""
        messages = await self._seat.take_input() if self._seat.take_input else []
        await self._hooked.messages()
        return bool(messages)

    async def _goes_on(self, end: TurnEnd) -> bool:
        """An agent that is done goes on if somebody has more for it."""
        return end.reason == "completed" and (await self._take_input() or await self._hooked.sends_on(end))

    def _last_words(self, role: str) -> str:
        return next((m.get_text_content() for m in reversed(self._seat.session.messages) if m.role == role), "")

    def _changed(self, old: TurnState, new: TurnState) -> None:
        self._seat.tell(StateChangedEvent, old_state=old, new_state=new)
