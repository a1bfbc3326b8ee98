"""Span: one node of a trace (a run, an agent, a model call or a tool call) with its time, cost and outcome."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, cast

from outrider.types.usage import Tokens

SpanKind = Literal["run", "agent", "model", "tool"]
SpanStatus = Literal["ok", "failed", "stopped", "unfinished"]

UNKNOWN = -1  # the start of a span whose records have not given one yet

_NONE = Tokens()


@dataclass(slots=True, eq=False)
class Span:
    """One node of a trace. Times are Unix milliseconds. Tokens and cost include those of all descendants.

    `end` is None if no record of the end exists; `last` is then the latest time known inside the span. `stopped` means
    that it ended early (a limit, an abort), `unfinished` that its end is missing."""

    name: str
    kind: SpanKind
    agent_name: str = ""
    call_id: str = ""
    start: int = UNKNOWN
    end: int | None = None
    last: int = UNKNOWN
    status: SpanStatus = "unfinished"
    outcome: str = ""
    error: str | None = None
    result: str | None = None
    tokens: Tokens = _NONE
    known_cost: Decimal = Decimal(0)
    answers: int = 0
    unpriced: int = 0
    details: dict[str, Any] = field(default_factory=dict[str, Any])
    children: list["Span"] = field(default_factory=list["Span"], repr=False)

    @property
    def duration(self) -> int:
        """Milliseconds, never negative; for a span without an end, up to the latest known time."""
        return max(0, (self.last if self.end is None else self.end) - self.start)

    @property
    def finished(self) -> bool:
        return self.status != "unfinished"

    @property
    def cost(self) -> Decimal | None:
        """None if an answer inside has no known price; `known_cost` is the cost of the others."""
        return None if self.unpriced else self.known_cost

    @property
    def tool_calls(self) -> list["Span"]:
        """Tool calls that are direct children of this span."""
        return [child for child in self.children if child.kind == "tool"]

    @property
    def model_calls(self) -> list["Span"]:
        return [child for child in self.children if child.kind == "model"]

    @property
    def agent_calls(self) -> list["Span"]:
        return [child for child in self.children if child.kind == "agent"]

    @property
    def tool_input(self) -> dict[str, Any]:
        """The input of a tool call."""
        given = self.details.get("input")
        return cast("dict[str, Any]", given) if isinstance(given, dict) else {}

    def walk(self) -> Iterator[tuple[int, "Span"]]:
        """Yields this span and its descendants with their depth, parents first; without recursion, so at any depth."""
        waiting: list[tuple[int, Span]] = [(0, self)]
        while waiting:
            depth, span = waiting.pop()
            yield depth, span
            waiting.extend((depth + 1, child) for child in reversed(span.children))

    def find(self, name: str) -> list["Span"]:
        return [span for _, span in self.walk() if span.name == name]

    def time_outside(self, spans: list["Span"]) -> int:
        """Returns the milliseconds of this span in which none of the given spans was running."""
        stop = self.start + self.duration
        covered, reached = 0, self.start
        for span in sorted(spans, key=lambda span: span.start):
            begin, end = max(span.start, reached), min(span.start + span.duration, stop)
            if end > begin:
                covered += end - begin
                reached = end
        return self.duration - covered
