"""Plans: what a turn in plan mode ends in, until somebody accepts, changes or refuses it.

A plan is not kept anywhere by itself: it is the last answer of a session in plan mode, and an answer to it is an input
like any other, under an id that belongs to the plan. So both survive a restart, and the first answer is the only one.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from outrider.agents.turn_state import NOTE, is_cut_off, is_note
from outrider.context.prompts import words
from outrider.errors import OutriderError
from outrider.sessions.records import InboxItem
from outrider.sessions.session import Session
from outrider.types.messages import Message
from outrider.types.parts import CompactionPart, TextPart, ToolPart

Answer = Literal["accepted", "changed", "refused"]
ANSWER = "plan_answer"


class Plan(msgspec.Struct, frozen=True):
    """`id` is that of the message in which `agent` proposes it."""

    id: str
    text: str
    agent: str


def open_plan(session: Session) -> Plan | None:
    """The plan that waits for an answer. Whoever says something else instead goes on planning."""
    if session.mode != "plan":
        return None
    said = [message for message in session.messages if _is_said(message)]
    if not said or is_cut_off(said):
        return None
    last = said[-1]
    text = _last_word(last)
    if last.role != "assistant" or last.mode != "plan" or last.finish in ("length", "refusal") or not text.strip():
        return None
    return Plan(last.id, text, last.agent)


def answered(plan: Plan, answer: Answer, said: str, prompts: Mapping[str, str]) -> Message:
    """The answer as input for the session. Accepting brings agent mode along; a refusal without a word asks the model
    for nothing."""
    parts = [TextPart(words(f"plan_{answer}", prompts), synthetic=True)]
    if said.strip():
        parts.append(TextPart(said))
    message = Message("user", parts, metadata={ANSWER: answer}, mode="plan" if answer == "refused" else "agent")
    if answer == "refused" and not said.strip():
        message.metadata[NOTE] = True
    return message


def answer_id(plan: Plan) -> str:
    """One for all answers to a plan, so that only the first one is put."""
    return f"plan-{plan.id}"


def require_same(wanted: InboxItem, kept: InboxItem) -> None:
    """The first answer counts; whoever gave another one is told."""
    first = kept.message.metadata.get(ANSWER)
    if kept.message.id != wanted.message.id and first != wanted.message.metadata[ANSWER]:
        by = f" by {kept.sender}" if kept.sender else ""
        raise OutriderError(f"the plan was already {first}{by}", answer=first, by=kept.sender)


def _is_said(message: Message) -> bool:
    beside = is_note(message) or bool(message.get_parts_by_type(CompactionPart))
    return not beside or ANSWER in message.metadata


def _last_word(message: Message) -> str:
    finished = [
        call.state.input.get("message") for call in message.get_parts_by_type(ToolPart) if call.tool == "finish"
    ]
    return str(finished[-1]) if finished else message.get_text_content()
