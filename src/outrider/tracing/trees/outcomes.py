"""What a record says about its span: times, tokens, cost and how it ended."""

import math
from decimal import Decimal, InvalidOperation
from typing import Any

from outrider.tracing.agent_event import AgentEvent
from outrider.tracing.span import UNKNOWN, Span, SpanStatus
from outrider.types.usage import CacheTokens, Tokens

_DONE = {"", "completed", "complete", "done", "finish", "finished", "stop", "end_turn", "success", "ok"}


def begin(span: Span, event: AgentEvent) -> None:
    """Take the start from a record that marks one; a second, later start changes nothing."""
    start = moment(event.data.get("started", event.timestamp))
    span.start = start if span.start == UNKNOWN else min(span.start, start)


def end(span: Span, event: AgentEvent) -> None:
    """Take the end. A measured duration counts for more than two readings of a clock that may have been set."""
    measured = moment(event.data.get("duration_ms"))
    if span.start == UNKNOWN and "started" in event.data:
        span.start = moment(event.data["started"])
    elif span.start == UNKNOWN and measured:
        span.start = moment(event.timestamp - measured)
    finish = span.start + measured if measured else max(span.start, moment(event.timestamp))
    span.end = max(finish, span.end or 0)


def end_model(span: Span, event: AgentEvent) -> None:
    end(span, event)
    span.status = "ok"
    span.outcome = text(event.data.get("stop_reason"))
    span.details |= event.data
    span.tokens = Tokens(
        whole(event.data.get("input_tokens")),
        whole(event.data.get("output_tokens")),
        whole(event.data.get("reasoning_tokens")),
        CacheTokens(whole(event.data.get("cache_read_tokens")), whole(event.data.get("cache_write_tokens"))),
    )
    span.answers = 1
    price = money(event.data.get("cost"))
    span.known_cost, span.unpriced = (Decimal(0), 1) if price is None else (price, 0)


def end_tool(span: Span, event: AgentEvent) -> None:
    span.details |= event.data
    if event.data.get("open"):
        begin(span, event)
        return
    end(span, event)
    conclude(span, event, ok=event.data.get("success", True) is not False)


def end_agent(span: Span, event: AgentEvent) -> None:
    span.details |= event.data
    end(span, event)
    conclude(span, event, ok=event.data.get("success", True) is not False)


def conclude(span: Span, event: AgentEvent, *, ok: bool) -> None:
    """The result of something that succeeded or failed. What a loop said of its own end stands."""
    output = text(event.data.get("output"))
    span.result = output or span.result
    span.outcome = text(event.data.get("reason")) or span.outcome
    if not ok and span.status != "stopped":
        span.status = "failed"
        span.error = span.error or output or span.outcome or "failed"
    elif span.status == "unfinished":
        span.status = "ok"


def end_loop(span: Span, event: AgentEvent) -> None:
    """The end of an agent's loop. Of an agent that another called, the return may say more, before or after."""
    span.details = event.data | span.details
    if event.data.get("open"):
        begin(span, event)
        return
    end(span, event)
    span.outcome = text(event.data.get("termination_reason"))
    span.result = text(event.data.get("output")) or span.result
    status = loop_status(event, span.outcome)
    if status == "stopped" and span.error in (None, span.result):
        span.error = None  # a return that says no more than "not a success": the loop knows better
        span.status = status
    elif span.status != "failed":
        span.status = status


def loop_status(event: AgentEvent, reason: str) -> SpanStatus:
    if event.type == "error":
        return "failed"
    return "ok" if reason.lower() in _DONE else "stopped"


def fail(span: Span, event: AgentEvent) -> None:
    """An error inside a span that has not ended ends it; all that a span failed of is kept."""
    kind, message = text(event.data.get("error_type")), text(event.data.get("message"))
    said = ": ".join(word for word in (kind, message) if word) or "error"
    if span.error is None:
        span.error = said
    elif said not in span.error:
        span.error = f"{span.error}\n{said}"
    if span.status == "unfinished":
        span.status = "failed"
        span.end = max(span.start, moment(event.timestamp))


def is_loop_end(event: AgentEvent) -> bool:
    """A loop that failed is recorded as an error, and is an end all the same."""
    return event.type == "finish" or (event.type == "error" and "termination_reason" in event.data)


def text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def whole(value: Any) -> int:
    """A whole number from a record that anybody may have written."""
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0


def moment(value: Any) -> int:
    """A time or a duration, which are never negative."""
    return max(0, whole(value))


def money(value: Any) -> Decimal | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return None
    return amount if amount.is_finite() else None
