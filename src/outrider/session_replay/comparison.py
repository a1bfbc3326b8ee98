"""Two sessions side by side: what they answered, what they called, what that cost and how long it took."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import takewhile

import msgspec

from outrider.session_replay.recorded_session import call_words, calls_of, is_input, shown, steps_of
from outrider.sessions.session import Session
from outrider.types.messages import Message
from outrider.types.tool_state import ToolCompleted, ToolError
from outrider.types.usage import Tokens, Usage


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """How a session went from where the two part. `cost` is None when a price is not known; `seconds` is the time in
    which models and tools were at work."""

    session_id: str
    models: tuple[str, ...] = ()
    answer: str = ""
    finish: str = ""
    steps: int = 0
    calls: tuple[str, ...] = ()
    failed_calls: int = 0
    tokens: Tokens = Tokens()
    cost: Decimal | None = None
    seconds: float = 0.0


class Row(msgspec.Struct, frozen=True):
    """A line of the table; `difference` is empty where there is none, or none that can be told in a word."""

    name: str
    a: str
    b: str
    difference: str = ""


class Comparison(msgspec.Struct, frozen=True):
    """`shared` steps stand at the head of both and are not counted."""

    shared: int
    a: Course
    b: Course

    @property
    def same(self) -> bool:
        """Whether both came to the same answer by the same calls."""
        return (self.a.answer, self.a.calls) == (self.b.answer, self.b.calls)

    def rows(self) -> list[Row]:
        a, b = self.a, self.b
        return [
            Row("model", ", ".join(a.models), ", ".join(b.models), _told(a.models, b.models)),
            Row("answer", a.answer, b.answer, _told(a.answer, b.answer)),
            Row("finish", a.finish, b.finish, _told(a.finish, b.finish)),
            _counts("steps", a.steps, b.steps),
            Row("calls", _calls(a.calls), _calls(b.calls), _told(a.calls, b.calls)),
            _counts("failed calls", a.failed_calls, b.failed_calls),
            _counts("input tokens", a.tokens.prompt, b.tokens.prompt),
            _counts("output tokens", *(one.tokens.output + one.tokens.reasoning for one in (a, b))),
            Row("cost", _money(a.cost), _money(b.cost), _ratio(a.cost, b.cost)),
            Row("time", f"{a.seconds:.2f} s", f"{b.seconds:.2f} s", _ratio(a.seconds, b.seconds)),
        ]

    def text(self) -> str:
        """The table for people; long answers are cut, `rows` has them whole."""
        head = Row("", "first", "second", "")
        lines = [(row.name, _line(row.a), _line(row.b), row.difference) for row in (head, *self.rows())]
        widths = [max(len(line[column]) for line in lines) for column in range(4)]
        table = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([f"after {self.shared} shared steps", *table] if self.shared else table)


def compare(a: Session, b: Session) -> Comparison:
    """From where the two part, and as far as both were asked: inputs that only one of them got are left out."""
    first, second = _messages(a, b), _messages(b, a)
    common = sum(1 for _ in takewhile(lambda pair: pair[0].id == pair[1].id, zip(first, second, strict=False)))
    return Comparison(
        shared=len(steps_of(first[:common])),
        a=_course(a.id, first[common:]),
        b=_course(b.id, second[common:]),
    )


def _messages(session: Session, other: Session) -> Sequence[Message]:
    """As far as the other was asked too."""
    count = sum(map(is_input, other.messages))
    inputs = [place for place, message in enumerate(session.messages) if is_input(message)]
    return session.messages[: inputs[count]] if len(inputs) > count else session.messages


def _course(session_id: str, messages: Sequence[Message]) -> Course:
    steps = steps_of(messages)
    calls = [call for step in steps for call in calls_of(step)]
    used = [step for step in steps if step.tokens.total or step.cost is not None]
    usage = Usage()
    for step in used:
        usage = usage.plus(step.tokens, step.cost)
    return Course(
        session_id=session_id,
        models=tuple(dict.fromkeys(step.model.model for step in steps if step.model)),
        answer=next((step.get_text_content() for step in reversed(steps) if step.get_text_content()), ""),
        finish=_finish(steps[-1]) if steps else "",
        steps=len(steps),
        calls=tuple(map(call_words, calls)),
        failed_calls=sum(isinstance(call.state, ToolError) for call in calls),
        tokens=usage.tokens,
        cost=usage.total_cost if used else None,
        seconds=sum(map(_seconds, steps)),
    )


def _finish(step: Message) -> str:
    return step.error.type if step.error else step.finish or ""


def _seconds(step: Message) -> float:
    """From the request to the last result; what people did in between is not counted."""
    if step.time is None:
        return 0.0
    ends = [call.state.time.end for call in calls_of(step) if isinstance(call.state, ToolCompleted | ToolError)]
    return (max([step.time.completed or step.time.created, *ends]) - step.time.created) / 1000


def _counts(name: str, a: int, b: int) -> Row:
    return Row(name, f"{a:,}", f"{b:,}", f"{b - a:+,}" if a != b else "")


def _told(a: object, b: object) -> str:
    return "" if a == b else "differs"


def _calls(calls: Iterable[str]) -> str:
    return ", ".join(calls) or "none"


def _money(cost: Decimal | None) -> str:
    return "unknown" if cost is None else f"${cost:.6f}"


def _ratio(a: Decimal | float | None, b: Decimal | float | None) -> str:
    return "" if not a or b is None or a == b else f"{float(b) / float(a):.2f}x"


def _line(text: str) -> str:
    return shown(text)[1:-1] if text else ""
