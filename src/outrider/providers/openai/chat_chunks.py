"""The shapes of a chat answer, whole or in chunks, as loose as the servers that speak them."""

from typing import Any

import msgspec

from outrider.errors import ProviderError
from outrider.providers.openai.common import from_error
from outrider.providers.response_json import UNREADABLE, decoded, mended_json
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


ABSENT = msgspec.Raw()


class Function(msgspec.Struct):
    """`arguments` is JSON text; some servers send the object itself."""

    name: str | None = None
    arguments: Any = None


class Custom(msgspec.Struct):
    name: str | None = None
    input: str | None = None


class Call(msgspec.Struct):
    """A call, or a piece of one. `extra_content` is private state that Google's models want back."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None
    custom: Custom | None = None
    extra_content: Any = None


class Audio(msgspec.Struct):
    id: str | None = None
    data: str | None = None
    transcript: str | None = None


class Said(msgspec.Struct):
    """A message or a delta of one. `content` is text, or a list of blocks, or the object that a schema asked for."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: list[Any] | None = None
    refusal: str | None = None
    tool_calls: list[Call] | None = None
    function_call: Function | None = None
    annotations: list[Any] | None = None
    images: list[Any] | None = None
    audio: Audio | None = None


class Choice(msgspec.Struct):
    index: int | None = None
    delta: Said | None = None
    message: Said | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    error: Any = None


class GroqExtra(msgspec.Struct):
    usage: Usage | None = None
    error: Any = None


class Chunk(msgspec.Struct):
    """Also a whole answer. What only some servers send and nobody shows at once stays raw until the end."""

    id: str | None = None
    model: str | None = None
    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    x_groq: GroqExtra | None = None
    citations: msgspec.Raw = ABSENT
    search_results: msgspec.Raw = ABSENT

    @property
    def counts(self) -> Usage | None:
        """The usage, wherever this server puts it."""
        if self.usage is not None:
            return self.usage
        if self.x_groq is not None and self.x_groq.usage is not None:
            return self.x_groq.usage
        return self.choices[0].usage if self.choices else None


_strict = msgspec.json.Decoder(Chunk).decode
_loose = msgspec.json.Decoder(Chunk, strict=False).decode  # numbers that came as text


def read_chunk(data: bytes) -> Chunk:
    try:
        return _strict(data)
    except UNREADABLE:
        return decoded(_loose, data)


def error_in(data: bytes) -> ProviderError | None:
    """The error that an event or a body without choices is, in any of the shapes that servers give it."""
    mended = mended_json(data)
    value = msgspec.json.decode(mended) if mended else None
    match value:
        case [{"error": _}, *_]:
            return from_error(value)
        case {"error": error} if error:
            return from_error(value)
        case {"detail": str() | list()} | {"errors": [_, *_]} | {"object": "error"}:
            return from_error(value)
        case {"message": str()} if {"code", "type", "status"} & value.keys():
            return from_error(value)
        case _:
            return None
