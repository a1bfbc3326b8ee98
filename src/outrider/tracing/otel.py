"""Exports events as OpenTelemetry spans (`invoke_agent`, `chat`, `execute_tool`) and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import msgspec

from outrider.errors import ConfigurationError
from outrider.event_bus import EventBus, check_bus
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
    from opentelemetry.metrics import Histogram, Meter, MeterProvider
    from opentelemetry.trace import Span, TracerProvider


OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
CONVERSATION = "gen_ai.conversation.id"
AGENT = "gen_ai.agent.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOKEN_TYPE = "gen_ai.token.type"
TOOL = "gen_ai.tool.name"
TOOL_CALL = "gen_ai.tool.call.id"
TOOL_TYPE = "gen_ai.tool.type"
ERROR_TYPE = "error.type"

# Content, recorded on request only.
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"

# Our own attributes: the GenAI conventions have none for these.
COST = "outrider.cost.usd"
TERMINATION = "outrider.termination_reason"

TOKEN_USAGE = "gen_ai.client.token.usage"
CHAT_DURATION = "gen_ai.client.operation.duration"
FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
AGENT_DURATION = "gen_ai.invoke_agent.duration"
TOOL_DURATION = "gen_ai.execute_tool.duration"

# Bucket boundaries recommended by the GenAI conventions.
TOKEN_BUCKETS = tuple(4**power for power in range(14))
SECOND_BUCKETS = tuple(round(0.01 * 2**power, 2) for power in range(14))
FIRST_CHUNK_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


Attributes = dict[str, str]


class TelemetryMetrics:
    def __init__(self, meter: Meter) -> None:
        def histogram(name: str, description: str, buckets: Sequence[float], unit: str = "s") -> Histogram:
            return meter.create_histogram(
                name, unit=unit, description=description, explicit_bucket_boundaries_advisory=buckets
            )

        seconds = SECOND_BUCKETS
        self._tokens = histogram(TOKEN_USAGE, "Tokens of requests and answers.", TOKEN_BUCKETS, unit="{token}")
        self._chat = histogram(CHAT_DURATION, "How long answers took.", seconds)
        self._first = histogram(FIRST_CHUNK, "How long the first piece took.", FIRST_CHUNK_BUCKETS)
        self._agents = histogram(AGENT_DURATION, "How long turns of agents took.", seconds)
        self._tools = histogram(TOOL_DURATION, "How long calls of tools took.", seconds)

    def record_answer(self, event: LLMResponseEvent, attributes: Attributes) -> None:
        used = event.tokens
        for kind, count in (("input", used.prompt), ("output", used.output + used.reasoning)):
            if count:
                self._tokens.record(count, {**attributes, TOKEN_TYPE: kind})
        self._chat.record(event.duration_ms / 1000, attributes)
        if event.first_token_ms is not None:
            self._first.record(event.first_token_ms / 1000, attributes)

    def record_agent(self, milliseconds: int, attributes: Attributes) -> None:
        self._agents.record(milliseconds / 1000, attributes)

    def record_tool(self, milliseconds: int, attributes: Attributes) -> None:
        self._tools.record(milliseconds / 1000, attributes)


_EXPORTER_VARIABLES = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_METRICS_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)


def configure_telemetry(bus: EventBus, environ: Mapping[str, str]) -> Callable[[], None] | None:
    """Exports the events of a bus as configured by the standard variables of OpenTelemetry
    (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_EXPORTER, OTEL_SERVICE_NAME and others). Returns a function that sends the
    remaining data and stops the export, or None if no variable requests an export. Raises ConfigurationError if the SDK
    or an exporter is not installed."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or not any(map(environ.get, _EXPORTER_VARIABLES)):
        return None
    try:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigurationError(f"OTEL_ variables are set; to export: pip install {_SDK_PACKAGES}") from error
    service = {} if environ.get("OTEL_SERVICE_NAME") else {"service.name": "outrider"}
    resource = Resource.create(service)
    tracers = TracerProvider(resource=resource)
    for exporter in _load_exporters("traces", environ):
        tracers.add_span_processor(BatchSpanProcessor(exporter))
    readers = [PeriodicExportingMetricReader(exporter) for exporter in _load_exporters("metrics", environ)]
    meters = MeterProvider(metric_readers=readers, resource=resource)
    detach = OpenTelemetry(tracers, meters).attach(bus)

    def stop() -> None:
        detach()
        tracers.shutdown()
        meters.shutdown()

    return stop


