"""The events and answers of the Responses API, as far as they are read."""

from typing import Any

import msgspec

from outrider.types.usage import CacheTokens, Tokens

Fields = dict[str, Any]


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class Response(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    status: str | None = None
    output: list[Fields] | None = None
    usage: Usage | None = None
    error: Any = None
    incomplete_details: Fields | None = None


class Event(msgspec.Struct):
    """Every event there is: each kind uses a few of these fields."""

    type: str = ""
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    item_id: str | None = None
    delta: str | None = None
    text: str | None = None
    name: str | None = None
    arguments: str | None = None
    item: Fields | None = None
    part: Fields | None = None
    response: Response | None = None
    error: Any = None
    message: Any = None
    code: Any = None


read_event = msgspec.json.Decoder(Event).decode
read_response = msgspec.json.Decoder(Response).decode


def tokens_of(usage: Usage) -> Tokens:
    """Here input includes what a cache gave, and output includes reasoning unless the total says otherwise."""
    details = usage.input_tokens_details or _InputDetails()
    read, written = details.cached_tokens or 0, details.cache_write_tokens or 0
    sent, given = usage.input_tokens or 0, usage.output_tokens or 0
    thought = (usage.output_tokens_details or _OutputDetails()).reasoning_tokens or 0
    apart = thought > given or (thought > 0 and usage.total_tokens == sent + given + thought)
    return Tokens(
        input=max(sent - read - written, 0),
        output=given if apart else given - thought,
        reasoning=thought,
        cache=CacheTokens(read, written),
    )
