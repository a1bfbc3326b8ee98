"""A stored session as it is to be run again: what the user said and when, and the sessions that its agents opened."""

from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import replace

from outrider.agents.ends import is_cut_off
from outrider.app.below.asides import is_aside
from outrider.app.replay.steps import steps_of
from outrider.sessions.journal import session_from
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import SessionFilter
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.sessions.transfer.exports import import_session
from outrider.types.agents import Agent
from outrider.types.messages import Message
from outrider.types.parts import CompactionPart


class Input(msgspec.Struct, frozen=True):
    """Messages of the user that came together, after so many steps. What `steers` came in the middle of a turn; what
    has no `answer` asked for none. A wish to compact has no messages: its answer is the summary."""

    messages: list[Message]
    after: int
    steers: bool = False
    answer: Message | None = None

    @property
    def compacts(self) -> bool:
        return not self.messages

    def copies(self) -> list[Message]:
        return [copied(message) for message in self.messages]


def copied(message: Message) -> Message:
    return Message.from_dict(message.to_dict())


def is_input(message: Message) -> bool:
    """Whether somebody said it: compactions are the program's own doing."""
    return message.role == "user" and not message.get_parts_by_type(CompactionPart)


def inputs_of(messages: Sequence[Message], start: int = 0) -> list[Input]:
    """From message number `start` on."""
    found: list[Input] = []
    for place, message in enumerate(messages[start:], start):
        before = messages[place - 1] if place else None
        if any(not part.auto for part in message.get_parts_by_type(CompactionPart)):
            found.append(Input([], len(steps_of(messages[:place])), answer=message))
        elif is_input(message) and found and before is not None and before in found[-1].messages:
            found[-1].messages.append(message)
        elif is_input(message):
            answer = _answer(messages[place:])
            found.append(Input([message], len(steps_of(messages[:place])), _is_midway(messages[:place]), answer))
    return found


def _answer(messages: Sequence[Message]) -> Message | None:
    """What follows the input and all that came with it."""
    return next((message for message in messages if message.role == "assistant"), None)


def _is_midway(before: Sequence[Message]) -> bool:
    """Whether a turn was under way: results waited to be read, and nothing had broken off."""
    answers = steps_of(before)
    return bool(answers) and answers[-1].error is None and is_cut_off(before) and before[-1].role == "assistant"


def shared_messages(session: Session) -> int:
    """How many messages a fork has in common with what it was forked from."""
    point = session.forked_from
    places = [place for place, one in enumerate(session.messages, 1) if point and one.id == point.message_id]
    return places[0] if places else 0


def with_its_model(agent: Agent, answer: Message | None, providers: Collection[str]) -> Agent:
    """The agent with the model that gave this answer, where its provider is known: one may have been chosen then."""
    if answer is None or answer.model is None or answer.model.provider not in providers:
        return agent
    return replace(agent, provider=answer.model.provider, model=answer.model.model)


async def load(store: Store, session_id: str) -> Session:
    transcript = await store.load(session_id)
    return session_from(transcript.session, transcript.messages)


async def exported(document: bytes) -> Session:
    """The session of an export, without a store."""
    store = MemoryStore()
    return await load(store, (await import_session(store, document)).sessions[0].id)


async def descendants(store: Store, session_id: str) -> list[Session]:
    """The sessions that agents opened below this one, those opened first at the front."""
    found: list[Session] = []
    after: str | None = None
    while True:
        page = await store.list(SessionFilter(parent_id=session_id), limit=200, after=after)
        found += [await load(store, child.id) for child in page.sessions if not is_aside(child.agent)]
        after = page.next
        if after is None:
            break
    found.sort(key=lambda session: session.id)
    return [session for child in found for session in (child, *await descendants(store, child.id))]
