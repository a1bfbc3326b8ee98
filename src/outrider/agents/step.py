"""One model step: sends a request, publishes deltas as they arrive and stores each part of the answer."""

import asyncio
from contextlib import aclosing
from decimal import Decimal
from time import monotonic

from outrider.agents.run_context import AgentContext
from outrider.agents.turn_state import PAUSED, has_pending_calls
from outrider.errors import ProviderError
from outrider.providers.assembler import AnswerAssembler, AnswerPart
from outrider.sessions.failpoints import failpoint
from outrider.types.deltas import (
    AnswerStart,
    Delta,
    Finish,
    InputDelta,
    PartEnd,
    PartStart,
    ReasoningDelta,
    RemoteEvent,
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

_COMPLETE_FINISHES = ("stop", "tool_use")
_UNPUBLISHED = frozenset({AnswerStart, UsageReport, Finish})  # they describe the whole answer, not a part of it
# Without streaming a call arrives complete, so its start and its input chunks need no event.
_UNPUBLISHED_WITHOUT_STREAM = _UNPUBLISHED | {PartStart, InputDelta}
_TRUNCATED_ANSWER = (
    "The answer broke off, so this call may not be whole. It was not run. Make it again if it is still wanted."
)


class ModelStep:
    """Reads one streamed answer into a message. The message is part of the session from the start of the request."""

    def __init__(self, context: AgentContext, request: Request) -> None:
        self._context = context
        self._run = run = context.run
        self._request = request
        self._assembler = AnswerAssembler(run.client_for(context.agent).model_family(request.model))
        self._id = new_id()
        self._start = monotonic()
        self._first_token: float | None = None
        self._stored_parts: set[str] = set()
        self.message = self._new_message()

    async def run(self) -> Message:
        """Return the complete answer. A provider error or a cancellation is raised after all received parts are
        stored."""
        self._publish_event(
            LLMRequestEvent, message_count=len(self._request.prompt), has_tools=bool(self._request.tools)
        )
        self._context.journal.open_message(self.message)
        failpoint("FP-before-request")
        try:
            await self._read_stream()
        except ProviderError as error:
            await self._finish_message(MessageError(type(error).__name__, error.message, error.status))
            raise
        except asyncio.CancelledError:
            await asyncio.shield(self._finish_message(MessageError("aborted", "the answer was cut off on request")))
            raise
        try:
            await self._finish_message(None)
        except asyncio.CancelledError:
            await asyncio.shield(self._cancel_calls())
            raise
        return self.message

    async def _read_stream(self) -> None:
        unpublished = _UNPUBLISHED if self._request.stream else _UNPUBLISHED_WITHOUT_STREAM
        async with aclosing(self._run.client_for(self._context.agent).stream(self._request)) as deltas:
            async for delta in deltas:
                self._assembler.add(delta)
                if type(delta) not in unpublished:
                    await self._publish_delta(delta)

    async def _cancel_calls(self) -> None:
        """Fail the calls of a complete answer, so that they do not run now or when the session is reopened."""
        self._fail_pending_calls(self._run.clock())
        await self._context.journal.put_message(self.message)

    @property
    def turns(self) -> int:
        """The number of model requests for this answer: more than one if an agent in another process answered."""
        return self._assembler.turns

    @property
    def cost(self) -> Decimal | None:
        """The cost that the response reports, or else the cost by the model's price."""
        if self._assembler.cost is not None:
            return self._assembler.cost
        return self._run.pricing.cost(self._context.agent, self._assembler.model, self._assembler.tokens)

    async def _publish_delta(self, delta: Delta) -> None:
        match delta:
            case TextDelta(index, text):
                self._publish_text(index, text, "text")
            case ReasoningDelta(index, text):
                self._publish_text(index, text, "reasoning")
            case InputDelta(index, text):
                self._publish_input(index, text)
            case PartStart(index, kind="tool"):
                self._run.bus.publish(self._context.make_event(PartUpdatedEvent, part=self._adopted_part(index)))
            case Retry():
                await self._record_retry(delta)
            case RemoteEvent(event):
                self._run.bus.publish(self._context.localize_event(event, self.message.id))
            case PartEnd(index):
                self._store_part(self._assembler.get_part(index))
                if self._request.stream:
                    self._context.journal.flush_soon()
            case _:
                pass

    def _publish_text(self, index: int, text: str, field: str) -> None:
        if self._first_token is None:
            self._first_token = monotonic()
        part_id = self._assembler.part_id(index)
        event = PartDeltaEvent(
            message_id=self.message.id,
            part_id=part_id,
            delta=text,
            field=field,
            session_id=self._context.session.id,
            agent_name=self._context.agent.name,
            parent_call_id=self._context.call_id,
        )
        self._context.journal.publish_delta(event, lambda: self._adopted_part(index))

    def _publish_input(self, index: int, text: str) -> None:
        event = ToolInputDeltaEvent(
            message_id=self.message.id,
            part_id=self._assembler.part_id(index),
            delta=text,
            session_id=self._context.session.id,
            agent_name=self._context.agent.name,
            parent_call_id=self._context.call_id,
        )
        self._context.journal.publish_delta(event, lambda: self._adopted_part(index))

    async def _record_retry(self, retry: Retry) -> None:
        fields = {name: getattr(retry, name) for name in ("attempt", "delay_ms", "error", "max_attempts")}
        self._run.bus.publish(self._context.make_event(RetryScheduledEvent, call_id=self._id, **fields))
        part = RetryPart(retry.attempt, retry.error, RetryTime(self._run.clock()))
        await self._context.journal.put_part(part, self.message)

    async def _finish_message(self, error: MessageError | None) -> None:
        """Store all parts, including incomplete ones, and the usage of the answer."""
        journal, now, message = self._context.journal, self._run.clock(), self.message
        for part in self._assembler.list_parts(exclude_ids=self._stored_parts):
            self._store_part(part)
        if error is not None or self._assembler.finish not in _COMPLETE_FINISHES:
            self._fail_pending_calls(now)
        message.tokens, message.cost = self._assembler.tokens, self.cost
        message.finish = None if error else (self._assembler.finish or "other")
        message.error = error
        if self._assembler.paused:
            message.metadata[PAUSED] = True
        message.time = MessageTime(message.time.created if message.time else now, now)
        reason = error.type if error else message.finish or "other"
        journal.put_part_soon(StepFinishPart(reason, cost=message.cost, tokens=message.tokens), message)
        if message.finish == "tool_use" and has_pending_calls(message):
            # No wait for the disk here: the journal writes it together with the first call, before that runs.
            journal.put_message_soon(message)
        else:
            await journal.put_message(message)
        self._publish_response()

    def _store_part(self, part: AnswerPart) -> None:
        self._stored_parts.add(part.id)
        self._context.journal.put_part_soon(part, self.message)

    def _fail_pending_calls(self, now: int) -> None:
        """Fail the calls of a truncated answer without running them: the input of the last one can be valid JSON and
        still be incomplete. The state changes in memory at once, also if the store cannot be written now."""
        for call in self.message.get_parts_by_type(ToolPart):
            if isinstance(call.state, ToolPending):
                ended = call.state.fail(_TRUNCATED_ANSWER, now, reason="canceled")
                self._context.journal.put_part_soon(call.with_state(ended), self.message)

    def _publish_response(self) -> None:
        tokens, message = self.message.tokens, self.message
        self._publish_event(
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

    def _publish_event(self, event: type[LLMRequestEvent] | type[LLMResponseEvent], **fields: object) -> None:
        agent = self._context.agent
        self._context.emit_event(event, call_id=self._id, model=agent.model, provider=agent.provider, **fields)

    def _adopted_part(self, index: int) -> AnswerPart:
        part = self._assembler.get_part(index)
        part.adopt(self.message.id, self._context.session.id)
        return part

    def _new_message(self) -> Message:
        agent, session = self._context.agent, self._context.session
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
            time=MessageTime(self._run.clock()),
        )
