"""The request of a seat: its prompt so far, its tools, its agent's settings, and the room that the budget gives it."""

from collections.abc import Sequence

from outrider.agents.crew import Crew, Seat
from outrider.agents.limits import Reservation
from outrider.context.budget import characters, estimated_tokens
from outrider.types.agents import Agent
from outrider.types.messages import Message
from outrider.types.request import Allowance, ModelSettings, Request

TOOLS_OVERHEAD = 100  # tokens a tool, roughly, before the first count of the provider


def build_request(seat: Seat, crew: Crew) -> tuple[Request, Reservation]:
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


def _allowance(seat: Seat, crew: Crew, reserved: Reservation) -> Allowance:
    left = crew.budget.left(seat.depth, reserved)
    return Allowance(mode=seat.effective_mode, ask=seat.ask, deny=seat.deny, **left)


def prompt_tokens(seat: Seat, history: Sequence[Message] | None = None) -> int:
    """Of the seat's prompt now, or as it would be with this history."""
    overhead = characters(seat.system) + TOOLS_OVERHEAD * len(seat.specs)
    return estimated_tokens(seat.session.messages if history is None else history, overhead=overhead)


def settings_of(agent: Agent, seat: Seat, max_output_tokens: int | None) -> ModelSettings:
    return ModelSettings(
        max_output_tokens=max_output_tokens,
        reasoning=agent.reasoning,
        reasoning_effort=agent.reasoning_effort,
        reasoning_budget=agent.reasoning_budget,
        temperature=agent.temperature,
        output=seat.output,
        extra=agent.extra,
    )


def _reserved(seat: Seat, crew: Crew) -> Reservation:
    """The size of a prompt, and what a model costs and can write, is found out where a limit asks for it."""
    agent = seat.agent
    if not _is_bounded(crew):
        return crew.budget.reserve(0, agent.max_output_tokens, None)
    return crew.budget.reserve(prompt_tokens(seat), _largest_answer(agent, crew), crew.tariff.price(agent))


def _is_bounded(crew: Crew) -> bool:
    return crew.budget.limits.cost is not None or crew.budget.limits.tokens is not None


def _largest_answer(agent: Agent, crew: Crew) -> int | None:
    return agent.max_output_tokens or crew.tariff.output_limit(agent)
