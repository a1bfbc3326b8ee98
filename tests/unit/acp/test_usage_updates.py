"""The context usage that an editor receives."""

from decimal import Decimal

import pytest

pytest.importorskip("acp", reason="the extra `acp` is not installed")

from outrider import Agent, Engine, Provider
from outrider.acp.updates import UsageTracker
from outrider.types.events import LLMResponseEvent


def answered(session_id: str, **tokens: int) -> LLMResponseEvent:
    return LLMResponseEvent(session_id=session_id, **tokens)


async def test_an_answer_of_a_known_model_reports_how_full_its_context_is():
    known = Provider("anthropic", "anthropic", "a key that is not used")
    async with Engine([Agent("writer", "", "claude-sonnet-4-6", "anthropic")], [known]) as engine:
        session_id = await engine.create()
        spending = UsageTracker(session_id, engine)
        update = spending.record_response(
            answered(session_id, input_tokens=700, output_tokens=200, cache_read_tokens=100)
        )
        assert update is not None
        assert update.used == 1000
        assert update.size >= 200_000
        assert update.cost is not None
        assert update.cost.amount == Decimal(0)


async def test_what_called_agents_use_is_added_to_the_turn_and_not_for_the_context():
    known = Provider("anthropic", "anthropic", "a key that is not used")
    async with Engine([Agent("writer", "", "claude-sonnet-4-6", "anthropic")], [known]) as engine:
        spending = UsageTracker(await engine.create(), engine)
        assert spending.turn_usage() is None
        assert (
            spending.record_response(answered("another", input_tokens=5, output_tokens=6, reasoning_tokens=1)) is None
        )
        turn = spending.turn_usage()
        assert turn is not None
        assert (turn.total_tokens, turn.input_tokens, turn.thought_tokens) == (12, 5, 1)
        spending.start_turn()
        assert spending.turn_usage() is None


async def test_for_an_unknown_model_nothing_is_reported():
    script = Provider("scripted", "scripted", options={"script": []})
    async with Engine([Agent("writer", "", "model-1", "scripted")], [script]) as engine:
        session_id = await engine.create()
        assert UsageTracker(session_id, engine).record_response(answered(session_id, input_tokens=5)) is None
