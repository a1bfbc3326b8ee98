"""Calls that cannot have their apparent effect are denied before the user is asked."""

import pytest

from outrider.engine.approval_gate import denial_reason
from outrider.permissions.redaction.redactor import HIDDEN_SECRET

CONFINED, LOOSE = (lambda: True), (lambda: False)


@pytest.mark.parametrize("mode", ["plan", "background"])
def test_without_a_sandbox_no_command_runs_unattended(mode):
    assert "none works on this machine" in denial_reason("shell", {"command": "ls"}, mode, LOOSE)
    assert denial_reason("shell", {"command": "ls"}, mode, CONFINED) == ""
    assert denial_reason("read", {"file_path": "a"}, mode, LOOSE) == ""


def test_in_attended_mode_a_sandbox_is_not_needed():
    assert denial_reason("shell", {"command": "ls"}, "agent", LOOSE) == ""


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("write", {"file_path": "a", "content": f"KEY={HIDDEN_SECRET}"}),
        ("edit", {"file_path": "a", "edits": [{"new_string": f"x {HIDDEN_SECRET}"}]}),
        ("shell", {"command": f"login {HIDDEN_SECRET}"}),
        ("apply_patch", {"patch": f"+{HIDDEN_SECRET}"}),
    ],
)
def test_a_placeholder_of_a_secret_is_never_written_in_its_place(tool: str, given: dict[str, object]):
    assert "is not the secret itself" in denial_reason(tool, given, "agent", CONFINED)


def test_a_placeholder_of_a_secret_may_be_searched_and_mentioned():
    assert denial_reason("grep", {"pattern": HIDDEN_SECRET}, "agent", CONFINED) == ""
    assert denial_reason("mine", {"text": HIDDEN_SECRET}, "agent", CONFINED) == ""
    assert (
        denial_reason("write", {"file_path": "a", "content": "[hidden] { display: none }", "n": 1}, "agent", CONFINED)
        == ""
    )
