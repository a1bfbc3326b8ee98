"""Compaction of a seat's context: a summary by the same model takes the place of old messages; nothing is deleted."""

from collections.abc import Sequence
from contextlib import aclosing

from msgspec.structs import replace

from outrider.agents.budget import Reservation
from outrider.agents.run_context import AgentContext, RunContext
from outrider.context.compaction import (
    TAIL,
    characters,
    estimated_tokens,
    is_full,
    pinned,
    since_last_compaction,
    tail_start,
)
from outrider.context.lower import lower
from outrider.context.prompts import words
from outrider.errors import ContextOverflowError, ProviderError
from outrider.providers.assembler import Assembler
from outrider.types.agents import Agent
from outrider.types.events import ContextCompactionEvent
from outrider.types.messages import Message, text_message
from outrider.types.parts import CompactionPart, ModelRef, ToolPart
from outrider.types.request import Allowance, ModelSettings, Request, ToolChoice
from outrider.types.tool_state import ToolCompleted

TOOLS_OVERHEAD = 100  # tokens a tool, roughly, before the first count of the provider


def build_request(seat: AgentContext, crew: RunContext) -> tuple[Request, Reservation]:
    agent = seat.agent
    reserved = _reserved(seat, crew)
    request = Request(
        agent.model,
        seat.projection.prompt(seat.session.messages),
        seat.system or None,
        seat.specs,
        settings_of(agent, seat, reserved.max_output_tokens if _is_bounded(crew) else agent.max_output_tokens),
        stream=agent.stream,
        conversation=seat.session.id,
        workspace=str(seat.workspace),
        allowance=lambda: _allowance(seat, crew, reserved),
    )
    return request, reserved


def _allowance(seat: AgentContext, crew: RunContext, reserved: Reservation) -> Allowance:
    left = crew.budget.left(seat.depth, reserved)
    return Allowance(mode=seat.effective_mode, ask=seat.ask, deny=seat.deny, **left)


def prompt_tokens(seat: AgentContext, history: Sequence[Message] | None = None) -> int:
    """Of the seat's prompt now, or as it would be with this history."""
    overhead = characters(seat.system) + TOOLS_OVERHEAD * len(seat.specs)
    return estimated_tokens(seat.session.messages if history is None else history, overhead=overhead)


def settings_of(agent: Agent, seat: AgentContext, max_output_tokens: int | None) -> ModelSettings:
    return ModelSettings(
        max_output_tokens=max_output_tokens,
        reasoning=agent.reasoning,
        reasoning_effort=agent.reasoning_effort,
        reasoning_budget=agent.reasoning_budget,
        temperature=agent.temperature,
        output=seat.output,
        extra=agent.extra,
    )


def _reserved(seat: AgentContext, crew: RunContext) -> Reservation:
    """The size of a prompt, and what a model costs and can write, is found out where a limit asks for it."""
    agent = seat.agent
    if not _is_bounded(crew):
        return crew.budget.reserve(0, agent.max_output_tokens, None)
    return crew.budget.reserve(prompt_tokens(seat), _largest_answer(agent, crew), crew.tariff.price(agent))


def _is_bounded(crew: RunContext) -> bool:
    return crew.budget.limits.cost is not None or crew.budget.limits.tokens is not None


def _largest_answer(agent: Agent, crew: RunContext) -> int | None:
    return agent.max_output_tokens or crew.tariff.output_limit(agent)


FITS_EVERYWHERE = 2_000  # tokens; less than any model's context, so that none has to be looked up
SHORTENED = 600  # characters of a tool's output that a summary of an overflowing context still sees


class Compactor:
    def __init__(self, seat: AgentContext, crew: RunContext) -> None:
        self._seat = seat
        self._crew = crew

    def due(self) -> bool:
        tariff, agent, tokens = self._crew.tariff, self._seat.agent, prompt_tokens(self._seat)
        if tokens < FITS_EVERYWHERE or not self._crew.compacts:
            return False
        return is_full(tokens, tariff.context_limit(agent), tariff.output_limit(agent))

    def possible(self, *, auto: bool = True) -> bool:
        """Whether there is anything that a summary could stand for."""
        return self._tail_start(auto=auto) > since_last_compaction(self._seat.session.messages)

    async def compact(self, *, auto: bool = True, overflow: bool = False) -> CompactionPart:
        """Summarise all but the tail. Raises ContextOverflowError when that would not make the prompt smaller."""
        history = self._seat.session.messages
        before = prompt_tokens(self._seat)
        start = self._tail_start(auto=auto)
        if not self.possible(auto=auto):
            raise ContextOverflowError("the context is full, and the last messages alone fill it")
        answer = await self._summary(history[:start], overflow=overflow)
        part = CompactionPart(
            auto=auto,
            overflow=overflow,
            summary=pinned(answer.get_text_content().strip(), history, start),
            tail_start_id=history[start].id if start < len(history) else None,
            tokens_before=before,
        )
        after = prompt_tokens(self._seat, [*history, Message("user", [part])])
        part = replace(part, tokens_after=after, message_id="")
        await self._seat.journal.add_message(self._message(part, answer))
        self._seat.tell(ContextCompactionEvent, tokens_before=before, tokens_after=after, messages_removed=start)
        return part

    def _message(self, part: CompactionPart, answer: Message) -> Message:
        """It stands where the user's words were, and carries what it cost to find them."""
        agent = self._seat.agent
        model = ModelRef(agent.provider, agent.model)
        return Message("user", [part], agent=agent.name, model=model, tokens=answer.tokens, cost=answer.cost)

    def _tail_start(self, *, auto: bool) -> int:
        """Who asks for it wants all but the last turn summarised."""
        limit = self._crew.tariff.context_limit(self._seat.agent)
        return tail_start(self._seat.session.messages, limit, share=TAIL if auto else 0)

    async def _summary(self, old: list[Message], *, overflow: bool) -> Message:
        request, reserved = build_request(self._seat, self._crew)
        client = self._crew.client(self._seat.agent)
        history = [_shortened(message) for message in old] if overflow else old
        prompt = lower(
            [*history, text_message("user", words("compaction", self._crew.prompts))],
            family=client.family(request.model),
        )
        settings = replace(request.settings, tool_choice=ToolChoice("none"), output=None)
        assembler = Assembler(client.family(request.model))
        try:
            ask = Request(request.model, prompt, request.system, request.tools, settings, request.stream)
            async with aclosing(client.stream(ask)) as deltas:
                async for delta in deltas:
                    assembler.add(delta)
        finally:
            cost = self._crew.tariff.cost(self._seat.agent, assembler.model, assembler.tokens)
            self._crew.budget.settle(reserved, assembler.tokens, cost)
        answer = assembler.answer(cost).message
        if not answer.get_text_content().strip():
            raise ProviderError("the model gave no summary of the conversation")
        return answer


def _shortened(message: Message) -> Message:
    """The message with long outputs cut: an overflowing context must fit once more to be summarised."""
    parts = [_shortened_call(part) if isinstance(part, ToolPart) else part for part in message.parts]
    return replace(message, parts=parts)


def _shortened_call(part: ToolPart) -> ToolPart:
    state = part.state
    if not isinstance(state, ToolCompleted) or len(state.output) <= SHORTENED:
        return part
    return replace(part, state=replace(state, output=f"{state.output[:SHORTENED]}…", attachments=()))
