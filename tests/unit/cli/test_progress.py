"""What is told of a call while it runs."""

import io

from msgspec.structs import replace

from outrider.cli.commands.run_output import ProgressPrinter, summarize_input
from outrider.cli.output import Console
from outrider.types.events import ToolApprovalRequestedEvent


def test_of_an_input_that_is_told_first_which_people_look_for():
    assert summarize_input({"timeout": 5, "command": "make test"}) == "make test"
    assert summarize_input({"todos": [{"content": "a"}, {"content": "b"}], "limit": 3}) == "2 todos, limit=3"
    assert summarize_input({}) == ""


def test_a_call_that_waits_on_another_server_is_told_with_where_somebody_has_to_answer():
    err = io.StringIO()
    progress = ProgressPrinter(Console(io.StringIO(), err, {}), verbose=False)
    asked = ToolApprovalRequestedEvent(tool_name="push", description="at http://there:1: the tool push says ask")
    progress.on_event(asked)  # one of our own is refused or asked about, and told as such
    assert err.getvalue() == ""
    progress.on_event(replace(asked, server="http://there:1"))
    assert "push waits for approval at http://there:1: the tool push says ask" in err.getvalue()
