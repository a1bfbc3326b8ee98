"""Permission requests of `claude-stream-json` offer the lasting answers and apply the chosen one."""

import io
import json
from typing import Any

from outrider.cli.commands.run_claude import ClaudeStreamPrinter, permission_suggestions
from outrider.cli.commands.run_input import ApprovalInput
from outrider.cli.commands.run_output import StdoutPipe
from outrider.cli.output import Console
from outrider.types.events import LLMResponseEvent, PartUpdatedEvent, ToolApprovalRequestedEvent
from outrider.types.outcomes import CommandOutcome, OutcomeFile
from outrider.types.parts import FilePart
from tests.fixtures.cases import for_each


def requested(**more: Any) -> ToolApprovalRequestedEvent:
    return ToolApprovalRequestedEvent(
        session_id="s", call_id="c", tool_name="shell", tool_input={"command": "ls"}, approval_id="a", **more
    )


LASTING = requested(can_last=True, offers=("shell(ls)", "may write docs/**"))
RULES = [{"toolName": "Bash", "ruleContent": "ls"}, {"toolName": "Bash", "ruleContent": "may write docs/**"}]
SESSION, FOLDER, ALWAYS = (
    {"type": "addRules", "rules": RULES, "behavior": "allow", "destination": destination}
    for destination in ("session", "localSettings", "userSettings")
)
OTHER = {**ALWAYS, "rules": [{"toolName": "Bash"}]}


def test_the_suggestions_are_the_answers_that_last():
    assert permission_suggestions(LASTING) == {"session": SESSION, "project": FOLDER, "always": ALWAYS}
    assert permission_suggestions(requested()) == {}
    assert permission_suggestions(requested(can_last=True)) == {}  # bound to contents, which no rule describes


@for_each(
    ("permissions", "choice"),
    [
        (None, ""),
        ([], ""),
        ([OTHER], ""),
        ("all", ""),
        ([FOLDER], "project"),
        ([ALWAYS], "always"),
        ([ALWAYS, OTHER, SESSION], "session"),
    ],
)
def test_an_answer_applies_the_suggestion_that_it_contains(permissions: Any, choice: str):
    printer = ClaudeStreamPrinter(StdoutPipe(Console(out := io.StringIO(), io.StringIO(), {})), deltas=False)
    printer.on_event(LASTING)
    asked = json.loads(out.getvalue())
    assert asked["request"]["permission_suggestions"] == [SESSION, FOLDER, ALWAYS]
    answer = {"behavior": "allow", "updatedInput": {"command": "ls"}, "updatedPermissions": permissions}
    response = {"subtype": "success", "request_id": asked["request_id"], "response": answer}
    command = printer.decode_input(json.dumps({"type": "control_response", "response": response}).encode())
    assert command == ApprovalInput("a", choice=choice, allow=True)


def test_a_request_says_what_a_command_has_changed():
    diff = "--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+x\n"
    outcome = CommandOutcome(files=(OutcomeFile(path="a.txt", kind="created", diff=diff),))
    printer = ClaudeStreamPrinter(StdoutPipe(Console(out := io.StringIO(), io.StringIO(), {})), deltas=False)
    printer.on_event(requested(outcome=outcome, description="it changed a file"))
    asked = json.loads(out.getvalue())["request"]
    assert asked["input"] == {"command": "ls"}
    assert asked["decision_reason"] == (
        "Keep what this command changed?\nit changed a file\n\n- created: a.txt\n\n"
        "    a.txt (new file)\n    @@ -0 +1 @@\n    +x"
    )


def test_a_file_of_the_model_is_a_text_of_its_message():
    out = io.StringIO()
    printer = ClaudeStreamPrinter(StdoutPipe(Console(out, io.StringIO(), {})), deltas=False)
    file = FilePart("image/png", "data:image/png;base64,AAAA", "plot.png", session_id="s", message_id="m")
    printer.on_event(PartUpdatedEvent(session_id="s", part=file))
    printer.on_event(LLMResponseEvent(session_id="s", stop_reason="stop"))
    (line,) = map(json.loads, out.getvalue().splitlines())
    assert line["message"]["content"] == [{"type": "text", "text": "plot.png · image/png · 3 B"}]
