"""A look at the whole workspace is taken where only that tells what was changed, and nowhere else."""

from pathlib import Path
from typing import Any

import pytest

from outrider import Tool, ToolPart, ToolPending
from outrider.engine.undo import may_change_files


@pytest.mark.parametrize(
    ("tool", "arguments", "built_in", "looked_at"),
    [
        ("shell", {"command": "rm x"}, True, True),
        ("shell", {"command": "ls; cat notes.txt"}, True, False),
        ("shell", {"command": ""}, True, True),
        ("process", {"action": "write", "process_id": "p", "input": "x"}, True, False),
        ("write", {"file_path": "x", "content": ""}, True, False),
        ("read", {"file_path": "x"}, True, False),
        ("web_fetch", {"url": "https://example.org"}, True, False),
        ("todo", {}, True, False),
        ("server__make", {}, True, True),
        ("write", {"file_path": "x"}, False, True),
    ],
)
def test_commands_and_tools_that_nobody_knows_are_looked_after(
    tmp_path: Path, tool: str, arguments: dict[str, Any], built_in: bool, looked_at: bool
):
    call = ToolPart("c", tool, ToolPending(arguments, phase="ready"))
    found = may_change_files(call, Tool(lambda: "", name=tool), tmp_path, built_in=built_in)
    assert found is looked_at


def test_a_tool_that_only_reads_is_taken_at_its_word(tmp_path: Path):
    tool = Tool(lambda: "", name="mine", read_only=True)
    assert not may_change_files(ToolPart("c", "mine", ToolPending({})), tool, tmp_path, built_in=False)
