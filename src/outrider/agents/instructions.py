"""What can change between turns of a session and is part of the prompt: instructions that a function of the program
writes, and the settings of the session (mode, approval level, model).

The system prompt and the tools are those of the first turn. A later change is described by a text that is added to the
input of its turn, at the end of the conversation, so that the provider's cached prefix stays valid. Texts and settings
are stored with the input, and used again when a turn or a session resumes. A session without stored settings was
created by an earlier version: its prompt follows its current mode, as it did in that version.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from outrider._lazy import lazy_pattern
from outrider.agents.run_context import AgentContext, RunContext
from outrider.agents.turn_state import is_note
from outrider.context.lower import has_compaction
from outrider.context.prompts import (
    describe_level_change,
    describe_mode_change,
    describe_model_change,
    system_prompt,
)
from outrider.errors import CallbackError
from outrider.permissions.modes import MODE_TABLE
from outrider.sessions.session import Session
from outrider.tools.tool import Tool
from outrider.types.agents import Agent, Mode
from outrider.types.messages import INSTRUCTIONS, Message
from outrider.types.modes import ApprovalLevel
from outrider.types.parts import AgentPart, TextPart, TextRange

_CHANGED = "Your instructions have changed. They are now:\n\n{text}"
_ADDITIONAL = "Additional instructions for this answer:\n\n{text}"


def additional_instructions(text: str) -> TextPart:
    """Returns the part of an input that has instructions for its turn only."""
    return TextPart(_ADDITIONAL.format(text=text.strip()), synthetic=True, metadata={INSTRUCTIONS: True})


_MENTION = lazy_pattern(r"(?<![\w.@/])@([\w-]+)")
SETTINGS = "settings"  # the metadata of an input whose turn starts a prompt, or reports a change to the model


class PromptSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that the prompt of an agent describes since an input. If `announced`, a text in the input describes
    them, which every agent of the session reads; else the agent's system prompt does."""

    agent: str
    mode: Mode
    approval: ApprovalLevel
    model: str
    announced: bool = False


def describe_input(
    message: Message,
    session: Session,
    agent: Agent,
    *,
    agents: Collection[str],
    tools: Mapping[str, Tool],
    run: Callable[[], RunContext],
) -> None:
    """Adds to a new input, before it is stored, the reasoning effort, the agents that it mentions, and the settings of
    the session. The settings are stored with the first input of an agent; later they are stored if they differ from
    what its prompt says, with a text that informs the model. `run` has the texts of the session's prompts."""
    message.variant = agent.reasoning_effort
    for mention in _find_mentions(message, agents):
        message.add_part(mention)
    if _note_settings(message, session, agent, run):
        message.tools = dict.fromkeys(tools_for_mode(agent, tools, session.mode), True)


def _find_mentions(message: Message, agents: Collection[str]) -> list[AgentPart]:
    """Returns the agents that the user mentions with an @."""
    texts = [part.text for part in message.get_parts_by_type(TextPart) if not part.synthetic and "@" in part.text]
    mentions = (match for text in texts for match in _MENTION.finditer(text) if match[1] in agents)
    return [AgentPart(match[1], TextRange(match[0], match.start(), match.end())) for match in mentions]


def _note_settings(message: Message, session: Session, agent: Agent, run: Callable[[], RunContext]) -> bool:
    """Adds the settings if no input of the agent has them yet, or if they have changed. Returns whether it did."""
    model = str(agent.model_ref)
    now = PromptSettings(agent=agent.name, mode=session.mode, approval=session.approval, model=model)
    all_settings = [settings for _, settings in _find_settings(session)]
    of_agent = [settings for settings in all_settings if settings.agent == agent.name]
    before = next(
        (settings for settings in reversed(all_settings) if settings.announced), of_agent[0] if of_agent else now
    )
    texts = _describe_changes(before, of_agent[-1].model if of_agent else model, now, agent, run)
    if texts or not of_agent:
        message.metadata[SETTINGS] = msgspec.to_builtins(msgspec.structs.replace(now, announced=bool(texts)))
    if texts:
        message.add_part(TextPart("\n".join(texts), synthetic=True, metadata={INSTRUCTIONS: True}))
        message.parts.insert(0, message.parts.pop())  # the user's text comes last
    return bool(texts) or not of_agent


def _describe_changes(
    before: PromptSettings, model: str, now: PromptSettings, agent: Agent, run: Callable[[], RunContext]
) -> list[str]:
    texts = list[str]()
    if before.mode != now.mode:
        prompts = run().prompts
        texts.append(
            describe_mode_change(agent, now.mode, notes=prompts.notes, prompts=prompts.overrides, rights=prompts.rights)
        )
    is_unexpected = before.mode != now.mode == "agent" and now.approval != "ask"  # the text about agent mode says: ask
    if before.approval != now.approval or is_unexpected:
        texts.append(describe_level_change(now.approval))
    if model != now.model:
        texts.append(describe_model_change(now.model))
    return texts


class _SettingsIndex:
    """The settings in the messages of a session, with their positions. Only new messages are read: a long session has
    many messages, and the settings of a stored message do not change."""

    def __init__(self, messages: list[Message]) -> None:
        self.entries: list[tuple[int, PromptSettings]] = []
        self._messages = messages
        self._read = 0
        self._last: Message | None = None

    def covers(self, messages: list[Message]) -> bool:
        if self._messages is not messages or len(messages) < self._read:
            return False
        return self._read == 0 or messages[self._read - 1] is self._last

    def read_new(self) -> None:
        for position in range(self._read, len(self._messages)):
            self._last = self._messages[position]
            if (value := self._last.metadata.get(SETTINGS)) is None:
                continue
            with suppress(msgspec.ValidationError):  # another program or version wrote it
                self.entries.append((position, msgspec.convert(value, PromptSettings)))
        self._read = len(self._messages)


