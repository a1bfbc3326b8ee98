"""The worktrees on this machine: made when a run begins, committed to when it ends, kept if anything changed."""

import asyncio
import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from time import monotonic, sleep
from typing import Any

import msgspec

from outrider.background.records import Job
from outrider.config.paths import Folders, make_private
from outrider.engine.archive import short_id
from outrider.errors import ConfigurationError, ProcessError
from outrider.project.sandbox import FOLDER, Worktree, record_of
from outrider.project.trust import WorkspaceTrust, find_project
from outrider.sessions.records import InboxItem, SessionUpdate, StoredSession
from outrider.sessions.sqlite.owners import this_process
from outrider.sessions.store import Store
from outrider.types.messages import Message
from outrider.types.parts import TextPart

SECONDS = 300.0
LONGEST = 1 << 20  # bytes of output that are kept
_PLAIN = (
    *("core.hooksPath=/dev/null", "core.fsmonitor=false", "commit.gpgSign=false", "submodule.recurse=false"),
    *("gc.auto=0", "maintenance.auto=false"),  # which would outlive the command
)
_FILTER = re.compile(r"(filter\..+)\.(clean|smudge|process|required)")
_OBEYED = ("local", "worktree")  # scopes that the repository itself decides


def git(folder: str | Path, *words: str, index: str = "") -> str:
    """What git prints, cut after `LONGEST` bytes; raises ProcessError with its own words."""
    return _run(folder, [*_settings(folder), *words], index)


def has_git(folder: str | Path) -> bool:
    """Whether a folder lies in a working tree that git can tell of."""
    try:
        return _run(folder, ["rev-parse", "--is-inside-work-tree"]).strip() == "true"
    except ProcessError:
        return False


def _settings(folder: str | Path) -> list[str]:
    """Filters of the user's own settings stay; those of the repository would run what its author wrote."""
    words = [word for setting in _PLAIN for word in ("-c", setting)]
    listed = _run(folder, ["config", "--list", "-z", "--show-scope", "--name-only"]).split("\0")
    for scope, key in zip(listed[::2], listed[1::2], strict=False):
        if scope in _OBEYED and (found := _FILTER.fullmatch(key)):
            words += ["-c", f"{key}={'false' if found[2] == 'required' else ''}"]
    return words


def _run(folder: str | Path, words: list[str], index: str = "") -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    if index:
        environment["GIT_INDEX_FILE"] = index
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                timeout=SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise ProcessError(f"git does not work here: {problem}") from problem
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip()
            raise ProcessError(said[-2000:] or f"git ended with {done.returncode}")
        output.seek(0)
        return output.read(LONGEST).decode("utf-8", "replace")


_AUTHOR = ("-c", "user.name=Outrider", "-c", "user.email=outrider@localhost")
_DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=all")
_UNFIT = re.compile(r"[^a-z0-9]+")


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did to its worktree, against the commit that it began with; `stat` is git's summary of `diff`."""

    diff: str = ""
    stat: str = ""
    commits: int = 0


