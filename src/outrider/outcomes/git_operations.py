"""Describes what git recorded in an overlay: commits, branches, tags, stashes, HEAD and staged files.

Refs are read from their files. Commits and the index are read by git inside the sandbox, over a read-only view of the
overlay, with commands that execute nothing of the repository's configuration.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from outrider.errors import ProcessError
from outrider.outcomes.repository import OverlayView
from outrider.processes.sandbox.overlay import OverlayChange
from outrider.types.outcomes import GitOperation, GitOperationKind

RunInView = Callable[[Sequence[str]], str]
"""Runs a program in the sandbox over the view of a command that has ended, and returns its output. Raises
ProcessError."""

MAX_COMMITS = 20
MAX_FILES = 6
_MAX_REFS = 1_000
_MAX_TEXT = 120
_OBJECT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_STATUS = {"A": "added", "M": "modified", "D": "deleted", "T": "type changed", "U": "in conflict"}
_LOG = f"log -z -n {MAX_COMMITS + 1} --format=tformat:%H%x00%an%x00%ae%x00%s --name-status --no-renames"
_NO_PROGRAMS = "--no-ext-diff --no-textconv --no-color --ignore-submodules=all"
_KINDS: tuple[tuple[str, GitOperationKind], ...] = (("refs/heads/", "branch"), ("refs/tags/", "tag"))
_SECTION_END = "\0\0\0\n"


def read_operations(
    view: OverlayView, folder: str, changes: Iterable[OverlayChange], run: RunInView | None, *, own: str = ""
) -> tuple[GitOperation, ...]:
    """Returns what git recorded in a git folder of the view. `own` is the subfolder of a linked worktree. Without
    `run`, or if git fails, commits and staged files are missing."""
    prefix = f"{folder}/" if folder else ""
    names = {change.path.removeprefix(prefix) for change in changes if change.path.startswith(prefix)}
    refs = _RefReader(view, prefix)
    moved = {name: pair for name in refs.candidates(names) if (pair := refs.read_both(name))[0] != pair[1]}
    head = refs.read_files(f"{own}HEAD")
    staged = f"{own}index" in names
    new_commits = [new for name, (_, new) in moved.items() if name != "refs/stash" and _OBJECT_ID.fullmatch(new)]
    new_commits += [head[1]] if head[0] != head[1] and _OBJECT_ID.fullmatch(head[1]) else []
    old_commits = [old for old, _ in moved.values()] + refs.list_old() + [head[0]]
    git_folder = f"{view.lower}/{prefix}{own}".rstrip("/")
    rewound = [pair for name, pair in moved.items() if name != "refs/stash" and _OBJECT_ID.fullmatch(pair[0])]
    commits, lost, index = _run_git(run, git_folder, new_commits, old_commits, rewound[:MAX_COMMITS], staged=staged)
    operations = [*commits[:MAX_COMMITS], *_ref_operations(view, prefix, moved, lost)]
    if head[0] != head[1]:
        operations.append(GitOperation(kind="head", old=_shorten_head(head[0]), new=_shorten_head(head[1])))
    return (*operations, *index)


def _shorten_head(value: str) -> str:
    return value[:8] if _OBJECT_ID.fullmatch(value) else _clean(value.removeprefix("ref: refs/heads/"))


def _ref_operations(
    view: OverlayView, ref_prefix: str, moved: dict[str, tuple[str, str]], lost: dict[tuple[str, str], int]
) -> Iterator[GitOperation]:
    for name, (old, new) in sorted(moved.items()):
        if name == "refs/stash":
            yield GitOperation(kind="stash", old=old, new=new, subject=_stash_message(view, ref_prefix) if new else "")
            continue
        prefix, kind = _ref_kind(name)
        yield GitOperation(
            kind=kind, name=_clean(name.removeprefix(prefix)), old=old, new=new, lost=lost.get((old, new), 0)
        )


def _ref_kind(name: str) -> tuple[str, GitOperationKind]:
    for prefix, kind in _KINDS:
        if name.startswith(prefix):
            return prefix, kind
    return "refs/", "ref"


def _stash_message(view: OverlayView, prefix: str) -> str:
    lines = (view.read_new(f"{prefix}logs/refs/stash") or b"").decode("utf-8", "replace").splitlines()
    return _clean(lines[-1].partition("\t")[2]) if lines else ""


class _RefReader:
    """Reads refs before and after a command, from separate files or from `packed-refs`."""

    def __init__(self, view: OverlayView, prefix: str) -> None:
        self._view, self._prefix = view, prefix
        old = view.read_old(f"{prefix}packed-refs")
        new = view.read_new(f"{prefix}packed-refs")
        self._packed = (_parse_packed(old), _parse_packed(old if new is None else new))

    def candidates(self, names: Iterable[str]) -> list[str]:
        """Returns the refs that may have changed, given the changed paths of the git folder."""
        old, new = self._packed
        packed = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
        return sorted(name for name in packed.union(names) if name.startswith("refs/"))

    def read_both(self, name: str) -> tuple[str, str]:
        """Returns the values of a ref before and after the command; "" if the ref did not exist."""
        old, new = self.read_files(name)
        return old or self._packed[0].get(name, ""), new or self._packed[1].get(name, "")

    def read_files(self, name: str) -> tuple[str, str]:
        path = f"{self._prefix}{name}"
        old = _clean(self._view.read_old(path)[:1000].decode("utf-8", "replace"))
        if not self._view.exists(path):
            return old, ""
        new = self._view.read_new(path)
        return old, old if new is None else _clean(new[:1000].decode("utf-8", "replace"))

    def list_old(self) -> list[str]:
        """Returns the values of refs before the command. A commit that is not reachable from them is new."""
        values = list(self._packed[0].values())
        refs_folder = Path(self._view.lower, self._prefix, "refs")
        for ref_folder in ("heads", "remotes", "tags"):
            values += (
                self.read_files(str(path.relative_to(refs_folder.parent)))[0]
                for path in sorted((refs_folder / ref_folder).rglob("*"))[:_MAX_REFS]
                if path.is_file() and not path.is_symlink()
            )
        return values


def _parse_packed(content: bytes) -> dict[str, str]:
    refs: dict[str, str] = {}
    for line in content.decode("utf-8", "replace").split("\n"):
        value, _, name = line.partition(" ")
        if name and _OBJECT_ID.fullmatch(value):
            refs[name] = value
    return refs


def _run_git(
    run: RunInView | None,
    git_folder: str,
    new_commits: Sequence[str],
    old_commits: Sequence[str],
    rewound: Sequence[tuple[str, str]],
    *,
    staged: bool,
) -> tuple[list[GitOperation], dict[tuple[str, str], int], list[GitOperation]]:
    """Returns the new commits, the number of commits that moved refs have lost, and the staged files."""
    if run is None or not (new_commits or staged or rewound):
        return [], {}, []
    excluded = [f"^{value}" for value in dict.fromkeys(old_commits) if _OBJECT_ID.fullmatch(value)][:_MAX_REFS]
    git = 'git --git-dir="$1"'
    end = r"; printf '\000\000\000\n'"
    script = (
        f"{git} {_LOG} {_NO_PROGRAMS} {' '.join([*dict.fromkeys(new_commits), *excluded])} --" if new_commits else ":"
    )
    script += end
    for old, new in rewound:
        script += f"; {git} rev-list --count {old} {f'^{new}' if _OBJECT_ID.fullmatch(new) else '--not --branches'} --"
    script += f"{end}; {git} diff --cached -z --name-status --no-renames {_NO_PROGRAMS} --" if staged else end
    try:
        output = run(("/bin/sh", "-c", script, "sh", git_folder))
    except ProcessError:
        return [], {}, []
    log, counts, index = [*output.split(_SECTION_END), "", "", ""][:3]
    numbers = [int(line) if line.isdigit() else 0 for line in counts.split("\n")]
    files = _parse_files(index.split("\0"))
    index_operations = [GitOperation(kind="index", files=files[:MAX_FILES], more_files=max(0, len(files) - MAX_FILES))]
    return list(_parse_log(log)), dict(zip(rewound, numbers, strict=False)), index_operations if files else []


def _parse_log(output: str) -> Iterator[GitOperation]:
    """Parses commits. Each has id, author, address and subject, each followed by a NUL, then pairs of status and
    path."""
    fields = output.split("\0")
    position = 0
    while position + 3 < len(fields) and _OBJECT_ID.fullmatch(fields[position]):
        commit, author, address, subject = fields[position : position + 4]
        position += 4
        start = position
        while position + 1 < len(fields) and len(fields[position].strip()) == 1:
            position += 2
        files = _parse_files(fields[start:position])
        yield GitOperation(
            kind="commit",
            new=commit,
            subject=_clean(subject),
            author=_clean(f"{author} <{address}>"),
            files=files[:MAX_FILES],
            more_files=max(0, len(files) - MAX_FILES),
        )


def _parse_files(fields: Sequence[str]) -> tuple[str, ...]:
    pairs = zip(fields[::2], fields[1::2], strict=False)
    return tuple(f"{_clean(path)} ({_STATUS.get(status.strip(), 'changed')})" for status, path in pairs)


def _clean(text: str) -> str:
    """Returns one short line without control characters: a repository's author chose the text."""
    return _CONTROL.sub(" ", text).strip()[:_MAX_TEXT]