def _find_settings(session: Session) -> list[tuple[int, PromptSettings]]:
    index = session.derived.get(SETTINGS)
    if not isinstance(index, _SettingsIndex) or not index.covers(session.messages):
        index = session.derived[SETTINGS] = _SettingsIndex(session.messages)
    index.read_new()
    return index.entries


def base_mode(agent: str, session: Session) -> Mode:
    """Returns the mode that the system prompt of an agent describes: the mode of its first turn, or the mode at the
    last compaction, which starts a new prefix. For sessions of earlier versions it is the current mode."""
    settings_by_position, compacted = _find_settings(session), _last_compaction(session.messages)
    for position, settings in reversed(settings_by_position):
        if position < compacted and (settings.announced or settings.agent == agent):
            return settings.mode
    later = (
        settings for position, settings in settings_by_position if position >= compacted and settings.agent == agent
    )
    first = next(later, None)
    return first.mode if first is not None else session.mode


def widest_mode(agent: str, session: Session) -> Mode:
    """Returns the mode whose tools are sent to the model: of all modes that its prompts described, the one with the
    most rights. Calls of tools that the current mode does not have are denied."""
    modes: list[Mode] = [
        settings.mode for _, settings in _find_settings(session) if settings.announced or settings.agent == agent
    ]
    return max(modes, key=lambda mode: MODE_TABLE[mode].rank) if modes else session.mode


def tools_for_mode(agent: Agent, tools: Mapping[str, Tool], mode: Mode) -> dict[str, Tool]:
    """Returns the tools that an agent has in a mode: none in chat mode, and in plan mode only those that are read-only
    or checked by the gate."""
    named = agent.tools
    allowed = dict(tools) if named is None else {name: tool for name, tool in tools.items() if name in named}
    match MODE_TABLE[mode].tools:
        case "none":
            return {}
        case "read-only":
            return {name: tool for name, tool in allowed.items() if tool.read_only or tool.options.plan}
        case "all":
            return allowed


def build_system_prompt(agent: Agent, session: Session, run: RunContext) -> str:
    """Returns the system prompt of an agent without the instructions that a function writes."""
    mode = base_mode(agent.name, session)
    other_agents = [other for other in run.agents.values() if other.name != agent.name and mode != "chat"]
    return system_prompt(
        agent, other_agents, mode, notes=run.prompts.notes, prompts=run.prompts.overrides, rights=run.prompts.rights
    )


def renew_system_prompt(context: AgentContext) -> None:
    """Builds the system prompt again after a compaction, with the settings that are in effect now: the texts about
    changes may be among the summarized messages."""
    context.fixed_prompt = build_system_prompt(context.agent, context.session, context.run)
    _join_prompt(context)


def _join_prompt(context: AgentContext) -> None:
    first = "" if isinstance(context.agent.instructions, str) else _base_text(context.agent.name, context.session)
    context.system_prompt = "\n\n".join(text for text in (first.strip(), context.fixed_prompt) if text)


async def apply_instructions(context: AgentContext) -> None:
    """Calls the function that writes the instructions of this turn, or reads the instructions that were stored before
    the turn was interrupted, and builds the system prompt. Raises CallbackError if the function fails."""
    agent = context.agent
    if isinstance(agent.instructions, str):
        return
    message = next((m for m in reversed(context.session.messages) if m.role == "user" and not is_note(m)), None)
    stored = message.metadata.get(INSTRUCTIONS) if message is not None else None
    if message is not None and not (isinstance(stored, dict) and agent.name in stored):
        before = _texts_of(agent.name, context.session.messages)
        text = await _call_function(context)
        message.metadata[INSTRUCTIONS] = {**(stored or {}), agent.name: text}
        if before and before[-1] != text:
            part = TextPart(_CHANGED.format(text=text), synthetic=True, metadata={INSTRUCTIONS: True})
            await context.journal.put_part(part, message)
        await context.journal.put_message(message)
    _join_prompt(context)


async def _call_function(context: AgentContext) -> str:
    name = f"the instructions function of agent {context.agent.name!r}"
    function: Any = context.agent.instructions
    text = await context.run.program.callbacks.call(name, function, context.session_context())
    if not isinstance(text, str):
        raise CallbackError(name, f"returned a value of type {type(text).__name__}; it must return a string")
    return text


def _texts_of(agent: str, messages: Sequence[Message]) -> list[str]:
    values: list[Any] = [message.metadata.get(INSTRUCTIONS) for message in messages if message.role == "user"]
    return [texts[agent] for texts in values if isinstance(texts, dict) and agent in texts]


def _last_compaction(messages: Sequence[Message]) -> int:
    return next((position for position in range(len(messages) - 1, 0, -1) if has_compaction(messages[position])), 0)


def _base_text(agent: str, session: Session) -> str:
    """Returns the instructions for the system prompt: the first ones, or those at the last compaction, which starts a
    new prefix."""
    messages = session.messages
    before = _texts_of(agent, messages[: _last_compaction(messages)])
    return before[-1] if before else next(iter(_texts_of(agent, messages)), "")
