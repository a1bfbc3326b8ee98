"""Renders a tree of spans as a self-contained HTML page: a waterfall with totals, without network access."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from html import escape
from importlib.resources import files
from itertools import islice
from typing import Any

import msgspec

from outrider.presentation.formats import escape_line, format_count, format_milliseconds, format_tokens, format_utc_time
from outrider.presentation.html_page import render_page, render_tile
from outrider.tracing.records import Span, SpanKind, SpanStatus, visible
from outrider.tracing.render import HasCost, approval_wait, render_tree, span_cost, span_outcome
from outrider.types.parts import Tokens

TEXT_BUDGET = 8_000_000
# The page's script refers to both by their position in these tuples.
_KINDS: tuple[SpanKind, ...] = ("run", "agent", "model", "tool")
_STATUSES: tuple[SpanStatus, ...] = ("ok", "failed", "stopped", "unfinished")


def timeline_rows(spans: list[tuple[int, Span]]) -> list[list[Any]]:
    """Returns a row per span, parents first. The more spans, the less text per span, so that the page stays small."""
    origin = min(span.start for _, span in spans)
    limit = max(200, min(4_000, TEXT_BUDGET // len(spans)))
    return [
        [
            depth,
            _KINDS.index(span.kind),
            visible(span.name),
            visible(span.agent_name),
            span.start - origin,
            span.duration,
            _STATUSES.index(span.status),
            span_outcome(span),
            span.tokens.prompt,
            span.tokens.output + span.tokens.reasoning,
            cost_cell(span),
            approval_wait(span),
            [[label, _truncate(detail, limit)] for label, detail in (*_span_texts(span), *_span_facts(span))],
        ]
        for depth, span in spans
    ]


def cost_cell(of: HasCost) -> str:
    cost = span_cost(of)
    return "unknown" if cost == "?" else cost


def json_for_html(value: Any) -> str:
    """Returns JSON that cannot close the script element that contains it."""
    text = msgspec.json.encode(value).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _span_texts(span: Span) -> Iterator[tuple[str, str]]:
    """Yields the texts of a span, which the page shows in full."""
    texts = {
        "error": span.error,
        "message": span.details.get("message"),
        "input": "\n".join(f"{key}: {_as_text(value)}" for key, value in span.tool_input.items()),
        "result": span.result if span.result != span.error else None,
    }
    for label, text in texts.items():
        if text:
            yield label, str(text)


def _span_facts(span: Span) -> Iterator[tuple[str, str]]:
    tokens, details = span.tokens, span.details
    if span.kind == "model":
        counts = {"new input": tokens.input, "cache read": tokens.cache.read, "cache write": tokens.cache.write}
        for label, count in (counts | {"reasoning": tokens.reasoning}).items():
            if count:
                yield label, f"{format_tokens(count)} tokens"
    for label, name in {"first token after": "first_token_ms", "waited to retry": "retry_wait_ms"}.items():
        if isinstance(details.get(name), int):
            yield label, format_milliseconds(details[name])
    for label, name in {
        "retried after": "retry_error",
        "cache miss": "cache_miss",
        "provider": "provider",
        "called by": "caller",
    }.items():
        if details.get(name):
            yield label, str(details[name])
    if span.call_id:
        yield "call", span.call_id


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _truncate(text: str, limit: int) -> str:
    text = text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"
    return "\n".join(visible(line) for line in text.split("\n"))


@dataclass(slots=True)
class NameTotals:
    """Totals of all spans with one name. `time` is their sum, also for calls that ran in parallel."""

    name: str
    calls: int = 0
    failed: int = 0
    time: int = 0
    longest: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    known_cost: Decimal = Decimal(0)
    answers: int = 0
    unpriced: int = 0

    def add_time(self, span: Span, time: int) -> None:
        self.calls += 1
        self.failed += span.status == "failed"
        self.time += time
        self.longest = max(self.longest, span.duration)

    def add_usage(self, span: Span) -> None:
        self.tokens += span.tokens
        self.known_cost += span.known_cost
        self.answers += span.answers
        self.unpriced += span.unpriced


@dataclass(frozen=True, slots=True)
class TraceSummary:
    agents: list[NameTotals]
    models: list[NameTotals]
    tools: list[NameTotals]


def summarise_spans(spans: Iterable[Span]) -> TraceSummary:
    """Sums spans by agent, model and tool. The time of an agent excludes the agents that it called, so that no time is
    counted twice."""
    agents: dict[str, NameTotals] = {}
    models: dict[str, NameTotals] = {}
    tools: dict[str, NameTotals] = {}
    for span in spans:
        match span.kind:
            case "agent":
                _totals_for(agents, span.name).add_time(span, span.time_outside(span.agent_calls))
            case "model":
                _totals_for(models, span.name).add_time(span, span.duration)
                _totals_for(models, span.name).add_usage(span)
                _totals_for(agents, span.agent_name or "agent").add_usage(span)
            case "tool":
                _totals_for(tools, span.name).add_time(span, span.duration)
            case "run":
                pass
    return TraceSummary(*(sorted(shares.values(), key=_by_time) for shares in (agents, models, tools)))


def _totals_for(shares: dict[str, NameTotals], name: str) -> NameTotals:
    return shares.setdefault(name, NameTotals(name))


def _by_time(share: NameTotals) -> tuple[int, str]:
    return -share.time, share.name


SPAN_LIMIT = 100_000
PLAIN_TREE_LIMIT = 1_000
_TABLE_ROWS = 50
_MARKS: dict[SpanStatus, str] = {"ok": "✓", "failed": "✗", "stopped": "■", "unfinished": "…"}
_STATUS_LABELS: dict[SpanStatus, str] = {
    "ok": "done",
    "failed": "failed",
    "stopped": "stopped",
    "unfinished": "unfinished",
}


def render_timeline(root: Span, *, title: str = "", dropped: int = 0, span_limit: int = SPAN_LIMIT) -> str:
    spans = list(islice(root.walk(), span_limit + 1))
    visible_spans = spans[:span_limit]
    summary = summarise_spans(span for _, span in visible_spans)
    name = visible(title or f"Trace of {root.name}")
    parts = {
        "TITLE": escape(name),
        "STATUS": f'<p class="status {root.status}">{_MARKS[root.status]} {_STATUS_LABELS[root.status]}</p>',
        "WHEN": escape(_start_text(root)),
        "OUTCOME": escape(_outcome_text(root)),
        "TILES": "".join(_render_tiles(root, [span for _, span in visible_spans])),
        "TABLES": _render_tables(summary),
        "NOTES": "".join(f"<p>{escape(note)}</p>" for note in _render_notes(len(spans), dropped, span_limit)),
        "PLAIN": escape(render_tree(root, width=110)) if len(spans) <= PLAIN_TREE_LIMIT else "(too long for this page)",
        "ROWS": json_for_html(timeline_rows(visible_spans)),
    }
    body = _fill_template(_load_asset("timeline.html"), parts)
    return render_page(name, _load_asset("timeline.css"), body, script=_load_asset("timeline.js"))


def _fill_template(template: str, parts: dict[str, str]) -> str:
    """Replaces each placeholder once; inserted text is not searched for placeholders."""
    segments = template.split("%%")
    return "".join(parts[segment] if index % 2 else segment for index, segment in enumerate(segments))


@cache
def _load_asset(name: str) -> str:
    return files("outrider.tracing").joinpath("assets", name).read_text(encoding="utf-8").strip()


def _start_text(root: Span) -> str:
    if not root.start:
        return ""
    return format_utc_time(root.start, "%Y-%m-%d %H:%M:%S UTC")


def _outcome_text(root: Span) -> str:
    detail = root.error if root.status == "failed" else root.result or root.outcome
    return escape_line(detail or "", 300)


def _render_tiles(root: Span, spans: list[Span]) -> Iterator[str]:
    kinds = [span.kind for span in spans]
    failed = sum(span.status == "failed" for span in spans)
    tokens = root.tokens
    yield render_tile(
        "time", format_milliseconds(root.duration), "" if root.finished else "at least: the end is missing"
    )
    priceless = f"{root.unpriced:,} of {root.answers:,} answers have no known price"
    yield render_tile("cost", cost_cell(root) or "–", priceless if root.unpriced else "")
    yield render_tile(
        "tokens in",
        format_tokens(tokens.prompt),
        f"{format_tokens(tokens.cache.read)} from cache" if tokens.cache.read else "",
    )
    yield render_tile(
        "tokens out",
        format_tokens(tokens.output + tokens.reasoning),
        f"{format_tokens(tokens.reasoning)} reasoning" if tokens.reasoning else "",
    )
    yield render_tile("model calls", f"{kinds.count('model'):,}", "")
    yield render_tile("tool calls", f"{kinds.count('tool'):,}", "")
    if waited := sum(map(approval_wait, spans)):
        yield render_tile("waited for approval", format_milliseconds(waited), "")
    yield render_tile("failed", f"{failed:,}", f"of {format_count(len(spans), 'span')}")


def _render_tables(summary: TraceSummary) -> str:
    tables = [
        _render_table("agent", "Agents", summary.agents, usage=True),
        _render_table("model", "Models", summary.models, usage=True),
        _render_table("tool", "Tools", summary.tools, usage=False),
    ]
    return "".join(tables)


def _render_table(kind: str, heading: str, shares: list[NameTotals], *, usage: bool) -> str:
    if not shares:
        return ""
    longest = max(share.time for share in shares) or 1
    columns = ["calls", "time", *(["in", "out", "cost"] if usage else ["longest", "failed"])]
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    body = "".join(_table_row(share, longest, usage=usage) for share in shares[:_TABLE_ROWS])
    hidden_note = f"<p>{len(shares) - _TABLE_ROWS:,} more are not shown.</p>" if len(shares) > _TABLE_ROWS else ""
    return (
        f'<section class="{kind}"><h2>{heading}</h2><table><thead><tr><th scope="col">name</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>{hidden_note}</section>"
    )


def _table_row(share: NameTotals, longest: int, *, usage: bool) -> str:
    percent = round(100 * share.time / longest, 1)
    bar = (
        '<svg viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{percent}" height="4"></rect></svg>'
    )
    cells = [f"{share.calls:,}", format_milliseconds(share.time)]
    if usage:
        cells += [
            format_tokens(share.tokens.prompt),
            format_tokens(share.tokens.output + share.tokens.reasoning),
            cost_cell(share) or "–",
        ]
    else:
        cells += [format_milliseconds(share.longest), f"✗ {share.failed:,}" if share.failed else "0"]
    name = escape(escape_line(share.name, 80))
    numbers = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr><th scope="row" title="{name}">{name}{bar}</th>{numbers}</tr>'


def _render_notes(count: int, dropped: int, span_limit: int) -> Iterator[str]:
    if count > span_limit:
        yield f"Only the first {span_limit:,} spans are on this page, and its tables count only those."
    if dropped:
        yield f"{dropped:,} older records had been dropped from the log; the trace begins after them."
