"""No text from a model, a tool or a file makes a terminal act, whichever way it gets there."""

import io
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pytest
from rich.console import Console

from outrider import EventBus, EventLog, EventLogger, Trace
from outrider.permissions.explain import explain_decision
from outrider.permissions.redaction.terminal import sanitize_for_terminal
from outrider.types.events import EVENT_TYPES, Event
from outrider.types.parts import TextPart
from tests.security.payloads import PAYLOADS, harmless


def filled(event: type[Event], text: str) -> Event:
    """An event of this class with the text in every place that takes one."""
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(event):
        kind = str(field.type)
        if field.name == "part":
            fields["part"] = TextPart(text)
        elif "dict" in kind:
            fields[field.name] = {text: text, "list": [text]}
        elif "tuple" in kind:
            fields[field.name] = (text,)
        elif "str" in kind:
            fields[field.name] = "1" if field.name == "cost" else text
        elif field.required:
            fields[field.name] = 1
    return event(**fields)


@cache
def events() -> tuple[Event, ...]:
    return tuple(filled(event, f"before{payload}after") for payload in PAYLOADS for event in EVENT_TYPES.values())


def logged(console: Any, out: io.StringIO, *, verbose: bool) -> str:
    bus = EventBus()
    EventLogger(console, verbose=verbose).attach(bus)
    for event in events():
        bus.publish(event)
    return out.getvalue()


def to_a_rich_terminal(*, verbose: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system=None, width=200, legacy_windows=False)
    return logged(console, out, verbose=verbose)


def to_a_plain_stream(*, verbose: bool) -> str:
    out = io.StringIO()
    return logged(out, out, verbose=verbose)


@cache
def recorded() -> EventLog:
    bus, log = EventBus(), EventLog(maximum=1_000_000)
    log.attach(bus)
    for event in events():
        bus.publish(event)
    return log


def as_a_tree() -> str:
    out = io.StringIO()
    Trace(recorded()).print_tree(out, width=200)
    return out.getvalue()


def as_explanations() -> str:
    def explained(payload: str) -> str:
        return explain_decision("shell", {"command": f"make {payload}"}, mode="agent", workspace="/").format()

    return "\n".join(map(explained, PAYLOADS))


SINKS: dict[str, Callable[[], str]] = {
    "the logger on a terminal": lambda: to_a_rich_terminal(verbose=False),
    "the logger on a terminal, verbose": lambda: to_a_rich_terminal(verbose=True),
    "the logger on a stream": lambda: to_a_plain_stream(verbose=False),
    "the logger on a stream, verbose": lambda: to_a_plain_stream(verbose=True),
    "the event log": lambda: recorded().format(),
    "the tree of a trace": as_a_tree,
    "explanations": as_explanations,
    "front ends": lambda: "\n".join(map(sanitize_for_terminal, PAYLOADS)),
}


@pytest.mark.parametrize("sink", SINKS)
def test_nothing_that_a_terminal_acts_on_gets_there(sink: str):
    shown = SINKS[sink]()
    raw = sorted({f"U+{ord(char):04X}" for char in shown if not harmless(char)})
    assert not raw, f"{sink} lets through {raw}"
    assert len(shown) > 5 * len(PAYLOADS), "the sink says something at all"


def test_there_are_more_than_five_hundred_payloads():
    assert len(PAYLOADS) >= 500
