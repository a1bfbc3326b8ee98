"""Writes a tree of spans as one self-contained page: a waterfall with totals, which needs and allows no network."""

import base64
import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib.resources import files
from itertools import islice

from outrider.tracing.format import duration_text, one_line, visible
from outrider.tracing.pages.rows import cost_cell, json_for_html, rows_of
from outrider.tracing.pages.summary import Share, Summary, summarise
from outrider.tracing.render import draw, waited_for_approval
from outrider.tracing.span import Span, SpanStatus

SPAN_LIMIT = 100_000
PLAIN_TREE_LIMIT = 1_000
_TABLE_ROWS = 50
_MARKS: dict[SpanStatus, str] = {"ok": "✓", "failed": "✗", "stopped": "■", "unfinished": "…"}
_SAID: dict[SpanStatus, str] = {"ok": "done", "failed": "failed", "stopped": "stopped", "unfinished": "unfinished"}


def page(root: Span, *, title: str = "", dropped: int = 0) -> str:
    spans = list(islice(root.walk(), SPAN_LIMIT + 1))
    shown = spans[:SPAN_LIMIT]
    summary = summarise(span for _, span in shown)
    parts = {
        "CSP": escape(_policy(), quote=True),
        "STYLE": _asset("timeline.css"),
        "SCRIPT": _asset("timeline.js"),
        "TITLE": escape(visible(title or f"Trace of {root.name}")),
        "STATUS": f'<p class="status {root.status}">{_MARKS[root.status]} {_SAID[root.status]}</p>',
        "WHEN": escape(_when(root)),
        "OUTCOME": escape(_ending(root)),
        "TILES": "".join(_tiles(root, [span for _, span in shown])),
        "TABLES": _tables(summary),
        "NOTES": "".join(f"<p>{escape(note)}</p>" for note in _notes(len(spans), dropped)),
        "PLAIN": escape(draw(root, width=110)) if len(spans) <= PLAIN_TREE_LIMIT else "(too long for this page)",
        "ROWS": json_for_html(rows_of(shown)),
    }
    return _filled(_asset("timeline.html"), parts)


def _filled(template: str, parts: dict[str, str]) -> str:
    """Each place is filled once; what is filled in is never searched for places again."""
    pieces = template.split("%%")
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


@cache
def _asset(name: str) -> str:
    return files("outrider.tracing.pages").joinpath("assets", name).read_text(encoding="utf-8").strip()


@cache
def _policy() -> str:
    style, script = (_hash(_asset(name)) for name in ("timeline.css", "timeline.js"))
    return f"default-src 'none'; style-src {style}; script-src {script}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _when(root: Span) -> str:
    if not root.start:
        return ""
    try:
        return datetime.fromtimestamp(root.start / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return ""


def _ending(root: Span) -> str:
    said = root.error if root.status == "failed" else root.result or root.outcome
    return one_line(said or "", 300)


def _tiles(root: Span, spans: list[Span]) -> Iterator[str]:
    kinds = [span.kind for span in spans]
    failed = sum(span.status == "failed" for span in spans)
    tokens = root.tokens
    yield _tile("time", duration_text(root.duration), "" if root.finished else "at least: the end is missing")
    priceless = f"{root.unpriced:,} of {root.answers:,} answers have no known price"
    yield _tile("cost", cost_cell(root) or "–", priceless if root.unpriced else "")
    yield _tile("tokens in", f"{tokens.prompt:,}", f"{tokens.cache.read:,} from cache" if tokens.cache.read else "")
    yield _tile(
        "tokens out",
        f"{tokens.output + tokens.reasoning:,}",
        f"{tokens.reasoning:,} reasoning" if tokens.reasoning else "",
    )
    yield _tile("model calls", f"{kinds.count('model'):,}", "")
    yield _tile("tool calls", f"{kinds.count('tool'):,}", "")
    if waited := sum(map(waited_for_approval, spans)):
        yield _tile("waited for approval", duration_text(waited), "")
    yield _tile("failed", f"{failed:,}", f"of {len(spans):,} span{'s' if len(spans) != 1 else ''}")


def _tile(label: str, value: str, note: str) -> str:
    small = f"<small>{escape(note)}</small>" if note else ""
    return f"<div><dt>{label}</dt><dd>{escape(value)}{small}</dd></div>"


def _tables(summary: Summary) -> str:
    tables = [
        _table("agent", "Agents", summary.agents, usage=True),
        _table("model", "Models", summary.models, usage=True),
        _table("tool", "Tools", summary.tools, usage=False),
    ]
    return "".join(tables)


def _table(kind: str, heading: str, shares: list[Share], *, usage: bool) -> str:
    if not shares:
        return ""
    longest = max(share.time for share in shares) or 1
    columns = ["calls", "time", *(["in", "out", "cost"] if usage else ["longest", "failed"])]
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    body = "".join(_table_row(share, longest, usage=usage) for share in shares[:_TABLE_ROWS])
    rest = f"<p>{len(shares) - _TABLE_ROWS:,} more are not shown.</p>" if len(shares) > _TABLE_ROWS else ""
    return (
        f'<section class="{kind}"><h2>{heading}</h2><table><thead><tr><th scope="col">name</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>{rest}</section>"
    )


def _table_row(share: Share, longest: int, *, usage: bool) -> str:
    percent = round(100 * share.time / longest, 1)
    bar = (
        '<svg viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{percent}" height="4"></rect></svg>'
    )
    cells = [f"{share.calls:,}", duration_text(share.time)]
    if usage:
        cells += [
            f"{share.tokens.prompt:,}",
            f"{share.tokens.output + share.tokens.reasoning:,}",
            cost_cell(share) or "–",
        ]
    else:
        cells += [duration_text(share.longest), f"✗ {share.failed:,}" if share.failed else "0"]
    name = escape(one_line(share.name, 80))
    numbers = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr><th scope="row" title="{name}">{name}{bar}</th>{numbers}</tr>'


def _notes(count: int, dropped: int) -> Iterator[str]:
    if count > SPAN_LIMIT:
        yield f"Only the first {SPAN_LIMIT:,} spans are on this page, and its tables count only those."
    if dropped:
        yield f"{dropped:,} older records had been dropped from the log; the trace begins after them."
