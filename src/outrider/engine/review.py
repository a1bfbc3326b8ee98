"""Review of what a session changed: by turn, file and hunk, with exact undo of a file or hunk, and commits.

A hunk is undone only if it and its context lines are unchanged in the current file, so other work is never touched."""

import asyncio
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from pathlib import Path
from typing import Literal

import msgspec

from outrider._posix import is_within, parent_of
from outrider.engine.engine import Engine
from outrider.engine.undo_history import NO_TOOLS_MESSAGE, ChangeHistory, RestoreResult, SessionOutline
from outrider.errors import ConfigurationError, ProcessError
from outrider.permissions import reasons
from outrider.processes.git import GitRunner
from outrider.sessions import snapshots as snapshots_api

MAX_FILES = 500
MAX_FILE_BYTES = 200_000  # a larger file is listed without its lines
MAX_REVIEW_CHARS = 1_000_000
CONTEXT_LINES = 3

ReviewStatus = Literal["added", "changed", "deleted"]


class ReviewLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line with its numbers in the old and in the new file; 0 where it does not exist."""

    kind: Literal["added", "removed", "context"]
    text: str
    old: int = 0
    new: int = 0


class ReviewHunk(msgspec.Struct, frozen=True):
    """Adjacent changed lines with their context. The hunk can be undone while the file still contains it."""

    id: str
    lines: tuple[ReviewLine, ...]
    can_undo: bool


class ReviewFile(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of one file.

    - `path`: the path of the file in the workspace.
    - `status`: "added", "changed" or "deleted".
    - `added`, `removed`: the number of lines.
    - `hunks`: the changed lines with their context.
    - `can_undo`: whether all changes of the file can be undone.
    - `changed_since`: whether the file was changed again after these changes.
    - `note`: why the lines are not shown.
    """

    path: str
    status: ReviewStatus
    added: int = 0
    removed: int = 0
    hunks: tuple[ReviewHunk, ...] = ()
    can_undo: bool = False
    changed_since: bool = False
    note: str = ""


class ReviewTurn(msgspec.Struct, frozen=True):
    """A turn with changes, named by the message that began it."""

    message_id: str
    title: str


