"""The transcript that the MCP server returns to another model."""

from outrider.server.mcp import render_transcript
from outrider.sessions.records import DamagedRow, SessionTranscript, StoredSession
from outrider.types.messages import Message
from outrider.types.parts import WITHDRAWN, RetryPart, RetryTime, TextPart, ToolPart
from outrider.types.tool_state import ToolPending

GONE = {WITHDRAWN: True}
SESSION = StoredSession(id="s", workspace_directory="/place", title="lamps")


def test_withdrawn_texts_and_calls_are_left_out():
    canceled = ToolPending({"command": "rm x"}, phase="ready").fail("the answer is withdrawn", 2, reason="canceled")
    parts = [
        TextPart("Half a lamp", ignored=True, metadata=GONE),
        ToolPart("c", "shell", canceled, metadata=GONE),
        RetryPart(1, "reset", RetryTime(1)),
        TextPart("A whole lamp"),
    ]
    text = render_transcript(SessionTranscript(SESSION, [Message("assistant", parts)]))
    assert "A whole lamp" in text
    assert "attempt 1 failed: reset" in text
    assert "Half" not in text
    assert "shell" not in text


def test_damaged_rows_are_named_at_the_end():
    damaged = DamagedRow("part", "p", "m", "it ends early", b"{")
    transcript = SessionTranscript(SESSION, [Message("user", [TextPart("Light?")])], (damaged,))
    assert render_transcript(transcript).endswith("Light?\n\n[a damaged part is skipped: it ends early]")
