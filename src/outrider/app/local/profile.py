"""The agent that suits an embedded model: short instructions, few tools, whole files."""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from outrider.context.prompts import prompt_text
from outrider.types.agents import Agent, Provider

TOOLS: Final = ("list", "read", "grep", "write", "shell")


def local_profile(agent: Agent) -> Agent:
    """The agent with what fits a small model in place of what it leaves open. What the user has written stays."""
    standard = agent.instructions.strip() == prompt_text("agent").strip()
    return replace(
        agent,
        instructions=prompt_text("local_agent") if standard else agent.instructions,
        tools=TOOLS if agent.tools is None else agent.tools,
    )


def suited(agents: Iterable[Agent], providers: Iterable[Provider]) -> tuple[Agent, ...]:
    """All agents, those that think with an embedded model in the form that suits it."""
    local = {provider.name for provider in providers if provider.kind == "local"}
    return tuple(local_profile(agent) if agent.provider in local else agent for agent in agents)
