"""A run as OpenTelemetry sees it, through its real SDK with an exporter in memory."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest

from outrider import Agent, CacheTokens, Provider, Tokens, Tool, async_run
from outrider.event_bus import EventBus
from outrider.tracing.otel import OpenTelemetry
from tests.scenario.scripted_runs import agent, call, scripted

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

SECRET = "what the customer wrote"


class Collector:
    def __init__(self, *, content: bool = False) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.bus = EventBus()
        listener = OpenTelemetry(self.tracers, MeterProvider([self._reader]), content=content)
        self.detach = listener.attach(self.bus)

    @property
    def spans(self):
        return {span.name: span for span in self._exporter.get_finished_spans()}

    @property
    def metrics(self):
        found = self._reader.get_metrics_data()
        return {
            metric.name: list(metric.data.data_points)
            for resource in found.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@Tool
def look_up(word: str) -> str:
    """Look a word up."""
    if word == "nothing":
        raise LookupError("no such word")
    return f"{word} means {SECRET}"


async def run_with(collector: Collector, *answers, agents: list[Agent] | None = None):
    entry = (agents or [agent("writer", "You write.")])[0]
    return await async_run(entry, SECRET, agents or [entry], [look_up], [scripted(list(answers))], bus=collector.bus)


async def test_a_run_is_a_tree_of_an_agent_its_answers_and_its_calls():
    collector = Collector()
    await run_with(collector, [call("look_up", word="owl"), Tokens(input=30, output=5)], "done")
    agent_span, tool = collector.spans["invoke_agent writer"], collector.spans["execute_tool look_up"]
    chats = [span for name, span in collector.spans.items() if name.startswith("chat ")]
    assert {span.parent.span_id for span in (tool, *chats)} == {agent_span.context.span_id}
    assert agent_span.parent is None
    assert tool.attributes["gen_ai.tool.name"] == "look_up"
    assert tool.attributes["gen_ai.operation.name"] == "execute_tool"
    assert chats[0].kind is SpanKind.CLIENT
    assert agent_span.attributes["gen_ai.conversation.id"]
    assert agent_span.status.status_code is StatusCode.UNSET


async def test_a_called_agent_is_below_the_call_that_called_it():
    collector = Collector()
    cast = [agent("writer", "You write."), agent("reviewer", "You review.")]
    await run_with(collector, call("call_agent", agent_name="reviewer", message="look"), "fine", "done", agents=cast)
    called, calling = collector.spans["invoke_agent reviewer"], collector.spans["execute_tool call_agent"]
    assert called.parent.span_id == calling.context.span_id


async def test_a_failed_call_is_an_error_with_its_reason():
    collector = Collector()
    await run_with(collector, call("look_up", word="nothing"), "done")
    tool = collector.spans["execute_tool look_up"]
    assert tool.status.status_code is StatusCode.ERROR
    assert tool.attributes["error.type"] == "failed"


@pytest.mark.parametrize("content", [False, True])
async def test_content_is_recorded_on_request_only(content: bool):
    collector = Collector(content=content)
    await run_with(collector, call("look_up", word="owl"), SECRET)
    attributes = json.dumps([dict(span.attributes or {}) for span in collector.spans.values()])
    assert (SECRET in attributes) is content
    assert ("owl" in attributes) is content


async def test_tokens_durations_and_the_first_chunk_are_measured():
    collector = Collector()
    await run_with(collector, [call("look_up", word="owl"), Tokens(input=30, output=5)], ["done", Tokens(7, 2)])
    sums = {
        point.attributes["gen_ai.token.type"]: point.sum for point in collector.metrics["gen_ai.client.token.usage"]
    }
    assert sums == {"input": 37, "output": 7}
    assert sum(point.count for point in collector.metrics["gen_ai.client.operation.duration"]) == 2
    assert "gen_ai.client.operation.time_to_first_chunk" in collector.metrics
    assert collector.metrics["gen_ai.execute_tool.duration"][0].count == 1
    assert collector.metrics["gen_ai.invoke_agent.duration"][0].count == 1


async def test_open_spans_are_ended_when_the_listener_is_removed():
    collector = Collector()

    @Tool
    def leave() -> str:
        """Stop listening."""
        collector.detach()
        return "left"

    writer = agent("writer", "You write.")
    await async_run(writer, "go", [writer], [leave], [scripted([call("leave"), "done"])], bus=collector.bus)
    assert {"invoke_agent writer", "execute_tool leave"} <= set(collector.spans)


async def test_tokens_of_a_cache_and_of_reasoning_are_counted_once():
    collector = Collector()
    used = Tokens(input=10, output=3, reasoning=4, cache=CacheTokens(read=100, write=20))
    result = await run_with(collector, ["done", used])
    chat = next(span for name, span in collector.spans.items() if name.startswith("chat "))
    assert chat.attributes["gen_ai.usage.input_tokens"] == 130
    assert chat.attributes["gen_ai.usage.output_tokens"] == 7
    assert result.trace.root.tokens == used


@pytest.mark.parametrize("kind", ["async", "plain", "generator", "async generator"])
@pytest.mark.parametrize("is_called", [False, True])
async def test_a_span_of_a_tool_is_below_the_span_of_its_call(kind: str, is_called: bool):
    collector = Collector()
    tracer = collector.tracers.get_tracer("program")

    async def query_async(word: str) -> str:
        with tracer.start_as_current_span("query"):
            return word

    def query_plain(word: str) -> str:
        with tracer.start_as_current_span("query"):
            return word

    def query_chunks(word: str) -> Iterator[str]:
        yield word
        with tracer.start_as_current_span("query"):
            yield word

    async def query_chunks_async(word: str) -> AsyncIterator[str]:
        yield word
        await asyncio.sleep(0)
        with tracer.start_as_current_span("query"):
            yield word

    functions = [query_async, query_plain, query_chunks, query_chunks_async]
    function = dict(zip(["async", "plain", "generator", "async generator"], functions, strict=True))[kind]
    tool = Tool(function, name="query", timeout=5)
    entry, other = agent("writer"), agent("finder")
    answers = [[call("query", word="a")], "found"]
    if is_called:
        answers = [[call("call_agent", agent_name="finder", message="find it")], *answers, "done"]
    with tracer.start_as_current_span("web request"):
        await async_run(entry, "x", [entry, other], [tool], [scripted(answers)], bus=collector.bus)
    spans = collector.spans
    caller = "finder" if is_called else "writer"
    assert spans["query"].parent.span_id == spans["execute_tool query"].context.span_id
    assert spans["execute_tool query"].parent.span_id == spans[f"invoke_agent {caller}"].context.span_id
    assert spans["invoke_agent writer"].parent.span_id == spans["web request"].context.span_id
    assert len({span.context.trace_id for span in spans.values()}) == 1


@pytest.mark.parametrize(
    ("provider", "name"),
    [
        (Provider("mine", kind="anthropic"), "anthropic"),
        (Provider("mine", kind="openai"), "openai"),
        (Provider("mine", kind="openai-responses"), "openai"),
        (Provider("mine", kind="google"), "gcp.gemini"),
        (Provider("mine", kind="openai", base_url="https://x.openai.azure.com/v1"), "azure.ai.openai"),
        (Provider("mine", kind="openai", base_url="https://api.groq.com/openai/v1"), "groq"),
        (Provider("mine", kind="openai", base_url="https://x.services.ai.azure.com/models"), "azure.ai.inference"),
        (Provider("mine", kind="openai", base_url="https://api.mistral.ai/v1"), "mistral_ai"),
        (Provider("mine", kind="openai", base_url="https://api.deepseek.com"), "deepseek"),
        (Provider("mine", kind="openai", base_url="https://api.x.ai/v1"), "x_ai"),
        (Provider("mine", kind="openai", base_url="https://api.perplexity.ai"), "perplexity"),
        (Provider("mine", kind="openai", base_url="https://api.cohere.ai/compatibility/v1"), "cohere"),
        (Provider("mine", kind="openai", base_url="https://us-south.ml.cloud.ibm.com/ml/v1"), "ibm.watsonx.ai"),
        (Provider("mine", kind="openai", base_url="https://bedrock-runtime.eu.amazonaws.com/openai/v1"), "aws.bedrock"),
        (Provider("mine", kind="google", options={"project": "p", "location": "eu"}), "gcp.vertex_ai"),
        (Provider("mine", kind="anthropic", options={"project": "p", "region": "eu"}), "gcp.vertex_ai"),
        (Provider("mine", kind="google", base_url="https://europe-west1-aiplatform.googleapis.com"), "gcp.vertex_ai"),
        (Provider("mine", kind="google", base_url="https://generativelanguage.googleapis.com"), "gcp.gemini"),
        (Provider("mine", kind="openai", base_url="http://localhost:1/v1"), "openai"),
        (Provider("mine", kind="anthropic", base_url="http://127.0.0.1:1"), "anthropic"),
        (Provider("mine", kind="google", base_url="http://127.0.0.1:1"), "gcp.gemini"),
        (Provider("mine", kind="openai", base_url="https://gateway.example/api.anthropic.com/v1"), "openai"),
        (Provider("mine", kind="scripted"), "mine"),
    ],
)
def test_a_provider_has_its_well_known_name(provider: Provider, name: str):
    assert provider.vendor == name
