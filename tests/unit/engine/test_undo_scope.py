"""The whole workspace is compared only for calls whose changes cannot be known in another way."""

import pytest

from outrider import Tool
from outrider.engine.undo import may_change_files
from outrider.types.tool_declaration import KNOWN_NAMES


@pytest.mark.parametrize(
    ("tool", "built_in", "looked_at"),
    [
        ("shell", True, False),  # its runner knows what a confined command changed, and looks itself at others
        ("process", True, False),
        ("write", True, False),
        ("read", True, False),
        ("web_fetch", True, False),
        ("todo", True, False),
        ("server__make", True, True),
        ("write", False, True),
        ("shell", False, True),
    ],
)
def test_unknown_tools_are_watched_for_changes(tool: str, built_in: bool, looked_at: bool):
    made = Tool(lambda: "", name=tool, declares=KNOWN_NAMES.get(tool))
    assert may_change_files(made, built_in=built_in) is looked_at


def test_a_tool_that_is_declared_read_only_is_not_watched():
    assert not may_change_files(Tool(lambda: "", name="mine", read_only=True), built_in=False)
