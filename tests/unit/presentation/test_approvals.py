"""The approval question has the same answers everywhere."""

from outrider.presentation.approvals import ApprovalView, approval_view, choice_by_id, requested_approval_view
from outrider.sessions.records import Approval
from outrider.types.events import ToolApprovalRequestedEvent
from outrider.types.outcomes import CommandOutcome, OutcomeFile


def view(**more: object) -> ApprovalView:
    event = ToolApprovalRequestedEvent(
        session_id="s", call_id="c", tool_name="shell", tool_input={"command": "ls"}, approval_id="a", **more
    )
    return requested_approval_view(event, agent="bob")


def test_a_lasting_answer_is_offered_only_where_it_is_possible():
    assert [choice.key for choice in view().choices] == ["y", "n", "r"]
    lasting = view(can_last=True, offers=("shell(ls)",))
    assert [choice.key for choice in lasting.choices] == ["y", "s", "p", "a", "n", "r"]
    assert lasting.rule_text == "shell(ls)"
    assert "only be allowed once" in view().rule_text


def test_an_event_and_a_stored_approval_give_the_same_question():
    stored = Approval(id="a", session_id="s", call_id="c", tool="shell", input={"command": "ls"}, description="why")
    assert approval_view(stored, agent="bob") == view(description="why")


def test_an_unknown_answer_is_no_choice():
    choices = view().choices
    assert choice_by_id(choices, "no-because") is choices[-1]
    assert choice_by_id(choices, "always") is None


def test_an_outcome_shows_the_paths_of_its_files_without_prefixes():
    new = OutcomeFile(path="new.txt", kind="created", diff="--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+x\n")
    old = OutcomeFile(path="old.txt", kind="deleted", diff="--- a/old.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n")
    approval = Approval(session_id="s", call_id="c", tool="shell", outcome=CommandOutcome(files=(new, old)))
    shown = approval_view(approval)
    assert [file.path for file in shown.changes] == ["new.txt", "old.txt"]
    assert shown.heading == "Keep what this command changed?"
    assert [choice.id for choice in shown.choices] == ["keep", "keep-some", "no", "no-because"]
    assert shown.answer("keep-some", "*.txt, other") == {
        "allow": True,
        "scope": "once",
        "choice": "keep",
        "keep": ("new.txt", "old.txt"),
    }
