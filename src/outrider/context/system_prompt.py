"""The system prompt of an agent: its own instructions first, then its place, the others, and what its mode expects."""

from collections.abc import Iterable, Mapping

from outrider.context.prompts import words
from outrider.types.agents import Agent, Mode

_OURS: Mapping[str, str] = {}


def system_prompt(
    agent: Agent,
    others: Iterable[Agent],
    mode: Mode = "agent",
    *,
    notes: str = "",
    prompts: Mapping[str, str] = _OURS,
) -> str:
    """Byte-identical as long as the agents and the mode are: nothing in it changes from turn to turn."""
    paragraphs = [agent.instructions.strip(), notes]
    if listed := "\n".join(f"- {other.name}: {role_of(other)}" for other in others):
        paragraphs.append(words("colleagues", prompts, name=agent.name, agents=listed))
    if mode == "plan":
        paragraphs.append(words("plan_mode", prompts))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def role_of(agent: Agent) -> str:
    """What others are told: the agent's role, else the first line of its instructions."""
    return agent.role or next((line.strip() for line in agent.instructions.splitlines() if line.strip()), "an agent")
