"""The sandbox of this machine, detected on first use, and the git worktrees of background runs."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import msgspec

from outrider.processes.launch import LaunchRequest
from outrider.processes.sandbox.sandbox import Sandbox, SandboxPolicy


class LazySandbox:
    """Detects the sandbox on first use, because the detection starts processes."""

    def __init__(self, scratch: Path, search_path: Callable[[], str]) -> None:
        self._scratch = scratch
        self._search_path = search_path

    @cached_property
    def sandbox(self) -> Sandbox:
        """The detected sandbox; a cached value."""
        from outrider.processes.sandbox.detect import find_sandbox_cached

        return find_sandbox_cached(self._scratch, self._search_path())

    @property
    def name(self) -> str:
        return self.sandbox.name

    @property
    def confines(self) -> bool:
        return self.sandbox.confines

    @property
    def accepted(self) -> bool:
        return False

    @property
    def overlays(self) -> bool:
        return self.sandbox.overlays

    @property
    def protects_files(self) -> bool:
        return self.sandbox.protects_files

    @property
    def filters_hosts(self) -> bool:
        return self.sandbox.filters_hosts

    @property
    def limitations(self) -> tuple[str, ...]:
        return self.sandbox.limitations

    def wrap(self, launch: LaunchRequest, policy: SandboxPolicy) -> LaunchRequest:
        return self.sandbox.wrap(launch, policy)


WORKTREES_FOLDER = "worktrees"


class RunWorktree(msgspec.Struct, frozen=True, kw_only=True):
    """A git worktree that belongs to one run.

    - `path`: the folder of the worktree.
    - `branch`: the branch of the run.
    - `base`: the commit that the run starts from.
    - `repository`: the repository.
    - `workspace`: the folder of `repository` for which the run was submitted.
    - `common`: the git directory that all worktrees of the repository share.
    - `own`: the folder inside `common` that belongs to this worktree alone.
    - `host`: the machine on which the worktree is.
    - `uncommitted`: the number of uncommitted changes in the repository, which the worktree does not contain.
    """

    path: str
    branch: str
    base: str
    repository: str
    workspace: str
    common: str
    own: str
    host: str = ""
    uncommitted: int = 0

    @property
    def folder(self) -> Path:
        """The folder of the worktree that corresponds to the submitted workspace."""
        return Path(self.path) / Path(self.workspace).relative_to(self.repository)


def worktree_record(path: Path) -> Path:
    """Returns the path of the worktree's metadata: next to the worktree, where no command inside it can write."""
    return path.with_name(f"{path.name}.json")


def find_worktree(workspace: Path, data: Path) -> RunWorktree | None:
    """Returns the worktree that contains a workspace, if Outrider created it. Git's own files in it are not trusted."""
    worktrees = (data / WORKTREES_FOLDER).resolve()
    if not workspace.is_relative_to(worktrees) or workspace == worktrees:
        return None
    path = worktrees / workspace.relative_to(worktrees).parts[0]
    try:
        return msgspec.json.decode(worktree_record(path).read_bytes(), type=RunWorktree)
    except (OSError, msgspec.MsgspecError):
        return None


def allow_git_writes(policy: SandboxPolicy, tree: RunWorktree | None) -> SandboxPolicy:
    """Returns the policy that allows exactly the writes of a commit on the run's branch; other branches and the
    settings of the repository stay read-only."""
    if tree is None or not policy.writable:
        return policy
    common, own_folder = Path(tree.common), Path(tree.own)
    branch = Path("refs", "heads", tree.branch).parent
    writable = (own_folder, common / "objects", common / branch, common / "logs" / branch)
    # These files could point git to another repository or to a configuration that runs programs.
    steering = (
        Path(tree.path) / ".git",
        own_folder / "gitdir",
        own_folder / "commondir",
        own_folder / "config.worktree",
    )
    alternates = common / "objects" / "info" / "alternates"
    return msgspec.structs.replace(
        policy,
        also_writable=(*policy.also_writable, *writable),
        read_only=(*policy.read_only, *steering, alternates),
    )
