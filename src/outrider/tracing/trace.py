"""Trace: the records of an event log as a tree of spans, which can be read, printed or exported as HTML."""

import shutil
import sys
from collections.abc import Iterable
from typing import TextIO

from outrider.tracing import trace_builder as outcomes
from outrider.tracing.event_log import EventLog
from outrider.tracing.html_timeline import render_timeline
from outrider.tracing.records import UNKNOWN, AgentEvent, Span
from outrider.tracing.render import render_tree
from outrider.tracing.trace_builder import SpanTreeBuilder

__all__ = ["Span", "Trace", "build_tree"]


class Trace:
    """A tree of spans, built once from the records of an event log; later records need a new Trace."""

    def __init__(self, event_log: EventLog | Iterable[AgentEvent]) -> None:
        self.dropped = 0
        if isinstance(event_log, EventLog):
            events, unfinished = event_log.snapshot()
            self.dropped = event_log.dropped.count
            self.root = build_tree([*events, *unfinished])
        else:
            self.root = build_tree(list(event_log))

    def format_tree(self, width: int = 100) -> str:
        """Returns the spans as a text tree with times, tokens, cost and outcome."""
        return render_tree(self.root, width=width, dropped=self.dropped)

    def print_tree(self, file: TextIO | None = None, width: int | None = None) -> None:
        """Prints the tree at the width of the terminal, in characters that the output can encode."""
        out = sys.stdout if file is None else file
        if width is None:
            width = shutil.get_terminal_size((100, 24)).columns if out.isatty() else 100
        encoding = getattr(out, "encoding", None) or "utf-8"
        out.write(render_tree(self.root, width=width, encoding=encoding, dropped=self.dropped) + "\n")

    def to_html(self, title: str = "") -> str:
        """Returns a self-contained HTML page: a waterfall of the tree, with cost by agent, model and tool."""
        return render_timeline(self.root, title=title, dropped=self.dropped)


def build_tree(events: list[AgentEvent]) -> Span:
    """Returns the root of the tree. If there is not exactly one root, it is a synthetic `run` span."""
    nesting = SpanTreeBuilder(events)
    root = _find_root(nesting)
    for event in nesting.unplaced_errors:
        if not outcomes.is_loop_end(event):
            outcomes.add_error(root, event)
    _complete_spans(root)
    return root


def _find_root(nesting: SpanTreeBuilder) -> Span:
    if len(nesting.roots) == 1:
        root = nesting.roots[0]
        root.children += nesting.orphans
        return root
    roots = nesting.roots + nesting.orphans
    if len(roots) == 1 and roots[0].kind == "agent":
        return roots[0]
    return Span("run", "run", children=roots)


def _complete_spans(root: Span) -> None:
    """Completes spans from the leaves up: missing times, sums of tokens and cost, order of siblings."""
    for _, span in reversed(list(root.walk())):
        span.children.sort(key=_start_of)
        if span.start == UNKNOWN:
            span.start = min((child.start for child in span.children), default=max(span.end or 0, 0))
        span.last = max((child.last for child in span.children), default=span.start)
        span.last = max(span.last, span.start, span.end or 0)
        if span.status == "failed":
            span.error = span.error or span.outcome or "failed"
        _add_usage(span)
        if span.kind == "run":
            _complete_run(span)


def _add_usage(span: Span) -> None:
    for child in span.children:
        span.tokens += child.tokens
        span.known_cost += child.known_cost
        span.answers += child.answers
        span.unpriced += child.unpriced


def _complete_run(span: Span) -> None:
    """Derives the status of a synthetic span from its children."""
    statuses = {child.status for child in span.children}
    if span.status == "unfinished" and "unfinished" not in statuses:
        span.status = "failed" if "failed" in statuses else "stopped" if "stopped" in statuses else "ok"
        span.end = span.last


def _start_of(span: Span) -> int:
    return span.start
