"""Describes what a command changed in its overlay: files with diffs, caches apart, for a question or a report."""

import difflib
import os
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

from outrider.outcomes.commit import find_conflicts
from outrider.outcomes.pending import PendingOutcome
from outrider.permissions.paths.gitignore import IGNORE_FILES, VCS_FOLDERS, is_ignored
from outrider.permissions.paths.protected import find_protected_name, list_link_targets, replaces_protected_folder
from outrider.permissions.paths.safe_open import read_regular_file
from outrider.permissions.redaction.secret_patterns import split_names
from outrider.processes.sandbox.overlay import OverlayChange, is_text, show_path
from outrider.sessions.snapshots.scanner import SnapshotLimits
from outrider.types.outcomes import CommandOutcome, OutcomeFile

MAX_FILES = 200
MAX_DIFF_BYTES = 200_000
MAX_DIFF_LINES = 400
MAX_OUTPUT = 4_000

# Folders and files that tools write as a by-product and can write again.
CACHE_NAMES = split_names(
    """__pycache__ .pytest_cache .benchmarks .coverage .mypy_cache .ruff_cache .hypothesis .tox .nox .eggs .gradle
    .ipynb_checkpoints .parcel-cache .turbo .vite .angular .nyc_output .eslintcache .stylelintcache .sass-cache
    .tsbuildinfo .phpunit.cache .phpunit.result.cache .dart_tool .pytype .pyre .basedpyright .import_linter_cache"""
)
_CACHE_PAIRS = frozenset({("node_modules", ".cache"), ("node_modules", ".vite"), (".next", "cache")})
_CACHE_SUFFIXES = (".pyc", ".pyo", ".tsbuildinfo")


def is_cache(path: str) -> bool:
    """Returns whether a path belongs to a cache of a known tool."""
    names = path.split("/")
    return (
        not CACHE_NAMES.isdisjoint(names)
        or names[-1].endswith(_CACHE_SUFFIXES)
        or any(pair in _CACHE_PAIRS for pair in pairwise(names))
    )


def ignored_paths(workspace: Path, changes: Iterable[OverlayChange]) -> set[str]:
    """Returns the changed paths that the workspace's ignore files exclude from version control.

    The ignore files of the workspace count, not those that the command wrote.
    """

    @cache
    def lines_of(folder: str) -> list[str]:
        lines: list[str] = []
        for name in IGNORE_FILES:
            path = f"{workspace}/{folder}{name}"
            try:
                lines += read_regular_file(path, 1_000_000).decode("utf-8", "replace").splitlines()
            except OSError:
                continue
        return lines

    return {
        change.path
        for change in changes
        # A pattern with a trailing slash matches folders only, and a name inside shows that the path is one.
        if VCS_FOLDERS.isdisjoint(change.path.split("/"))
        and is_ignored(f"{change.path}/x" if change.file == "folder" else change.path, lines_of)
    }


# What git itself writes when it records work. Everything else in `.git` can make git run programs, as can the lists of
# commands of an interrupted rebase.
_REPOSITORY_DATA = split_names(
    """objects refs logs index HEAD ORIG_HEAD COMMIT_EDITMSG FETCH_HEAD MERGE_HEAD MERGE_MSG MERGE_MODE AUTO_MERGE
    CHERRY_PICK_HEAD REVERT_HEAD SQUASH_MSG packed-refs"""
)
REPOSITORY = ".git"


def is_repository_data(change: OverlayChange) -> bool:
    """Returns whether a change holds commits, refs or the index of the workspace's own repository.

    Git writes no links there; through one in place of a log, its next commit would write somewhere else.
    """
    first, _, rest = change.path.partition("/")
    is_data = first == REPOSITORY and rest.split("/")[0] in _REPOSITORY_DATA and rest != "objects/info/alternates"
    return is_data and change.file in ("file", "folder")


def list_protected(changes: Iterable[OverlayChange], workspace: Path) -> set[str]:
    """Returns the changed paths that steer tools or contain secrets, also by the name of a link to them."""
    targets = [f"{target}/" for target in list_link_targets(str(workspace))]
    return {
        change.path
        for change in changes
        if (_is_protected(change) and not is_repository_data(change))
        or any(f"{change.path}/".startswith(target) for target in targets)
    }


def _is_protected(change: OverlayChange) -> bool:
    parts = change.path.split("/")
    provides = change.file == "link" and replaces_protected_folder(parts)
    return provides or find_protected_name(parts, "write") is not None


def expand_kept(changes: Iterable[OverlayChange], keep: Iterable[str]) -> list[str]:
    """Returns the changed paths that an answer keeps: those it names, new folders above them, and with `.git` all
    repository data."""
    wanted = set(keep)
    wanted |= {parent for path in keep for parent in parents_of(path)}
    return [
        change.path
        for change in changes
        if change.shown_path in wanted or (REPOSITORY in wanted and is_repository_data(change))
    ]


