"""The spans of a timeline as the rows that its page reads."""

from collections.abc import Iterator
from typing import Any

import msgspec

from outrider.tracing.format import duration_text, visible
from outrider.tracing.render import Priced, cost_of, outcome_of, waited_for_approval
from outrider.tracing.span import Span, SpanKind, SpanStatus

TEXT_BUDGET = 8_000_000
# The page knows both by their place in these lists.
_KINDS: tuple[SpanKind, ...] = ("run", "agent", "model", "tool")
_STATUSES: tuple[SpanStatus, ...] = ("ok", "failed", "stopped", "unfinished")


def rows_of(spans: list[tuple[int, Span]]) -> list[list[Any]]:
    """A row for each span, parents first. With many spans each may say less, so that the page stays light."""
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
            outcome_of(span),
            span.tokens.prompt,
            span.tokens.output + span.tokens.reasoning,
            cost_cell(span),
            waited_for_approval(span),
            [[label, _cut(said, limit)] for label, said in (*_said(span), *_facts(span))],
        ]
        for depth, span in spans
    ]


def cost_cell(of: Priced) -> str:
    cost = cost_of(of)
    return "unknown" if cost == "?" else cost


def json_for_html(value: Any) -> str:
    """JSON in which nothing can end the element that it stands in."""
    text = msgspec.json.encode(value).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _said(span: Span) -> Iterator[tuple[str, str]]:
    """Texts, which the page shows in full."""
    texts = {
        "error": span.error,
        "message": span.details.get("message"),
        "input": "\n".join(f"{key}: {_readable(value)}" for key, value in span.given.items()),
        "result": span.result if span.result != span.error else None,
    }
    for label, text in texts.items():
        if text:
            yield label, str(text)


def _facts(span: Span) -> Iterator[tuple[str, str]]:
    tokens, known = span.tokens, span.details
    if span.kind == "model":
        counts = {"new input": tokens.input, "cache read": tokens.cache.read, "cache write": tokens.cache.write}
        for label, count in (counts | {"reasoning": tokens.reasoning}).items():
            if count:
                yield label, f"{count:,} tokens"
    for label, name in {"first token after": "first_token_ms", "waited to retry": "retry_wait_ms"}.items():
        if isinstance(known.get(name), int):
            yield label, duration_text(known[name])
    for label, name in {"retried after": "retry_error", "provider": "provider", "called by": "caller"}.items():
        if known.get(name):
            yield label, str(known[name])
    if span.call_id:
        yield "call", span.call_id


def _readable(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _cut(text: str, limit: int) -> str:
    text = text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"
    return "\n".join(visible(line) for line in text.split("\n"))
