"""The list of models: from the server if it has one, else from the catalog; chat models, newest first."""

from decimal import Decimal

import msgspec
import pytest

from outrider.engine.diagnostics import known_models
from outrider.engine.frontend import describe_model, list_models, order_live_models
from outrider.models.clients import CatalogPricing
from outrider.models.live_models import KeyProblem, LiveModel, check_key, fetch_models, is_chat_model
from outrider.providers.catalog import ModelCatalog
from outrider.types.agents import Agent, Provider
from outrider.types.parts import ModelRef, Tokens
from tests.fixtures.http_server import Reply, serving

OPENAI = {
    "data": [
        {"id": "text-embedding-3-small", "created": 1},
        {"id": "gpt-5.4", "created": 20},
        {"id": "gpt-5.6-terra", "created": 30},
        {"id": "gpt-image-1", "created": 25},
        {"id": "gpt-5.4", "created": 20},
    ]
}
ANTHROPIC = {
    "data": [
        {"type": "model", "id": "claude-sonnet-4-6", "created_at": "2026-02-01T00:00:00Z"},
        {"type": "model", "id": "claude-opus-5", "created_at": "2026-07-24T00:00:00Z"},
    ]
}
GOOGLE = {
    "models": [
        {"name": "models/gemini-3.5-flash", "supportedGenerationMethods": ["generateContent"]},
        {"name": "models/text-embedding-004", "supportedGenerationMethods": ["embedContent"]},
        {"name": "models/aqa", "supportedGenerationMethods": ["generateAnswer"]},
    ]
}
LLAMA_CPP = {"models": [{"name": "qwen3.gguf"}], "data": [{"id": "qwen3.gguf", "created": 1}]}
BARE = [{"id": "llama-3"}]
OPENROUTER = {
    "data": [
        {"id": "maker/draws", "created": 1_750_000_009, "architecture": {"output_modalities": ["image"]}},
        {
            "id": "maker/talks",
            "created": 1_750_000_000,
            "context_length": 131_072,
            "architecture": {"output_modalities": ["text"]},
            "pricing": {"prompt": "0.0000002", "completion": "0.0000006", "input_cache_read": "0.00000002"},
        },
        {"id": "maker/router", "created": 1, "pricing": {"prompt": "-1", "completion": "-1"}, "context_length": True},
    ]
}
VLLM = {"object": "list", "data": [{"id": "own/model", "created": 1_750_000_000, "max_model_len": 8192}]}
TOGETHER = [{"id": "a/draws", "type": "image", "created": 3}, {"id": "b/talks", "type": "chat", "created": 2}]
MISTRAL = {"data": [{"id": "reader", "capabilities": {"completion_chat": False}}, {"id": "writer", "active": True}]}
GROQ = {"data": [{"id": "old", "active": False}, {"id": "new", "active": True}]}
LITELLM = {"data": [{"id": "openai/*"}, {"id": "gpt-4o"}, {"id": "gpt-4o"}, {"id": "gpt-4o-2024-11-20"}]}
NEXT_TO_EMPTY = {"data": [], "models": [{"name": "m"}]}
MIXED_TIMES = {
    "data": [
        {"id": "seconds", "created": 1_700_000_000},
        {"id": "text", "created": "2025-01-01T00:00:00Z"},
        {"id": "milliseconds", "created": 1_760_000_000_000},
        {"id": "none"},
    ]
}
HOSTILE = {
    "data": [
        {"id": "methods", "supportedGenerationMethods": [{"a": 1}, "generateContent"]},
        {"id": "huge", "created": 1e308},
        {"id": "list", "created": [1], "pricing": {"prompt": "x", "completion": {}}, "context_length": "many"},
        {"id": "\u001b]0;title\u0007"},
        {"id": "x" * 1_000},
        {"id": " "},
        7,
    ]
}


@pytest.mark.parametrize(
    ("kind", "body", "path", "names"),
    [
        ("openai", OPENAI, "/v1/models", ["gpt-5.6-terra", "gpt-5.4"]),
        ("openai-responses", OPENAI, "/v1/models", ["gpt-5.6-terra", "gpt-5.4"]),
        ("anthropic", ANTHROPIC, "/v1/models?limit=1000", ["claude-opus-5", "claude-sonnet-4-6"]),
        ("google", GOOGLE, "/v1beta/models?pageSize=1000", ["gemini-3.5-flash"]),
        ("openai", LLAMA_CPP, "/v1/models", ["qwen3.gguf"]),
        ("openai", BARE, "/v1/models", ["llama-3"]),
        ("openai", OPENROUTER, "/v1/models", ["maker/talks", "maker/router"]),
        ("openai", VLLM, "/v1/models", ["own/model"]),
        ("openai", TOGETHER, "/v1/models", ["b/talks"]),
        ("openai", MISTRAL, "/v1/models", ["writer"]),
        ("openai", GROQ, "/v1/models", ["new"]),
        ("openai", LITELLM, "/v1/models", ["gpt-4o"]),
        ("openai", NEXT_TO_EMPTY, "/v1/models", ["m"]),
        ("openai", MIXED_TIMES, "/v1/models", ["milliseconds", "text", "seconds", "none"]),
        ("openai", HOSTILE, "/v1/models", ["methods", "huge", "list"]),
    ],
)
async def test_a_server_s_own_list_is_read(kind, body, path, names):
    async with serving(Reply([msgspec.json.encode(body)])) as server:
        base = server.url + ("/v1" if kind.startswith("openai") else "")
        provider = Provider("here", kind, "key", base)
        assert [model.name for model in await fetch_models(provider) or ()] == names
        assert [f"{found.provider}/{found.model}" for found in await list_models([provider])] == [
            f"here/{name}" for name in names
        ]
        assert server.requests[0].target == path


