"""The files of a workspace as a source of names, looks and facts for the prompts of a small model."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from outrider.providers.local.constrained_output import find_names
from outrider.providers.local.prompt import asks_how, asks_question, request_of
from outrider.providers.local.question_topics import (
    ProjectFiles,
    QuestionPlan,
    ReadCall,
    find_topic,
    focus_file,
    focus_matches,
)
from outrider.types.request import Request

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
_MANIFEST_WORDS = frozenset(
    ("dependencies", "dependency", "install", "installed", "license", "requirements", "version")
)
# Words of questions about any project, which also occur in file names.
_COMMON_WORDS = frozenset((
    "and", "any", "are", "can", "definition", "does", "each", "every", "for", "from", "how", "index", "main", "most",
    "start", "that", "the", "there", "version", "what", "which", "with",
))  # fmt: skip
_DESCRIBED_SYMBOL = re.compile(
    r"\b(?:function|method|class|struct|enum|trait|variable|constant) `?([A-Za-z_]\w{2,})"
    r"|\b([A-Za-z_]\w{2,})`?(?= (?:function|method|class|struct|enum|trait)\b)"
    r"|\bthe (?!Python|Rust|Java|Linux|Windows|Docker|Git)([A-Z][a-z]\w+)\b(?! (?:file|folder))"
)
MAX_PLANNED_CHARACTERS: Final = 3_600  # of the results of all planned looks; a small model reads about 200 per second
_MAX_NAMED_FILES = 2
_SYMBOL_CONTEXT = 4  # lines


class WorkspaceFileSource:
    """Lists the files of the workspace for each request, since the model creates files; skips hidden ones."""

    def list_files(self, request: Request) -> Sequence[str]:
        """Returns the workspace's files and the paths that the user mentions.

        The model must be able to name a missing file, too; otherwise the grammar makes it read another file instead.
        """
        files = _list_workspace_files(request.workspace)
        if not files or len(files) > MAX_FILE_NAMES:
            return ()
        missing_files = [
            name for name in _mentioned_paths(request) if not any(_ends_with(path, name) for path in files)
        ]
        return list(dict.fromkeys([*files, *missing_files]))

    def match_files(self, request: Request, text: str) -> Sequence[str]:
        """Returns files whose names, or parts of them, occur in the text, the best matches first."""
        words, paths = {word.lower() for word in _WORD.findall(text)}, set(_PATH_LIKE.findall(text))
        weight = {path: _score_path(path, words, paths) for path in _list_workspace_files(request.workspace)}
        likely = sorted((path for path in weight if weight[path]), key=lambda path: (-weight[path], len(path), path))
        return likely[:MAX_MATCHED_FILES]

    def suggest_files(self, request: Request, text: str) -> Sequence[str]:
        """Returns the files that the text names; if it names none and is about the workspace, the files that describe
        the workspace. The manifest and the README state how something is done."""
        words = {word.lower() for word in _WORD.findall(text)}
        is_how_to = (asks_how(text) or not words.isdisjoint(_MANIFEST_WORDS)) and not _PATH_LIKE.search(text)
        matches = self.match_files(request, text)
        if (matches and not is_how_to) or not self.refers_to_workspace(request, text):
            return matches
        return _overview_files(request.workspace, with_sources=not is_how_to)

    def plan_question(self, request: Request, text: str) -> QuestionPlan:
        """Returns how a question about the workspace is answered: from the files and symbols that it names, or else
        from the files for its topic. The plan is empty if the model has to choose."""
        if not asks_question(text) or not self.refers_to_workspace(request, text):
            return QuestionPlan()
        if named_files := [path for path in self.match_files(request, text) if _is_named(path, text)]:
            return QuestionPlan([ReadCall("read", {"file_path": path}) for path in named_files[:_MAX_NAMED_FILES]])
        if symbols := _named_symbols(text):
            return QuestionPlan([ReadCall("grep", {"pattern": symbols[0], "context": _SYMBOL_CONTEXT})])
        if (topic := find_topic(text)) is None:
            return QuestionPlan()
        paths, preferred = _list_workspace_files(request.workspace), self._specific_files(request, text)
        return ProjectFiles(Path(request.workspace), paths, preferred).plan_question(topic)

    def focus_result(self, request: Request, text: str, look: ReadCall, content: str) -> str:
        """Returns the part of a result that matters for the topic of a question."""
        looks, topic = self.plan_question(request, text).looks, find_topic(text)
        if topic is None or look not in looks:
            return content
        if look.tool == "grep":
            return focus_matches(content, topic) if look.arguments.get("pattern") == topic.search else content
        if look.tool != "read":
            return content
        max_characters = MAX_PLANNED_CHARACTERS // sum(planned.tool == "read" for planned in looks)
        return focus_file(str(look.arguments["file_path"]), content, topic, max_characters)

    def _specific_files(self, request: Request, text: str) -> Sequence[str]:
        """Returns the files that a question may be about, by words that do not occur in every question."""
        words = (word for word in _WORD.findall(text) if word.lower() not in _WORKSPACE_WORDS | _COMMON_WORDS)
        return self.match_files(request, " ".join(words))

    def has_file(self, request: Request, name: str) -> bool:
        relative = name.removeprefix("./").removeprefix(f"{PurePosixPath(request.workspace).name}/").rstrip("/")
        return any(
            f"/{path}".endswith(f"/{relative}") or f"/{path}/".find(f"/{relative}/") >= 0
            for path in _list_workspace_files(request.workspace)
        )

    def refers_to_workspace(self, request: Request, text: str) -> bool:
        words = {word.lower() for word in _WORD.findall(text)}
        if words.isdisjoint(_WORKSPACE_WORDS) and not _named_symbols(text):
            return bool(self.match_files(request, text))
        return True


def _list_workspace_files(workspace: str) -> list[str]:
    if not workspace:
        return []
    return sorted(name for name, _ in zip(_walk_files(Path(workspace)), range(_MAX_WALKED_FILES), strict=False))


def _overview_files(workspace: str, *, with_sources: bool) -> list[str]:
    """Returns the files that describe a project: README, manifest, and the largest source files near the top."""
    files = ProjectFiles(Path(workspace), _list_workspace_files(workspace))
    described = [*files.find("manifest"), *files.find("readme")]
    return described if described and not with_sources else files.overview()[:_MAX_OVERVIEW_FILES]


def _is_named(path: str, text: str) -> bool:
    return any(_ends_with(path, name) for name in _PATH_LIKE.findall(text))


def _named_symbols(text: str) -> list[str]:
    """Returns the names of code in a text: by their form, by a word such as "function" next to them, or by a
    capital."""
    described = ("".join(groups) for groups in _DESCRIBED_SYMBOL.findall(text))
    names = (*find_names(text), *(name for name in described if name.lower() not in _COMMON_WORDS | _WORKSPACE_WORDS))
    return [name for name in dict.fromkeys(names) if re.fullmatch(r"\w+", name)]


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
            yield from (path.rstrip(".") for path in _PATH_LIKE.findall(text)[:20])
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
