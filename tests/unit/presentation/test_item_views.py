"""What the page receives of a part: everything that it shows, computed."""

from decimal import Decimal
from typing import get_args

import msgspec
import pytest

from outrider.agents.turn_state import TerminationReason
from outrider.presentation.item_views import (
    MAX_DIFF,
    ItemView,
    message_view,
    part_view,
    restore_notice,
    restore_text,
    usage_view,
)
from outrider.presentation.items import Notice, is_unfinished, part_item
from outrider.sessions.snapshots.restore import FileAction
from outrider.types.codec import UnknownPart
from outrider.types.messages import Message, MessageError, MessageTime
from outrider.types.parts import (
    WITHDRAWN,
    CacheTokens,
    FilePart,
    ReasoningPart,
    RetryPart,
    RetryTime,
    StepStartPart,
    SubtaskPart,
    TextPart,
    Tokens,
    ToolPart,
)
from outrider.types.tool_state import EndedTime, ToolCompleted, ToolError, ToolPending


def view(part: object) -> ItemView:
    found = part_view(part)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_text_is_not_repeated_in_its_view():
    assert msgspec.to_builtins(view(TextPart("hello"))) == {"kind": "text"}
    assert msgspec.to_builtins(view(ReasoningPart("hm"))) == {"kind": "reasoning", "title": "thought"}


@pytest.mark.parametrize("part", [StepStartPart(), TextPart("for the model", synthetic=True), TextPart(" ")])
def test_bookkeeping_has_no_view(part: object):
    assert part_item(part) is None  # type: ignore[arg-type]
    assert part_view(part) is None  # type: ignore[arg-type]


def test_a_call_has_subject_state_and_diff_and_no_argument_twice():
    given = {"file_path": "a.py", "old_string": "x", "new_string": "y"}
    metadata = {"diff": "--- a.py\n+++ a.py\n@@ -1 +1 @@\n-x\n+y\n", "added": 1, "removed": 1}
    call = view(ToolPart("c", "edit", ToolCompleted(given, "ok", EndedTime(0, 1200), metadata=metadata)))
    assert (call.kind, call.title, call.subject, call.status) == ("call", "edit", "a.py", "done")
    assert (call.status_text, call.duration, call.input) == ("done · +1 −1 · 1.2s", "1.2s", "")
    assert [row.text for row in call.diff] == ["a.py", "@@ -1 +1 @@", "-x", "+y"]


def test_a_call_that_is_being_written_has_the_end_of_its_input():
    call = view(ToolPart("c", "write", ToolPending({}, "x" * 5000 + "end", "streaming")))
    assert call.input.endswith("end")
    assert len(call.input) < 3000
    assert (call.status, call.status_text, call.diff) == ("generating", "generating", ())


def test_a_call_that_waits_or_failed_shows_it():
    assert "needs approval" in view(ToolPart("c", "shell", ToolPending({}, "", "awaiting_approval"))).status_text
    denied = ToolError({"command": "make"}, "no", EndedTime(0, 10), reason="denied")
    assert view(ToolPart("c", "shell", denied)).status_text == "canceled · denied"


def test_the_diff_of_a_huge_file_is_bounded():
    call = view(ToolPart("c", "write", ToolPending({"file_path": "a", "content": "line\n" * 100_000}, "", "ready")))
    assert sum(len(row.text) for row in call.diff) < MAX_DIFF + 100
    assert "left out" in call.diff[-1].text


def test_the_answer_of_finish_is_text():
    finish = ToolPart("c", "finish", ToolCompleted({"message": "all done"}, "", EndedTime(0, 1)))
    assert view(finish) == ItemView(kind="text", body="all done")


