"""A recorded session as input of a replay: user inputs, child sessions, and the differences between two steps."""

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from typing import Literal

import msgspec
from msgspec.structs import replace

from outrider._lazy import deprecated_method, warn_of_old_name
from outrider.agents.turn_state import is_cut_off
from outrider.engine.child_sessions import is_internal_agent
from outrider.presentation.formats import format_count
from outrider.sessions.export import import_session
from outrider.sessions.journal import session_from_stored
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import SessionFilter
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.types.agents import Agent
from outrider.types.messages import Message
from outrider.types.parts import CompactionPart, ReasoningPart, ToolPart, tool_result

_QUOTED_CHARACTERS = 160


class RequestDiffers(msgspec.Struct, frozen=True, tag_field="kind", tag="request"):
    """The request differs; `where` describes the first difference."""

    where: str

    def describe(self) -> str:
        """Returns the difference as one line of text."""
        return f"request: {self.where}"

    words = deprecated_method("words", describe)


class AnswerDiffers(msgspec.Struct, frozen=True, tag_field="kind", tag="answer"):
    """The response differs; `field_name` is the field that differs, in JSON `of`."""

    field_name: Literal["text", "reasoning", "finish", "error"] = msgspec.field(name="of")
    recorded: str
    now: str

    def describe(self) -> str:
        """Returns the difference as one line of text."""
        return f"answer: {self.field_name}: recorded {quote_short(self.recorded)}, now {quote_short(self.now)}"

    words = deprecated_method("words", describe)

    @property
    def of(self) -> str:
        """Deprecated name of `field_name`."""
        warn_of_old_name("AnswerDiffers.of", "AnswerDiffers.field_name")
        return self.field_name


class CallsDiffer(msgspec.Struct, frozen=True, tag_field="kind", tag="calls"):
    """The tool calls or their inputs differ; each call is formatted as `tool(input)`."""

    recorded: tuple[str, ...]
    now: tuple[str, ...]

    def describe(self) -> str:
        """Returns the difference as one line of text."""
        return f"calls: recorded {quote_short(', '.join(self.recorded))}, now {quote_short(', '.join(self.now))}"

    words = deprecated_method("words", describe)


class ResultDiffers(msgspec.Struct, frozen=True, tag_field="kind", tag="result"):
    """The same call has another result."""

    call_id: str
    tool: str
    recorded: str
    now: str

    def describe(self) -> str:
        """Returns the difference as one line of text."""
        return f"result of {self.tool}: recorded {quote_short(self.recorded)}, now {quote_short(self.now)}"

    words = deprecated_method("words", describe)


class StepDiffers(msgspec.Struct, frozen=True, tag_field="kind", tag="step"):
    """The step exists only in the recorded session or only in the replay."""

    only: Literal["recorded", "now"]

    def describe(self) -> str:
        """Returns the difference as one line of text."""
        return "the recorded step was not repeated" if self.only == "recorded" else "the step is new"

    words = deprecated_method("words", describe)


Difference = RequestDiffers | AnswerDiffers | CallsDiffer | ResultDiffers | StepDiffers


class ReplayedStep(msgspec.Struct, frozen=True):
    """One response of a model with its tool calls. `session_id` is that of the recorded session or child session."""

    number: int
    agent: str
    session_id: str
    differences: tuple[Difference, ...] = ()


class Replay(msgspec.Struct, frozen=True):
    """The result of a replay.

    The first `copied_steps` come from before a fork and were not run. `unused_exchanges` is the number of recorded
    exchanges that no request used.
    """

    recorded: Session
    session: Session
    steps: tuple[ReplayedStep, ...]
    copied_steps: int = 0
    unused_exchanges: int = 0

    @property
    def given(self) -> int:
        """Deprecated name of `copied_steps`."""
        warn_of_old_name("Replay.given", "Replay.copied_steps")
        return self.copied_steps

    @property
    def unplayed(self) -> int:
        """Deprecated name of `unused_exchanges`."""
        warn_of_old_name("Replay.unplayed", "Replay.unused_exchanges")
        return self.unused_exchanges

    @property
    def differences(self) -> list[Difference]:
        """All differences, in the order of the steps."""
        return [difference for step in self.steps for difference in step.differences]

    @property
    def same(self) -> bool:
        """True if nothing differs."""
        return not self.differences

    def text(self) -> str:
        """Returns a report: one line per step, followed by its differences."""
        return "\n".join(self._lines())

    def check(self) -> None:
        """Raises AssertionError with the report if there is a difference; for use in tests."""
        if not self.same:
            raise AssertionError(f"the replay differs from the recorded session:\n{self.text()}")

    def _lines(self) -> Iterator[str]:
        if self.copied_steps:
            yield f"{format_count(self.copied_steps, 'step')} before the fork, as given"
        for step in self.steps:
            yield f"step {step.number} ({step.agent}): {'differs' if step.differences else 'same'}"
            yield from (f"    {difference.describe()}" for difference in step.differences)
        if self.unused_exchanges:
            yield f"{format_count(self.unused_exchanges, 'recorded exchange')} unused"
        yield f"{format_count(len(self.steps), 'step')}, {format_count(len(self.differences), 'difference')}"


def quote_short(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= _QUOTED_CHARACTERS else f"{line[: _QUOTED_CHARACTERS - 1]}…")


def assistant_steps(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.role == "assistant"]


def tool_calls(step: Message) -> list[ToolPart]:
    return step.get_calls()


def format_call(call: ToolPart) -> str:
    """Returns a call as `tool(input)` with sorted keys."""
    return f"{call.tool}({msgspec.json.encode(call.state.input, order='sorted').decode()})"


