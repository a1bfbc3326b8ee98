"""Token counts of a chat answer, brought to one way of counting."""

import msgspec

from outrider.types.usage import CacheTokens, Tokens

Count = int | float | None


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: Count = None
    cache_write_tokens: Count = None


class CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: Count = None


_NOTHING_CACHED = PromptDetails()
_NOTHING_THOUGHT = CompletionDetails()


class Usage(msgspec.Struct):
    """The counts as servers report them; the fields after the details are other servers' names for the same."""

    prompt_tokens: Count = None
    completion_tokens: Count = None
    total_tokens: Count = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    prompt_cache_hit_tokens: Count = None  # DeepSeek
    cache_read_input_tokens: Count = None  # gateways to Anthropic
    cached_tokens: Count = None  # Together, Moonshot
    num_cached_tokens: Count = None  # Mistral
    cache_creation_input_tokens: Count = None  # gateways to Anthropic
    reasoning_tokens: Count = None  # Copilot
    input_tokens: Count = None  # gateways that speak both of OpenAI's APIs
    output_tokens: Count = None

    @property
    def says_something(self) -> bool:
        counts = (self.prompt_tokens, self.completion_tokens, self.input_tokens, self.output_tokens)
        return any([count is not None for count in counts])


def tokens_of(usage: Usage) -> Tokens:
    """Disjoint counts. The API's prompt counts include what a cache gave, and its completion counts include
    reasoning; servers for which that cannot be true by their own numbers count them apart."""
    prompt = _whole(usage.prompt_tokens or usage.input_tokens)
    completion = _whole(usage.completion_tokens or usage.output_tokens)
    read, written = _cache(usage)
    reasoning = _reasoning(usage)
    apart = reasoning > completion or (reasoning and _whole(usage.total_tokens) == prompt + completion + reasoning)
    cached = read + written
    return Tokens(
        input=prompt - cached if cached <= prompt else prompt,
        output=completion if apart else completion - reasoning,
        reasoning=reasoning,
        cache=CacheTokens(read, written),
    )


def _cache(usage: Usage) -> tuple[int, int]:
    details = usage.prompt_tokens_details or _NOTHING_CACHED
    read = (
        details.cached_tokens
        or usage.prompt_cache_hit_tokens
        or usage.cache_read_input_tokens
        or usage.cached_tokens
        or usage.num_cached_tokens
    )
    return _whole(read), _whole(details.cache_write_tokens or usage.cache_creation_input_tokens)


def _reasoning(usage: Usage) -> int:
    details = usage.completion_tokens_details or _NOTHING_THOUGHT
    return _whole(details.reasoning_tokens or usage.reasoning_tokens)


def _whole(count: Count) -> int:
    return max(int(count), 0) if count else 0