@pytest.mark.parametrize("body", [b"not json", b'{"error": "no"}', b"[]", b'{"data": [1, {"id": 2}]}', b"[" * 50_000])
async def test_without_a_list_the_catalog_answers(body):
    async with serving(Reply([body])) as server:
        assert await fetch_models(Provider("here", "openai", "key", f"{server.url}/v1")) is None


async def test_a_server_on_this_machine_is_asked_without_the_proxy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    async with serving(Reply([b'{"data": [{"id": "llama-3"}]}'])) as server:
        provider = Provider("here", "openai", "key", f"{server.url}/v1")
        assert await check_key(provider) == KeyProblem()
        assert [model.name for model in await fetch_models(provider) or ()] == ["llama-3"]


def test_other_models_are_left_out():
    assert all(map(is_chat_model, ("gpt-5.4", "claude-opus-5", "gemini-3-flash", "qwen3:8b", "meta/llama-guarded")))
    others = (
        "text-embedding-3",
        "whisper-1",
        "tts-1",
        "gpt-image-1",
        "dall-e-3",
        "gpt-4o-realtime-preview",
        "llama-guard-3",
        "gpt-3.5-turbo-instruct",
        "mistral-ocr-latest",
    )
    assert not any(map(is_chat_model, others))


async def test_a_vendor_that_two_providers_name_is_listed_once():
    both = [Provider(name, name, "k", "http://127.0.0.1:9/v1") for name in ("openai", "openai-responses")]
    names = [found.provider for found in await list_models(both)]
    assert set(names) <= {"openai"}


def test_prices_are_those_of_short_prompts():
    catalog = ModelCatalog()
    prices = catalog.prices("anthropic", "claude-sonnet-4-5")
    assert prices is not None
    assert (prices.input, prices.output) == (Decimal(3), Decimal(15))
    assert catalog.cost_of("anthropic", "claude-sonnet-4-5", Tokens(input=1_000_000)) == Decimal(6), "a long prompt"
    pricing = CatalogPricing(catalog, {"anthropic": Provider("anthropic", "anthropic", "k")})
    price = pricing.price(Agent("a", "", "claude-sonnet-4-5", "anthropic"))
    assert price is not None
    assert price.input * 1_000_000 == Decimal(3)


async def test_the_list_has_prices_and_context_sizes_of_the_catalog():
    async with serving(Reply([msgspec.json.encode(BARE)]), Reply([msgspec.json.encode(BARE)])) as server:
        facts = {"llama-3": {"context_limit": 8192, "prices": {"input": "0.2", "output": "0.6"}}}
        (found,) = await known_models([Provider("here", "openai", "k", f"{server.url}/v1")], facts)
    assert (found.name, found.context_limit, found.input_price) == ("here/llama-3", 8192, Decimal("0.2"))


def test_a_model_is_described_by_context_and_prices_and_an_unknown_one_by_nothing():
    providers = [Provider("vendor", "anthropic", "key"), Provider("near", "openai", base_url="http://127.0.0.1:1/v1")]
    text = describe_model(providers, ModelRef("vendor", "claude-sonnet-4-5"))
    assert text == "200k context · $3.00 in, $15.00 out per 1M tokens"  # not the rates for long prompts
    assert describe_model(providers, ModelRef("near", "own-model")) == ""
    assert describe_model(providers, ModelRef("gone", "x")) == ""


async def test_context_sizes_and_prices_of_the_server_take_precedence_over_the_catalog():
    replies = [Reply([msgspec.json.encode(OPENROUTER)])]
    async with serving(*replies) as server:
        provider = Provider("gateway", "openai", "k", f"{server.url}/v1")
        talks, router = await known_models([provider], {"maker/router": {"context_limit": 4096}})
        assert (talks.context_limit, talks.input_price, talks.output_price) == (131_072, Decimal("0.2"), Decimal("0.6"))
        assert (router.context_limit, router.input_price) == (4096, None)
        assert describe_model([provider], ModelRef("gateway", "maker/talks")).startswith("131k context · $0.2000 in")
        pricing = CatalogPricing(ModelCatalog(), {"gateway": provider})
        cost = pricing.cost(Agent("a", "", "maker/talks", "gateway"), "", Tokens(input=1_000_000))
        assert cost == Decimal("0.2")


def test_models_without_a_time_have_the_order_of_the_catalog_and_unknown_ones_are_first():
    live = [LiveModel(name) for name in ("gemini-2.5-pro", "gemini-99-pro", "gemini-3.5-flash")]
    ordered = order_live_models(Provider("google", "google", "key"), live)
    assert ordered == ["gemini-99-pro", "gemini-3.5-flash", "gemini-2.5-pro"]
