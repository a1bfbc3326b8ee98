"""Plans: the result of a turn in plan mode, until the user accepts, changes or refuses it.

A plan is not stored separately: it is the last answer of a session in plan mode that lists steps. The user's answer is
an input whose id is derived from the plan, so both survive a restart, and the store accepts only the first answer.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from outrider._lazy import lazy_pattern
from outrider.agents.turn_state import NOTE, is_cut_off, is_note
from outrider.context.prompts import render_prompt
from outrider.errors import OutriderError
from outrider.sessions.records import InboxItem
from outrider.sessions.session import Session
from outrider.types.messages import PLAN_ANSWER, Message
from outrider.types.parts import CompactionPart, TextPart

PlanAnswer = Literal["accepted", "changed", "refused"]


class ProposedPlan(msgspec.Struct, frozen=True):
    """A plan. `id` is the id of the message in which `agent` proposes it."""

    id: str
    text: str
    agent: str


def open_plan(session: Session) -> ProposedPlan | None:
    """Returns the unanswered plan of a session, or None. Any other input continues the planning and replaces it."""
    return find_open_plan(session.mode, session.messages)


def find_open_plan(mode: str, messages: Sequence[Message]) -> ProposedPlan | None:
    """Returns the unanswered plan at the end of a transcript, or None. The last messages of the transcript suffice."""
    if mode != "plan":
        return None
    conversation = [message for message in messages if _is_conversation(message)]
    if not conversation or is_cut_off(conversation):
        return None
    last_message = conversation[-1]
    text = _plan_text(last_message)
    if (
        last_message.role != "assistant"
        or last_message.mode != "plan"
        or last_message.finish in ("length", "refusal")
        or not has_steps(text)
    ):
        return None
    return ProposedPlan(last_message.id, text, last_message.agent)


_NUMBERED_STEP = lazy_pattern(r"^\s*(?:[-*+]\s+)?(?:\*\*)?(?:step\s+)?\d+[.):]\s+\S", re.MULTILINE | re.IGNORECASE)
_LISTED_STEP = lazy_pattern(r"^\s*[-*+]\s+\S", re.MULTILINE)
_PLAN_HEADING = lazy_pattern(r"^#{1,6}\s.*\b(?:plan|steps?|changes)\b", re.MULTILINE | re.IGNORECASE)


def has_steps(text: str) -> bool:
    """Returns whether an answer in plan mode is a plan: it numbers or lists its steps, or has a heading that says so.
    Greetings, questions and explanations are not; the user continues to talk about them."""
    return bool(_NUMBERED_STEP.search(text) or _PLAN_HEADING.search(text)) or len(_LISTED_STEP.findall(text)) > 1


def answer_message(plan: ProposedPlan, answer: PlanAnswer, text: str, prompts: Mapping[str, str]) -> Message:
    """Returns the answer as input for the session. Accepting switches to agent mode; a refusal without text starts no
    turn."""
    parts = [TextPart(render_prompt(f"plan_{answer}", prompts), synthetic=True)]
    if text.strip():
        parts.append(TextPart(text))
    message = Message("user", parts, metadata={PLAN_ANSWER: answer}, mode="plan" if answer == "refused" else "agent")
    if answer == "refused" and not text.strip():
        message.metadata[NOTE] = True
    return message


def answer_id(plan: ProposedPlan) -> str:
    """Returns the input id that all answers to a plan share, so that only the first one is stored."""
    return f"plan-{plan.id}"


def require_same_answer(new_item: InboxItem, stored: InboxItem) -> None:
    """Raises OutriderError if an earlier, different answer is stored."""
    first = stored.message.metadata.get(PLAN_ANSWER)
    if stored.message.id != new_item.message.id and first != new_item.message.metadata[PLAN_ANSWER]:
        author = f" by {stored.sender}" if stored.sender else ""
        raise OutriderError(f"the plan was already {first}{author}", answer=first, by=stored.sender)


def _is_conversation(message: Message) -> bool:
    is_side_message = is_note(message) or bool(message.get_parts_by_type(CompactionPart))
    return not is_side_message or PLAN_ANSWER in message.metadata


def _plan_text(message: Message) -> str:
    finished = [call.state.input.get("message") for call in message.get_calls() if call.tool == "finish"]
    return str(finished[-1]) if finished else message.join_text()
