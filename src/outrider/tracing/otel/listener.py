"""Turns what happens on a bus into spans (`invoke_agent`, `chat`, `execute_tool`) and metrics of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from outrider.bus import EventBus
from outrider.errors import ConfigurationError
from outrider.tracing.otel import names
from outrider.tracing.otel.measures import Measures
from outrider.types.events import (
    AgentCalledEvent,
    Event,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    ToolExecutionCompletedEvent,
    ToolExecutionStartedEvent,
)

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

NANOSECONDS = 1_000_000  # in a millisecond
WELL_KNOWN = {"google": "gcp.gemini", "openai-responses": "openai"}
ENDED_WELL = ("completed", "stop", "tool_use", "length")

Key = tuple[str, str]


class OpenTelemetry:
    """Attach it to a bus. Without providers the global ones of the program count. What people, models and tools said
    is recorded only with `content=True`."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        content: bool = False,
    ) -> None:
        try:
            from opentelemetry import metrics, trace
        except ImportError as error:
            raise ConfigurationError("OpenTelemetry is not installed: pip install 'outrider[otel]'") from error
        self._trace = trace
        self._tracer = trace.get_tracer("outrider", tracer_provider=tracer_provider)
        self._measures = Measures(metrics.get_meter("outrider", meter_provider=meter_provider))
        self._content = content
        self._agents: dict[str, Span] = {}
        self._open: dict[Key, Span] = {}
        self._callers: dict[str, Key] = {}

    def attach(self, bus: EventBus) -> Callable[[], None]:
        """Follow the bus from now on. Returns what ends that; spans that are open then end there."""
        ends = [
            bus.subscribe(LoopStartedEvent, self._agent_starts),
            bus.subscribe(LoopCompletedEvent, self._agent_ends),
            bus.subscribe(LLMRequestEvent, self._chat_starts),
            bus.subscribe(LLMResponseEvent, self._chat_ends),
            bus.subscribe(ToolExecutionStartedEvent, self._tool_starts),
            bus.subscribe(ToolExecutionCompletedEvent, self._tool_ends),
            bus.subscribe(AgentCalledEvent, self._agent_is_called),
        ]

        def detach() -> None:
            for end in ends:
                end()
            self._end_all()

        return detach

    def _agent_is_called(self, event: AgentCalledEvent) -> None:
        self._callers[event.child_session_id] = (event.session_id, event.call_id)

    def _agent_starts(self, event: LoopStartedEvent) -> None:
        caller = self._open.get(self._callers.pop(event.session_id, ("", "")))
        attributes = _labels(event, "invoke_agent")
        if self._content:
            attributes[names.INPUT_MESSAGES] = _message("user", event.user_message)
        self._agents[event.session_id] = self._start(event, f"invoke_agent {event.agent_name}", caller, attributes)

    def _agent_ends(self, event: LoopCompletedEvent) -> None:
        span = self._agents.pop(event.session_id, None)
        reason = event.termination_reason
        extra: dict[str, Any] = {names.TERMINATION: reason}
        if self._content:
            extra[names.OUTPUT_MESSAGES] = _message("assistant", event.output)
        measured = _failed({names.OPERATION: "invoke_agent", names.AGENT: event.agent_name}, reason)
        self._measures.agent_ended(event.duration_ms, measured)
        self._end(span, event, extra, reason)

    def _chat_starts(self, event: LLMRequestEvent) -> None:
        self._open[event.session_id, event.call_id] = self._start(
            event,
            f"chat {event.model}",
            self._agents.get(event.session_id),
            _labels(event, "chat") | _model(event),
            self._trace.SpanKind.CLIENT,
        )

    def _chat_ends(self, event: LLMResponseEvent) -> None:
        reason = event.stop_reason or "other"
        self._measures.answered(event, _failed({names.OPERATION: "chat"} | _model(event), reason))
        used: dict[str, Any] = {
            names.RESPONSE_MODEL: event.model,
            names.FINISH_REASONS: (reason,),
            names.INPUT_TOKENS: event.tokens.prompt,
            names.OUTPUT_TOKENS: event.tokens.output + event.tokens.reasoning,
            names.CACHE_READ_TOKENS: event.cache_read_tokens,
            names.CACHE_WRITE_TOKENS: event.cache_write_tokens,
            names.REASONING_TOKENS: event.reasoning_tokens,
        }
        if event.cost is not None:
            used[names.COST] = float(event.cost)
        self._end(self._open.pop((event.session_id, event.call_id), None), event, used, reason)

    def _tool_starts(self, event: ToolExecutionStartedEvent) -> None:
        attributes = _labels(event, "execute_tool")
        attributes |= {names.TOOL: event.tool_name, names.TOOL_CALL: event.call_id, names.TOOL_TYPE: "function"}
        if self._content:
            attributes[names.TOOL_ARGUMENTS] = msgspec.json.encode(event.tool_input).decode()
        parent = self._agents.get(event.session_id)
        key = (event.session_id, event.call_id)
        self._open[key] = self._start(event, f"execute_tool {event.tool_name}", parent, attributes)

    def _tool_ends(self, event: ToolExecutionCompletedEvent) -> None:
        reason = "completed" if event.success else event.reason or "failed"
        measured = _failed({names.OPERATION: "execute_tool", names.TOOL: event.tool_name}, reason)
        self._measures.tool_ended(event.duration_ms, measured)
        extra = {names.TOOL_RESULT: event.output_preview} if self._content else {}
        self._end(self._open.pop((event.session_id, event.call_id), None), event, extra, reason)

    def _start(
        self, event: Event, name: str, parent: Span | None, attributes: Mapping[str, Any], kind: Any = None
    ) -> Span:
        """A span below its parent of ours, or below the caller's own where we have none."""
        return self._tracer.start_span(
            name.strip(),
            context=None if parent is None else self._trace.set_span_in_context(parent),
            kind=kind or self._trace.SpanKind.INTERNAL,
            attributes=attributes,
            start_time=event.timestamp * NANOSECONDS,
        )

    def _end(self, span: Span | None, event: Event, attributes: Mapping[str, Any], reason: str) -> None:
        if span is None:
            return
        span.set_attributes(dict(attributes))
        if reason not in ENDED_WELL:
            span.set_attribute(names.ERROR_TYPE, reason)
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, reason))
        span.end(event.timestamp * NANOSECONDS)

    def _end_all(self) -> None:
        for span in (*self._open.values(), *self._agents.values()):
            span.end()
        self._open.clear()
        self._agents.clear()


def _labels(event: Event, operation: str) -> dict[str, Any]:
    return {names.OPERATION: operation, names.CONVERSATION: event.session_id, names.AGENT: event.agent_name}


def _model(event: LLMRequestEvent | LLMResponseEvent) -> dict[str, str]:
    return {names.PROVIDER: WELL_KNOWN.get(event.provider, event.provider), names.REQUEST_MODEL: event.model}


def _failed(attributes: dict[str, str], reason: str) -> dict[str, str]:
    return attributes if reason in ENDED_WELL else {**attributes, names.ERROR_TYPE: reason}


def _message(role: str, text: str) -> str:
    """One message in the conventions' form, as JSON text, since attributes of spans hold no objects."""
    return msgspec.json.encode([{"role": role, "parts": [{"type": "text", "content": text}]}]).decode()
