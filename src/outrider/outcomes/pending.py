"""Stores outcomes of sandboxed commands on disk until they are committed or dropped, so that they survive a crash."""

import json
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from outrider._posix import O_CLOEXEC
from outrider.errors import ConfigurationError, FailureReason
from outrider.outcomes.repository import OutsideRepository
from outrider.processes.sandbox.overlay import (
    OverlayChange,
    OverlayFolders,
    is_confusing_link,
    merge_into_layer,
    parents_of,
    remove_from_layer,
    remove_tree,
)
from outrider.processes.sandbox.sandbox import OverlayMount
from outrider.types.outcomes import BlockedAccess

OVERLAYS_FOLDER = "overlays"
_RECORD = "outcome.json"
_SESSION = "session"  # a file with the session's id


def overlay_storage(data: Path, workspace: Path) -> Path:
    """Returns the folder in which overlays of a workspace are stored: the data folder, or a private folder below
    /var/tmp if the workspace contains the data folder, because an overlay cannot store its changes inside the folder
    that it covers."""
    inside = data.resolve().is_relative_to(workspace.resolve())
    return _shared_storage() if inside else data


def _shared_storage() -> Path:
    return Path("/var/tmp") / f"outrider-{os.getuid()}"


def _make_private(folder: Path) -> None:
    """Creates a folder that other users cannot open. Raises ConfigurationError if another user owns the folder or its
    parent, because every user can create folders in /var/tmp."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in (folder.parent, folder):
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise ConfigurationError(f"{path} belongs to another user; overlays cannot be stored there")
    folder.chmod(0o700)


class PendingOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A command that has ended in its overlay.

    - `session_id`, `call_id`: the call of the command.
    - `workspace`: the workspace that the overlay covers.
    - `changes`: what the command changed in the workspace.
    - `content`, `title`, `metadata`: the tool result.
    - `exit_code`: the exit code of the command.
    - `blocked`: the accesses that the sandbox probably denied.
    - `block_answered`: whether the question about `blocked` no longer needs an answer.
    - `committing`: is set before the first file of the workspace changes.
    - `keep`: the paths to commit, once `committing` is set.
    - `left_running`: the processes that the command left running; they were ended.
    - `failure`: the call ends in an error with this reason, for example because the command reached its time limit.
    - `repository`: the git folder of the workspace, if it is outside the workspace.
    - `recorded`: the changes in that git folder.
    - `keep_recorded`: the paths of `recorded` to commit, once `committing` is set.
    - `asked`: whether the question about the changes was asked.
    """

    session_id: str
    call_id: str
    workspace: str
    changes: tuple[OverlayChange, ...]
    content: str
    title: str | None = None
    metadata: dict[str, Any] = {}
    exit_code: int | None = None
    blocked: tuple[BlockedAccess, ...] = ()
    block_answered: bool = False
    committing: bool = False
    keep: tuple[str, ...] = ()
    left_running: tuple[str, ...] = ()
    failure: FailureReason | None = None
    repository: OutsideRepository | None = None
    recorded: tuple[OverlayChange, ...] = ()
    keep_recorded: tuple[str, ...] = ()
    asked: bool = False


