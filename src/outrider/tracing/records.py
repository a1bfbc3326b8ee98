"""The records of the tracer: AgentEvent (one line of an event log), Span (one node of a trace), and text helpers."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from types import NoneType
from typing import Any, Literal, cast, get_args

import msgspec

from outrider._lazy import warn_of_old_name
from outrider.permissions.redaction.terminal import escape_control_characters
from outrider.presentation.formats import escape_line
from outrider.types.parts import Tokens

EventKind = Literal["llm_call", "llm_response", "tool_exec", "agent_call", "agent_return", "finish", "error"]
EVENT_KINDS: tuple[EventKind, ...] = get_args(EventKind)

TEXT_LIMIT = 20_000
ITEM_LIMIT = 200
DEPTH_LIMIT = 12
_SMALL = (int, bool, NoneType)


class AgentEvent(msgspec.Struct, frozen=True):
    """One operation of an agent. A call and its return have the same `call_id`; `parent_call_id` is the enclosing
    call."""

    type: EventKind
    agent_name: str = ""
    timestamp: int = 0
    call_id: str = ""
    parent_call_id: str = ""
    session_id: str = ""
    data: dict[str, Any] = {}

    @property
    def event_type(self) -> EventKind:
        """The kind of the event, the same as `type`."""
        return self.type

    def to_dict(self) -> dict[str, Any]:
        """Returns the event as plain values."""
        return msgspec.to_builtins(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "AgentEvent":
        """Returns an event from the values of `to_dict`."""
        return msgspec.convert(value, cls)


def bounded_copy(value: Any, depth: int = 0) -> Any:
    """Returns a copy that is bounded in size and can be encoded as JSON; cuts are marked in the text."""
    if value.__class__ in _SMALL:
        return value
    if isinstance(value, str):
        return bounded_text(value)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth >= DEPTH_LIMIT:
        return "(nested too deeply to be stored)"
    if isinstance(value, dict):
        return _bounded_dict(cast("dict[Any, Any]", value), depth + 1)
    if isinstance(value, list | tuple):
        return _bounded_list(cast("list[Any] | tuple[Any, ...]", value), depth + 1)
    return bounded_text(_safe_repr(value))


def bounded_values(values: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy of a dict with bounded values. Most values are numbers, which need no call."""
    return {name: value if value.__class__ in _SMALL else bounded_copy(value, 1) for name, value in values.items()}


def bounded_text(text: str) -> str:
    if len(text) > TEXT_LIMIT:
        text = f"{text[:TEXT_LIMIT]}… ({len(text) - TEXT_LIMIT:,} more characters)"
    # A lone surrogate, as in broken tool output, cannot be encoded as UTF-8.
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _bounded_dict(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    items = list(value.items())
    retained = {bounded_text(str(key)): bounded_copy(item, depth) for key, item in items[:ITEM_LIMIT]}
    if len(items) > ITEM_LIMIT:
        retained["…"] = f"({len(items) - ITEM_LIMIT:,} more entries)"
    return retained


def _bounded_list(value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
    retained = [bounded_copy(item, depth) for item in value[:ITEM_LIMIT]]
    if len(value) > ITEM_LIMIT:
        retained.append(f"({len(value) - ITEM_LIMIT:,} more items)")
    return retained


def _safe_repr(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  a custom __repr__ may raise anything
        return f"({type(value).__name__})"


visible = escape_control_characters


def escape_unencodable(text: str, encoding: str) -> str:
    """Replaces characters that the encoding does not have by escapes."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def record_line(event: AgentEvent, start: int) -> str:
    """Returns one record as a line of `EventLog.format`."""
    seconds = max(0, event.timestamp - start) / 1000
    fields = " ".join(
        f"{escape_line(str(key), 40)}={escape_line(str(value), 60)}"
        for key, value in event.data.items()
        if _is_worth_showing(value)
    )
    agent = escape_line(event.agent_name or "-", 30)
    call = f" ({escape_line(event.call_id, 40)})" if event.call_id else ""
    return f"{seconds:9.3f}s  {event.type:<12}  {agent:<16}{call}  {fields}".rstrip()


def _is_worth_showing(value: object) -> bool:
    return isinstance(value, bool) or bool(value)


SpanKind = Literal["run", "agent", "model", "tool"]
SpanStatus = Literal["ok", "failed", "stopped", "unfinished"]

UNKNOWN = -1  # the start of a span whose records have not given one yet

_NONE = Tokens()


@dataclass(slots=True, eq=False)
class Span:
    """One node of a trace. Times are Unix milliseconds. Tokens and cost include those of all descendants.

    - `name`: the name of the agent, model or tool.
    - `kind`: `run` is a synthetic root above several spans.
    - `agent_name`: the agent that made the call.
    - `call_id`: the id of the call.
    - `start`: the time of the start.
    - `end`: the time of the end; None if no record of the end exists.
    - `last`: the latest time known inside the span, for a span without an end.
    - `status`: `stopped` means that it ended early (a limit, an abort), `unfinished` that its end is missing.
    - `outcome`: the reason of the end.
    - `error`: the error message of a failed span.
    - `result`: the output.
    - `tokens`: the tokens of all answers inside.
    - `known_cost`: the cost of all answers with a known price.
    - `answers`: the number of answers of models.
    - `unpriced`: the number of those without a known price.
    - `details`: further data of the records.
    - `children`: the spans below this one.
    """

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
        """True if the span has ended."""
        return self.status != "unfinished"

    @property
    def cost(self) -> Decimal | None:
        """The cost; None if an answer inside has no known price. `known_cost` is then the cost of the other answers."""
        return None if self.unpriced else self.known_cost

    @property
    def tool_calls(self) -> list["Span"]:
        """Tool calls that are direct children of this span."""
        return [child for child in self.children if child.kind == "tool"]

    @property
    def model_calls(self) -> list["Span"]:
        """The spans of model requests directly below this one."""
        return [child for child in self.children if child.kind == "model"]

    @property
    def agent_calls(self) -> list["Span"]:
        """The spans of called agents directly below this one."""
        return [child for child in self.children if child.kind == "agent"]

    @property
    def tool_input(self) -> dict[str, Any]:
        """The input of a tool call."""
        arguments = self.details.get("input")
        return cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {}

    @property
    def given(self) -> dict[str, Any]:
        """Deprecated name of `tool_input`."""
        warn_of_old_name("Span.given", "Span.tool_input")
        return self.tool_input

    def walk(self) -> Iterator[tuple[int, "Span"]]:
        """Yields this span and its descendants with their depth, parents first; without recursion, so at any depth."""
        waiting: list[tuple[int, Span]] = [(0, self)]
        while waiting:
            depth, span = waiting.pop()
            yield depth, span
            waiting.extend((depth + 1, child) for child in reversed(span.children))

    def find(self, name: str) -> list["Span"]:
        """Returns all spans with this name, this one and those below it."""
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
