"""Token counts and cost."""

from decimal import Decimal

import msgspec


class CacheTokens(msgspec.Struct, frozen=True):
    """Prompt tokens that were read from or written to the provider's prompt cache."""

    read: int = 0
    write: int = 0


class Tokens(msgspec.Struct, frozen=True):
    """Disjoint token counts that add up to `total`: `input` excludes tokens read from or written to a cache, `output`
    excludes reasoning tokens if the provider reports them separately."""

    input: int = 0
    output: int = 0
    reasoning: int = 0
    cache: CacheTokens = CacheTokens()

    @property
    def total(self) -> int:
        """All tokens: input, cache, output and reasoning."""
        cache = self.cache
        return self.input + cache.read + cache.write + self.output + self.reasoning

    @property
    def prompt(self) -> int:
        """Tokens of the request, cached or not: the size that is limited by the context window."""
        return self.input + self.cache.read + self.cache.write

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(
            input=self.input + other.input,
            output=self.output + other.output,
            reasoning=self.reasoning + other.reasoning,
            cache=CacheTokens(self.cache.read + other.cache.read, self.cache.write + other.cache.write),
        )


class CacheMiss(msgspec.Struct, frozen=True):
    """Why a request could not use, or did not use, the provider's prompt cache.

    `offset` is the first byte that differs from the request before; it is the end of that request if none differs.
    `cached` is the share of the prompt that was read from the cache, `achievable` the share that equals the request
    before."""

    cause: str
    detail: str = ""
    offset: int = 0
    cached: float = 0.0
    achievable: float = 0.0

    def describe(self) -> str:
        """Returns the cause as one line of text."""
        return f"{self.cause}: {self.detail}" if self.detail else self.cause


class Usage(msgspec.Struct, frozen=True):
    """Usage of a session or a run. `total_cost` is None as soon as one answer has no known price."""

    tokens: Tokens = Tokens()
    total_cost: Decimal | None = Decimal(0)

    def plus(self, tokens: Tokens, cost: Decimal | None) -> "Usage":
        """Return the sum. The cost is None if one of both is unknown."""
        known = self.total_cost is not None and cost is not None
        return Usage(self.tokens + tokens, self.total_cost + cost if known else None)  # type: ignore[operator]
