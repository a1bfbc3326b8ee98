"""Settings become what each model takes: thinking, sampling, tools, structured output."""

from typing import Any

import pytest

from outrider.providers.anthropic.encode import (
    FALLBACK_MAX_TOKENS,
    PROBE_MAX_TOKENS,
    encode_prefix,
    encode_settings,
    traits_for_model,
)
from outrider.types.parts import ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, ModelSettings, OutputSchema, Prompt, Request, ToolChoice, ToolSpec
from tests.fixtures.cases import for_each

TOOL = ToolSpec("read", "Reads.", {"type": "object", "properties": {}})
MARK = {"type": "ephemeral"}


def tuned(
    model: str, *, tools: tuple[ToolSpec, ...] = (), limit: int | None = 64_000, **settings: Any
) -> dict[str, Any]:
    request = Request(model, Prompt(), tools=tools, settings=ModelSettings(**settings), stream=False)
    return encode_settings(request, traits_for_model(model), limit)


@for_each(
    ("model", "version"),
    [
        ("claude-3-5-haiku-20241022", (3, 5)),
        ("claude-3-opus-latest", (3, 0)),
        ("claude-3-7-sonnet@20250219", (3, 7)),
        ("claude-sonnet-4-20250514", (4, 0)),
        ("claude-sonnet-4-0", (4, 0)),
        ("claude-opus-4-1-20250805", (4, 1)),
        ("anthropic/claude-haiku-4.5", (4, 5)),
        ("us.anthropic.claude-opus-4-6-v1:0", (4, 6)),
        ("claude-sonnet-5", (5, 0)),
        ("claude-opus-10-2", (10, 2)),
        ("claude-mythos-preview", (99, 0)),
        ("deepseek-chat-3.2", None),
    ],
)
def test_the_version_is_read_from_every_way_of_naming_a_model(model: str, version: Any) -> None:
    assert traits_for_model(model).version == version


@pytest.mark.parametrize(
    ("model", "thinking", "effort"),
    [
        ("claude-3-5-haiku-latest", None, None),
        ("claude-3-7-sonnet-latest", {"type": "enabled", "budget_tokens": 16_384}, None),
        ("claude-haiku-4-5", {"type": "enabled", "budget_tokens": 16_384}, None),
        ("claude-sonnet-4-6", {"type": "adaptive"}, "high"),
        ("claude-opus-4-7", {"type": "adaptive", "display": "summarized"}, "high"),
        ("claude-sonnet-5", {"type": "adaptive", "display": "summarized"}, "high"),
        ("some-other-model", {"type": "enabled", "budget_tokens": 16_384}, None),
    ],
)
def test_thinking_takes_the_form_that_the_model_knows(model: str, thinking: Any, effort: Any) -> None:
    fields = tuned(model, reasoning=True, reasoning_effort="high")
    assert fields.get("thinking") == thinking
    assert fields.get("output_config", {}).get("effort") == effort


def test_thinking_is_not_mentioned_unless_it_is_wanted() -> None:
    assert tuned("claude-sonnet-5") == {"max_tokens": 64_000}
    assert tuned("claude-haiku-4-5") == {"max_tokens": 64_000}


@pytest.mark.parametrize(
    ("settings", "budget"),
    [
        ({"reasoning_budget": 5000}, 5000),
        ({"reasoning_budget": 10}, 1024),
        ({"reasoning_budget": 9000, "max_output_tokens": 4000}, 3999),
        ({"reasoning_effort": "max", "max_output_tokens": 4000}, 2000),
        ({"max_output_tokens": 1500}, 1024),
        ({"max_output_tokens": 1024}, None),
        ({"max_output_tokens": 200}, None),
    ],
)
def test_a_budget_is_never_below_the_least_nor_above_the_answer(settings: dict[str, Any], budget: int | None) -> None:
    thinking = tuned("claude-haiku-4-5", reasoning=True, **settings).get("thinking")
    assert (thinking and thinking["budget_tokens"]) == budget


def test_a_named_budget_is_sent_where_the_model_still_accepts_one() -> None:
    named = {"type": "enabled", "budget_tokens": 2000}
    assert tuned("claude-sonnet-4-6", reasoning=True, reasoning_budget=2000)["thinking"] == named
    assert tuned("claude-opus-4-7", reasoning=True, reasoning_budget=2000)["thinking"]["type"] == "adaptive"


def test_an_effort_that_a_model_does_not_know_becomes_the_next_lower_one() -> None:
    assert tuned("claude-sonnet-4-6", reasoning=True, reasoning_effort="xhigh")["output_config"] == {"effort": "high"}
    assert tuned("claude-sonnet-4-6", reasoning=True, reasoning_effort="minimal")["output_config"] == {"effort": "low"}
    assert tuned("claude-opus-4-7", reasoning=True, reasoning_effort="xhigh")["output_config"] == {"effort": "xhigh"}