_SDK_PACKAGES = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"


def _load_exporters(signal: str, environ: Mapping[str, str]) -> list[Any]:
    """Returns the exporters that OTEL_TRACES_EXPORTER or OTEL_METRICS_EXPORTER names; OTLP by default."""
    from importlib.metadata import entry_points

    named = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip() or "otlp"
    protocol = (
        environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
        or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    )
    exporters: list[Any] = []
    for name in filter(None, (part.strip() for part in named.split(","))):
        if name == "none":
            continue
        entry = f"otlp_proto_{protocol.partition('/')[0]}" if name == "otlp" else name
        matches = list(entry_points(group=f"opentelemetry_{signal}_exporter", name=entry))
        if not matches:
            raise ConfigurationError(
                f"the OpenTelemetry exporter {entry!r} is not installed: pip install {_SDK_PACKAGES}"
            )
        exporters.append(matches[0].load()())
    return exporters


NANOSECONDS = 1_000_000  # in a millisecond
PROVIDER_NAMES = {"google": "gcp.gemini", "openai-responses": "openai"}
SUCCESS_REASONS = ("completed", "stop", "tool_use", "length")

Key = tuple[str, str]


class OpenTelemetry:
    """OpenTelemetry exporter; attach it to a bus. The default providers are the global ones of the program. Texts of
    users, models and tools are recorded only with `content=True`."""

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
        for provider, method in ((tracer_provider, "get_tracer"), (meter_provider, "get_meter")):
            if provider is not None and not hasattr(provider, method):
                raise ConfigurationError(
                    "OpenTelemetry() takes a TracerProvider and a MeterProvider of opentelemetry.sdk, or nothing for "
                    f"the global ones; got {type(provider).__name__}"
                )
        self._trace = trace
        self._tracer = trace.get_tracer("outrider", tracer_provider=tracer_provider)
        self._metrics = TelemetryMetrics(metrics.get_meter("outrider", meter_provider=meter_provider))
        self._content = content
        self._agents: dict[str, Span] = {}
        self._open: dict[Key, Span] = {}
        self._callers: dict[str, Key] = {}

    def attach(self, bus: EventBus) -> Callable[[], None]:
        """Exports the events of a bus from now on. Returns a function that detaches and ends open spans."""
        check_bus(bus, "OpenTelemetry.attach()")
        ends = [
            bus.subscribe(LoopStartedEvent, self._agent_starts),
            bus.subscribe(LoopCompletedEvent, self._agent_ends),
            bus.subscribe(LLMRequestEvent, self._chat_starts),
            bus.subscribe(LLMResponseEvent, self._chat_ends),
            bus.subscribe(ToolExecutionStartedEvent, self._tool_starts),
            bus.subscribe(ToolExecutionCompletedEvent, self._tool_ends),
            bus.subscribe(AgentCalledEvent, self._agent_is_called),
            bus.add_call_scope(self._enter_tool_span),
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
        attributes = _common_attributes(event, "invoke_agent")
        if self._content:
            attributes[INPUT_MESSAGES] = _message_json("user", event.user_message)
        self._agents[event.session_id] = self._start_span(event, f"invoke_agent {event.agent_name}", caller, attributes)

    def _agent_ends(self, event: LoopCompletedEvent) -> None:
        span = self._agents.pop(event.session_id, None)
        reason = event.termination_reason
        extra: dict[str, Any] = {TERMINATION: reason}
        if self._content:
            extra[OUTPUT_MESSAGES] = _message_json("assistant", event.output)
        measured = _with_error({OPERATION: "invoke_agent", AGENT: event.agent_name}, reason)
        self._metrics.record_agent(event.duration_ms, measured)
        self._end_span(span, event, extra, reason)

    def _chat_starts(self, event: LLMRequestEvent) -> None:
        self._open[event.session_id, event.call_id] = self._start_span(
            event,
            f"chat {event.model}",
            self._agents.get(event.session_id),
            _common_attributes(event, "chat") | _model_attributes(event),
            self._trace.SpanKind.CLIENT,
        )

    def _chat_ends(self, event: LLMResponseEvent) -> None:
        reason = event.stop_reason or "other"
        self._metrics.record_answer(event, _with_error({OPERATION: "chat"} | _model_attributes(event), reason))
        used: dict[str, Any] = {
            RESPONSE_MODEL: event.model,
            FINISH_REASONS: (reason,),
            INPUT_TOKENS: event.tokens.prompt,
            OUTPUT_TOKENS: event.tokens.output + event.tokens.reasoning,
            CACHE_READ_TOKENS: event.cache_read_tokens,
            CACHE_WRITE_TOKENS: event.cache_write_tokens,
            REASONING_TOKENS: event.reasoning_tokens,
        }
        if event.cost is not None:
            used[COST] = float(event.cost)
        self._end_span(self._open.pop((event.session_id, event.call_id), None), event, used, reason)

    def _tool_starts(self, event: ToolExecutionStartedEvent) -> None:
        attributes = _common_attributes(event, "execute_tool")
        attributes |= {TOOL: event.tool_name, TOOL_CALL: event.call_id, TOOL_TYPE: "function"}
        if self._content:
            attributes[TOOL_ARGUMENTS] = msgspec.json.encode(event.tool_input).decode()
        parent = self._agents.get(event.session_id)
        key = (event.session_id, event.call_id)
        self._open[key] = self._start_span(event, f"execute_tool {event.tool_name}", parent, attributes)

    def _tool_ends(self, event: ToolExecutionCompletedEvent) -> None:
        reason = "completed" if event.success else event.reason or "failed"
        measured = _with_error({OPERATION: "execute_tool", TOOL: event.tool_name}, reason)
        self._metrics.record_tool(event.duration_ms, measured)
        extra = {TOOL_RESULT: event.output_preview} if self._content else {}
        self._end_span(self._open.pop((event.session_id, event.call_id), None), event, extra, reason)

    def _enter_tool_span(self, session_id: str, call_id: str) -> AbstractContextManager[Any]:
        """Makes the span of a call the current one, so that spans of its function are below it."""
        span = self._open.get((session_id, call_id))
        return (
            nullcontext()
            if span is None
            else self._trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False)
        )

    def _start_span(
        self, event: Event, name: str, parent: Span | None, attributes: Mapping[str, Any], kind: Any = None
    ) -> Span:
        """Starts a span below `parent`, or below the program's current span if there is none."""
        return self._tracer.start_span(
            name.strip(),
            context=None if parent is None else self._trace.set_span_in_context(parent),
            kind=kind or self._trace.SpanKind.INTERNAL,
            attributes=attributes,
            start_time=event.timestamp * NANOSECONDS,
        )

    def _end_span(self, span: Span | None, event: Event, attributes: Mapping[str, Any], reason: str) -> None:
        if span is None:
            return
        span.set_attributes(dict(attributes))
        if reason not in SUCCESS_REASONS:
            span.set_attribute(ERROR_TYPE, reason)
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, reason))
        span.end(event.timestamp * NANOSECONDS)

    def _end_all(self) -> None:
        for span in (*self._open.values(), *self._agents.values()):
            span.end()
        self._open.clear()
        self._agents.clear()


def _common_attributes(event: Event, operation: str) -> dict[str, Any]:
    return {OPERATION: operation, CONVERSATION: event.session_id, AGENT: event.agent_name}


def _model_attributes(event: LLMRequestEvent | LLMResponseEvent) -> dict[str, str]:
    vendor = event.vendor or PROVIDER_NAMES.get(event.provider, event.provider)
    return {PROVIDER: vendor, REQUEST_MODEL: event.model}


def _with_error(attributes: dict[str, str], reason: str) -> dict[str, str]:
    return attributes if reason in SUCCESS_REASONS else {**attributes, ERROR_TYPE: reason}


def _message_json(role: str, text: str) -> str:
    """Returns one message in the format of the conventions as JSON, since span attributes cannot be objects."""
    return msgspec.json.encode([{"role": role, "parts": [{"type": "text", "content": text}]}]).decode()
