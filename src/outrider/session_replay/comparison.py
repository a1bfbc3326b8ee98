"""Compares two sessions: responses, tool calls, tokens, cost and time."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import takewhile

import msgspec

from outrider.presentation.formats import format_cost, format_duration
from outrider.session_replay.recorded_session import assistant_steps, format_call, is_input, quote_short, tool_calls
from outrider.sessions.session import Session
from outrider.types.messages import Message
from outrider.types.tool_state import ToolCompleted, ToolError
from outrider.types.usage import Tokens, Usage


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one session after the last shared message, summed up.

    `cost` is None if a price is unknown; `seconds` is the time that models and tools took.
    """

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


class ComparisonRow(msgspec.Struct, frozen=True):
    """A row of the comparison table; `difference` is an empty string if the values are equal or have no short form."""

    name: str
    a: str
    b: str
    difference: str = ""


class Comparison(msgspec.Struct, frozen=True):
    """The result of `compare`. The first `shared` steps are in both sessions and are not part of `a` and `b`."""

    shared: int
    a: Course
    b: Course

    @property
    def same(self) -> bool:
        """True if both sessions have the same final response and the same tool calls."""
        return (self.a.answer, self.a.calls) == (self.b.answer, self.b.calls)

    def rows(self) -> list[ComparisonRow]:
        a, b = self.a, self.b
        return [
            ComparisonRow("model", ", ".join(a.models), ", ".join(b.models), _difference_label(a.models, b.models)),
            ComparisonRow("answer", a.answer, b.answer, _difference_label(a.answer, b.answer)),
            ComparisonRow("finish", a.finish, b.finish, _difference_label(a.finish, b.finish)),
            _count_row("steps", a.steps, b.steps),
            ComparisonRow("calls", _join_calls(a.calls), _join_calls(b.calls), _difference_label(a.calls, b.calls)),
            _count_row("failed calls", a.failed_calls, b.failed_calls),
            _count_row("input tokens", a.tokens.prompt, b.tokens.prompt),
            _count_row("output tokens", *(one.tokens.output + one.tokens.reasoning for one in (a, b))),
            ComparisonRow("cost", format_cost(a.cost), format_cost(b.cost), _format_ratio(a.cost, b.cost)),
            ComparisonRow(
                "time", format_duration(a.seconds), format_duration(b.seconds), _format_ratio(a.seconds, b.seconds)
            ),
        ]

    def text(self) -> str:
        """Returns the table as text; long values are shortened, `rows` returns them in full."""
        head = ComparisonRow("", "first", "second", "")
        lines = [(row.name, _short_line(row.a), _short_line(row.b), row.difference) for row in (head, *self.rows())]
        widths = [max(len(line[column]) for line in lines) for column in range(4)]
        table = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([f"after {self.shared} shared steps", *table] if self.shared else table)


def compare(a: Session, b: Session) -> Comparison:
    """Compares two sessions after their last shared message; ignores inputs that only one of them received."""
    first, second = _comparable_messages(a, b), _comparable_messages(b, a)
    common = sum(1 for _ in takewhile(lambda pair: pair[0].id == pair[1].id, zip(first, second, strict=False)))
    return Comparison(
        shared=len(assistant_steps(first[:common])),
        a=_make_course(a.id, first[common:]),
        b=_make_course(b.id, second[common:]),
    )


def _comparable_messages(session: Session, other: Session) -> Sequence[Message]:
    """Returns the messages up to the first input that the other session did not receive."""
    count = sum(map(is_input, other.messages))
    inputs = [position for position, message in enumerate(session.messages) if is_input(message)]
    return session.messages[: inputs[count]] if len(inputs) > count else session.messages


def _make_course(session_id: str, messages: Sequence[Message]) -> Course:
    steps = assistant_steps(messages)
    calls = [call for step in steps for call in tool_calls(step)]
    used = [step for step in steps if step.tokens.total or step.cost is not None]
    usage = Usage()
    for step in used:
        usage = usage.plus(step.tokens, step.cost)
    return Course(
        session_id=session_id,
        models=tuple(dict.fromkeys(step.model.model for step in steps if step.model)),
        answer=next((step.get_text_content() for step in reversed(steps) if step.get_text_content()), ""),
        finish=_finish_reason(steps[-1]) if steps else "",
        steps=len(steps),
        calls=tuple(map(format_call, calls)),
        failed_calls=sum(isinstance(call.state, ToolError) for call in calls),
        tokens=usage.tokens,
        cost=usage.total_cost if used else None,
        seconds=sum(map(_step_seconds, steps)),
    )


def _finish_reason(step: Message) -> str:
    return step.error.type if step.error else step.finish or ""


def _step_seconds(step: Message) -> float:
    """Returns the time from the request to the last tool result, without the time until the next input."""
    if step.time is None:
        return 0.0
    ends = [call.state.time.end for call in tool_calls(step) if isinstance(call.state, ToolCompleted | ToolError)]
    return (max([step.time.completed or step.time.created, *ends]) - step.time.created) / 1000


def _count_row(name: str, a: int, b: int) -> ComparisonRow:
    return ComparisonRow(name, f"{a:,}", f"{b:,}", f"{b - a:+,}" if a != b else "")


def _difference_label(a: object, b: object) -> str:
    return "" if a == b else "differs"


def _join_calls(calls: Iterable[str]) -> str:
    return ", ".join(calls) or "none"


def _format_ratio(a: Decimal | float | None, b: Decimal | float | None) -> str:
    return "" if not a or b is None or a == b else f"{float(b) / float(a):.2f}x"


def _short_line(text: str) -> str:
    return quote_short(text)[1:-1] if text else ""
