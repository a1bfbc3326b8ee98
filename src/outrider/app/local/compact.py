"""The built-in tools in the words that a small model handles: few parameters, whole files, plain results."""

import re
from typing import Final

from outrider.providers.local.dialect import CompactTool, Dialect

_NUMBERED = re.compile(r"^ *\d+\t", re.MULTILINE)


def without_numbers(content: str) -> str:
    """A file's text as it is: a small model writes the line numbers back into the file."""
    return _NUMBERED.sub("", content)


DIALECT: Final = Dialect(
    tools={
        "list": CompactTool(description="shows the names of the files in a folder", keep=("path",)),
        "read": CompactTool(
            description="shows what is in a file", keep=("file_path",), existing="file_path", shown=without_numbers
        ),
        "grep": CompactTool(description="finds the lines of all files that hold a text", keep=("pattern",)),
        "glob": CompactTool(description="finds files by a pattern of their names", keep=("pattern",)),
        "write": CompactTool(
            description="writes a file: its whole new content, from the first line to the last",
            keep=("file_path", "content"),
        ),
        "edit": CompactTool(
            description="replaces a piece of a file",
            keep=("file_path", "old_string", "new_string"),
            existing="file_path",
        ),
        "shell": CompactTool(description="runs a command, such as a test", keep=("command",)),
    },
    examples=(
        ("Hello!", {"tool": "answer", "text": "Hello! What shall I look at?"}),
        ("Which files are there?", {"tool": "list", "path": "."}),
        ("What does app.py do?", {"tool": "read", "file_path": "app.py"}),
        ("Where is the port set?", {"tool": "grep", "pattern": "port"}),
        ("Run the tests.", {"tool": "shell", "command": "python -m pytest -q"}),
        (
            "Create notes.txt with the line hello.",
            {"tool": "write", "file_path": "notes.txt", "content": "hello\n"},
        ),
        (
            "read gave:\ncolour = blue\nowner = Kim\n\nThe request was: Who owns it?\nWhat is the next step?",
            {"tool": "answer", "text": "Kim owns it."},
        ),
        (
            "read gave:\ncolour = blue\nowner = Kim\n\nThe request was: Make it red.\nWhat is the next step?",
            {"tool": "write", "file_path": "paint.txt", "content": "colour = red\nowner = Kim\n"},
        ),
    ),
)