def test_a_called_agent_a_command_a_file_and_an_unknown_part_are_shown():
    agent = view(SubtaskPart("helper", "look around", child_session_id="s2"))
    assert (agent.kind, agent.title, agent.subject, agent.child_session_id) == ("agent", "helper", "look around", "s2")
    command = view(TextPart("told", synthetic=True, metadata={"command": "ls", "output": "a.py"}))
    assert (command.kind, command.subject, command.output) == ("command", "ls", "a.py")
    assert "image/png" in view(FilePart("image/png", "data:image/png;base64,AAAA")).subject
    novel = view(UnknownPart({"type": "hologram", "id": "p"}))
    assert (novel.kind, novel.subject) == ("notice", "hologram")


def test_a_message_shows_how_it_failed_and_how_long_it_took():
    message = Message("assistant", [], time=MessageTime(0, 2500), error=MessageError("ProviderError", "busy"))
    shown = message_view(message)
    assert ([notice.text for notice in shown.notices], shown.duration) == (["busy"], "2.5s")
    assert message_view(Message("user", [], metadata={"plan_answer": "accepted"})).notices[0].level == "success"


def test_an_answer_whose_work_is_not_done_is_unfinished():
    ends = {reason: message_view(Message("assistant", [], finish=reason)).unfinished for reason in ("stop", "tool_use")}
    ends |= {reason: is_unfinished(reason) for reason in get_args(TerminationReason)}
    assert [reason for reason, unfinished in ends.items() if not unfinished] == ["stop", "tool_use", "completed"]
    assert message_view(Message("assistant", [], finish="length")).unfinished
    assert not message_view(Message("user", [], finish=None)).unfinished


def test_a_further_failed_attempt_takes_the_line_of_the_one_before():
    failed, changed = RetryPart(1, "busy", RetryTime(1)), RetryPart(2, "busy", RetryTime(1), model="p/m")
    assert [view(part).merges for part in (failed, changed)] == [True, False]
    assert view(failed).title == view(changed).title == "retry"
    assert not view(TextPart("hi")).merges


def test_a_sum_without_some_prices_is_marked():
    tokens = Tokens(input=900, output=200, reasoning=100, cache=CacheTokens(read=300))
    shown = usage_view(tokens, Decimal("0.5"), unpriced=1)
    assert (shown.tokens, shown.tokens_in, shown.tokens_out, shown.cost) == ("1.5k", "1.2k", "300", "≥$0.5000")
    assert usage_view(tokens, Decimal(0), unpriced=1).cost == "unknown"
    assert usage_view(tokens, Decimal(0)).cost == "$0.00"


def test_the_answer_with_a_call_that_was_ended_is_not_complete():
    for reason, unfinished in (("canceled", True), ("interrupted", True), ("failed", False), ("denied", False)):
        state = ToolError({}, "ended", EndedTime(1, 2), reason)
        part = ToolPart("list", "c", state)
        assert view(part).unfinished is unfinished, reason
        withdrawn = ToolPart("list", "c", state, metadata={WITHDRAWN: True})
        assert not view(withdrawn).unfinished


def test_the_result_of_an_undo_names_what_happened_to_which_files():
    done = [FileAction("a", "change"), FileAction("b", "delete"), FileAction("c", "change"), FileAction("d", "nothing")]
    git = [FileAction(f".git/objects/{number}", "delete") for number in range(3)]
    assert restore_notice([*done, *git]) == Notice("success", "files", "restored: a, c; deleted: b, .git (3 files)")
    left = restore_notice([FileAction("a", "create"), FileAction("b", "conflict"), FileAction("c", "doubtful")])
    assert left == Notice(
        "warning",
        "files",
        "created again: a; changed outside the session since, left as it is: b; "
        "may not be an agent's change, left as it is: c",
    )
    assert restore_notice([], uncovered=["big.bin"]).level == "warning"
    assert restore_notice([]).text == "there is nothing to change"
    assert restore_notice([], off="there is nothing to undo").text == "there is nothing to undo"


def test_a_preview_says_what_would_happen():
    assert [restore_text(FileAction("a", action), preview=True) for action in ("delete", "nothing")] == [
        "would be deleted",
        "",
    ]
