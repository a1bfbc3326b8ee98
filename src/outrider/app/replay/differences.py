"""What came out otherwise when a session was run again, step by step."""

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from outrider.sessions.session import Session

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
