"""Response types of Chat Completions, complete or chunked, with fields for the variants of compatible servers."""

from operator import attrgetter
from typing import Any

import msgspec

from outrider.errors import ProviderError
from outrider.providers.openai.common import NO_VALUE, error_from_payload
from outrider.types.parts import CacheTokens, Tokens
from outrider.types.validate import JSON_ERRORS

TokenCount = int | float | None


class PromptTokenDetails(msgspec.Struct, frozen=True):
    cached_tokens: TokenCount = None
    cache_write_tokens: TokenCount = None


class CompletionTokenDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: TokenCount = None


_NO_PROMPT_DETAILS = PromptTokenDetails()
_NO_COMPLETION_DETAILS = CompletionTokenDetails()


class ChatUsage(msgspec.Struct):
    """Token usage. The fields after the details are alternative names that other servers use."""

    prompt_tokens: TokenCount = None
    completion_tokens: TokenCount = None
    total_tokens: TokenCount = None
    prompt_tokens_details: PromptTokenDetails | None = None
    completion_tokens_details: CompletionTokenDetails | None = None
    prompt_cache_hit_tokens: TokenCount = None  # DeepSeek
    cache_read_input_tokens: TokenCount = None  # gateways to Anthropic
    cached_tokens: TokenCount = None  # Together, Moonshot
    num_cached_tokens: TokenCount = None  # Mistral
    cache_creation_input_tokens: TokenCount = None  # gateways to Anthropic
    reasoning_tokens: TokenCount = None  # Copilot
    input_tokens: TokenCount = None  # gateways that implement both OpenAI APIs
    output_tokens: TokenCount = None
    cost: msgspec.Raw = NO_VALUE  # OpenRouter and other gateways; see `reported_cost`
    is_byok: msgspec.Raw = NO_VALUE
    cost_details: msgspec.Raw = NO_VALUE

    @property
    def has_counts(self) -> bool:
        counts = (self.prompt_tokens, self.completion_tokens, self.input_tokens, self.output_tokens)
        return any([count is not None for count in counts])


def tokens_from_usage(usage: ChatUsage) -> Tokens:
    """Converts usage to disjoint counts. By default prompt tokens include cached tokens and completion tokens include
    reasoning; a server whose totals contradict that reports them separately."""
    prompt = _to_count(usage.prompt_tokens or usage.input_tokens)
    completion = _to_count(usage.completion_tokens or usage.output_tokens)
    read, written = _cached_tokens(usage)
    reasoning = _reasoning_tokens(usage)
    is_separate = reasoning > completion or (
        reasoning and _to_count(usage.total_tokens) == prompt + completion + reasoning
    )
    cached = read + written
    return Tokens(
        input=prompt - cached if cached <= prompt else prompt,
        output=completion if is_separate else completion - reasoning,
        reasoning=reasoning,
        cache=CacheTokens(read, written),
    )


def _cached_tokens(usage: ChatUsage) -> tuple[int, int]:
    details = usage.prompt_tokens_details or _NO_PROMPT_DETAILS
    read = (
        details.cached_tokens
        or usage.prompt_cache_hit_tokens
        or usage.cache_read_input_tokens
        or usage.cached_tokens
        or usage.num_cached_tokens
    )
    return _to_count(read), _to_count(details.cache_write_tokens or usage.cache_creation_input_tokens)


def _reasoning_tokens(usage: ChatUsage) -> int:
    details = usage.completion_tokens_details or _NO_COMPLETION_DETAILS
    return _to_count(details.reasoning_tokens or usage.reasoning_tokens)


def _to_count(count: TokenCount) -> int:
    return max(int(count), 0) if count else 0


ABSENT = msgspec.Raw()


class FunctionCall(msgspec.Struct):
    """A function call. `arguments` is JSON text; some servers send the object instead."""

    name: str | None = None
    arguments: Any = None


class CustomToolCall(msgspec.Struct):
    name: str | None = None
    input: str | None = None


class ChatToolCall(msgspec.Struct):
    """A tool call or a chunk of one. `extra_content` is private state that Google's models require in the next
    request."""

    index: int | None = None
    id: str | None = None
    function: FunctionCall | None = None
    custom: CustomToolCall | None = None
    extra_content: Any = None


class ChatAudio(msgspec.Struct):
    id: str | None = None
    data: str | None = None
    transcript: str | None = None


class ChatMessage(msgspec.Struct):
    """A message or a delta. `content` is a string, a list of blocks, or the object that a JSON schema requested."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: list[Any] | None = None
    refusal: str | None = None
    tool_calls: list[ChatToolCall] | None = None
    function_call: FunctionCall | None = None
    annotations: list[Any] | None = None
    images: list[Any] | None = None
    audio: ChatAudio | None = None


REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Fields of a message with the text of reasoning, in the order in which they are used."""

reasoning_of = attrgetter(*REASONING_FIELDS, "reasoning_details")
"""Returns the values of these fields and the list of details. It runs for each chunk of a stream."""


class ChatChoice(msgspec.Struct):
    index: int | None = None
    delta: ChatMessage | None = None
    message: ChatMessage | None = None
    finish_reason: str | None = None
    usage: ChatUsage | None = None
    error: Any = None


class GroqExtra(msgspec.Struct):
    usage: ChatUsage | None = None
    error: Any = None


class ChatChunk(msgspec.Struct):
    """A chunk or a complete response. Rarely used fields stay raw and are decoded at the end of the response."""

    id: str | None = None
    model: str | None = None
    choices: list[ChatChoice] | None = None
    usage: ChatUsage | None = None
    error: Any = None
    x_groq: GroqExtra | None = None
    citations: msgspec.Raw = ABSENT
    search_results: msgspec.Raw = ABSENT

    @property
    def reported_usage(self) -> ChatUsage | None:
        """The usage, from any of the fields in which servers send it."""
        if self.usage is not None:
            return self.usage
        if self.x_groq is not None and self.x_groq.usage is not None:
            return self.x_groq.usage
        return self.choices[0].usage if self.choices else None


_decode_strict = msgspec.json.Decoder(ChatChunk).decode
_decode_lenient = msgspec.json.Decoder(ChatChunk, strict=False).decode  # accepts numbers in strings


def decode_chunk(data: bytes) -> ChatChunk:
    try:
        return _decode_strict(data)
    except JSON_ERRORS:
        from outrider.providers.response_json import decode_json  # lazy: for damaged answers

        return decode_json(_decode_lenient, data, mark_surrogates=True)


def find_error(data: bytes) -> ProviderError | None:
    """Returns the error in an event or in a body without choices, or None."""
    from outrider.providers.response_json import repair_json

    repaired = repair_json(data)
    value = msgspec.json.decode(repaired) if repaired else None
    match value:
        case [{"error": _}, *_]:
            return error_from_payload(value)
        case {"error": error} if error:
            return error_from_payload(value)
        case {"detail": str() | list()} | {"errors": [_, *_]} | {"object": "error"}:
            return error_from_payload(value)
        case {"message": str()} if {"code", "type", "status"} & value.keys():
            return error_from_payload(value)
        case _:
            return None
