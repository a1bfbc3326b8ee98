"""Git worktrees of runs: created when a run starts, committed when it ends, removed if nothing changed."""

import asyncio
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import gethostname
from time import monotonic, sleep
from typing import Any

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from outrider._posix import O_CLOEXEC, fcntl, is_within, parent_of
from outrider.background.records import JobSpec
from outrider.background.workspace_snapshots import SnapshotInfo, SnapshotTable, capture_files, restore_files
from outrider.config.file import BackgroundTable
from outrider.config.paths import AppFolders, make_private_folder
from outrider.engine.session_tools import stored_limits
from outrider.errors import ConfigurationError, OutriderError, ProcessError
from outrider.presentation.formats import format_bytes, format_iso_time, short_id
from outrider.processes.git import GitRunner
from outrider.project.sandbox import WORKTREES_FOLDER, LazySandbox, RunWorktree, worktree_record
from outrider.project.trust import WorkspaceTrust, find_project
from outrider.sessions.leases import current_process
from outrider.sessions.records import InboxItem, SessionUpdate, StoredSession
from outrider.sessions.store import Store
from outrider.types.messages import Message
from outrider.types.parts import TextPart

_AUTHOR_OPTIONS = ("-c", "user.name=Outrider", "-c", "user.email=outrider@localhost")
_DIFF_COMMAND = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=all")
_NOT_IN_SLUG = re.compile(r"[^a-z0-9]+")


_ADD_ATTEMPTS = 5
_LOCK_SECONDS = 600.0  # a checkout of a large repository takes minutes


@contextmanager
def _lock_repository(common: str) -> Generator[None]:
    """Holds a lock on the git folder of a repository, between processes too. Git removes the folder `worktrees` with
    the last worktree, also while another process is about to add one there. If the lock is not
    available after a long time, or the file system has no locks, the block runs without it."""
    descriptor, until = os.open(common, os.O_RDONLY | O_CLOEXEC), monotonic() + _LOCK_SECONDS
    try:
        while monotonic() < until:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                sleep(0.05)
            except OSError:
                break
        yield
    finally:
        os.close(descriptor)


class WorktreeChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What a run changed in its worktree against its base commit; `stat` is git's summary of `diff`."""

    diff: str = ""
    stat: str = ""
    commits: int = 0


