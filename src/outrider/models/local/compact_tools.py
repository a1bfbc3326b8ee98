"""Compact forms of the built-in tools for small models, and the file names of a workspace."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from outrider.providers.local.prompt import CompactTool, CompactToolPrompt, files_hint, request_of, request_reminder
from outrider.types.request import Request

_PAINT_FILE = "colour = blue\nowner = Kim"
_AREA_FILE = "def area(width, height):\n    return width {} height"
_FAILING_TEST = "The test in test_area.py fails. Find the bug, mend it and run the test."
_LINE_NUMBER = re.compile(r"^ *\d+\t", re.MULTILINE)


def strip_line_numbers(content: str) -> str:
    """Removes line numbers from file content; a small model would write them back into the file."""
    return _LINE_NUMBER.sub("", content)


def _result_message(tool: str, content: str, request_text: str) -> str:
    return f"{tool} gave:\n{content}\n\n{request_reminder(request_text)}"


LOCAL_TOOL_PROMPT: Final = CompactToolPrompt(
    tools={
        "list": CompactTool(
            description="shows the names of the files in a folder",
            parameters=("path",),
            subject_parameter="path",
            looks=True,
        ),
        "read": CompactTool(
            description="shows what is in a file",
            parameters=("file_path",),
            file_parameter="file_path",
            subject_parameter="file_path",
            looks=True,
            render_result=strip_line_numbers,
        ),
        "grep": CompactTool(
            description="finds the lines of all files that hold a text",
            parameters=("pattern",),
            subject_parameter="pattern",
            looks=True,
        ),
        "glob": CompactTool(
            description="finds files by a pattern of their names",
            parameters=("pattern",),
            subject_parameter="pattern",
            looks=True,
        ),
        "write": CompactTool(
            description="writes a file: its whole new content, from the first line to the last",
            parameters=("file_path", "content"),
            subject_parameter="file_path",
            changes=True,
        ),
        "edit": CompactTool(
            description="replaces a piece of a file",
            parameters=("file_path", "old_string", "new_string"),
            file_parameter="file_path",
            changes=True,
        ),
        "shell": CompactTool(
            description="runs a command, such as a test", parameters=("command",), subject_parameter="command"
        ),
    },
    examples=(
        ("Hello!", {"tool": "answer", "text": "Hello! What shall I look at?"}),
        ("Which files are there?", {"tool": "list", "path": "."}),
        (f"What does the app do?\n\n{files_hint(['src/app.py'])}", {"tool": "read", "file_path": "src/app.py"}),
        ("Where is the port set?", {"tool": "grep", "pattern": "port"}),
        ("Which version of node is this?", {"tool": "shell", "command": "node --version"}),
        ("Create notes.txt with the line hello.", {"tool": "write", "file_path": "notes.txt", "content": "hello\n"}),
        (f"Who owns the paint?\n\n{files_hint(['paint.txt'])}", {"tool": "read", "file_path": "paint.txt"}),
        (_result_message("read", _PAINT_FILE, "Who owns the paint?"), {"tool": "answer", "text": "Kim owns it."}),
        (f"{_FAILING_TEST}\n\n{files_hint(['test_area.py', 'area.py'])}", {"tool": "read", "file_path": "area.py"}),
        (
            _result_message("read", _AREA_FILE.format("+"), _FAILING_TEST),
            {"tool": "write", "file_path": "area.py", "content": f"{_AREA_FILE.format('*')}\n"},
        ),
        (
            _result_message("write", "Overwrote area.py (2 lines).", _FAILING_TEST),
            {"tool": "shell", "command": "python -m pytest -q"},
        ),
        (
            _result_message("shell", "1 passed in 0.02s", _FAILING_TEST),
            {"tool": "answer", "text": "area.py added where it should multiply. It is mended, and the test passes."},
        ),
    ),
)


MAX_FILE_NAMES: Final = 300  # each further name in the grammar slows down sampling
MAX_MATCHED_FILES: Final = 6
_MAX_WALKED_FILES = 5_000
_SKIPPED_FOLDERS = {"__pycache__", "node_modules", "venv", "dist", "build", "target"}
_PATH_LIKE = re.compile(r"[\w./~-]*\w\.[A-Za-z]\w{0,7}\b|[\w.~-]+/[\w./~-]+")
_WORD = re.compile(r"\w+")
_MIN_WORD_LENGTH = 3
_MAX_OVERVIEW_FILES = 4
# A request with one of these words is about the workspace, not about the world.
_WORKSPACE_WORDS = frozenset((
    "app", "application", "bug", "bugs", "class", "classes", "code", "codebase", "directory", "file", "files", "folder",
    "function", "functions", "here", "it", "its", "library", "module", "modules", "package", "program", "project",
    "readme", "repo", "repository", "test", "tests", "this", "todo", "where", "workspace",
))  # fmt: skip
_MANIFESTS = (
    "pyproject.toml", "package.json", "cargo.toml", "go.mod", "setup.cfg", "setup.py", "pom.xml", "build.gradle",
    "composer.json", "gemfile", "cmakelists.txt", "makefile", "requirements.txt",
)  # fmt: skip
_SOURCE_SUFFIXES = frozenset((
    ".py", ".js", ".ts", ".tsx", ".jsx", ".mjs", ".go", ".rs", ".c", ".cc", ".cpp", ".h", ".java", ".kt", ".rb",
    ".php", ".cs", ".swift", ".sh", ".lua", ".ex", ".hs",
))  # fmt: skip


class WorkspaceFileSource:
    """Lists the files of the workspace for each request, since the model creates files; skips hidden ones."""

    def list_files(self, request: Request) -> Sequence[str]:
        """Returns the workspace's files and the paths that the user mentions.

        A missing file must be nameable as well; otherwise the grammar makes the model read another file instead.
        """
        found = _list_workspace_files(request.workspace)
        if not found or len(found) > MAX_FILE_NAMES:
            return ()
        others = [name for name in _mentioned_paths(request) if not any(_ends_with(path, name) for path in found)]
        return list(dict.fromkeys([*found, *others]))

    def match_files(self, request: Request, text: str) -> Sequence[str]:
        """Returns files whose names, or parts of them, occur in the text, the best matches first."""
        words, paths = {word.lower() for word in _WORD.findall(text)}, set(_PATH_LIKE.findall(text))
        weight = {path: _score_path(path, words, paths) for path in _list_workspace_files(request.workspace)}
        likely = sorted((path for path in weight if weight[path]), key=lambda path: (-weight[path], len(path), path))
        return likely[:MAX_MATCHED_FILES]

    def suggest_files(self, request: Request, text: str) -> Sequence[str]:
        """Returns the files that the text names; for a request about the workspace, else those that describe it."""
        if (found := self.match_files(request, text)) or not self.refers_to_workspace(request, text):
            return found
        return _overview_files(request.workspace)

    def has_file(self, request: Request, name: str) -> bool:
        own = name.removeprefix("./").removeprefix(f"{PurePosixPath(request.workspace).name}/").rstrip("/")
        return any(
            f"/{path}".endswith(f"/{own}") or f"/{path}/".find(f"/{own}/") >= 0
            for path in _list_workspace_files(request.workspace)
        )

    def refers_to_workspace(self, request: Request, text: str) -> bool:
        words = {word.lower() for word in _WORD.findall(text)}
        return not words.isdisjoint(_WORKSPACE_WORDS) or bool(self.match_files(request, text))


def _list_workspace_files(workspace: str) -> list[str]:
    if not workspace:
        return []
    return sorted(name for name, _ in zip(_walk_files(Path(workspace)), range(_MAX_WALKED_FILES), strict=False))


def _overview_files(workspace: str) -> list[str]:
    """Returns the files that describe a project: README, manifest, and the largest source file near the top."""
    paths = sorted(_list_workspace_files(workspace), key=lambda path: (path.count("/"), path))
    readmes = [path for path in paths if PurePosixPath(path).name.lower().startswith("readme")][:1]
    manifests = [path for name in _MANIFESTS for path in paths if path.lower() == name][:1]
    sources = [path for path in paths if PurePosixPath(path).suffix in _SOURCE_SUFFIXES and not _is_test(path)]
    sources.sort(key=lambda path: (path.count("/") > 2, -_file_size(workspace, path)))
    return [*readmes, *manifests, *sources][:_MAX_OVERVIEW_FILES]


def _is_test(path: str) -> bool:
    return any(word in path.lower() for word in ("test", "bench", "example", "docs/", "conf.py"))


def _file_size(workspace: str, path: str) -> int:
    try:
        return Path(workspace, path).stat().st_size
    except OSError:
        return 0


def _walk_files(folder: Path) -> Iterator[str]:
    for folder_path, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS and not name.startswith("."))
        relative = os.path.relpath(folder_path, folder)
        prefix = "" if relative == "." else f"{relative}/"
        yield from (f"{prefix}{name}" for name in names if not name.startswith("."))


def _mentioned_paths(request: Request) -> Iterator[str]:
    """Yields the paths in the user's last message."""
    for message in reversed(request.prompt):
        if text := request_of(message):
            yield from (found.rstrip(".") for found in _PATH_LIKE.findall(text)[:20])
            return


def _ends_with(path: str, name: str) -> bool:
    return f"/{path}".endswith(f"/{name.removeprefix('./')}")


def _score_path(path: str, words: set[str], paths: set[str]) -> int:
    """Returns the score of a path: a match of its name outweighs any number of shared tokens."""
    by_name = any(_ends_with(path, name) for name in paths)
    return (100 if by_name else 0) + len(_name_words(path) & words)


def _name_words(path: str) -> set[str]:
    """Splits the file name into lower-case tokens, without its folders and without surrounding underscores."""
    stem = PurePosixPath(path).stem.lower().strip("_")
    return {word for word in [stem, *re.split(r"[_\W]+", stem)] if len(word) >= _MIN_WORD_LENGTH}