def format_result(call: ToolPart) -> str:
    result = tool_result(call)
    if result is None:
        return "no result"
    return f"error: {result.content}" if result.is_error else result.content


def compare_steps(recorded: Message | None, replayed: Message | None) -> Iterator[Difference]:
    """Yields the differences between a recorded step and its replay."""
    if recorded is None or replayed is None:
        yield StepDiffers("now" if recorded is None else "recorded")
        return
    yield from _compare_answers(recorded, replayed)
    old_calls, new_calls = tool_calls(recorded), tool_calls(replayed)
    calls = tuple(map(format_call, old_calls)), tuple(map(format_call, new_calls))
    if calls[0] != calls[1]:
        yield CallsDiffer(*calls)
        return
    for old, new in zip_longest(old_calls, new_calls):
        if format_result(old) != format_result(new):
            yield ResultDiffers(old.call_id, old.tool, format_result(old), format_result(new))


def _compare_answers(recorded: Message, replayed: Message) -> Iterator[Difference]:
    texts = recorded.join_text(), replayed.join_text()
    if texts[0] != texts[1]:
        yield AnswerDiffers("text", *texts)
    reasoning = _reasoning_text(recorded), _reasoning_text(replayed)
    if reasoning[0] != reasoning[1]:
        yield AnswerDiffers("reasoning", *reasoning)
    if recorded.error is not None and recorded.error.type == "aborted" and replayed.error is not None:
        return  # the recorded stream was aborted, so its cassette ends early and the replay fails there
    finishes = recorded.finish or "", replayed.finish or ""
    if finishes[0] != finishes[1]:
        yield AnswerDiffers("finish", *finishes)
    errors = _error_text(recorded), _error_text(replayed)
    if errors[0] != errors[1]:
        yield AnswerDiffers("error", *errors)


def _reasoning_text(step: Message) -> str:
    return "".join(part.text for part in step.get_parts_by_type(ReasoningPart))


def _error_text(step: Message) -> str:
    return f"{step.error.type}: {step.error.message}" if step.error else ""


class RecordedInput(msgspec.Struct, frozen=True):
    """User messages that arrived together, after `after` steps.

    With `steers` they arrived during a turn. `answer` is the response that followed, if any. A manual compaction has
    no messages, and its summary is the `answer`.
    """

    messages: list[Message]
    after: int
    steers: bool = False
    answer: Message | None = None

    @property
    def is_compaction(self) -> bool:
        return not self.messages

    def copy_messages(self) -> list[Message]:
        return [copy_message(message) for message in self.messages]


def copy_message(message: Message) -> Message:
    return Message.from_dict(message.to_dict())


def is_input(message: Message) -> bool:
    """Returns whether a message is user input. Compaction summaries have the user role too, but the program writes
    them."""
    return message.role == "user" and not message.get_parts_by_type(CompactionPart)


def recorded_inputs(messages: Sequence[Message], start: int = 0) -> list[RecordedInput]:
    """Returns the user inputs of a transcript from index `start` on."""
    inputs: list[RecordedInput] = []
    for position, message in enumerate(messages[start:], start):
        previous = messages[position - 1] if position else None
        if any(not part.auto for part in message.get_parts_by_type(CompactionPart)):
            inputs.append(RecordedInput([], len(assistant_steps(messages[:position])), answer=message))
        elif is_input(message) and inputs and previous is not None and previous in inputs[-1].messages:
            inputs[-1].messages.append(message)
        elif is_input(message):
            answer = _first_answer(messages[position:])
            inputs.append(
                RecordedInput(
                    [message], len(assistant_steps(messages[:position])), _is_mid_turn(messages[:position]), answer
                )
            )
    return inputs


def _first_answer(messages: Sequence[Message]) -> Message | None:
    """Returns the first response in the list."""
    return next((message for message in messages if message.role == "assistant"), None)


def _is_mid_turn(preceding: Sequence[Message]) -> bool:
    """Returns whether a turn was running: the last response has unread tool results and no error."""
    answers = assistant_steps(preceding)
    return bool(answers) and answers[-1].error is None and is_cut_off(preceding) and preceding[-1].role == "assistant"


def count_shared_messages(session: Session) -> int:
    """Returns the number of messages that a fork shares with its source."""
    point = session.forked_from
    positions = [
        position for position, message in enumerate(session.messages, 1) if point and message.id == point.message_id
    ]
    return positions[0] if positions else 0


def with_recorded_model(agent: Agent, answer: Message | None, providers: Collection[str]) -> Agent:
    """Returns the agent with the model of this response, if its provider is configured: the user may have chosen it."""
    if answer is None or answer.model is None or answer.model.provider not in providers:
        return agent
    return replace(agent, provider=answer.model.provider, model=answer.model.model)


async def load_session(store: Store, session_id: str) -> Session:
    transcript = await store.load(session_id)
    return session_from_stored(transcript.session, transcript.messages)


async def session_from_export(document: bytes) -> Session:
    """Returns the first session of an export document."""
    store = MemoryStore()
    return await load_session(store, (await import_session(store, document)).sessions[0].id)


async def load_descendants(store: Store, session_id: str) -> list[Session]:
    """Returns all child sessions recursively, oldest first."""
    children: list[Session] = []
    cursor: str | None = None
    while True:
        page = await store.list(SessionFilter(parent_id=session_id), limit=200, after=cursor)
        children += [
            await load_session(store, child.id) for child in page.sessions if not is_internal_agent(child.agent)
        ]
        cursor = page.next
        if cursor is None:
            break
    children.sort(key=lambda session: session.id)
    return [session for child in children for session in (child, *await load_descendants(store, child.id))]