def parents_of(path: str) -> list[str]:
    """Returns the folders above a path, the topmost first."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def describe_outcome(pending: PendingOutcome, upper: Path) -> CommandOutcome:
    """Returns what a question about a pending outcome shows."""
    workspace = Path(pending.workspace)
    ignored, protected = ignored_paths(workspace, pending.changes), list_protected(pending.changes, workspace)
    conflicts = set(find_conflicts(workspace, upper, pending.changes))
    shown = sorted(pending.changes, key=lambda change: (change.path not in protected, change.path in ignored))
    shown = _without_implied_folders(shown)
    recorded = [change for change in shown if is_repository_data(change)]
    shown = [change for change in shown if not is_repository_data(change)]
    files = tuple(
        OutcomeFile(
            path=change.shown_path,
            kind=change.kind,
            file=change.file,
            size=change.size,
            diff="" if change.path in ignored else make_diff(workspace, upper, change),
            note=_note_of(change, upper),
            protected=change.path in protected,
            ignored=change.path in ignored,
            conflict=change.path in conflicts,
            can_undo=_can_undo(change),
        )
        for change in shown[:MAX_FILES]
    )
    if recorded:
        files = (OutcomeFile(path=REPOSITORY, kind="modified", file="folder", note=_repository_note(recorded)), *files)
    return CommandOutcome(
        files=files,
        more_files=max(0, len(shown) - MAX_FILES),
        exit_code=pending.exit_code,
        output=pending.content[-MAX_OUTPUT:],
        blocked=pending.blocked,
        left_running=pending.left_running,
    )


def _repository_note(changes: Sequence[OverlayChange]) -> str:
    """Returns what git recorded, such as "3 objects, refs/heads/main, index"."""
    names = [change.path.removeprefix(f"{REPOSITORY}/") for change in changes]
    objects = sum(name.startswith("objects/") for name in names)
    others = [name for name in names if not name.startswith(("objects/", "logs/"))]
    return ", ".join([*([f"{objects} objects"] if objects else []), *others[:8]]) or "logs"


def _can_undo(change: OverlayChange) -> bool:
    largest = max(change.size, change.base.size if change.base else 0)
    return is_text(change.path) and largest <= SnapshotLimits().written_bytes


def _without_implied_folders(changes: Sequence[OverlayChange]) -> list[OverlayChange]:
    """Leaves out new and deleted folders whose files are listed."""
    parents = {change.path.rpartition("/")[0] for change in changes}
    for parent in list(parents):
        while parent:
            parents.add(parent)
            parent = parent.rpartition("/")[0]  # noqa: PLW2901
    return [
        change
        for change in changes
        if not (change.file == "folder" and change.kind != "modified" and change.path in parents)
    ]


def _note_of(change: OverlayChange, upper: Path) -> str:
    if change.kind == "deleted":
        return ""
    if change.file == "link":
        return f"link to {show_path(os.readlink(upper / change.path))}"  # noqa: PTH115
    if change.file == "special":
        return "neither a file nor a folder; it is not kept"
    if change.base is not None and not change.changes_type and change.base.mode & 0o777 != change.mode & 0o777:
        return f"mode {change.base.mode & 0o777:o} becomes {change.mode & 0o777:o}"
    return "executable" if change.kind == "created" and change.file == "file" and change.mode & 0o111 else ""


def make_diff(workspace: Path, upper: Path, change: OverlayChange) -> str:
    """Returns a unified diff, or "" for binary, large and special files."""
    if change.file != "file" or change.changes_type:
        return ""
    before = _read_text(workspace / change.path) if change.base is not None else ""
    after = _read_text(upper / change.path) if change.kind != "deleted" else ""
    if before is None or after is None:
        return ""
    old, new = f"a/{change.shown_path}" if change.base else "/dev/null", f"b/{change.shown_path}"
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        old,
        new if change.kind != "deleted" else "/dev/null",
    )
    diff: list[str] = []
    for number, line in enumerate(lines):
        if number == MAX_DIFF_LINES:
            diff.append("… more lines are not shown\n")
            break
        diff.append(line if line.endswith("\n") else f"{line}\n")
    return "".join(diff)


def _read_text(path: Path) -> str | None:
    """Returns the text of a regular file, None if it is binary, too large or unreadable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(MAX_DIFF_BYTES + 1)
    except OSError:
        return None
    if b"\0" in content or len(content) > MAX_DIFF_BYTES:
        return None
    return content.decode("utf-8", "replace")


def list_changes(changes: Iterable[OverlayChange], limit: int = 20) -> str:
    """Returns changed paths in one line for the model, such as "a.py (modified), b/ (deleted)"."""
    listed = _without_implied_folders(list(changes))
    texts = [
        f"{change.shown_path}{'/' if change.file == 'folder' else ''} ({change.kind})" for change in listed[:limit]
    ]
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(texts) + more
