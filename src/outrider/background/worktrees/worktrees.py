"""The worktrees on this machine: made when a run begins, committed to when it ends, kept if anything changed."""

import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import msgspec

from outrider.app.archive.names import short_id
from outrider.app.config.folders import Folders, make_private
from outrider.app.workspace.project import find_project
from outrider.app.workspace.trust import WorkspaceTrust
from outrider.app.workspace.worktrees import FOLDER, Worktree, record_of
from outrider.background.worktrees.git import git, has_git
from outrider.errors import ProcessError
from outrider.sessions.sqlite.owners import this_process

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
