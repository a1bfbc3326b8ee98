"""The built-in tools in the words that a small model handles: few parameters, whole files, plain results."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from outrider.providers.local.prompt import CompactTool, CompactToolPrompt, hint, reminder
from outrider.types.parts import TextPart
from outrider.types.request import Request

_PAINT = "colour = blue\nowner = Kim"
_AREA = "def area(width, height):\n    return width {} height"
_FAILS = "The test in test_area.py fails. Find the bug, mend it and run the test."
_NUMBERED = re.compile(r"^ *\d+\t", re.MULTILINE)


def without_numbers(content: str) -> str:
    """A file's text as it is: a small model writes the line numbers back into the file."""
    return _NUMBERED.sub("", content)


def _gave(tool: str, content: str, asked: str) -> str:
    return f"{tool} gave:\n{content}\n\n{reminder(asked)}"


PRIMER: Final = CompactToolPrompt(
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


MOST: Final = 300  # more names to choose from would slow every token down
MEANT: Final = 6
_LOOKED_AT = 5_000
_SKIPPED = {"__pycache__", "node_modules", "venv", "dist", "build", "target"}
_PATH_LIKE = re.compile(r"[\w./~-]*\w\.[A-Za-z]\w{0,7}\b|[\w.~-]+/[\w./~-]+")
_WORD = re.compile(r"\w+")
_SHORTEST = 3


class WorkspaceNames:
    """Looks at the disk for each request: the model itself makes files. What is hidden is left out."""

    def existing(self, request: Request) -> Sequence[str]:
        """Those of the workspace, and those that the user has written: a file that is not there must be nameable, or
        another one would be read in its place."""
        found = _files(request.workspace)
        if not found or len(found) > MOST:
            return ()
        others = [name for name in _mentioned(request) if not any(_ends_with(path, name) for path in found)]
        return list(dict.fromkeys([*found, *others]))

    def meant(self, request: Request, text: str) -> Sequence[str]:
        """Files whose names, or the words in them, occur in the text; the likeliest come first."""
        words, named = {word.lower() for word in _WORD.findall(text)}, set(_PATH_LIKE.findall(text))
        weight = {path: _weight(path, words, named) for path in _files(request.workspace)}
        likely = sorted((path for path in weight if weight[path]), key=lambda path: (-weight[path], len(path), path))
        return likely[:MEANT]


def _files(workspace: str) -> list[str]:
    if not workspace:
        return []
    return sorted(name for name, _ in zip(_walked(Path(workspace)), range(_LOOKED_AT), strict=False))


def _walked(folder: Path) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED and not name.startswith("."))
        relative = os.path.relpath(place, folder)
        prefix = "" if relative == "." else f"{relative}/"
        yield from (f"{prefix}{name}" for name in names if not name.startswith("."))


def _mentioned(request: Request) -> Iterator[str]:
    """Names in the last request of the user."""
    for message in reversed(request.prompt):
        texts = [part.text for part in message.content if isinstance(part, TextPart)]
        if message.role == "user" and texts:
            yield from (found.rstrip(".") for text in texts for found in _PATH_LIKE.findall(text)[:20])
            return


def _ends_with(path: str, name: str) -> bool:
    return f"/{path}".endswith(f"/{name.removeprefix('./')}")


def _weight(path: str, words: set[str], named: set[str]) -> int:
    """A file that is called by its name outweighs any that only share words with the text."""
    by_name = any(_ends_with(path, name) for name in named)
    return (100 if by_name else 0) + len(_words(path) & words)


def _words(path: str) -> set[str]:
    """The words of a file's own name; folders say too little, and so do the underscores that Python puts around one."""
    stem = PurePosixPath(path).stem.lower().strip("_")
    return {word for word in [stem, *re.split(r"[_\W]+", stem)] if len(word) >= _SHORTEST}
