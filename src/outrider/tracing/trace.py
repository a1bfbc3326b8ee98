"""A trace: the records of an event log as one tree of spans, to be read, printed or looked at in a browser."""

import shutil
import sys
from collections.abc import Iterable
from typing import TextIO

from outrider.tracing import trace_builder as outcomes
from outrider.tracing.event_log import EventLog
from outrider.tracing.event_record import AgentEvent
from outrider.tracing.html_timeline import page
from outrider.tracing.render import draw
from outrider.tracing.span import UNKNOWN, Span
from outrider.tracing.trace_builder import SpanTreeBuilder

__all__ = ["Span", "Trace", "build"]


class Trace:
    """The state of the log when the trace was made; a later look needs a new Trace."""

    def __init__(self, event_log: EventLog | Iterable[AgentEvent]) -> None:
        self.dropped = 0
        if isinstance(event_log, EventLog):
            events, unfinished = event_log.snapshot()
            self.dropped = event_log.dropped.count
            self.root = build([*events, *unfinished])
        else:
            self.root = build(list(event_log))

    def format_tree(self, width: int = 100) -> str:
        return draw(self.root, width=width, dropped=self.dropped)

    def print_tree(self, file: TextIO | None = None, width: int | None = None) -> None:
        """Draw the tree as wide as the terminal, in characters that the output can take."""
        out = sys.stdout if file is None else file
        if width is None:
            width = shutil.get_terminal_size((100, 24)).columns if out.isatty() else 100
        encoding = getattr(out, "encoding", None) or "utf-8"
        out.write(draw(self.root, width=width, encoding=encoding, dropped=self.dropped) + "\n")

    def to_html(self, title: str = "") -> str:
        """One self-contained page: a waterfall of the same tree, with what it cost by agent, model and tool."""
        return page(self.root, title=title, dropped=self.dropped)


def build(events: list[AgentEvent]) -> Span:
    """The root of the tree; a made-up `run` span where several spans would be roots, or none."""
    nesting = SpanTreeBuilder(events)
    root = _root(nesting)
    for event in nesting.adrift:
        if not outcomes.is_loop_end(event):
            outcomes.fail(root, event)
    _settle(root)
    return root


def _root(nesting: SpanTreeBuilder) -> Span:
    if len(nesting.tops) == 1:
        root = nesting.tops[0]
        root.children += nesting.loose
        return root
    roots = nesting.tops + nesting.loose
    if len(roots) == 1 and roots[0].kind == "agent":
        return roots[0]
    return Span("run", "run", children=roots)


def _settle(root: Span) -> None:
    """From the leaves up: fill in what was not recorded, add up tokens and cost, and put siblings in order."""
    for _, span in reversed(list(root.walk())):
        span.children.sort(key=_start_of)
        if span.start == UNKNOWN:
            span.start = min((child.start for child in span.children), default=max(span.end or 0, 0))
        span.last = max((child.last for child in span.children), default=span.start)
        span.last = max(span.last, span.start, span.end or 0)
        if span.status == "failed":
            span.error = span.error or span.outcome or "failed"
        _add_up(span)
        if span.kind == "run":
            _settle_run(span)


def _add_up(span: Span) -> None:
    for child in span.children:
        span.tokens += child.tokens
        span.known_cost += child.known_cost
        span.answers += child.answers
        span.unpriced += child.unpriced


def _settle_run(span: Span) -> None:
    """What is made up can only be as finished as what it holds."""
    statuses = {child.status for child in span.children}
    if span.status == "unfinished" and "unfinished" not in statuses:
        span.status = "failed" if "failed" in statuses else "stopped" if "stopped" in statuses else "ok"
        span.end = span.last


def _start_of(span: Span) -> int:
    return span.start
