"""A stored session as it is to be run again: what the user said and when, and the sessions that its agents opened."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Literal

import msgspec
from msgspec.structs import replace

from outrider.agents.turn_state import is_cut_off
from outrider.engine.child_sessions import is_aside
from outrider.sessions.export import import_session
from outrider.sessions.journal import session_from
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import SessionFilter
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.types.agents import Agent
from outrider.types.messages import Message
from outrider.types.parts import CompactionPart, ReasoningPart, ToolPart, tool_result

_SHOWN = 160


class RequestDiffers(msgspec.Struct, frozen=True, tag_field="kind", tag="request"):
    """The model was asked something else; `where` names the first difference."""

    where: str

    def words(self) -> str:
        return f"request: {self.where}"


class AnswerDiffers(msgspec.Struct, frozen=True, tag_field="kind", tag="answer"):
    """The same bytes were read otherwise, or another answer came. `of` is what of it differs."""

    of: Literal["text", "reasoning", "finish", "error"]
    recorded: str
    now: str

    def words(self) -> str:
        return f"answer: {self.of}: recorded {shown(self.recorded)}, now {shown(self.now)}"


class CallsDiffer(msgspec.Struct, frozen=True, tag_field="kind", tag="calls"):
    """Other tools were called, or with other input; each call as `tool(input)`."""

    recorded: tuple[str, ...]
    now: tuple[str, ...]

    def words(self) -> str:
        return f"calls: recorded {shown(', '.join(self.recorded))}, now {shown(', '.join(self.now))}"


class ResultDiffers(msgspec.Struct, frozen=True, tag_field="kind", tag="result"):
    """The same call ended otherwise."""

    call_id: str
    tool: str
    recorded: str
    now: str

    def words(self) -> str:
        return f"result of {self.tool}: recorded {shown(self.recorded)}, now {shown(self.now)}"


class StepDiffers(msgspec.Struct, frozen=True, tag_field="kind", tag="step"):
    """The step is in one of the two only."""

    only: Literal["recorded", "now"]

    def words(self) -> str:
        return "the step was recorded, and not made again" if self.only == "recorded" else "the step is new"


Difference = RequestDiffers | AnswerDiffers | CallsDiffer | ResultDiffers | StepDiffers


class ReplayedStep(msgspec.Struct, frozen=True):
    """One answer of a model and its calls. `session_id` is the recorded session's: agents that were called have
    sessions of their own."""

    number: int
    agent: str
    session_id: str
    differences: tuple[Difference, ...] = ()


class Replay(msgspec.Struct, frozen=True):
    """A session beside itself, run again. `given` steps came before a fork and were not run. `unplayed` are recorded
    exchanges that nobody asked for."""

    recorded: Session
    session: Session
    steps: tuple[ReplayedStep, ...]
    given: int = 0
    unplayed: int = 0

    @property
    def differences(self) -> list[Difference]:
        return [difference for step in self.steps for difference in step.differences]

    @property
    def same(self) -> bool:
        return not self.differences

    def text(self) -> str:
        """For people: a line a step, and the differences below it."""
        return "\n".join(self._lines())

    def check(self) -> None:
        """For tests: raises AssertionError that says every difference."""
        if not self.same:
            raise AssertionError(f"the session went otherwise than it was recorded:\n{self.text()}")

    def _lines(self) -> Iterator[str]:
        if self.given:
            yield f"{_counted(self.given, 'step')} before the fork, as given"
        for step in self.steps:
            yield f"step {step.number} ({step.agent}): {'differs' if step.differences else 'same'}"
            yield from (f"    {difference.words()}" for difference in step.differences)
        if self.unplayed:
            yield f"{_counted(self.unplayed, 'recorded exchange')} nobody asked for"
        yield f"{_counted(len(self.steps), 'step')}, {_counted(len(self.differences), 'difference')}"


def shown(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def first(values: Iterable[Difference | None]) -> tuple[Difference, ...]:
    return tuple(value for value in values if value is not None)


def steps_of(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.role == "assistant"]


def calls_of(step: Message) -> list[ToolPart]:
    return step.get_parts_by_type(ToolPart)


def call_words(call: ToolPart) -> str:
    """A call as a person would write it, whatever the order of its fields."""
    return f"{call.tool}({msgspec.json.encode(call.state.input, order='sorted').decode()})"


def result_words(call: ToolPart) -> str:
    result = tool_result(call)
    if result is None:
        return "no result"
    return f"error: {result.content}" if result.is_error else result.content


def compare_steps(recorded: Message | None, now: Message | None) -> Iterator[Difference]:
    """How one step came out otherwise."""
    if recorded is None or now is None:
        yield StepDiffers("now" if recorded is None else "recorded")
        return
    yield from _answers(recorded, now)
    before, after = calls_of(recorded), calls_of(now)
    words = tuple(map(call_words, before)), tuple(map(call_words, after))
    if words[0] != words[1]:
        yield CallsDiffer(*words)
        return
    for old, new in zip_longest(before, after):
        if result_words(old) != result_words(new):
            yield ResultDiffers(old.call_id, old.tool, result_words(old), result_words(new))


def _answers(recorded: Message, now: Message) -> Iterator[Difference]:
    texts = recorded.get_text_content(), now.get_text_content()
    if texts[0] != texts[1]:
        yield AnswerDiffers("text", *texts)
    thoughts = _reasoning(recorded), _reasoning(now)
    if thoughts[0] != thoughts[1]:
        yield AnswerDiffers("reasoning", *thoughts)
    if recorded.error is not None and recorded.error.type == "aborted" and now.error is not None:
        return  # it ends where its reader had let it go
    ends = recorded.finish or "", now.finish or ""
    if ends[0] != ends[1]:
        yield AnswerDiffers("finish", *ends)
    errors = _error(recorded), _error(now)
    if errors[0] != errors[1]:
        yield AnswerDiffers("error", *errors)


def _reasoning(step: Message) -> str:
    return "".join(part.text for part in step.get_parts_by_type(ReasoningPart))


def _error(step: Message) -> str:
    return f"{step.error.type}: {step.error.message}" if step.error else ""


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
