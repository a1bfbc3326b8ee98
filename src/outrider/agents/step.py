"""One model answer: asked for, shown as it arrives, kept part by part, whatever ends it."""

import asyncio
from contextlib import aclosing
from decimal import Decimal
from time import monotonic

from outrider.agents.run_context import AgentContext, RunContext
from outrider.agents.turn_state import PAUSED, has_pending_calls
from outrider.errors import ProviderError
from outrider.providers.assembler import AnswerPart, Assembler
from outrider.sessions import failpoints as faults
from outrider.types.deltas import (
    AnswerStart,
    Delta,
    Finish,
    Happened,
    InputDelta,
    PartEnd,
    PartStart,
    ReasoningDelta,
    Retry,
    TextDelta,
    UsageReport,
)
from outrider.types.events import (
    LLMRequestEvent,
    LLMResponseEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    RetryScheduledEvent,
    ToolInputDeltaEvent,
)
from outrider.types.ids import new_id
from outrider.types.messages import Message, MessageError, MessagePath, MessageTime
from outrider.types.parts import ModelRef, RetryPart, RetryTime, StepFinishPart, StepStartPart, ToolPart
from outrider.types.request import Request
from outrider.types.tool_state import ToolPending

_WHOLE = ("stop", "tool_use")
_SILENT = frozenset({AnswerStart, UsageReport, Finish})  # they tell of the answer as a whole
_SILENT_AT_ONCE = _SILENT | {PartStart, InputDelta}  # calls of an answer that comes in one piece are ready at once
_BROKE_OFF = "The answer broke off, so this call may not be whole. It was not run. Make it again if it is still wanted."