class WorktreeManager:
    """Creates, commits and removes worktrees on this machine. `lock_timeout` is how many seconds a git lock file may
    exist before it is treated as stale."""

    def __init__(self, folders: AppFolders, *, lock_timeout: float = 10.0) -> None:
        self._folders = folders
        self._lock_timeout = lock_timeout
        self._root = folders.data.resolve() / WORKTREES_FOLDER
        self._host = current_process().host
        self._git = git_runner(folders)

    def create_worktree(self, run_id: str, prompt: str, workspace: str, folder: str = "") -> RunWorktree | None:
        """Creates a worktree from the repository's HEAD. Returns None if the workspace is not in a repository, or in
        one without a commit. Raises ProcessError if the repository neither is in `folder`, that of the run's owner, nor
        contains it."""
        if not shutil.which("git") or not workspace or not Path(workspace).is_dir():
            return None
        if not self._git.is_work_tree(workspace):
            return None
        repository = self._git.run(workspace, "rev-parse", "--show-toplevel").strip()
        try:
            base = self._git.run(workspace, "rev-parse", "--verify", "HEAD^{commit}").strip()
        except ProcessError:
            return None
        if not Path(workspace).resolve().is_relative_to(repository):
            return None  # core.worktree points to another folder
        requested = RunWorktree(
            path=str(self._worktree_path(run_id)),
            branch=f"outrider/{short_id(run_id)}/{_branch_slug(prompt)}",
            base=base,
            repository=repository,
            workspace=str(Path(workspace).resolve()),
            common=self._git.run(repository, "rev-parse", "--path-format=absolute", "--git-common-dir").strip(),
            own="",
            uncommitted=count_uncommitted(repository, self._git),
        )
        for path in (repository, parent_of(os.path.realpath(requested.common)), requested.workspace) if folder else ():
            if not is_within(path, folder) and (path == requested.workspace or not is_within(folder, path)):
                raise ProcessError(f"the repository of the run is in another folder: {path}")
        tree = self._check_out(requested)
        # A worker that was killed during creation may have created the branch from an earlier HEAD.
        return self._save_record(tree, base=self._git.run(tree.path, "rev-parse", "HEAD").strip())

    def recreate_worktree(self, run_id: str, lost: RunWorktree) -> RunWorktree:
        """Creates a lost worktree again: from its branch if the repository has it, else from its base commit."""
        return self._check_out(msgspec.structs.replace(lost, path=str(self._worktree_path(run_id))))

    def adopt_worktree(self, run_id: str, lost: RunWorktree) -> RunWorktree | None:
        """Returns the worktree of a run whose data folder was moved or copied, at its new path; None if it is not
        there. The record next to it shows that it is the run's own: no command inside it can write there."""
        path = self._worktree_path(run_id)
        link, record = path / ".git", worktree_record(path)
        try:
            is_own = msgspec.json.decode(record.read_bytes(), type=RunWorktree) == lost and not path.is_symlink()
            is_linked = not link.is_symlink() and link.read_text().strip() == f"gitdir: {lost.own}"
        except (OSError, ValueError):
            return None
        if not is_own or not is_linked or not Path(lost.own).is_dir():
            return None
        moved = msgspec.structs.replace(lost, path=str(path), host=self._host)
        with _lock_repository(moved.common):
            self._git.run(moved.repository, "worktree", "repair", moved.path, writable=_git_writes(moved))
        return self._complete_checkout(moved, git_folder=moved.own)

    def exists_here(self, tree: RunWorktree) -> bool:
        """Returns whether the worktree exists on this machine."""
        path = Path(tree.path)
        return path.parent == self._root and tree.host == self._host and (path / ".git").is_file()

    def commit_changes(self, tree: RunWorktree, message: str) -> WorktreeChanges:
        """Commits what the run left uncommitted, so that its branch holds everything, and returns the changes."""
        self._remove_stale_locks(tree)
        self._git.run(tree.path, "add", "--all", writable=_git_writes(tree))
        if count_uncommitted(tree.path, self._git):
            self._git.run(
                tree.path,
                *(*_AUTHOR_OPTIONS, "commit", "--quiet", "--no-verify", "--message", message),
                writable=_git_writes(tree),
            )
        return self.read_changes(tree)

    def read_changes(self, tree: RunWorktree) -> WorktreeChanges:
        """Returns the current changes, untracked files included. It uses a copy of the index, so the run's index does
        not change."""
        with tempfile.TemporaryDirectory() as folder:
            index = str(Path(folder) / "index")
            with suppress(OSError):
                shutil.copyfile(Path(tree.own) / "index", index)
            self._git.run(tree.path, "add", "--all", "--intent-to-add", index=index, writable=_git_writes(tree))
            return WorktreeChanges(
                diff=self._git.run(tree.path, *_DIFF_COMMAND, tree.base, index=index, writable=()),
                stat=self._git.run(tree.path, *_DIFF_COMMAND, "--stat", tree.base, index=index, writable=()).rstrip(),
                commits=int(self._git.run(tree.path, "rev-list", "--count", f"{tree.base}..HEAD")),
            )

    def list_changed(self, tree: RunWorktree, *, ignored: bool) -> list[str]:
        """Returns the files that differ from the base commit, committed or not, and untracked ones; with `ignored` also
        those that git ignores."""
        changed_names = self._git.run(
            tree.path, *_DIFF_COMMAND, "--name-only", "--no-renames", "-z", tree.base, writable=()
        )
        exclude = () if ignored else ("--exclude-standard",)
        untracked = self._git.run(tree.path, "ls-files", "-z", "--others", *exclude)
        return sorted({name for name in f"{changed_names}{untracked}".split("\0") if name})

    def remove_worktree(self, tree: RunWorktree, *, branch: bool = False) -> None:
        """Removes the folder; with `branch` also the branch and its commits."""
        with _lock_repository(tree.common):
            self._git.run(
                tree.repository, "worktree", "remove", "--force", tree.path, writable=(self._root, *_git_writes(tree))
            )
        worktree_record(Path(tree.path)).unlink(missing_ok=True)
        self._workspace_trust(tree.path).revoke_trust()
        if branch:
            self._git.run(tree.repository, "branch", "--quiet", "-D", tree.branch)

    def _check_out(self, requested: RunWorktree) -> RunWorktree:
        make_private_folder(self._folders.data)
        make_private_folder(self._root)
        with _lock_repository(requested.common):
            self._add_worktree(requested)
        git_folder = self._git.run(requested.path, "rev-parse", "--path-format=absolute", "--git-dir").strip()
        return self._complete_checkout(requested, git_folder=git_folder)

    def _complete_checkout(self, requested: RunWorktree, *, git_folder: str) -> RunWorktree:
        tree = self._save_record(requested, own=git_folder, host=self._host)
        self.create_branch_folders(tree)
        if self._workspace_trust(tree.repository).trusted:
            self._workspace_trust(tree.path).trust()
        return tree

    def _add_worktree(self, requested: RunWorktree) -> None:
        self._git.run(requested.repository, "worktree", "prune")
        writable = (self._root, *_git_writes(requested))
        for path in (requested.path, *self._other_checkouts(requested)):
            with suppress(ProcessError):  # incomplete, or of a dead worker with another data directory
                self._git.run(
                    requested.repository,
                    *("worktree", "remove", "--force", "--force", path),
                    writable=(Path(path).parent, *writable),
                )
        folder = Path(requested.common, "worktrees")
        for attempt in range(_ADD_ATTEMPTS):
            folder.mkdir(exist_ok=True)  # a sandbox can grant only folders that exist
            inode = folder.stat().st_ino
            if self._branch_exists(requested):
                names = [requested.path, requested.branch]
            else:
                names = ["-b", requested.branch, requested.path, requested.base]
            try:
                self._git.run(requested.repository, "worktree", "add", "--quiet", *names, writable=writable)
            except ProcessError:
                is_replaced = not folder.exists() or folder.stat().st_ino != inode
                if attempt == _ADD_ATTEMPTS - 1 or not is_replaced:  # else another program has pruned the worktrees
                    raise
            else:
                return

    def _save_record(self, tree: RunWorktree, **updates: str) -> RunWorktree:
        tree = msgspec.structs.replace(tree, **updates)
        worktree_record(Path(tree.path)).write_bytes(msgspec.json.encode(tree))
        return tree

    def _remove_stale_locks(self, tree: RunWorktree) -> None:
        """Waits for lock files and then deletes them. Only the run's own git works in the worktree: one that was killed
        with its worker leaves its locks, and one that still runs removes them."""
        git_folder, until = Path(tree.own), monotonic() + self._lock_timeout
        locks = (
            git_folder / "index.lock",
            git_folder / "HEAD.lock",
            Path(tree.common, "refs", "heads", f"{tree.branch}.lock"),
        )
        while any(lock.exists() for lock in locks) and monotonic() < until:
            sleep(0.05)
        for lock in locks:
            lock.unlink(missing_ok=True)

    def create_branch_folders(self, tree: RunWorktree) -> None:
        """Creates the ref folders of the branch, which git removes when it packs refs. A sandbox can grant write access
        only to folders that exist."""
        branch = Path("refs", "heads", tree.branch).parent
        for folder in (branch, "logs" / branch):
            (Path(tree.common) / folder).mkdir(parents=True, exist_ok=True)

    def _branch_exists(self, tree: RunWorktree) -> bool:
        return bool(self._git.run(tree.repository, "branch", "--list", tree.branch).strip())

    def _other_checkouts(self, tree: RunWorktree) -> list[str]:
        """Returns other worktrees of ours that have the branch checked out, because git allows one checkout per branch.
        Checkouts that a user made are not returned."""
        own_path, branch = Path(tree.path), f"branch refs/heads/{tree.branch}"
        listed = self._git.run(tree.repository, "worktree", "list", "--porcelain", "-z").split("\0\0")
        paths = [
            Path(entry.lstrip("\0").partition("\0")[0].removeprefix("worktree ")) for entry in listed if branch in entry
        ]
        return [str(path) for path in paths if (path.parent.name, path.name) == (own_path.parent.name, own_path.name)]

    def _worktree_path(self, run_id: str) -> Path:
        return self._root / f"outrider-{short_id(run_id)}"

    def _workspace_trust(self, folder: str) -> WorkspaceTrust:
        """Returns the trust of a folder; a checkout of a trusted project is trusted as well."""
        return WorkspaceTrust(find_project(Path(folder), self._folders.home), self._folders.trust_file)


