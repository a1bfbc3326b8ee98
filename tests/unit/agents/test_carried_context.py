"""What compactions carry over: each removed message is read once, and old texts are bounded without losing rules."""

import pickle

from outrider import Message, TextPart, ToolCompleted, ToolPart
from outrider.agents.carried_context import MAX_SEARCHED, MAX_USER_TEXTS, RemovedTexts, carried_budget, carry_over
from outrider.types.tool_state import EndedTime


def spoken(role: str, text: str) -> Message:
    return Message(role, [TextPart(text)])


def conversation(turns: int) -> list[Message]:
    messages: list[Message] = []
    for number in range(turns):
        messages += [
            spoken("user", f"Please look at module_{number}.py and report what it returns."),
            spoken("assistant", f"module_{number}.py returns {number}, because the parser decided so."),
        ]
    return messages


def carry(removed: RemovedTexts) -> str:
    return carry_over("The summary.", removed, characters=carried_budget(50_000))


def test_messages_that_are_read_in_steps_give_the_same_text():
    messages = conversation(40)
    messages[3].parts.append(
        ToolPart("c1", "read", ToolCompleted({"path": "src/a.py"}, "text", EndedTime(1, 2), title="src/a.py"))
    )
    messages[10].parts.append(TextPart("Never touch the file legacy.c. The deploy is still open."))
    removed = RemovedTexts()
    for end in (5, 6, 30, 80):
        removed = removed.read(messages[:end])
    assert carry(removed) == carry(RemovedTexts().read(messages))
    assert "Never touch the file legacy.c" in carry(removed)
    assert "src/a.py" in carry(removed)


def test_other_messages_are_read_from_the_start():
    removed = RemovedTexts().read([spoken("user", "Always use tabs in this project.")])
    other = removed.read([spoken("user", "Always use spaces in this project.")])
    assert "tabs" not in carry(other)
    assert "spaces" in carry(other)


def test_an_early_rule_survives_thousands_of_later_messages_and_the_others_are_counted():
    messages = conversation(3 * MAX_USER_TEXTS)
    messages.insert(8, spoken("user", "The release must never happen on a Friday."))
    removed = RemovedTexts().read(messages)
    assert len(removed.by_user) <= MAX_USER_TEXTS
    assert removed.dropped + len(removed.by_user) == 3 * MAX_USER_TEXTS + 1
    text = carry(removed)
    assert "The release must never happen on a Friday." in text
    assert f"module_{3 * MAX_USER_TEXTS - 1}.py" in text
    assert "more; `search_conversation` finds them" in text


def test_old_answers_are_not_held_in_memory():
    removed = RemovedTexts()
    answer = spoken("assistant", "x" * MAX_SEARCHED)
    removed = removed.read([answer, *(spoken("assistant", f"{number} " + "y" * 50_000) for number in range(40))])
    assert sum(map(len, removed.by_agent.newest())) <= MAX_SEARCHED
    assert len(pickle.dumps(removed)) < 4 * MAX_SEARCHED, "of more than 2,000,000 characters"