class ChangeReview(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of a session or of one turn.

    - `files`: the changed files.
    - `turns`: the turns of the session with changes.
    - `uncovered`: files that may have changed too.
    - `can_commit`: whether the workspace is in a git repository.
    - `off`: the reason why no changes are recorded.
    """

    files: tuple[ReviewFile, ...] = ()
    turns: tuple[ReviewTurn, ...] = ()
    uncovered: tuple[str, ...] = ()
    can_commit: bool = False
    off: str = ""


class GitCommit(msgspec.Struct, frozen=True):
    """A commit: its short hash and what git printed."""

    hash: str
    summary: str


class _FileVersions(msgspec.Struct, frozen=True):
    """A file before and after the changes, and now."""

    path: str
    before: "snapshots_api.FileState | None"
    after: "snapshots_api.FileState | None"
    now: "snapshots_api.FileState | None"
    is_readable: bool = True

    @property
    def status(self) -> ReviewStatus:
        return "added" if self.before is None else "deleted" if self.after is None else "changed"


async def review_changes(engine: Engine, session_id: str, turn: str | None = None) -> ChangeReview:
    """Returns the changes of a session, or of the turn that begins with the message `turn`."""
    tracker = await _open_tracker(engine, session_id)
    if isinstance(tracker, str):
        return ChangeReview(off=tracker)
    outline = await SessionOutline.read(engine.store, session_id)
    workspace = tracker.workspace

    def collect() -> ChangeReview:
        history = ChangeHistory(tracker.session_changes(session_id), outline, session_id)
        changes = history.of_turn(turn)
        return ChangeReview(
            files=tuple(_review_files(tracker, changes)),
            turns=tuple(ReviewTurn(start, outline.titles.get(start, "")) for start in history.turn_starts()),
            uncovered=tuple(dict.fromkeys(path for change_set in changes for path in change_set.uncovered)),
            can_commit=shutil.which("git") is not None and GitRunner().is_work_tree(workspace),
        )

    return await asyncio.to_thread(collect)


async def undo_part(
    engine: Engine, session_id: str, path: str, *, hunk: str = "", turn: str | None = None
) -> RestoreResult:
    """Undoes the changes of a session or turn to one file, or one hunk of them, and records that in the transcript. If
    the file no longer contains the lines, nothing is changed and the result has the reason."""
    outline = await SessionOutline.read(engine.store, session_id)

    def apply(tracker: snapshots_api.ChangeTracker) -> "snapshots_api.ChangeSet | str":
        changes = ChangeHistory(tracker.session_changes(session_id), outline, session_id).of_turn(turn)
        versions = next((versions for versions in _file_versions(tracker, changes) if versions.path == path), None)
        if versions is None:
            return "there is no change of this file to undo"
        target = _target_state(tracker, versions, hunk)
        if isinstance(target, str):
            return target
        origin = snapshots_api.ChangeOrigin(session_id=session_id)
        return tracker.undo_part(path, versions.now, target.state, origin) or "the file was changed in the meantime"

    return await engine.file_changes(session_id).undo_part(path, apply)


async def commit_files(engine: Engine, session_id: str, paths: Sequence[str], message: str) -> GitCommit:
    """Commits the current state of these files of the workspace. Other staged changes stay staged. Hooks and filters of
    the repository do not run, and git runs in the sandbox, if there is one. Raises ProcessError with the error output
    of git, or if the owner of the session is limited and the repository is outside the workspace; then nothing is newly
    staged."""
    session = await engine.store.get(session_id)
    limits, git = engine.runtime.find_limits(session), engine.runtime.git_runner(session)

    def commit() -> GitCommit:
        workspace = Path(session.workspace_directory or ".").resolve()
        if limits is not None and limits.has_left(session.workspace_directory, str(workspace)):
            raise ProcessError(reasons.OWNER_LEFT)
        for path in paths:
            if not (workspace / path).parent.resolve().is_relative_to(workspace):
                raise ConfigurationError(f"{path} is not a file of the workspace")
        places = ("--path-format=absolute", "--git-common-dir", "--absolute-git-dir")
        git_folders = [os.path.realpath(line) for line in git.run(workspace, "rev-parse", *places).splitlines()]
        for folder in git_folders if limits is not None else ():
            if not is_within(folder, str(workspace)) and not is_within(str(workspace), parent_of(folder)):
                raise ProcessError(f"the repository of the workspace is in another folder: {folder}")
        writable = [Path(folder) for folder in dict.fromkeys(git_folders)]
        named = [f":(literal){path}" for path in paths]
        index = workspace / git.run(workspace, "rev-parse", "--git-path", "index").strip()
        staged = index.read_bytes() if index.exists() else None
        git.run(workspace, "add", "--all", "--", *named, writable=writable)
        try:
            options = (*_author_options(git, workspace), "commit", "--no-verify", "--only", f"--message={message}")
            summary = git.run(workspace, *options, "--", *named, writable=writable)
        except ProcessError:
            _restore_index(index, staged)
            raise
        return GitCommit(git.run(workspace, "rev-parse", "--short", "HEAD").strip(), summary.strip())

    return await asyncio.to_thread(commit)


def _author_options(git: GitRunner, workspace: Path) -> Iterator[str]:
    """Yields the name and address of the author as options, because the sandbox may hide the user's configuration."""
    for key in ("user.name", "user.email"):
        with suppress(ProcessError):
            yield from ("-c", f"{key}={git.run(workspace, 'config', key).rstrip()}")


def _restore_index(index: Path, content: bytes | None) -> None:
    if content is None:
        index.unlink(missing_ok=True)
        return
    copy = index.with_name(f"{index.name}.outrider")
    copy.write_bytes(content)
    copy.replace(index)


async def _open_tracker(engine: Engine, session_id: str) -> "snapshots_api.ChangeTracker | str":
    session, recorder = await engine.store.get(session_id), engine.runtime.undo
    if recorder is None:
        return NO_TOOLS_MESSAGE
    await recorder.record_background_changes(session_id)
    return await recorder.stores.open_snapshots(Path(session.workspace_directory or "."))


def _file_versions(
    tracker: "snapshots_api.ChangeTracker", changes: "Sequence[snapshots_api.ChangeSet]"
) -> list[_FileVersions]:
    sides: dict[str, tuple[snapshots_api.FileState | None, snapshots_api.FileState | None]] = {}
    for file in (file for change_set in changes for file in change_set.files):
        sides[file.path] = (sides[file.path][0] if file.path in sides else file.before, file.after)
    versions: list[_FileVersions] = []
    for path, (before, after) in sorted(sides.items()):
        if before == after:
            continue
        try:
            versions.append(_FileVersions(path, before, after, tracker.read_state(path)))
        except (OSError, ValueError):
            versions.append(_FileVersions(path, before, after, None, is_readable=False))
    return versions


def _review_files(
    tracker: "snapshots_api.ChangeTracker", changes: "Sequence[snapshots_api.ChangeSet]"
) -> list[ReviewFile]:
    files: list[ReviewFile] = []
    remaining = MAX_REVIEW_CHARS
    for versions in _file_versions(tracker, changes)[:MAX_FILES]:
        file = _review_file(tracker, versions)
        remaining -= sum(len(line.text) for hunk in file.hunks for line in hunk.lines)
        if remaining < 0 and file.hunks:
            file = msgspec.structs.replace(file, hunks=(), note="the review is too long; choose one turn to see it")
        files.append(file)
    return files


def _review_file(tracker: "snapshots_api.ChangeTracker", versions: _FileVersions) -> ReviewFile:
    is_current = versions.is_readable and versions.now == versions.after
    plain = ReviewFile(path=versions.path, status=versions.status, can_undo=is_current, changed_since=not is_current)
    texts = _TextVersions.read(tracker, versions)
    if isinstance(texts, str):
        return msgspec.structs.replace(plain, note=texts)
    groups = texts.groups()
    hunks = tuple(texts.make_hunk(group) for group in groups)
    lines = [line.kind for hunk in hunks for line in hunk.lines]
    return msgspec.structs.replace(
        plain,
        hunks=hunks,
        added=lines.count("added"),
        removed=lines.count("removed"),
        can_undo=is_current or (bool(hunks) and all(hunk.can_undo for hunk in hunks)),
        note="" if hunks else "only its permissions changed",
    )


class _TargetState(msgspec.Struct, frozen=True):
    """The state of a file after an undo; None if the file is deleted."""

    state: "snapshots_api.FileState | None"


def _target_state(tracker: "snapshots_api.ChangeTracker", versions: _FileVersions, hunk: str) -> _TargetState | str:
    """Returns the state that an undo results in, or why it is not possible."""
    if not hunk and versions.is_readable and versions.now == versions.after:
        return _TargetState(versions.before)
    texts = _TextVersions.read(tracker, versions)
    if isinstance(texts, str):
        return "the file was changed since"
    groups = [group for group in texts.groups() if not hunk or texts.hunk_id(group) == hunk]
    if not groups:
        return "this change no longer exists; the review was out of date"
    result = texts.without(groups)
    if result is None:
        return "the lines were changed since"
    if versions.before is None and not result:
        return _TargetState(None)
    content = "".join(result).encode("utf-8", "surrogateescape")
    source = versions.now or versions.before
    assert source is not None
    return _TargetState(tracker.store_content(content, source.mode))


OpCode = tuple[str, int, int, int, int]


class _TextVersions:
    """The lines of a file before and after the changes, and now."""

    def __init__(self, path: str, before: list[str], after: list[str], now: list[str]) -> None:
        self.path = path
        self.before = before
        self.after = after
        self.now = now
        self._same_as_now = [
            (start, start + size, now_start)
            for start, now_start, size in SequenceMatcher(None, after, now).get_matching_blocks()
        ]

    @classmethod
    def read(cls, tracker: "snapshots_api.ChangeTracker", versions: _FileVersions) -> "_TextVersions | str":
        """Returns the lines, or why they cannot be shown."""
        sides = (versions.before, versions.after, versions.now)
        if not versions.is_readable or any(state is not None and state.link for state in sides):
            return "not a regular file"
        contents = [tracker.read_content(state) if state else b"" for state in sides]
        if any(len(content) > MAX_FILE_BYTES for content in contents):
            return "too large to show"
        if any(b"\0" in content for content in contents):
            return "not a text"
        return cls(versions.path, *(_split_lines(content) for content in contents))

    def groups(self) -> list[list[OpCode]]:
        matcher = SequenceMatcher(None, self.before, self.after)
        return (
            [list(group) for group in matcher.get_grouped_opcodes(CONTEXT_LINES)] if self.before != self.after else []
        )

    def make_hunk(self, group: Sequence[OpCode]) -> ReviewHunk:
        lines: list[ReviewLine] = []
        for tag, old, old_end, new, new_end in group:
            if tag == "equal":
                lines += [
                    ReviewLine("context", _shown_text(self.after[number]), old + number - new + 1, number + 1)
                    for number in range(new, new_end)
                ]
                continue
            lines += [
                ReviewLine("removed", _shown_text(self.before[index]), old=index + 1) for index in range(old, old_end)
            ]
            lines += [
                ReviewLine("added", _shown_text(self.after[index]), new=index + 1) for index in range(new, new_end)
            ]
        return ReviewHunk(self.hunk_id(group), tuple(lines), self._current_start(group) is not None)

    def hunk_id(self, group: Sequence[OpCode]) -> str:
        old, old_end, new, new_end = _group_range(group)
        parts = (self.path, str(new), "".join(self.before[old:old_end]), "".join(self.after[new:new_end]))
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def without(self, groups: Sequence[Sequence[OpCode]]) -> list[str] | None:
        """Returns the current lines without these changes; None if the file no longer contains one of them."""
        result = list(self.now)
        for group in reversed(groups):
            start = self._current_start(group)
            if start is None:
                return None
            old, old_end, new, new_end = _group_range(group)
            result[start : start + new_end - new] = self.before[old:old_end]
        return result

    def _current_start(self, group: Sequence[OpCode]) -> int | None:
        """Returns where the hunk with its context begins in the current file."""
        _, _, new, new_end = _group_range(group)
        if self.now == self.after:
            return new
        blocks = (block for block in self._same_as_now if block[0] <= new and new_end <= block[1] and new < new_end)
        return next((now_start + new - start for start, _, now_start in blocks), None)


def _group_range(group: Sequence[OpCode]) -> tuple[int, int, int, int]:
    return group[0][1], group[-1][2], group[0][3], group[-1][4]


def _split_lines(content: bytes) -> list[str]:
    """Returns the lines with their line ends; joined and encoded, they are equal to the content."""
    *lines, last_line = content.decode("utf-8", "surrogateescape").split("\n")
    return [f"{line}\n" for line in lines] + ([last_line] if last_line else [])


def _shown_text(line: str) -> str:
    return line.rstrip("\r\n").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
