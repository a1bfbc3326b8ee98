"""Short functions that publish events, for the tests of this folder."""

from typing import Any

from outrider.event_bus import EventBus
from outrider.tracing.event_log import AgentEvent, EventLog
from outrider.tracing.trace import Span, Trace
from outrider.types.events import Event


def log_of(*events: Event) -> EventLog:
    """What a log on a bus makes of these events."""
    bus, log = EventBus(), EventLog()
    log.attach(bus)
    for event in events:
        bus.publish(event)
    return log


def trace_of(*events: Event | AgentEvent) -> Trace:
    if all(isinstance(event, Event) for event in events):
        return Trace(log_of(*[event for event in events if isinstance(event, Event)]))
    return Trace([event for event in events if isinstance(event, AgentEvent)])


def called(call_id: str, callee: str, at: int = 0, parent: str = "", **data: Any) -> AgentEvent:
    return AgentEvent(
        "agent_call", data.pop("by", ""), at, call_id, parent, data.pop("session", ""), {"callee": callee, **data}
    )


def returned(call_id: str, callee: str, at: int = 0, **data: Any) -> AgentEvent:
    return AgentEvent(
        "agent_return", data.pop("by", ""), at, call_id, "", data.pop("session", ""), {"callee": callee, **data}
    )


def shape(span: Span) -> Any:
    """The tree as nested lists of names, for comparison."""
    return [span.name, *(shape(child) for child in span.children)]


def names(spans: list[Span]) -> list[str]:
    return [span.name for span in spans]
