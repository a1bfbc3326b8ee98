"""The models of the providers that are set up, with what is known of each."""

from collections.abc import Iterable, Iterator
from decimal import Decimal

import msgspec

from outrider.providers.catalog import Catalog
from outrider.types.agents import Provider
from outrider.types.usage import Tokens

_MILLION = 1_000_000


class KnownModel(msgspec.Struct, frozen=True, kw_only=True):
    """`name` is what `--model` takes. Prices are dollars per million tokens; None is unknown."""

    name: str
    context_limit: int | None = None
    output_limit: int | None = None
    input_price: Decimal | None = None
    output_price: Decimal | None = None
    tools: bool | None = None
    images: bool | None = None
    reasoning: bool | None = None


def known_models(providers: Iterable[Provider], overrides: dict[str, dict[str, object]]) -> Iterator[KnownModel]:
    catalog = Catalog.from_config(overrides)
    for provider in providers:
        for model in catalog.models(provider.kind, base_url=provider.base_url):
            yield _known(catalog, provider, model)


def _known(catalog: Catalog, provider: Provider, model: str) -> KnownModel:
    kind, at = provider.kind, provider.base_url
    able = catalog.capabilities(kind, model, base_url=at)
    return KnownModel(
        name=f"{provider.name}/{model}",
        context_limit=catalog.context_limit(kind, model, base_url=at),
        output_limit=catalog.output_limit(kind, model, base_url=at),
        input_price=catalog.cost_of(kind, model, Tokens(input=_MILLION), base_url=at),
        output_price=catalog.cost_of(kind, model, Tokens(output=_MILLION), base_url=at),
        tools=able.tools if able else None,
        images=able.images if able else None,
        reasoning=able.reasoning if able else None,
    )