class OutcomeFolder:
    """The overlays of one session in one workspace, in a private folder below the data folder.

    `calls/<call>` holds the overlay of a command and, when it has ended, its outcome. `layer` holds cache files that
    later commands of the session see, `tmp` is their /tmp, `caches` what they write to caches in the home folder.
    """

    def __init__(self, data: Path, session_id: str, workspace: Path) -> None:
        name = sha256(os.fsencode(workspace)).hexdigest()[:12]
        self._overlays = data / OVERLAYS_FOLDER
        self.root = self._overlays / _safe_name(session_id) / name
        self._workspace = workspace
        self._session_id = session_id

    @property
    def layer(self) -> Path:
        return self.root / "layer"

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    def prepare(self, call_id: str) -> OverlayFolders:
        """Creates the folders for one command. Leftovers of an interrupted run of the same call are deleted."""
        _make_private(self._overlays)
        self.remove(call_id)
        if not self.temporary.is_dir():
            for folder in (self.layer, self.temporary):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.temporary.chmod(0o1777)
            (self.root.parent / _SESSION).write_text(self._session_id, encoding="utf-8", errors="replace")
        return OverlayFolders.create(self._call_folder(call_id), self.layers())

    def open_caches(self, caches: Iterable[Path]) -> tuple[OverlayMount, ...]:
        """Returns overlays of caches in the home folder, which all commands of the session share."""
        opened: list[OverlayMount] = []
        for path in caches:
            root = self.root / "caches" / _safe_name(str(path))
            # An overlay cannot store its changes inside the folder that it covers.
            if path.is_dir() and not root.is_relative_to(path):
                folders = OverlayFolders(root / "upper", root / "work")
                opened.append(
                    OverlayMount(folder=path, overlay=folders if root.is_dir() else OverlayFolders.create(root))
                )
        return tuple(opened)

    def prepare_recorded(self, call_id: str) -> OverlayFolders:
        """Creates the folders for the overlay of a git folder outside the workspace."""
        return OverlayFolders.create(self._call_folder(call_id) / "git")

    def layers(self) -> tuple[Path, ...]:
        """Returns the layer if it is not empty."""
        return (self.layer,) if any(self.layer.iterdir()) else ()

    def upper(self, call_id: str) -> Path:
        return self._call_folder(call_id) / "upper"

    def upper_recorded(self, call_id: str) -> Path:
        return self._call_folder(call_id) / "git" / "upper"

    def save(self, outcome: PendingOutcome) -> None:
        """Writes the outcome and waits for the disk. Replaces an earlier version atomically."""
        file = self._call_folder(outcome.call_id) / _RECORD
        if not file.parent.is_dir():  # a command that had a read-only view
            _make_private(self._overlays)
            file.parent.mkdir(parents=True, mode=0o700)
        staged = file.with_suffix(".tmp")
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            # File names may not be valid UTF-8; the standard library escapes such characters.
            stream.write(json.dumps(msgspec.to_builtins(outcome)).encode())
            stream.flush()
            os.fsync(descriptor)
        staged.replace(file)

    def has_outcome(self, call_id: str) -> bool:
        """Returns whether a stored outcome exists. It needs only one system call."""
        return os.access(self._call_folder(call_id) / _RECORD, os.F_OK)

    def load(self, call_id: str) -> PendingOutcome | None:
        """Returns the stored outcome of a call, None if there is none."""
        try:
            content = (self._call_folder(call_id) / _RECORD).read_bytes()
            return msgspec.convert(json.loads(content), PendingOutcome)
        except (OSError, ValueError):
            return None

    def remove(self, call_id: str) -> None:
        """Deletes the overlay and the outcome of a call."""
        folder = self._call_folder(call_id)
        if folder.exists():
            with suppress(OSError):
                (folder / _RECORD).unlink(missing_ok=True)  # first: without this file the outcome no longer exists
            remove_tree(folder)

    def remove_except(self, call_ids: Iterable[str]) -> None:
        """Deletes the overlays that interrupted commands have left, except those of these calls."""
        open_names = {_safe_name(call_id) for call_id in call_ids}
        calls = self.root / "calls"
        for folder in list(calls.iterdir()) if calls.is_dir() else ():
            if folder.name not in open_names:
                remove_tree(folder)

    def forget_cached(self, paths: Iterable[str]) -> None:
        """Removes committed paths from the layer, so that it does not hide them."""
        for path in paths:
            remove_from_layer(self.layer, path, is_folder=(self._workspace / path).is_dir())

    def keep_in_layer(self, call_id: str, caches: Sequence[OverlayChange]) -> None:
        """Moves by-products of a command into the session's layer, where later commands see them."""
        upper = self.upper(call_id)
        for change in caches:
            if change.file == "link" and is_confusing_link(upper / change.path):
                (upper / change.path).unlink()
        moved: set[str] = set()
        for path in sorted(change.path for change in caches):
            if moved.isdisjoint(parents_of(path)) and os.path.lexists(upper / path):
                merge_into_layer(upper, self.layer, path)
                moved.add(path)

    def _call_folder(self, call_id: str) -> Path:
        return self.root / "calls" / _safe_name(call_id)


def list_session_overlays(data: Path) -> dict[Path, str]:
    """Returns the folders with overlays, one for each session, with the session's id ("" if it is not known)."""
    folders: list[Path] = []
    for storage in (data, _shared_storage()):
        with suppress(OSError):  # there is none, or it belongs to another user
            folders += (storage / OVERLAYS_FOLDER).iterdir()
    return {folder: _read_session_id(folder) for folder in folders}


def _read_session_id(folder: Path) -> str:
    try:
        return (folder / _SESSION).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def remove_old_overlays(data: Path, unused_since: float) -> None:
    """Deletes the overlays of sessions that were not used since `unused_since` (in seconds), unless an outcome waits
    for an answer."""
    for folder in list_session_overlays(data):
        with suppress(OSError):  # another process may delete it now
            workspaces = [path for path in folder.iterdir() if path.is_dir()]
            used = [folder, *(path for workspace in workspaces for path in (workspace, *workspace.iterdir()))]
            waits = any(folder.glob(f"*/calls/*/{_RECORD}"))
            if not waits and all(path.stat().st_mtime < unused_since for path in used):
                remove_tree(folder)


def remove_session_overlays(folders: Iterable[Path]) -> None:
    """Deletes all overlays, caches and the /tmp of sessions, including outcomes that wait for an answer."""
    for folder in folders:
        remove_tree(folder)


def _safe_name(identifier: str) -> str:
    """Returns a file name for an id, which a model or another program may have chosen."""
    return sha256(identifier.encode("utf-8", "surrogatepass")).hexdigest()[:24]
