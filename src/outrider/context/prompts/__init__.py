"""System prompts of agents, built from Markdown files in this folder that users can override."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from outrider.types.agents import Agent, Mode


@cache
def prompt_text(name: str) -> str:
    """Returns the text of `NAME.md` in this folder."""
    return Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8").strip()


def render_prompt(name: str, prompts: Mapping[str, str], /, **fields: str) -> str:
    """Returns the user's version of a prompt, or the default one, with every `{field}` replaced."""
    text = prompts.get(name) or prompt_text(name)
    for field, value in fields.items():
        text = text.replace("{" + field + "}", value)
    return text


_NO_OVERRIDES: Mapping[str, str] = {}


def system_prompt(
    agent: Agent,
    others: Iterable[Agent],
    mode: Mode = "agent",
    *,
    notes: str = "",
    prompts: Mapping[str, str] = _NO_OVERRIDES,
) -> str:
    """Returns the system prompt. It is byte-identical as long as agents and mode are equal, so that caches hit."""
    paragraphs = [agent.instructions.strip(), notes]
    if listed := "\n".join(f"- {other.name}: {role_of(other)}" for other in others):
        paragraphs.append(render_prompt("colleagues", prompts, name=agent.name, agents=listed))
    if mode == "plan":
        paragraphs.append(render_prompt("plan_mode", prompts))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def role_of(agent: Agent) -> str:
    """Returns the description that other agents see: the role, or the first line of the instructions."""
    return agent.role or next((line.strip() for line in agent.instructions.splitlines() if line.strip()), "an agent")
