"""System prompts of agents, built from Markdown files in this folder that users can override."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from outrider.types.agents import Agent, Mode
from outrider.types.modes import APPROVAL_DESCRIPTIONS, UNATTENDED_MODES, ApprovalLevel


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
_NOTES_OF_0_1 = "Today is "  # the beginning of the notes in all sessions that version 0.1 stored
_AGENT, _LOCAL_AGENT, _PLAN = "agent", "local_agent", "plan_mode"


def system_prompt(
    agent: Agent,
    colleagues: Iterable[Agent],
    mode: Mode = "agent",
    *,
    notes: str = "",
    prompts: Mapping[str, str] = _NO_OVERRIDES,
    rights: Mapping[str, str] | None = None,
) -> str:
    """Returns the system prompt. It is byte-identical as long as agents and mode are equal, so that caches hit.

    `rights` are the fields of the text about the mode, for sessions with built-in tools. A session of version 0.1 keeps
    the prompts that it started with."""
    if notes.startswith(_NOTES_OF_0_1):
        agent, prompts, rights = _agent_of_0_1(agent), {_PLAN: prompt_text("plan_mode_0_1"), **prompts}, None
    paragraphs = [agent.fixed_instructions.strip(), _mode_text(agent, mode, prompts, rights), notes]
    if agent_lines := "\n".join(f"- {colleague.name}: {role_of(colleague)}" for colleague in colleagues):
        paragraphs.append(render_prompt("colleagues", prompts, name=agent.name, agents=agent_lines))
    if mode == "plan":
        paragraphs.append(render_prompt(_PLAN, prompts))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _mode_text(agent: Agent, mode: Mode, prompts: Mapping[str, str], rights: Mapping[str, str] | None) -> str:
    """Returns what the agent may do in its mode. Small local models get no further text."""
    if rights is None or mode == "plan" or agent.fixed_instructions == prompt_text(_LOCAL_AGENT):
        return ""
    fields = (
        {**rights, "attended": rights.get("unattended", rights["attended"])} if mode in UNATTENDED_MODES else rights
    )
    return render_prompt(f"{mode}_mode", prompts, **fields)


def describe_mode_change(
    agent: Agent,
    mode: Mode,
    *,
    notes: str = "",
    prompts: Mapping[str, str] = _NO_OVERRIDES,
    rights: Mapping[str, str] | None = None,
) -> str:
    """Returns the note to the model after a change of mode, with the text that a session has if it starts in this
    mode."""
    if notes.startswith(_NOTES_OF_0_1):
        prompts, rights = {_PLAN: prompt_text("plan_mode_0_1"), **prompts}, None
    if mode == "plan":
        text = render_prompt(_PLAN, prompts)
    elif mode == "chat":
        text = render_prompt("chat_mode", prompts)
    else:
        text = _mode_text(agent, mode, prompts, rights) or f"Mode: {mode}. You can use all of your tools."
    return f"The mode of this session has changed; what was said about it before no longer applies. {text}"


def describe_level_change(level: ApprovalLevel) -> str:
    """Returns the note to the model after a change of the approval level."""
    return f"The approval level is now {level}. Agent mode asks about: {APPROVAL_DESCRIPTIONS[level]}."


def describe_model_change(model: str) -> str:
    """Returns the note to a model that continues the conversation of another model."""
    return f"From here on the model is {model}. Another model wrote earlier answers."


def _agent_of_0_1(agent: Agent) -> Agent:
    if agent.fixed_instructions.strip() != prompt_text(_AGENT):
        return agent
    return replace(agent, instructions=prompt_text("agent_0_1"))


def role_of(agent: Agent) -> str:
    """Returns the description that other agents see: the role, or the first line of the instructions."""
    lines = (line.strip() for line in agent.fixed_instructions.splitlines())
    return agent.role or next((line for line in lines if line), "an agent")
