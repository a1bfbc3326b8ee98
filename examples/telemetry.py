"""Telemetry: spans and metrics of a run by the conventions of OpenTelemetry, and a listener that counts tokens."""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from outrider import Agent, EventBus, OpenTelemetry, Provider, Tool, run
from outrider.events import LLMResponseEvent


@Tool(read_only=True)
def weather(place: str) -> str:
    """Return the weather of a place."""
    return "rain"


if __name__ == "__main__":
    exporter = InMemorySpanExporter()  # in production: OTLPSpanExporter() and BatchSpanProcessor
    tracer_provider = TracerProvider()
    tracer_provider.add_span_processor(SimpleSpanProcessor(exporter))
    bus = EventBus()
    detach = OpenTelemetry(tracer_provider).attach(bus)
    bus.subscribe(LLMResponseEvent, lambda event: print("answer:", event.model, event.tokens.total, "tokens"))

    script = [{"tool": "weather", "input": {"place": "Ulm"}}, "Take an umbrella."]
    model = Provider("demo", kind="scripted", options={"script": script})
    helper = Agent("helper", "You advise.", model="demo", provider="demo")
    print(run(helper, "Ulm today?", tools=[weather], providers=[model], bus=bus).output)
    detach()
    for span in exporter.get_finished_spans():
        print(span.name, dict(span.attributes or {}).get("gen_ai.usage.output_tokens", ""))
