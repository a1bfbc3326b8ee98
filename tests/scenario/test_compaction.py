"""Compaction: when the context fills or overflows, a summary takes the place of old messages and nothing is deleted."""

import pytest

from outrider import CompactionPart, ContextOverflowError, Session, Tokens, Tool, ToolPart
from outrider.events import ContextCompactionEvent
from tests.scenario.stories import Story, agent, call

LONG = "word " * 2_000


def wants_summary(request) -> bool:
    return "about to be shortened" in getattr(request.prompt[-1].content[-1], "text", "")


async def test_an_overflow_is_compacted_once_and_the_turn_goes_on():
    session = Session()
    for number in range(6):
        session.add_user_message(f"question {number}")
        session.add_assistant_message(f"answer {number} {LONG}")
    overflowed: list[int] = []

    def answer(request):
        if wants_summary(request):
            return "## Goal\nto answer"
        if not overflowed:
            overflowed.append(len(request.prompt))
            return ContextOverflowError("prompt is too long: 300000 tokens > 200000 maximum", status=400)
        return f"{len(request.prompt)}: {request.prompt[0].content[0].text[:40]}"

    story = Story(answer)
    result = await story.run("and now?", session=session)
    assert result.termination_reason == "completed"
    assert overflowed == [13]
    assert result.output == "7: Summary of the conversation so far; the "
    (told,) = story.heard(ContextCompactionEvent)
    assert told.tokens_after < told.tokens_before
    compactions = [part for message in result.session.messages for part in message.get_parts_by_type(CompactionPart)]
    assert [part.overflow for part in compactions] == [True]
    assert len(result.session.messages) >= 14
    assert any("answer 0" in message.get_text_content() for message in result.session.messages)


async def test_a_context_that_still_overflows_ends_the_run_with_the_providers_words():
    session = Session()
    session.add_user_message("question")
    session.add_assistant_message(f"answer {LONG}")

    def answer(request):
        return "a summary" if wants_summary(request) else ContextOverflowError("prompt is too long", status=400)

    with pytest.raises(ContextOverflowError, match=r"too long|alone fill it"):
        await Story(answer).run("and now?", session=session)


async def test_after_a_compaction_calls_and_results_still_belong_together():
    def answer(request):
        if wants_summary(request):
            return "## Done\nmany looks"
        uses = sum(part.type == "tool_use" for message in request.prompt for part in message.content)
        if uses >= 4 and not any("Summary" in getattr(p, "text", "") for p in request.prompt[0].content):
            return ContextOverflowError("too long", status=400)
        if any("Summary" in getattr(p, "text", "") for p in request.prompt[0].content):
            return "finished after compaction"
        return [f"step {uses}", call("look", number=uses), Tokens(100, 10)]

    tools = [Tool(lambda number: f"seen {number} {LONG}", name="look")]
    result = await Story(answer).run("look around", tools=tools, entry=agent())
    assert result.output == "finished after compaction"
    assert len([p for m in result.session.messages for p in m.get_parts_by_type(ToolPart)]) == 4


async def test_in_the_middle_of_one_long_turn_the_users_words_stay_as_they_were():
    asked = "look around, and never write with tabs"

    def answer(request):
        if wants_summary(request):
            return "## Done\nmany looks"
        uses = sum(part.type == "tool_use" for message in request.prompt for part in message.content)
        first = request.prompt[0].content[0].text
        if "Summary" in first:
            return "kept" if first.endswith(asked) else "lost"
        return ContextOverflowError("too long", status=400) if uses >= 4 else [call("look", number=uses)]

    tools = [Tool(lambda number: f"seen {number} {LONG}", name="look")]
    result = await Story(answer).run(asked, tools=tools)
    assert result.output == "kept"


async def test_a_second_compaction_stands_for_the_first_one_too():
    summaries: list[str] = []

    def answer(request):
        text = request.prompt[0].content[0].text
        if wants_summary(request):
            summaries.append(text)
            return f"summary {len(summaries)}"
        if len(request.prompt) > 5:
            return ContextOverflowError("too long", status=400)
        return f"answer {LONG}"

    session = Session()
    for number in range(8):
        await Story(answer).run(f"question {number}", session=session)
    assert "question 0" in summaries[0]
    assert all("Summary" in text for text in summaries[1:])
    assert len(summaries) >= 2


async def test_what_a_summary_cost_counts_in_the_session():
    def answer(request):
        if wants_summary(request):
            return ["a summary", Tokens(1_000, 50)]
        if len(request.prompt) > 2:
            return ContextOverflowError("too long", status=400) if "Summary" not in str(request.prompt[0]) else "done"
        return ["hello", Tokens(10, 1)]

    session = Session()
    await Story(answer).run("one", session=session)
    result = await Story(answer).run("two", session=session)
    assert result.session.usage.tokens.input > 1_000
    assert result.usage.tokens.input > 1_000