def _called(call_id: str, *, thinks: bool) -> list[ModelMessage]:
    """Return an answer with a call, and the message with its result."""
    thought = ReasoningPart("hm", provider_state={"family": "anthropic", "signature": "s"})
    call = ToolUsePart(tool_id=call_id, tool_name="read", tool_input={})
    result = ToolResultPart(tool_use_id=call_id, content="ok")
    return [ModelMessage("assistant", (*([thought] if thinks else []), call)), ModelMessage("user", (result,))]


@pytest.mark.parametrize(
    ("answers", "thinks"),
    [((True,), True), ((False,), False), ((True, False), True), ((True, False, False), True), ((False, True), True)],
)
def test_thinking_stays_on_in_a_turn_that_began_with_it(answers: tuple[bool, ...], thinks: bool) -> None:
    question = ModelMessage("user", (TextPart("go"),))
    before = [question, *_called("old", thinks=True), ModelMessage("assistant", (TextPart("done"),)), question]
    steps = [message for number, one in enumerate(answers) for message in _called(f"c{number}", thinks=one)]
    settings = ModelSettings(reasoning=True, reasoning_budget=2000)
    request = Request("claude-haiku-4-5", Prompt([*before, *steps]), settings=settings, stream=False)
    fields = encode_settings(request, traits_for_model(request.model), 64_000)
    assert ("thinking" in fields) is thinks


def test_a_forced_call_leaves_no_room_for_thinking() -> None:
    forced = tuned("claude-haiku-4-5", tools=(TOOL,), reasoning=True, tool_choice=ToolChoice("required"))
    assert "thinking" not in forced


@pytest.mark.parametrize(
    ("model", "settings", "sent"),
    [
        ("claude-haiku-4-5", {"temperature": 0.2}, {"temperature": 0.2}),
        ("claude-haiku-4-5", {"temperature": 0.2, "reasoning": True}, {}),
        ("claude-haiku-4-5", {"temperature": 1.0, "reasoning": True}, {"temperature": 1.0}),
        ("claude-haiku-4-5", {"top_p": 0.5, "reasoning": True}, {}),
        ("claude-haiku-4-5", {"top_p": 0.96, "reasoning": True}, {"top_p": 0.96}),
        ("claude-haiku-4-5", {"temperature": 0.2, "top_p": 0.5}, {"temperature": 0.2}),
        ("claude-sonnet-4-0", {"temperature": 0.2, "top_p": 0.5}, {"temperature": 0.2, "top_p": 0.5}),
        ("claude-opus-4-7", {"temperature": 0.2, "top_p": 0.5}, {}),
        ("other", {"temperature": 0.2, "top_p": 0.5}, {"temperature": 0.2, "top_p": 0.5}),
    ],
)
def test_sampling_is_sent_only_where_it_is_accepted(model: str, settings: dict[str, Any], sent: dict[str, Any]) -> None:
    fields = tuned(model, **settings)
    assert {name: fields[name] for name in ("temperature", "top_p") if name in fields} == sent


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (ToolChoice(), None),
        (ToolChoice("required"), {"type": "any"}),
        (ToolChoice("none"), {"type": "none"}),
        (ToolChoice("none", parallel=False), {"type": "none"}),
        (ToolChoice("tool", "read"), {"type": "tool", "name": "read"}),
        (ToolChoice(parallel=False), {"type": "auto", "disable_parallel_tool_use": True}),
    ],
)
def test_every_tool_choice_has_its_word(choice: ToolChoice, sent: Any) -> None:
    assert tuned("claude-haiku-4-5", tools=(TOOL,), tool_choice=choice).get("tool_choice") == sent
    assert "tool_choice" not in tuned("claude-haiku-4-5", tool_choice=choice)


def test_the_schema_of_the_answer_and_stop_sequences_are_sent() -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    fields = tuned("claude-sonnet-4-6", output=OutputSchema(schema), stop=("END",), reasoning=True)
    assert fields["output_config"] == {"effort": "medium", "format": {"type": "json_schema", "schema": schema}}
    assert fields["stop_sequences"] == ["END"]


def test_the_largest_answer_is_what_was_asked_then_what_is_known_then_a_question() -> None:
    assert tuned("claude-haiku-4-5", max_output_tokens=7)["max_tokens"] == 7
    assert tuned("claude-haiku-4-5")["max_tokens"] == 64_000
    assert tuned("claude-haiku-4-5", limit=None)["max_tokens"] == PROBE_MAX_TOKENS
    assert tuned("other", limit=None)["max_tokens"] == FALLBACK_MAX_TOKENS


def test_the_end_of_tools_and_of_the_system_prompt_are_marked() -> None:
    second = ToolSpec("write", "", {"properties": {}}, strict=True)
    fields = encode_prefix(Request("m", Prompt(), system="Be brief.", tools=(TOOL, second)), MARK)
    assert fields == {
        "tools": [
            {"name": "read", "description": "Reads.", "input_schema": TOOL.parameters},
            {
                "name": "write",
                "input_schema": {"type": "object", "properties": {}},
                "strict": True,
                "cache_control": MARK,
            },
        ],
        "system": [{"type": "text", "text": "Be brief.", "cache_control": MARK}],
    }
    assert encode_prefix(Request("m", Prompt(), system=" ", tools=(TOOL,)), None) == {"tools": fields["tools"][:1]}
