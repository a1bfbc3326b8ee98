"""The system prompt of an agent: its own instructions first, then what it needs to know of the others."""

from collections.abc import Iterable

from outrider.context.prompts import prompt_text
from outrider.types.agents import Agent


def system_prompt(agent: Agent, others: Iterable[Agent]) -> str:
    """Byte-identical as long as the agents are: nothing in it changes from turn to turn."""
    listed = "\n".join(f"- {other.name}: {_role(other)}" for other in others)
    if not listed:
        return agent.instructions.strip()
    colleagues = prompt_text("colleagues").format(name=agent.name, agents=listed)
    return f"{agent.instructions.strip()}\n\n{colleagues}".strip()


def _role(agent: Agent) -> str:
    """What others are told: the agent's role, else the first line of its instructions."""
    return agent.role or next((line.strip() for line in agent.instructions.splitlines() if line.strip()), "an agent")
