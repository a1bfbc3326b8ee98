"""One model step: sends a request, publishes deltas as they arrive and stores each part of the answer."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from decimal import Decimal
from time import monotonic
from typing import assert_never

from msgspec import UNSET
from msgspec.structs import asdict, replace

from outrider._sync import run_to_end
from outrider.agents.compaction import build_request, estimate_failed_tokens
from outrider.agents.run_context import AgentContext, fallback_agent
from outrider.agents.turn_state import has_pending_calls
from outrider.context.lower import PAUSED, PromptProjection
from outrider.errors import CallbackError, ConfigurationError, LimitReachedError, ProviderError
from outrider.providers.provider import AnswerAssembler
from outrider.sessions.failpoints import failpoint
from outrider.types.agents import Agent
from outrider.types.events import (
    CacheMissEvent,
    LLMRequestEvent,
    LLMResponseEvent,
    ModelSilentEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    RetryScheduledEvent,
    ToolInputDeltaEvent,
)
from outrider.types.ids import new_id
from outrider.types.messages import Message, MessageError, MessagePath, MessageTime
from outrider.types.parts import (
    WITHDRAWN,
    AnswerPart,
    CacheMiss,
    FilePart,
    ModelRef,
    ReasoningPart,
    RetryPart,
    RetryTime,
    StepFinishPart,
    StepStartPart,
    TextPart,
    ToolPart,
    Usage,
)
from outrider.types.request import (
    AnswerStart,
    BodyLayout,
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
from outrider.types.tool_state import ToolPending

_COMPLETE_FINISHES = ("stop", "tool_use")
_UNPUBLISHED = frozenset({AnswerStart, UsageReport, Finish})  # they describe the whole answer, not a part of it
# Without streaming a call arrives complete, so its start and its input chunks need no event.
_UNPUBLISHED_WITHOUT_STREAM = _UNPUBLISHED | {PartStart, InputDelta}
# Deltas with content. The start of an answer or of hidden reasoning comes long before its first word.
_PACED = frozenset({TextDelta, ReasoningDelta, InputDelta, PartEnd, RemoteEvent})
_WITHDRAWN_CALL = "The answer ended early and was requested again. This call was not run."
_TOO_MANY_CALLS = (
    "This call was not run: one answer may contain at most {most} calls. Read the results of the first {most}, then "
    "request this one again if it is still needed."
)
_TRUNCATED_ANSWER = (
    "The answer ended early, so this call may be incomplete. It was not run. Repeat it if it is still needed."
)


class ModelStep:
    """Reads one streamed answer into a message. The message is part of the session from the start of the request.

    No call of the answer runs before its end, so a request that fails is sent again, by the client or with the next
    model of the agent's list. What was shown until then stays in the message, marked as withdrawn."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._run = context.run
        self._request, self._reservation = build_request(context, on_sent=self._record_request)
        self._assembler = AnswerAssembler(context.projection.family, context.run.clock)
        self._id = new_id()
        self._start = monotonic()
        self._first_token: float | None = None
        self._stored_parts: set[str] = set()
        self._withdrawn: Usage | None = None  # of failed attempts
        self._last_error = ""  # while the client waits to send the request again
        model = str(context.agent.model_ref)
        self._silence = context.silence
        self._silence.start(context.run.models.silence_seconds, model, self._report_silence)
        self.message = self._new_message()

    async def run(self) -> Message:
        """Returns the complete answer. Stores all received parts before it raises a provider error, a limit that allows
        no fallback model, or a cancellation."""
        try:
            return await self._run_request()
        finally:
            self._silence.stop()
            message = self.message
            self._run.budget.settle(self._reservation, message.tokens, message.cost, self._assembler.turns)
            del self._request  # it refers to this step; without the cycle the step is freed at once

    async def _run_request(self) -> Message:
        await self._context.wait_if_held()
        self._publish_event(
            LLMRequestEvent, message_count=len(self._request.prompt), has_tools=bool(self._request.tools)
        )
        self._context.journal.open_message(self.message)
        failpoint("FP-before-request")
        try:
            await self._read_answer()
        except (ProviderError, CallbackError, LimitReachedError, ConfigurationError) as error:
            status = error.status if isinstance(error, ProviderError) else None
            await self._finish_message(MessageError(type(error).__name__, error.message, status))
            raise
        except asyncio.CancelledError:
            await run_to_end(self._finish_message(MessageError("aborted", self._abort_reason())))
            raise
        try:
            await self._finish_message(None)
        except asyncio.CancelledError:
            await run_to_end(self._cancel_calls())
            raise
        return self.message

    async def _read_answer(self) -> None:
        """Reads the stream; on an outage, continues with the next model of the agent's list."""
        while True:
            try:
                return await self._read_stream()
            except ProviderError as error:
                fallback = fallback_agent(self._context, error)
                if fallback is None:
                    raise
                await self._fall_back(fallback, str(error))

    async def _read_stream(self) -> None:
        unpublished = _UNPUBLISHED if self._request.stream else _UNPUBLISHED_WITHOUT_STREAM
        async with aclosing(self._run.client_for(self._context.agent).stream(self._request)) as deltas:
            async for delta in deltas:
                self._assembler.add(delta)
                self._last_error = ""
                kind = type(delta)
                if kind in _PACED:
                    self._silence.restart()
                if kind not in unpublished:
                    await self._publish_delta(delta)

    async def _fall_back(self, agent: Agent, error: str) -> None:
        """Continues the step with another model. Its prompt is lowered again, since vendor state belongs to a
        family."""
        context, message = self._context, self.message
        failed = self._assembler
        failed.start_again(self._run.client_for(agent).model_family(agent.model))
        await self._record_retry(Retry(1, 0, error, 1), agent.model_ref)
        context.agent, context.projection = agent, PromptProjection(failed.family)
        message.model = agent.model_ref
        history = context.session.messages[:-1]
        self._run.budget.release(self._reservation)  # `run` adds what the failed requests used
        self._request, self._reservation = build_request(context, history, on_sent=self._record_request)

    def _record_request(self, body: bytes, layout: BodyLayout) -> None:
        """Stores what is needed to rebuild the body, in the first part of the step."""
        context, message = self._context, self.message
        record = context.request_recorder.record(body, layout, self._request, context.session.messages)
        start = message.parts[0]
        if isinstance(start, StepStartPart):
            context.journal.replace_open_part(replace(start, request=record), message)

    def _abort_reason(self) -> str:
        if self._last_error:
            return f"stopped before the request was sent again; the last error: {self._last_error}"
        return "the answer was cut off on request"

    async def _cancel_calls(self) -> None:
        """Fails the calls of a complete answer, so that they do not run now or when the session is reopened."""
        self._fail_pending_calls(self.message.get_calls(), self._run.clock(), _TRUNCATED_ANSWER)
        await self._context.journal.put_message(self.message)

    def _answer_cost(self) -> Decimal | None:
        """Returns the cost that the response reports, or else the cost by the model's price."""
        if self._assembler.cost is not None:
            return self._assembler.cost
        return self._run.models.pricing.cost(self._context.agent, self._assembler.model, self._assembler.tokens)

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
            case PartStart() | AnswerStart() | UsageReport() | Finish():
                pass
            case _:
                assert_never(delta)

    def _publish_text(self, index: int, text: str, field: str) -> None:
        if not text:
            return
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
        self._context.journal.publish_delta(event, self._draft_builder(index))

    def _publish_input(self, index: int, text: str) -> None:
        event = ToolInputDeltaEvent(
            message_id=self.message.id,
            tool_name=self._assembler.tool_name(index),
            part_id=self._assembler.part_id(index),
            delta=text,
            session_id=self._context.session.id,
            agent_name=self._context.agent.name,
            parent_call_id=self._context.call_id,
        )
        self._context.journal.publish_delta(event, self._draft_builder(index))

    async def _record_retry(self, retry: Retry, model: ModelRef | None = None) -> None:
        """Stores the parts of the failed attempt as withdrawn, and the attempt with its usage; then publishes it."""
        journal, now = self._context.journal, self._run.clock()
        usage = Usage() if retry.resumed else self._failed_usage()
        withdrawn = [_withdraw_part(part, now) for part in self._assembler.withdrawn]
        for part in withdrawn:
            self._store_part(part)
        tokens = usage.tokens if usage.tokens.total else None
        record = RetryPart(retry.attempt, retry.error, RetryTime(now), tokens, usage.total_cost, model)
        await journal.put_part(record, self.message)
        self._last_error = retry.error
        self._silence.wait_for_retry(retry.delay_ms / 1000)
        fields = {name: getattr(retry, name) for name in ("attempt", "delay_ms", "error", "max_attempts")}
        fields |= {"withdrawn": tuple(part.id for part in withdrawn), "model": str(model) if model else ""}
        self._run.bus.publish(self._context.make_event(RetryScheduledEvent, call_id=self._id, **fields))

    def _failed_usage(self) -> Usage:
        """Returns the usage of a failed attempt and adds it to that of the step."""
        assembler = self._assembler
        tokens = estimate_failed_tokens(self._context, assembler, self._context.session.messages[:-1])
        cost = assembler.withdrawn_cost
        if cost is None:
            cost = self._run.models.pricing.cost(self._context.agent, assembler.model, tokens)
        spent = self._withdrawn or Usage()
        self._withdrawn = Usage(spent.tokens + tokens, (spent.total_cost or 0) + (cost or Decimal(0)))
        return Usage(tokens, cost)

    async def _finish_message(self, error: MessageError | None) -> None:
        """Stores all parts, including incomplete ones, and the usage of the answer."""
        journal, now, message = self._context.journal, self._run.clock(), self.message
        for part in self._assembler.list_parts(exclude_ids=self._stored_parts):
            self._store_part(part)
        calls, max_calls = message.get_calls(), self._run.budget.limits.calls_per_answer
        if error is not None or self._assembler.finish not in _COMPLETE_FINISHES:
            self._fail_pending_calls(calls, now, _TRUNCATED_ANSWER)
        elif len(calls) > max_calls:
            self._fail_pending_calls(calls[max_calls:], now, _TOO_MANY_CALLS.format(most=max_calls))
        message.tokens, message.cost = self._assembler.tokens, self._answer_cost()
        if self._withdrawn is not None:
            self._add_withdrawn(message, self._withdrawn)
        message.finish = None if error else (self._assembler.finish or "other")
        message.error = error
        if self._assembler.paused:
            message.metadata[PAUSED] = True
        message.time = MessageTime(message.time.created if message.time else now, now)
        reason = error.type if error else message.finish or "other"
        miss = None if error else self._explain_cache_miss()
        finish = StepFinishPart(reason, journal.snapshot, message.cost, message.tokens, miss or UNSET)
        journal.put_part_soon(finish, message)
        if message.finish == "tool_use" and has_pending_calls(message):
            # No wait for the disk here: the journal writes it together with the first call, before that runs.
            journal.put_message_soon(message)
        else:
            await journal.put_message(message)
        self._publish_response(miss, has_calls=bool(calls))

    def _add_withdrawn(self, message: Message, withdrawn: Usage) -> None:
        """Adds the usage of failed attempts to that of the message."""
        if withdrawn.total_cost and (message.cost is not None or not message.tokens.total):
            message.cost = (message.cost or Decimal(0)) + withdrawn.total_cost
        message.tokens += withdrawn.tokens

    def _explain_cache_miss(self) -> CacheMiss | None:
        context = self._context
        miss = context.request_recorder.explain(self._assembler.tokens, context.session.messages)
        if miss is not None:
            context.emit_event(CacheMissEvent, call_id=self._id, model=str(self.message.model), **asdict(miss))
        return miss

    def _store_part(self, part: AnswerPart) -> None:
        self._stored_parts.add(part.id)
        self._context.journal.put_part_soon(part, self.message)

    def _fail_pending_calls(self, calls: list[ToolPart], now: int, message: str) -> None:
        """Fails calls without running them: those of a truncated answer, because the input of the last one can be valid
        JSON and still be incomplete, and those above the limit. The state changes in memory at once, also if the store
        cannot be written now."""
        for call in calls:
            if isinstance(call.state, ToolPending):
                ended = call.state.fail(message, now, reason="canceled")
                self._context.journal.put_part_soon(call.with_state(ended), self.message)

    def _report_silence(self, seconds: float) -> None:
        agent = self._context.agent
        self._context.emit_event(
            ModelSilentEvent, call_id=self._id, silent_ms=round(seconds * 1000), model=str(agent.model_ref)
        )

    def _publish_response(self, miss: CacheMiss | None, *, has_calls: bool) -> None:
        tokens, message = self.message.tokens, self.message
        self._publish_event(
            LLMResponseEvent,
            stop_reason=message.finish or (message.error.type if message.error else None),
            has_tool_use=has_calls,
            input_tokens=tokens.input,
            output_tokens=tokens.output,
            reasoning_tokens=tokens.reasoning,
            cache_read_tokens=tokens.cache.read,
            cache_write_tokens=tokens.cache.write,
            duration_ms=round((monotonic() - self._start) * 1000),
            first_token_ms=None if self._first_token is None else round((self._first_token - self._start) * 1000),
            cost=None if message.cost is None else str(message.cost),
            withdrawn_tokens=self._withdrawn.tokens.total if self._withdrawn else 0,
            cache_miss=miss.describe() if miss else "",
        )

    def _publish_event(self, event: type[LLMRequestEvent] | type[LLMResponseEvent], **fields: object) -> None:
        agent = self._context.agent
        fields["vendor"] = self._run.models.provider_names.get(agent.provider, "")
        self._context.emit_event(event, call_id=self._id, model=agent.model, provider=agent.provider, **fields)

    def _adopted_part(self, index: int) -> AnswerPart:
        return self._draft_builder(index)()

    def _draft_builder(self, index: int) -> Callable[[], AnswerPart]:
        build, message_id, session_id = self._assembler.part_builder(index), self.message.id, self._context.session.id

        def adopted_part() -> AnswerPart:
            part = build()
            part.adopt(message_id, session_id)
            return part

        return adopted_part

    def _new_message(self) -> Message:
        agent, session = self._context.agent, self._context.session
        directory = session.workspace_directory
        last_id = session.messages[-1].id if session.messages else None
        return Message(
            "assistant",
            [StepStartPart(self._context.journal.snapshot)],
            agent=agent.name,
            model=agent.model_ref,
            mode=session.mode,
            parent_id=last_id,
            path=MessagePath(directory, directory) if directory else None,
            time=MessageTime(self._run.clock()),
        )


def _withdraw_part(part: AnswerPart, now: int) -> AnswerPart:
    """Returns the part of a failed attempt as it is stored: no model and no tool sees it."""
    metadata = {**part.metadata, WITHDRAWN: True}
    match part:
        case TextPart():
            return replace(part, ignored=True, metadata=metadata)
        case ReasoningPart():
            return replace(part, metadata=metadata, provider_state={})
        case FilePart():
            return replace(part, metadata=metadata)
        case ToolPart(state=ToolPending() as state):
            return replace(part, state=state.fail(_WITHDRAWN_CALL, now, reason="canceled"), metadata=metadata)
        case ToolPart():
            return replace(part, metadata=metadata)
        case _:
            assert_never(part)
