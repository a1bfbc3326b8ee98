"""The facts about one model; every one of them may be unknown, which is None and never 0."""

from decimal import Decimal
from typing import TypeVar

import msgspec

from outrider.types.usage import Tokens

T = TypeVar("T")


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dollars per million tokens. What has no rate of its own is charged as input or output."""

    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    reasoning: Decimal | None = None

    def cost(self, tokens: Tokens) -> Decimal:
        """Exact: no float is involved, and a million is a shift of the decimal point."""
        millionths = (
            tokens.input * self.input
            + tokens.output * self.output
            + tokens.reasoning * _or(self.reasoning, self.output)
            + tokens.cache.read * _or(self.cache_read, self.input)
            + tokens.cache.write * _or(self.cache_write, self.input)
        )
        return millionths.scaleb(-6)


class Tier(Rates, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates for every token of a request whose prompt has more than `above` tokens."""

    above: int


class Prices(Rates, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tiers: tuple[Tier, ...] = ()

    def cost(self, tokens: Tokens) -> Decimal:
        reached = [tier for tier in self.tiers if tokens.prompt > tier.above]
        rates = max(reached, key=lambda tier: tier.above) if reached else super()
        return rates.cost(tokens)


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model can take and do. `tools` is native tool calls; without them there is the text protocol."""

    tools: bool | None = None
    images: bool | None = None
    pdf: bool | None = None
    reasoning: bool | None = None


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`context_limit` counts prompt and answer together."""

    context_limit: int | None = None
    output_limit: int | None = None
    capabilities: Capabilities = Capabilities()
    prices: Prices | None = None


def _or(first: T | None, second: T) -> T:
    return second if first is None else first
