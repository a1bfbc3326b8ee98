"""Draws a tree of spans as plain text: aligned columns, cut to a width, in characters that the output can take."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import Protocol

from outrider.tracing.event_record import can_encode, cost_text, duration_text, encodable, fit, one_line, width_of
from outrider.tracing.span import Span, SpanStatus

_GAP = 2
_NARROWEST_LABEL = 24
_NARROWEST_OUTCOME = 12


class Priced(Protocol):
    """What has a cost of which a part may be unknown."""

    known_cost: Decimal
    answers: int
    unpriced: int


@dataclass(frozen=True, slots=True)
class Signs:
    branch: str
    last: str
    line: str
    deep: str
    arrow: str
    ellipsis: str
    at_least: str
    rule: str
    marks: dict[SpanStatus, str]


_UNICODE = Signs(
    branch="├─ ", last="└─ ", line="│  ", deep="⋯ ", arrow="→", ellipsis="…", at_least="≥", rule="─",
    marks={"ok": "✓", "failed": "✗", "stopped": "■", "unfinished": "…"},
)  # fmt: skip
_ASCII = Signs(
    branch="|- ", last="`- ", line="|  ", deep=".. ", arrow="->", ellipsis="...", at_least=">=", rule="-",
    marks={"ok": "ok", "failed": "FAILED", "stopped": "stopped", "unfinished": "..."},
)  # fmt: skip
_BLANK = "   "


@dataclass(frozen=True, slots=True)
class Row:
    branch: str
    label: str
    time: str
    tokens: str
    cost: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Columns:
    """How wide each column is; 0 leaves it out."""

    label: int
    time: int
    tokens: int
    cost: int
    outcome: int


def draw(root: Span, *, width: int = 100, encoding: str = "utf-8", dropped: int = 0) -> str:
    width = max(20, width)
    every_sign = "".join(sign for sign in (*_UNICODE.marks.values(), "├─└│⋯→…≥"))
    signs = _UNICODE if can_encode(every_sign, encoding) else _ASCII
    heading = Row("", "span", "time", f"in {signs.arrow} out", "cost", "outcome")
    rows = [heading, *_rows(root, signs, levels=max(2, width // 8))]
    columns = _columns(rows, width)
    lines = [_line(row, columns, signs) for row in rows]
    lines.insert(1, signs.rule * min(width, max(map(width_of, lines))))
    lines += ["", *(fit(line, width, signs.ellipsis) for line in _footer(root, signs, dropped))]
    return encodable("\n".join(lines), encoding)


def label_of(span: Span) -> str:
    """What a span is, in a few words: kind, name and, for a tool, what it was given."""
    given = span.given if span.kind == "tool" else {}
    named = len(given) > 1  # a single input says what it is by itself
    words = [
        (f"{one_line(str(key), 40)}=" if named else "") + one_line(str(value), 60)
        for key, value in islice(given.items(), 6)
    ]
    name = one_line(span.name, 80) + (f"({', '.join(words)})" if words else "")
    return name if span.kind == "run" else f"{span.kind} {name}"


def cost_of(span: Priced, at_least: str = "≥") -> str:
    """Empty where no model answered; an unknown price is never shown as nothing."""
    if not span.answers:
        return ""
    if span.unpriced == span.answers:
        return "?"
    return f"{at_least if span.unpriced else ''}{cost_text(span.known_cost)}"


def outcome_of(span: Span) -> str:
    """How it ended, in words."""
    match span.status:
        case "ok":
            return ", ".join(word for word in (one_line(span.outcome, 60), *remarks(span)) if word)
        case "failed":
            said = span.error or ""
            return one_line(said if span.outcome in said else f"{span.outcome}: {said}", 200)
        case "stopped":
            return one_line(span.outcome, 60) or "stopped"
        case "unfinished":
            return "unfinished"


def remarks(span: Span) -> Iterator[str]:
    """What took time without being work."""
    if isinstance(retries := span.details.get("retries"), int) and span.kind == "model":
        yield f"{retries} {'retry' if retries == 1 else 'retries'}"
    if waited := waited_for_approval(span):
        yield f"waited {duration_text(waited)} for approval"


def waited_for_approval(span: Span) -> int:
    waited = span.details.get("approval_ms")
    return waited if isinstance(waited, int) and span.kind == "tool" else 0


def _rows(root: Span, signs: Signs, levels: int) -> Iterator[Row]:
    waiting = [(root, "", "")]
    while waiting:
        span, branch, below = waiting.pop()
        yield Row(branch, label_of(span), *_figures(span, signs))
        for index in range(len(span.children) - 1, -1, -1):
            is_last = index == len(span.children) - 1
            child_below = _shortened(below + (_BLANK if is_last else signs.line), signs, levels)
            waiting.append((span.children[index], below + (signs.last if is_last else signs.branch), child_below))


def _shortened(below: str, signs: Signs, levels: int) -> str:
    """The lines of the innermost levels only, so that a very deep tree stays on the page."""
    if len(below) <= levels * len(_BLANK):
        return below
    return signs.deep.ljust(len(_BLANK)) + below[2 * len(_BLANK) :]


def _figures(span: Span, signs: Signs) -> tuple[str, str, str, str]:
    time = f"{signs.at_least if not span.finished else ''}{duration_text(span.duration)}"
    tokens = span.tokens
    told = f"{tokens.prompt:,} {signs.arrow} {tokens.output + tokens.reasoning:,}" if tokens.total else ""
    outcome = f"{signs.marks[span.status]} {outcome_of(span)}".rstrip()
    return time, told, cost_of(span, signs.at_least), outcome


def _columns(rows: list[Row], width: int) -> Columns:
    label = max(width_of(row.branch) + width_of(row.label) for row in rows)
    time, tokens, cost, outcome = (_widest(rows, name) for name in ("time", "tokens", "cost", "outcome"))
    if _room(width, time, tokens, cost) < _NARROWEST_LABEL + _NARROWEST_OUTCOME:
        tokens = 0
    if _room(width, time, tokens, cost) < _NARROWEST_LABEL + _NARROWEST_OUTCOME:
        cost = 0
    room = _room(width, time, tokens, cost) - _GAP
    label = min(label, max(room - min(outcome, max(_NARROWEST_OUTCOME, room // 3)), room // 2))
    return Columns(label, time, tokens, cost, max(0, min(outcome, room - label)))


def _widest(rows: list[Row], column: str) -> int:
    """0 for a column that holds nothing but its heading."""
    widths = [width_of(getattr(row, column)) for row in rows]
    return max(widths) if any(widths[1:]) else 0


def _room(width: int, *taken: int) -> int:
    return width - sum(column + _GAP for column in taken if column)


def _line(row: Row, columns: Columns, signs: Signs) -> str:
    label = fit(row.branch + row.label, columns.label, signs.ellipsis)
    cells = [label + " " * (columns.label - width_of(label)), row.time.rjust(columns.time)]
    cells += [row.tokens.rjust(columns.tokens)] if columns.tokens else []
    cells += [row.cost.rjust(columns.cost)] if columns.cost else []
    cells.append(fit(row.outcome, columns.outcome, signs.ellipsis))
    return (" " * _GAP).join(cells).rstrip()


def _footer(root: Span, signs: Signs, dropped: int) -> Iterator[str]:
    kinds = [span.kind for _, span in root.walk()]
    counts = [(kinds.count("agent"), "agent"), (kinds.count("model"), "model call"), (kinds.count("tool"), "tool call")]
    words = [duration_text(root.duration)]
    words += [f"{count:,} {word}{'s' if count != 1 else ''}" for count, word in counts if count]
    words += [f"{root.tokens.total:,} tokens"] if root.tokens.total else []
    words += [f"{cost_of(root, signs.at_least)}"] if root.answers and root.unpriced < root.answers else []
    yield "total: " + ", ".join(words)
    if root.unpriced:
        yield f"{root.unpriced:,} of {root.answers:,} answers came from models without a known price"
    if dropped:
        yield f"{dropped:,} older records were dropped from the log; the tree begins after them"
