"""Renders a tree of spans as plain text: aligned columns, cut to a width, in characters that the output can encode."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import Protocol, cast

from outrider.presentation.formats import (
    escape_line,
    fit_width,
    format_cost,
    format_count,
    format_milliseconds,
    format_tokens,
    width_of,
)
from outrider.tracing.records import (
    Span,
    SpanStatus,
    can_encode,
    escape_unencodable,
)

_GAP = 2
_NARROWEST_LABEL = 24
_NARROWEST_OUTCOME = 12


class HasCost(Protocol):
    """An object with a cost, part of which may be unknown."""

    known_cost: Decimal
    answers: int
    unpriced: int


@dataclass(frozen=True, slots=True)
class TreeSymbols:
    branch: str
    last: str
    line: str
    deep: str
    arrow: str
    ellipsis: str
    at_least: str
    rule: str
    marks: dict[SpanStatus, str]


_UNICODE = TreeSymbols(
    branch="├─ ", last="└─ ", line="│  ", deep="⋯ ", arrow="→", ellipsis="…", at_least="≥", rule="─",
    marks={"ok": "✓", "failed": "✗", "stopped": "■", "unfinished": "…"},
)  # fmt: skip
_ASCII = TreeSymbols(
    branch="|- ", last="`- ", line="|  ", deep=".. ", arrow="->", ellipsis="...", at_least=">=", rule="-",
    marks={"ok": "ok", "failed": "FAILED", "stopped": "stopped", "unfinished": "..."},
)  # fmt: skip
_BLANK = "   "


@dataclass(frozen=True, slots=True)
class TreeRow:
    branch: str
    label: str
    time: str
    tokens: str
    cost: str
    outcome: str


@dataclass(frozen=True, slots=True)
class ColumnWidths:
    """Width of each column; 0 omits it."""

    label: int
    time: int
    tokens: int
    cost: int
    outcome: int


def render_tree(root: Span, *, width: int = 100, encoding: str = "utf-8", dropped: int = 0) -> str:
    width = max(20, width)
    every_sign = "".join(sign for sign in (*_UNICODE.marks.values(), "├─└│⋯→…≥"))
    signs = _UNICODE if can_encode(every_sign, encoding) else _ASCII
    heading = TreeRow("", "span", "time", f"in {signs.arrow} out", "cost", "outcome")
    rows = [heading, *_tree_rows(root, signs, levels=max(2, width // 8))]
    columns = _column_widths(rows, width)
    lines = [_format_row(row, columns, signs) for row in rows]
    lines.insert(1, signs.rule * min(width, max(map(width_of, lines))))
    lines += ["", *(fit_width(line, width, signs.ellipsis) for line in _footer_lines(root, signs, dropped))]
    return escape_unencodable("\n".join(lines), encoding)


def span_label(span: Span) -> str:
    """Returns the label of a span: kind, name and, for a tool, its input."""
    tool_input = span.tool_input if span.kind == "tool" else {}
    named = len(tool_input) > 1  # a single argument needs no name
    arguments = [
        (f"{escape_line(str(key), 40)}=" if named else "") + escape_line(str(value), 60)
        for key, value in islice(tool_input.items(), 6)
    ]
    name = escape_line(span.name, 80) + (f"({', '.join(arguments)})" if arguments else "")
    return name if span.kind == "run" else f"{span.kind} {name}"


def span_cost(span: HasCost, at_least: str = "≥") -> str:
    """Returns the cost of a span; empty if no model answered, `?` if no price is known."""
    if not span.answers:
        return ""
    if span.unpriced == span.answers:
        return "?"
    return f"{at_least if span.unpriced else ''}{format_cost(span.known_cost)}"


def span_outcome(span: Span) -> str:
    """Returns how the span ended."""
    match span.status:
        case "ok":
            return ", ".join(word for word in (escape_line(span.outcome, 60), *span_remarks(span)) if word)
        case "failed":
            message = span.error or ""
            return escape_line(message if span.outcome in message else f"{span.outcome}: {message}", 200)
        case "stopped":
            return escape_line(span.outcome, 60) or "stopped"
        case "unfinished":
            return "unfinished"


def span_remarks(span: Span) -> Iterator[str]:
    """Yields notes about a span: a cache miss, retries, the wait for an approval, and the origins of a result."""
    if miss := span.details.get("cache_miss"):
        yield f"cache miss ({escape_line(str(miss), 120)})"
    if isinstance(retries := span.details.get("retries"), int) and span.kind == "model":
        yield f"{retries} {'retry' if retries == 1 else 'retries'}"
    if waited := approval_wait(span):
        yield f"waited {format_milliseconds(waited)} for approval"
    if span.kind == "tool" and isinstance(origins := span.details.get("origins"), list):
        yield "from " + "; ".join(escape_line(str(origin), 80) for origin in cast("list[object]", origins)[:3])


def approval_wait(span: Span) -> int:
    waited = span.details.get("approval_ms")
    return waited if isinstance(waited, int) and span.kind == "tool" else 0


def _tree_rows(root: Span, signs: TreeSymbols, levels: int) -> Iterator[TreeRow]:
    waiting = [(root, "", "")]
    while waiting:
        span, branch, below = waiting.pop()
        yield TreeRow(branch, span_label(span), *_row_cells(span, signs))
        for index in range(len(span.children) - 1, -1, -1):
            is_last = index == len(span.children) - 1
            child_below = _limit_depth(below + (_BLANK if is_last else signs.line), signs, levels)
            waiting.append((span.children[index], below + (signs.last if is_last else signs.branch), child_below))


def _limit_depth(below: str, signs: TreeSymbols, levels: int) -> str:
    """Returns the branch lines of the innermost levels only, so that a very deep tree fits the width."""
    if len(below) <= levels * len(_BLANK):
        return below
    return signs.deep.ljust(len(_BLANK)) + below[2 * len(_BLANK) :]


def _row_cells(span: Span, signs: TreeSymbols) -> tuple[str, str, str, str]:
    time = f"{signs.at_least if not span.finished else ''}{format_milliseconds(span.duration)}"
    tokens = span.tokens
    token_text = (
        f"{format_tokens(tokens.prompt)} {signs.arrow} {format_tokens(tokens.output + tokens.reasoning)}"
        if tokens.total
        else ""
    )
    outcome = f"{signs.marks[span.status]} {span_outcome(span)}".rstrip()
    return time, token_text, span_cost(span, signs.at_least), outcome


def _column_widths(rows: list[TreeRow], width: int) -> ColumnWidths:
    label = max(width_of(row.branch) + width_of(row.label) for row in rows)
    time, tokens, cost, outcome = (_column_width(rows, name) for name in ("time", "tokens", "cost", "outcome"))
    if _remaining_width(width, time, tokens, cost) < _NARROWEST_LABEL + _NARROWEST_OUTCOME:
        tokens = 0
    if _remaining_width(width, time, tokens, cost) < _NARROWEST_LABEL + _NARROWEST_OUTCOME:
        cost = 0
    room = _remaining_width(width, time, tokens, cost) - _GAP
    label = min(label, max(room - min(outcome, max(_NARROWEST_OUTCOME, room // 3)), room // 2))
    return ColumnWidths(label, time, tokens, cost, max(0, min(outcome, room - label)))


def _column_width(rows: list[TreeRow], column: str) -> int:
    """Returns 0 for a column that is empty except for its heading."""
    widths = [width_of(getattr(row, column)) for row in rows]
    return max(widths) if any(widths[1:]) else 0


def _remaining_width(width: int, *columns: int) -> int:
    return width - sum(column + _GAP for column in columns if column)


def _format_row(row: TreeRow, columns: ColumnWidths, signs: TreeSymbols) -> str:
    label = fit_width(row.branch + row.label, columns.label, signs.ellipsis)
    cells = [label + " " * (columns.label - width_of(label)), row.time.rjust(columns.time)]
    cells += [row.tokens.rjust(columns.tokens)] if columns.tokens else []
    cells += [row.cost.rjust(columns.cost)] if columns.cost else []
    cells.append(fit_width(row.outcome, columns.outcome, signs.ellipsis))
    return (" " * _GAP).join(cells).rstrip()


def _footer_lines(root: Span, signs: TreeSymbols, dropped: int) -> Iterator[str]:
    kinds = [span.kind for _, span in root.walk()]
    counts = [(kinds.count("agent"), "agent"), (kinds.count("model"), "model call"), (kinds.count("tool"), "tool call")]
    totals = [format_milliseconds(root.duration)]
    totals += [format_count(count, word) for count, word in counts if count]
    totals += [f"{format_tokens(root.tokens.total)} tokens"] if root.tokens.total else []
    totals += [f"{span_cost(root, signs.at_least)}"] if root.answers and root.unpriced < root.answers else []
    yield "total: " + ", ".join(totals)
    if root.unpriced:
        yield f"{root.unpriced:,} of {root.answers:,} answers came from models without a known price"
    if dropped:
        yield f"{dropped:,} older records were dropped from the log; the tree begins after them"
