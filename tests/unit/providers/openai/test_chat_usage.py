"""Token counts of several servers are converted to one form."""

from typing import Any

import msgspec
import pytest

from outrider.providers.openai.chat_chunks import ChatUsage, tokens_from_usage
from outrider.types.parts import CacheTokens, Tokens


def tokens(**usage: Any) -> Tokens:
    return tokens_from_usage(msgspec.convert(usage, ChatUsage))


def test_cached_and_reasoning_tokens_are_subtracted_from_what_includes_them():
    assert tokens(
        prompt_tokens=100,
        completion_tokens=50,
        total_tokens=150,
        prompt_tokens_details={"cached_tokens": 60, "cache_write_tokens": 10},
        completion_tokens_details={"reasoning_tokens": 20},
    ) == Tokens(input=30, output=30, reasoning=20, cache=CacheTokens(60, 10))


def test_reasoning_that_the_total_adds_is_not_in_the_output():
    counted = tokens(
        prompt_tokens=10, completion_tokens=50, total_tokens=80, completion_tokens_details={"reasoning_tokens": 20}
    )
    assert (counted.output, counted.reasoning, counted.total) == (50, 20, 80)


def test_reasoning_that_exceeds_the_output_is_not_in_it():
    counted = tokens(
        prompt_tokens=10, completion_tokens=5, total_tokens=15, completion_tokens_details={"reasoning_tokens": 96}
    )
    assert (counted.output, counted.reasoning) == (5, 96)


def test_cached_tokens_that_exceed_the_prompt_are_not_in_it():
    counted = tokens(prompt_tokens=10, completion_tokens=1, prompt_tokens_details={"cached_tokens": 161})
    assert (counted.input, counted.cache.read) == (10, 161)


@pytest.mark.parametrize(
    "field", ["prompt_cache_hit_tokens", "cache_read_input_tokens", "cached_tokens", "num_cached_tokens"]
)
def test_cached_tokens_are_found_under_other_names(field: str):
    assert tokens(prompt_tokens=10, completion_tokens=1, **{field: 4}).cache.read == 4


def test_counts_that_are_missing_or_negative_are_none():
    assert tokens(prompt_tokens=None, completion_tokens=-1) == Tokens()