class Worktrees:
    """`patience` is how many seconds git may hold a lock before it is taken for dead."""

    def __init__(self, folders: Folders, *, patience: float = 10.0) -> None:
        self._folders = folders
        self._patience = patience
        self._place = folders.data.resolve() / FOLDER
        self._host = this_process().host

    def make(self, run_id: str, prompt: str, workspace: str) -> Worktree | None:
        """From the repository's HEAD; None where there is no repository, or none with a commit."""
        if not shutil.which("git") or not workspace or not Path(workspace).is_dir() or not has_git(workspace):
            return None
        repository = git(workspace, "rev-parse", "--show-toplevel").strip()
        try:
            base = git(workspace, "rev-parse", "--verify", "HEAD^{commit}").strip()
        except ProcessError:
            return None
        if not Path(workspace).resolve().is_relative_to(repository):
            return None  # its settings say that its files lie elsewhere
        wanted = Worktree(
            path=str(self._path(run_id)),
            branch=f"outrider/{short_id(run_id)}/{_slug(prompt)}",
            base=base,
            repository=repository,
            workspace=str(Path(workspace).resolve()),
            common=git(repository, "rev-parse", "--path-format=absolute", "--git-common-dir").strip(),
            own="",
            uncommitted=uncommitted(repository),
        )
        tree = self._check_out(wanted)
        # Whoever was killed while it made this one may have made the branch, from what was HEAD then.
        return self._recorded(tree, base=git(tree.path, "rev-parse", "HEAD").strip())

    def again(self, run_id: str, lost: Worktree) -> Worktree:
        """Made anew: from its branch where the repository here has it, else from the commit that it began with."""
        return self._check_out(msgspec.structs.replace(lost, path=str(self._path(run_id))))

    def holds(self, tree: Worktree) -> bool:
        """Whether it is there, on this machine."""
        path = Path(tree.path)
        return path.parent == self._place and tree.host == self._host and (path / ".git").is_file()

    def commit(self, tree: Worktree, message: str) -> Changes:
        """Commit what the run left lying about, so that its branch holds all of it, and tell what that is."""
        self._unlock(tree)
        git(tree.path, "add", "--all")
        if uncommitted(tree.path):
            git(tree.path, *_AUTHOR, "commit", "--quiet", "--no-verify", "--message", message)
        return self.changes(tree)

    def changes(self, tree: Worktree) -> Changes:
        """What differs now, files that git does not know yet included; the run's own index is left alone."""
        with tempfile.TemporaryDirectory() as folder:
            index = str(Path(folder) / "index")
            with suppress(OSError):
                shutil.copyfile(Path(tree.own) / "index", index)
            git(tree.path, "add", "--all", "--intent-to-add", index=index)
            return Changes(
                diff=git(tree.path, *_DIFF, tree.base, index=index),
                stat=git(tree.path, *_DIFF, "--stat", tree.base, index=index).rstrip(),
                commits=int(git(tree.path, "rev-list", "--count", f"{tree.base}..HEAD")),
            )

    def remove(self, tree: Worktree, *, branch: bool = False) -> None:
        """The folder, and with `branch` what was committed in it as well."""
        git(tree.repository, "worktree", "remove", "--force", tree.path)
        record_of(Path(tree.path)).unlink(missing_ok=True)
        self._trust(tree.path).distrust()
        if branch:
            git(tree.repository, "branch", "--quiet", "-D", tree.branch)

    def _check_out(self, wanted: Worktree) -> Worktree:
        make_private(self._folders.data)
        make_private(self._place)
        git(wanted.repository, "worktree", "prune")
        for path in (wanted.path, *self._elsewhere(wanted)):
            with suppress(ProcessError):  # half made, or of a worker that keeps its own elsewhere and is given up
                git(wanted.repository, "worktree", "remove", "--force", "--force", path)
        words = ["worktree", "add", "--quiet"]
        if self._knows(wanted):
            git(wanted.repository, *words, wanted.path, wanted.branch)
        else:
            git(wanted.repository, *words, "-b", wanted.branch, wanted.path, wanted.base)
        own = git(wanted.path, "rev-parse", "--path-format=absolute", "--git-dir").strip()
        tree = self._recorded(wanted, own=own, host=self._host)
        self.open(tree)
        if self._trust(tree.repository).trusted:
            self._trust(tree.path).trust()
        return tree

    def _recorded(self, tree: Worktree, **known: str) -> Worktree:
        tree = msgspec.structs.replace(tree, **known)
        record_of(Path(tree.path)).write_bytes(msgspec.json.encode(tree))
        return tree

    def _unlock(self, tree: Worktree) -> None:
        """Only the run's own git works here. One that was killed with its worker leaves its locks behind; one that
        goes on without it is waited for."""
        own, until = Path(tree.own), monotonic() + self._patience
        locks = (own / "index.lock", own / "HEAD.lock", Path(tree.common, "refs", "heads", f"{tree.branch}.lock"))
        while any(lock.exists() for lock in locks) and monotonic() < until:
            sleep(0.05)
        for lock in locks:
            lock.unlink(missing_ok=True)

    def open(self, tree: Worktree) -> None:
        """The folders of its branch, which git removes when it packs what is in them: a sandbox cannot let a command
        write into what does not exist."""
        branch = Path("refs", "heads", tree.branch).parent
        for folder in (branch, "logs" / branch):
            (Path(tree.common) / folder).mkdir(parents=True, exist_ok=True)

    def _knows(self, tree: Worktree) -> bool:
        return bool(git(tree.repository, "branch", "--list", tree.branch).strip())

    def _elsewhere(self, tree: Worktree) -> list[str]:
        """Where else its branch is checked out, for it can be in one place only; not what people made of it."""
        own, branch = Path(tree.path), f"branch refs/heads/{tree.branch}"
        listed = git(tree.repository, "worktree", "list", "--porcelain", "-z").split("\0\0")
        paths = [Path(one.lstrip("\0").partition("\0")[0].removeprefix("worktree ")) for one in listed if branch in one]
        return [str(path) for path in paths if (path.parent.name, path.name) == (own.parent.name, own.name)]

    def _path(self, run_id: str) -> Path:
        return self._place / f"outrider-{short_id(run_id)}"

    def _trust(self, folder: str) -> WorkspaceTrust:
        """A checkout of a project that the user trusts is the same project."""
        return WorkspaceTrust(find_project(Path(folder), self._folders.home), self._folders.trust)