def git_runner(folders: AppFolders) -> GitRunner:
    """Returns a runner of git for background runs, which uses the sandbox of this machine."""
    sandbox = LazySandbox(folders.data / "scratch", lambda: os.environ.get("PATH", ""))
    return GitRunner(sandbox, hidden=(folders.data, folders.config))


def _git_writes(tree: RunWorktree) -> tuple[Path, ...]:
    """Returns the paths that git writes for a worktree and its branch, without settings and hooks of the repository."""
    common = Path(tree.common)
    return (Path(tree.path), *(common / name for name in ("objects", "refs", "logs", "worktrees", "lfs")))


def count_uncommitted(folder: str, git: GitRunner) -> int:
    """Returns how many files of a work tree differ from its last commit or are untracked; 0 without git."""
    if not shutil.which("git") or not git.is_work_tree(folder):
        return 0
    return len(git.run(folder, "status", "--porcelain", "--ignore-submodules=all", writable=()).splitlines())


def _branch_slug(prompt: str) -> str:
    """Returns the first words of the prompt in the form of a branch name."""
    slug = _NOT_IN_SLUG.sub("-", prompt.lower()[:200]).strip("-")
    return slug[:40].rstrip("-") or "run"


METADATA_KEY = "worktree"  # key in the session's metadata
SNAPSHOT_SECONDS = 10.0

