"""Which messages a compaction preserves and removes from the prompt, and the size of the result."""

from outrider import CompactionPart, Message, PartBase, TextPart, Tokens, ToolPart, ToolPending, ToolResultPart
from outrider.agents.compaction import (
    estimate_tokens,
    find_tail_start,
    last_compaction_position,
    pinned_input,
)
from outrider.context.lower import LARGE_OUTPUT, OUTPUT_REMOVED, apply_compaction, lower

LONG = "x" * (LARGE_OUTPUT + 1)


class PagePart(PartBase, frozen=True, tag_field="type", tag="page"):
    text: str = ""

    def to_api_format(self):
        return {"type": "text", "text": self.text}


class NotePart(PartBase, frozen=True, tag_field="type", tag="note"):
    text: str = ""


def user(text: str) -> Message:
    return Message("user", [TextPart(text)])


def answer(text: str, *outputs: str, tokens: int = 0) -> Message:
    calls = [
        ToolPart(f"c{number}{text}", "look", ToolPending(phase="ready").start(1).complete(output, 2))
        for number, output in enumerate(outputs)
    ]
    return Message("assistant", [TextPart(text), *calls], tokens=Tokens(input=tokens))


def compaction(tail: Message | None) -> Message:
    return Message("user", [CompactionPart(summary="all of it", tail_start_id=tail.id if tail else None)])


def outputs_in(prompt) -> list[str]:
    return [part.content for message in prompt for part in message.content if part.type == "tool_result"]


def test_large_old_outputs_leave_the_prompt_at_a_compaction_and_not_before():
    first, second, third = user("a"), answer("b", LONG, "short"), answer("c", LONG)
    history = [user("before"), answer("gone"), first, second, third]
    assert outputs_in(lower(history, family="x")) == [LONG, "short", LONG]
    history.append(compaction(first))
    assert outputs_in(lower(history, family="x")) == [OUTPUT_REMOVED, "short", LONG]
    history.append(answer("d", LONG))
    assert outputs_in(lower(history, family="x")) == [OUTPUT_REMOVED, "short", LONG, LONG]
    assert second.parts[1].state.output == LONG


def test_what_the_summary_does_not_cover_follows_it_in_order():
    first = user("a")
    history = [user("gone"), first, answer("b"), compaction(first), user("c")]
    assert [message.get_text_content()[-9:] for message in apply_compaction(history)] == ["all of it", "a", "b", "c"]


def test_a_prompt_after_a_compaction_is_measured_anew():
    first = user("y" * 400)
    history = [user("x" * 4_000), answer("b", tokens=1_200), first, answer("c", tokens=1_500)]
    assert estimate_tokens(history) == 1_500
    history.append(compaction(first))
    assert 100 < estimate_tokens(history) < 200
    assert estimate_tokens(history, overhead=50) == estimate_tokens(history) + 50


def test_only_what_the_client_sends_of_a_result_is_estimated():
    history = [user("x" * 400), answer("b", "y" * 28_000, "z" * 400, tokens=1_000)]
    assert estimate_tokens(history) == 1_000 + 7_000 + 100
    assert estimate_tokens(history, result_limit=6_000) == 1_000 + 1_500 + 100


def test_results_of_which_little_is_sent_stay_in_the_tail():
    history = [user("first"), answer("b"), user("second"), answer("c", "y" * 28_000), user("third"), answer("d")]
    assert find_tail_start(history, 10_000) == 4
    assert find_tail_start(history, 10_000, result_limit=4_000) == 2


def test_the_tail_is_as_long_as_its_share_allows_and_starts_with_an_input():
    history = [message for number in range(10) for message in (user(f"{number}" * 400), answer("b" * 400))]
    assert find_tail_start(history, 3_000) == 14
    assert find_tail_start(history, 3_000, share=0) == 18


def test_a_long_history_is_walked_once():
    history = [message for number in range(20_000) for message in (user("a"), answer("b"))]
    assert find_tail_start(history, 1_000_000) == 2


def test_the_last_input_is_preserved_literally_when_only_a_summary_would_have_it():
    history = [user("first"), answer("b"), user("never use tabs"), answer("c"), answer("d")]
    assert pinned_input(history, 4) == "never use tabs"
    assert pinned_input(history, 2) == ""


def test_the_last_compaction_is_found():
    history = [user("a"), compaction(None), user("b"), answer("c")]
    assert last_compaction_position(history) == 1
    assert last_compaction_position(history[2:]) == 0


def test_custom_parts_that_are_sent_and_imported_results_are_estimated():
    message = Message("user", [PagePart(text="x" * 400), NotePart(text="y" * 400), ToolResultPart("c1", "z" * 800)])
    assert estimate_tokens([message]) == 100 + 200
    assert estimate_tokens([message], result_limit=400) == 100 + 100
