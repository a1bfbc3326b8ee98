"""The built-in tools in the words that a small model handles: few parameters, whole files, plain results."""

import re
from typing import Final

from outrider.providers.local.primer import CompactTool, Primer
from outrider.providers.local.transcript import hint, reminder

_PAINT = "colour = blue\nowner = Kim"
_AREA = "def area(width, height):\n    return width {} height"
_FAILS = "The test in test_area.py fails. Find the bug, mend it and run the test."
_NUMBERED = re.compile(r"^ *\d+\t", re.MULTILINE)


def without_numbers(content: str) -> str:
    """A file's text as it is: a small model writes the line numbers back into the file."""
    return _NUMBERED.sub("", content)


def _gave(tool: str, content: str, asked: str) -> str:
    return f"{tool} gave:\n{content}\n\n{reminder(asked)}"


PRIMER: Final = Primer(
    tools={
        "list": CompactTool(description="shows the names of the files in a folder", keep=("path",), subject="path"),
        "read": CompactTool(
            description="shows what is in a file",
            keep=("file_path",),
            existing="file_path",
            subject="file_path",
            shown=without_numbers,
        ),
        "grep": CompactTool(
            description="finds the lines of all files that hold a text", keep=("pattern",), subject="pattern"
        ),
        "glob": CompactTool(
            description="finds files by a pattern of their names", keep=("pattern",), subject="pattern"
        ),
        "write": CompactTool(
            description="writes a file: its whole new content, from the first line to the last",
            keep=("file_path", "content"),
            subject="file_path",
        ),
        "edit": CompactTool(
            description="replaces a piece of a file",
            keep=("file_path", "old_string", "new_string"),
            existing="file_path",
        ),
        "shell": CompactTool(description="runs a command, such as a test", keep=("command",), subject="command"),
    },
    examples=(
        ("Hello!", {"tool": "answer", "text": "Hello! What shall I look at?"}),
        ("Which files are there?", {"tool": "list", "path": "."}),
        (f"What does the app do?\n\n{hint(['src/app.py'])}", {"tool": "read", "file_path": "src/app.py"}),
        ("Where is the port set?", {"tool": "grep", "pattern": "port"}),
        ("Which version of node is this?", {"tool": "shell", "command": "node --version"}),
        ("Create notes.txt with the line hello.", {"tool": "write", "file_path": "notes.txt", "content": "hello\n"}),
        (f"Who owns the paint?\n\n{hint(['paint.txt'])}", {"tool": "read", "file_path": "paint.txt"}),
        (_gave("read", _PAINT, "Who owns the paint?"), {"tool": "answer", "text": "Kim owns it."}),
        (f"{_FAILS}\n\n{hint(['test_area.py', 'area.py'])}", {"tool": "read", "file_path": "area.py"}),
        (
            _gave("read", _AREA.format("+"), _FAILS),
            {"tool": "write", "file_path": "area.py", "content": f"{_AREA.format('*')}\n"},
        ),
        (
            _gave("write", "Overwrote area.py (2 lines).", _FAILS),
            {"tool": "shell", "command": "python -m pytest -q"},
        ),
        (
            _gave("shell", "1 passed in 0.02s", _FAILS),
            {"tool": "answer", "text": "area.py added where it should multiply. It is mended, and the test passes."},
        ),
    ),
)