class Step:
    """Carries one request to its answer, which is a message of the session from the first moment on."""

    def __init__(self, seat: AgentContext, crew: RunContext, request: Request) -> None:
        self._seat = seat
        self._crew = crew
        self._request = request
        self._assembler = Assembler(crew.client(seat.agent).family(request.model))
        self._id = new_id()
        self._start = monotonic()
        self._first_token: float | None = None
        self._kept: set[str] = set()
        self.message = self._new_message()

    async def run(self) -> Message:
        """The whole answer. An error or a cancellation is raised after everything that arrived is kept."""
        self._tell(LLMRequestEvent, message_count=len(self._request.prompt), has_tools=bool(self._request.tools))
        self._seat.journal.open_message(self.message)
        faults.failpoint("FP-before-request")
        try:
            await self._read()
        except ProviderError as error:
            await self._finish(MessageError(type(error).__name__, error.message, error.status))
            raise
        except asyncio.CancelledError:
            await asyncio.shield(self._finish(MessageError("aborted", "the answer was cut off on request")))
            raise
        try:
            await self._finish(None)
        except asyncio.CancelledError:
            await asyncio.shield(self._stop_calls())
            raise
        return self.message

    async def _read(self) -> None:
        silent = _SILENT if self._request.stream else _SILENT_AT_ONCE
        async with aclosing(self._crew.client(self._seat.agent).stream(self._request)) as deltas:
            async for delta in deltas:
                self._assembler.add(delta)
                if type(delta) not in silent:
                    await self._show(delta)

    async def _stop_calls(self) -> None:
        """The answer is whole, and its calls must not run: not now, and not when the session is opened again."""
        self._end_calls(self._crew.clock())
        await self._seat.journal.put_message(self.message)

    @property
    def turns(self) -> int:
        """How many answers of models it took: more than one where an agent of another process answered."""
        return self._assembler.turns

    @property
    def cost(self) -> Decimal | None:
        """By the bill of who answered, else by the price of its model."""
        if self._assembler.cost is not None:
            return self._assembler.cost
        return self._crew.tariff.cost(self._seat.agent, self._assembler.model, self._assembler.tokens)

    async def _show(self, delta: Delta) -> None:
        match delta:
            case TextDelta(index, text):
                self._piece(index, text, "text")
            case ReasoningDelta(index, text):
                self._piece(index, text, "reasoning")
            case InputDelta(index, text):
                self._input(index, text)
            case PartStart(index, kind="tool"):
                self._crew.bus.publish(self._seat.labelled(PartUpdatedEvent, part=self._owned(index)))
            case Retry():
                await self._retry(delta)
            case Happened(event):
                self._crew.bus.publish(self._seat.echoed(event, self.message.id))
            case PartEnd(index):
                self._keep(self._assembler.part(index))
                if self._request.stream:
                    self._seat.journal.keep_soon()
            case _:
                pass

    def _piece(self, index: int, text: str, field: str) -> None:
        if self._first_token is None:
            self._first_token = monotonic()
        part_id = self._assembler.part_id(index)
        event = PartDeltaEvent(
            message_id=self.message.id,
            part_id=part_id,
            delta=text,
            field=field,
            session_id=self._seat.session.id,
            agent_name=self._seat.agent.name,
            parent_call_id=self._seat.call_id,
        )
        self._seat.journal.show(event, lambda: self._owned(index))

    def _input(self, index: int, text: str) -> None:
        part = self._assembler
        event = ToolInputDeltaEvent(
            message_id=self.message.id,
            part_id=part.part_id(index),
            delta=text,
            session_id=self._seat.session.id,
            agent_name=self._seat.agent.name,
            parent_call_id=self._seat.call_id,
        )
        self._seat.journal.show(event, lambda: self._owned(index))

    async def _retry(self, retry: Retry) -> None:
        fields = {name: getattr(retry, name) for name in ("attempt", "delay_ms", "error", "max_attempts")}
        self._crew.bus.publish(self._seat.labelled(RetryScheduledEvent, call_id=self._id, **fields))
        part = RetryPart(retry.attempt, retry.error, RetryTime(self._crew.clock()))
        await self._seat.journal.put_part(part, self.message)

    async def _finish(self, error: MessageError | None) -> None:
        """Keep every part, also those that were cut, and what the answer used."""
        journal, now, message = self._seat.journal, self._crew.clock(), self.message
        for part in self._assembler.parts(besides=self._kept):
            self._keep(part)
        if error is not None or self._assembler.finish not in _WHOLE:
            self._end_calls(now)
        message.tokens, message.cost = self._assembler.tokens, self.cost
        message.finish = None if error else (self._assembler.finish or "other")
        message.error = error
        if self._assembler.paused:
            message.metadata[PAUSED] = True
        message.time = MessageTime(message.time.created if message.time else now, now)
        reason = error.type if error else message.finish or "other"
        journal.put_part_soon(StepFinishPart(reason, cost=message.cost, tokens=message.tokens), message)
        if message.finish == "tool_use" and has_pending_calls(message):
            journal.put_message_soon(message)  # its calls are kept before they run, and it with them
        else:
            await journal.put_message(message)
        self._tell_response()

    def _keep(self, part: AnswerPart) -> None:
        self._kept.add(part.id)
        self._seat.journal.put_part_soon(part, self.message)

    def _end_calls(self, now: int) -> None:
        """Calls of an answer that broke off do not run: the last one may look whole and not be. That counts at once,
        also where nothing can be kept now."""
        for call in self.message.get_parts_by_type(ToolPart):
            if isinstance(call.state, ToolPending):
                ended = call.state.fail(_BROKE_OFF, now, reason="canceled")
                self._seat.journal.put_part_soon(call.with_state(ended), self.message)

    def _tell_response(self) -> None:
        tokens, message = self.message.tokens, self.message
        self._tell(
            LLMResponseEvent,
            stop_reason=message.finish or (message.error.type if message.error else None),
            has_tool_use=any(isinstance(part, ToolPart) for part in message.parts),
            input_tokens=tokens.input,
            output_tokens=tokens.output,
            reasoning_tokens=tokens.reasoning,
            cache_read_tokens=tokens.cache.read,
            cache_write_tokens=tokens.cache.write,
            duration_ms=round((monotonic() - self._start) * 1000),
            first_token_ms=None if self._first_token is None else round((self._first_token - self._start) * 1000),
            cost=None if message.cost is None else str(message.cost),
        )

    def _tell(self, event: type[LLMRequestEvent] | type[LLMResponseEvent], **fields: object) -> None:
        agent = self._seat.agent
        self._seat.tell(event, call_id=self._id, model=agent.model, provider=agent.provider, **fields)

    def _owned(self, index: int) -> AnswerPart:
        part = self._assembler.part(index)
        part.adopt(self.message.id, self._seat.session.id)
        return part

    def _new_message(self) -> Message:
        agent, session = self._seat.agent, self._seat.session
        directory = session.workspace_directory
        last = session.messages[-1].id if session.messages else None
        return Message(
            "assistant",
            [StepStartPart()],
            agent=agent.name,
            model=ModelRef(agent.provider, agent.model),
            mode=session.mode,
            parent_id=last,
            path=MessagePath(directory, directory) if directory else None,
            time=MessageTime(self._crew.clock()),
        )
