"""Instructions that a function of the program writes: called once per turn, stored, and reused when a turn resumes.

The text of the first turn is part of the system prompt. A text that changed later is added to the input of its turn,
behind the conversation, so that the provider's cached prefix stays valid.
"""

from collections.abc import Sequence
from typing import Any

from outrider.agents.run_context import AgentContext
from outrider.agents.turn_state import is_note
from outrider.errors import CallbackError
from outrider.types.messages import INSTRUCTIONS, Message
from outrider.types.parts import CompactionPart, TextPart

_CHANGED = "Your instructions have changed. They are now:\n\n{text}"
_ADDITIONAL = "Additional instructions for this answer:\n\n{text}"


def additional_instructions(text: str) -> TextPart:
    """Return the part of an input that has instructions for its turn only."""
    return TextPart(_ADDITIONAL.format(text=text.strip()), synthetic=True, metadata={INSTRUCTIONS: True})


async def apply_instructions(context: AgentContext) -> None:
    """Write the instructions of this turn, or read those that were stored before the turn was interrupted, and build
    the system prompt. Raises CallbackError if the function fails."""
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
    first = _base_text(agent.name, context.session.messages)
    context.system_prompt = "\n\n".join(text for text in (first.strip(), context.fixed_prompt) if text)


async def _call_function(context: AgentContext) -> str:
    name = f"the instructions function of agent {context.agent.name!r}"
    function: Any = context.agent.instructions
    text = await context.run.callbacks.call(name, function, context.session_context())
    if not isinstance(text, str):
        raise CallbackError(name, f"returned a value of type {type(text).__name__}; it returns a text")
    return text


def _texts_of(agent: str, messages: Sequence[Message]) -> list[str]:
    found: list[Any] = [message.metadata.get(INSTRUCTIONS) for message in messages if message.role == "user"]
    return [texts[agent] for texts in found if isinstance(texts, dict) and agent in texts]


def _base_text(agent: str, messages: Sequence[Message]) -> str:
    """Return the text for the system prompt: the first one, or that at the last compaction, which starts a new
    prefix."""
    compacted = max(
        (at for at, m in enumerate(messages) if any(part.summary for part in m.get_parts_by_type(CompactionPart))),
        default=0,
    )
    before = _texts_of(agent, messages[:compacted])
    return before[-1] if before else next(iter(_texts_of(agent, messages)), "")