_log = logging.getLogger("outrider.worker")


EngineOptionsBuilder = Callable[[JobSpec, str], dict[str, Any]]


def no_engine_options(job: JobSpec, workspace: str) -> dict[str, Any]:
    """Returns no options: the job runs with the worker's engine."""
    return {}


class RunWorkspace:
    """Prepares the folder of a run. Without `worktrees`, runs work in the folders that they were submitted for.
    `build_options` returns the engine options of a job in a folder. `snapshots` stores changed files for other
    machines; None if that is turned off."""

    def __init__(
        self,
        store: Store,
        worktrees: WorktreeManager | None = None,
        build_options: EngineOptionsBuilder = no_engine_options,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._store = store
        self._worktrees = worktrees
        self._build_options = build_options
        self._clock = clock
        self.snapshots: WorktreeSnapshots | None = None

    def store_snapshots(self, table: SnapshotTable, limits: BackgroundTable) -> None:
        """Stores the changed files of worktrees from now on, as far as the limits allow it."""
        if self._worktrees is not None and limits.snapshot_megabytes:
            limit = limits.snapshot_megabytes << 20
            self.snapshots = WorktreeSnapshots(
                table, self._worktrees, limit=limit, ignored=limits.snapshot_ignored, clock=self._clock
            )

    async def prepare_workspace(self, run_id: str, job: JobSpec) -> str:
        """Creates the run's worktree if it needs one, and returns the folder of the run. A run keeps its worktree while
        it exists; on another machine it gets a new one, and a message for the model is queued."""
        session = await self._store.get(run_id)
        if self._worktrees is None or not job.worktree or session.mode in ("chat", "plan"):
            return session.workspace_directory
        try:
            tree, is_moved = await asyncio.to_thread(self._ensure_worktree, self._worktrees, session, job)
        except ProcessError as problem:
            raise ConfigurationError(f"cannot create a worktree for this run: {problem}") from problem
        stored = stored_worktree(session)
        if tree is None or tree == stored:
            return session.workspace_directory
        if stored is not None and is_moved:
            await self._send_notice(session, f"The worktree of this run was moved, with its files, to {tree.path}.")
        elif stored is not None:
            restored = await self.snapshots.restore_files(run_id, tree) if self.snapshots else None
            await self._announce_recreation(session, tree, restored)
        metadata = {**session.metadata, METADATA_KEY: msgspec.to_builtins(tree)}
        await self._store.update(run_id, SessionUpdate(workspace_directory=str(tree.folder), metadata=metadata))
        return str(tree.folder)

    async def engine_options(self, job: JobSpec, workspace: str) -> dict[str, Any]:
        """Returns the options in which the engine of a run in this folder differs from the worker's."""
        return await asyncio.to_thread(self._checked_options, job, workspace)

    async def finish_workspace(
        self, run_id: str, job: JobSpec, owns_run: Callable[[], Awaitable[bool]]
    ) -> WorktreeChanges | None:
        """Commits what the run left, if this worker still owns the run. A worktree without changes is removed, and the
        session's workspace is reset."""
        if self._worktrees is None or not job.worktree:
            return None
        session = await self._store.get(run_id)
        tree = stored_worktree(session)
        if tree is None or not self._worktrees.exists_here(tree) or not await owns_run():
            return None
        if self.snapshots is not None:
            await self.snapshots.delete_files(run_id)
        try:
            changes = await asyncio.to_thread(
                self._worktrees.commit_changes, tree, f"{job.prompt}\n\nOutrider-Run: {run_id}"
            )
            if not changes.commits:
                await self._detach_worktree(session, tree)
                await asyncio.to_thread(self._worktrees.remove_worktree, tree, branch=True)
        except ProcessError as problem:
            _log.warning("cannot commit or remove the worktree %s: %s", tree.path, problem)
            return None
        return changes

    async def _detach_worktree(self, session: StoredSession, tree: RunWorktree) -> None:
        """Updates the session before the worktree is removed: a crash in between leaves an unused worktree, not a
        session whose folder is missing."""
        metadata = {key: value for key, value in session.metadata.items() if key != METADATA_KEY}
        await self._store.update(session.id, SessionUpdate(workspace_directory=tree.workspace, metadata=metadata))

    def _checked_options(self, job: JobSpec, workspace: str) -> dict[str, Any]:
        if workspace and not Path(workspace).is_dir():
            raise ConfigurationError(f"{workspace} does not exist on this machine ({gethostname()})")
        return self._build_options(job, workspace)

    def _ensure_worktree(
        self, worktrees: WorktreeManager, session: StoredSession, job: JobSpec
    ) -> tuple[RunWorktree | None, bool]:
        """Returns the worktree of the run, and whether it is the known one at another path."""
        stored = stored_worktree(session)
        if stored is None:
            limits, workspace = stored_limits(session.metadata), session.workspace_directory
            is_inside = limits is not None and bool(limits.folder) and is_within(workspace, limits.folder)
            folder = limits.folder if limits is not None and is_inside else ""
            return worktrees.create_worktree(session.id, job.prompt, workspace, folder), False
        if not worktrees.exists_here(stored):
            moved = worktrees.adopt_worktree(session.id, stored)
            return moved or worktrees.recreate_worktree(session.id, stored), moved is not None
        worktrees.create_branch_folders(stored)
        return stored, False

    async def save_snapshot(self, run_id: str, progress: object = None, *, force: bool = False) -> None:
        """Stores the changed files of the run's worktree, if it has made progress since the last time. Does not raise:
        a run works without snapshots."""
        if (
            self.snapshots is None
            or self._worktrees is None
            or not self.snapshots.is_due(run_id, progress, force=force)
        ):
            return
        try:
            tree = stored_worktree(await self._store.get(run_id))
            if tree is not None and self._worktrees.exists_here(tree):
                await self.snapshots.store_files(run_id, tree)
        except (OutriderError, SQLAlchemyError, OSError) as problem:
            _log.warning("cannot store the files of run %s: %s", short_id(run_id), problem)

    async def _announce_recreation(
        self, session: StoredSession, tree: RunWorktree, restored: SnapshotInfo | None
    ) -> None:
        """Queues a message for the model, because files that it believes to have written may be missing."""
        notice = (
            f"The worktree of this run was lost: its machine is gone, or it was removed. It was created again at "
            f"{tree.path} from the branch {tree.branch}, or, where that was lost too, from the commit {tree.base}. "
        )
        if restored is None:
            notice += "Changes that were not committed are not in it: look at the files before you continue."
        else:
            notice += (
                f"Its changed files ({restored.files}) were restored as of {format_iso_time(restored.time)}. "
                "Later changes are not in them: look at the files before you continue."
            )
        await self._send_notice(session, notice)

    async def _send_notice(self, session: StoredSession, notice: str) -> None:
        message = Message("user", [TextPart(notice, synthetic=True)])
        await self._store.put_inbox(
            InboxItem(session_id=session.id, message=message, delivery="steer", sender="outrider")
        )


class WorktreeSnapshots:
    """Stores the changed files of worktrees: after progress of a run, at most every SNAPSHOT_SECONDS, and when a worker
    releases it. `table` belongs to the worker; `limit` is in bytes."""

    def __init__(
        self,
        table: SnapshotTable,
        worktrees: WorktreeManager,
        *,
        limit: int,
        ignored: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._table = table
        self._worktrees = worktrees
        self._limit = limit
        self._ignored = ignored
        self._clock = clock
        self._last: dict[str, tuple[object, float]] = {}  # the progress at the last snapshot, and its time

    def is_due(self, run_id: str, progress: object, *, force: bool) -> bool:
        """Returns whether to store the files now: the run has made progress, and some time has passed since the last
        snapshot or `force` is set."""
        before, last_time = self._last.setdefault(run_id, (progress, self._clock()))
        if not force and (before == progress or self._clock() - last_time < SNAPSHOT_SECONDS):
            return False
        self._last[run_id] = (progress, self._clock())
        return True

    async def store_files(self, run_id: str, tree: RunWorktree) -> None:
        """Stores the changed files of a worktree."""
        await asyncio.to_thread(self._store_files, run_id, tree)

    def _store_files(self, run_id: str, tree: RunWorktree) -> None:
        names = self._worktrees.list_changed(tree, ignored=self._ignored)
        files = capture_files(Path(tree.path), names, self._limit)
        omitted = "" if files is not None else f"the changed files are larger than {format_bytes(self._limit)}"
        self._table.store_snapshot(run_id, files or (), omitted)

    async def restore_files(self, run_id: str, tree: RunWorktree) -> SnapshotInfo | None:
        """Writes the stored files into a new worktree. Returns what was restored; None if there was nothing."""
        return await asyncio.to_thread(self._restore_files, run_id, tree)

    def _restore_files(self, run_id: str, tree: RunWorktree) -> SnapshotInfo | None:
        stored = self._table.load_snapshot(run_id)
        if stored is not None:
            restore_files(Path(tree.path), stored[1])
        return stored[0] if stored else None

    async def delete_files(self, run_id: str) -> None:
        """Deletes what is stored of a run that has ended."""
        self._last.pop(run_id, None)
        with suppress(SQLAlchemyError):  # a snapshot that stays only takes space
            await asyncio.to_thread(self._table.delete_snapshot, run_id)


def stored_worktree(session: StoredSession) -> RunWorktree | None:
    """Returns the worktree that the session names; None if it has none."""
    stored: Any = session.metadata.get(METADATA_KEY)
    return None if stored is None else msgspec.convert(stored, RunWorktree)