def uncommitted(folder: str) -> int:
    """How many files of a working tree differ from its last commit, or are new; 0 where there is no git."""
    if not shutil.which("git") or not has_git(folder):
        return 0
    return len(git(folder, "status", "--porcelain", "--ignore-submodules=all").splitlines())


def _slug(prompt: str) -> str:
    """A few words of the prompt, as a branch can be called."""
    words = _UNFIT.sub("-", prompt.lower()[:200]).strip("-")
    return words[:40].rstrip("-") or "run"


KEY = "worktree"  # in the session's metadata

_log = logging.getLogger("outrider.worker")


Fitted = Callable[[Job, str], dict[str, Any]]


def as_it_is(job: Job, workspace: str) -> dict[str, Any]:
    return {}


class RunWorkspace:
    """Without `worktrees` runs work in the folders that they were submitted for. `fitted` says what an engine has to be
    made of for a job in a folder, where that is anything else than the worker's own."""

    def __init__(self, store: Store, worktrees: Worktrees | None = None, fitted: Fitted = as_it_is) -> None:
        self._store = store
        self._worktrees = worktrees
        self._fitted = fitted

    async def prepare(self, run_id: str, job: Job) -> None:
        """A run keeps its worktree for as long as it is there; on another machine it gets a new one, and is told."""
        session = await self._store.get(run_id)
        if self._worktrees is None or not job.worktree or session.mode in ("chat", "plan"):
            return
        try:
            tree = await asyncio.to_thread(self._ready, self._worktrees, session, job)
        except ProcessError as problem:
            raise ConfigurationError(f"no worktree could be made for this run: {problem}") from problem
        known = worktree_of(session)
        if tree is None or tree == known:
            return
        if known is not None:
            await self._tell(session, tree)
        metadata = {**session.metadata, KEY: msgspec.to_builtins(tree)}
        await self._store.update(run_id, SessionUpdate(workspace_directory=str(tree.folder), metadata=metadata))

    async def engine(self, run_id: str, job: Job) -> dict[str, Any]:
        """What the run's engine is made of besides the worker's own."""
        return await asyncio.to_thread(self._fit, job, (await self._store.get(run_id)).workspace_directory)

    async def tidy(self, run_id: str, job: Job) -> Changes | None:
        """Commit what the run left; a worktree in which nothing changed is removed, and the session put back."""
        session = await self._store.get(run_id)
        tree = worktree_of(session)
        if self._worktrees is None or tree is None or not self._worktrees.holds(tree):
            return None
        try:
            changes = await asyncio.to_thread(self._worktrees.commit, tree, f"{job.prompt}\n\nOutrider-Run: {run_id}")
            if not changes.commits:
                await self._forget(session, tree)
                await asyncio.to_thread(self._worktrees.remove, tree, branch=True)
        except ProcessError as problem:
            _log.warning("the worktree %s stays as it is: %s", tree.path, problem)
            return None
        return changes

    async def _forget(self, session: StoredSession, tree: Worktree) -> None:
        """Before it is removed: whoever is killed in between leaves one that is made anew, and none that is missed."""
        metadata = {key: value for key, value in session.metadata.items() if key != KEY}
        await self._store.update(session.id, SessionUpdate(workspace_directory=tree.workspace, metadata=metadata))

    def _fit(self, job: Job, workspace: str) -> dict[str, Any]:
        if workspace and not Path(workspace).is_dir():
            raise ConfigurationError(f"{workspace} is not on this machine ({gethostname()})")
        return self._fitted(job, workspace)

    def _ready(self, worktrees: Worktrees, session: StoredSession, job: Job) -> Worktree | None:
        known = worktree_of(session)
        if known is None:
            return worktrees.make(session.id, job.prompt, session.workspace_directory)
        if not worktrees.holds(known):
            return worktrees.again(session.id, known)
        worktrees.open(known)
        return known

    async def _tell(self, session: StoredSession, tree: Worktree) -> None:
        """What the model believes to have written may be gone."""
        words = (
            f"The worktree of this run is gone: the machine it was on was lost, or it was removed. It was made anew at "
            f"{tree.path} from the branch {tree.branch}, or, where that was lost too, from the commit {tree.base}. "
            f"Changes that were not committed are not in it: look at the files before you go on."
        )
        message = Message("user", [TextPart(words, synthetic=True)])
        await self._store.put_inbox(
            InboxItem(session_id=session.id, message=message, delivery="steer", sender="outrider")
        )


def worktree_of(session: StoredSession) -> Worktree | None:
    kept: Any = session.metadata.get(KEY)
    return None if kept is None else msgspec.convert(kept, Worktree)
