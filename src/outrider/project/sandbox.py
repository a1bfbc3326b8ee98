"""The sandbox of this machine, looked for when the first command needs it: trying one out starts processes."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import msgspec

from outrider.processes.launch import Launch
from outrider.processes.sandbox.sandbox import Policy, Sandbox


class FoundSandbox:
    """Stands for whatever `find_sandbox` will find on the search path that commands have by then."""

    def __init__(self, scratch: Path, search_path: Callable[[], str]) -> None:
        self._scratch = scratch
        self._search_path = search_path

    @cached_property
    def found(self) -> Sandbox:
        from outrider.processes.sandbox.detect import find_sandbox

        return find_sandbox(self._scratch, self._search_path())

    @property
    def name(self) -> str:
        return self.found.name

    @property
    def confines(self) -> bool:
        return self.found.confines

    @property
    def gaps(self) -> tuple[str, ...]:
        return self.found.gaps

    def wrap(self, launch: Launch, policy: Policy) -> Launch:
        return self.found.wrap(launch, policy)


FOLDER = "worktrees"


class Worktree(msgspec.Struct, frozen=True, kw_only=True):
    """A checkout of a run's own. `workspace` is the folder of `repository` that the run was submitted for, `base` the
    commit that it began with; `uncommitted` changes of the repository were not in that commit, and so are not here."""

    path: str
    branch: str
    base: str
    repository: str
    workspace: str
    common: str  # git's folder, which all worktrees of the repository share
    own: str  # the folder in it that belongs to this one alone
    host: str = ""
    uncommitted: int = 0

    @property
    def folder(self) -> Path:
        """Where the run works: the same folder of the project as the one that it was submitted for."""
        return Path(self.path) / Path(self.workspace).relative_to(self.repository)


def record_of(path: Path) -> Path:
    """What is known about a worktree lies beside it, where no command in it can write."""
    return path.with_name(f"{path.name}.json")


def worktree_at(workspace: Path, data: Path) -> Worktree | None:
    """The worktree that a workspace lies in, if Outrider made it. What git's own files say there is not believed."""
    place = (data / FOLDER).resolve()
    if not workspace.is_relative_to(place) or workspace == place:
        return None
    path = place / workspace.relative_to(place).parts[0]
    try:
        return msgspec.json.decode(record_of(path).read_bytes(), type=Worktree)
    except (OSError, msgspec.MsgspecError):
        return None


def with_git(policy: Policy, tree: Worktree | None) -> Policy:
    """What a commit on the run's branch writes, and nothing else of the repository: no other branch, no setting."""
    if tree is None or not policy.writable:
        return policy
    common, own = Path(tree.common), Path(tree.own)
    branch = Path("refs", "heads", tree.branch).parent
    writable = (own, common / "objects", common / branch, common / "logs" / branch)
    steering = (Path(tree.path) / ".git", own / "gitdir", own / "commondir", own / "config.worktree")
    alternates = common / "objects" / "info" / "alternates"
    return msgspec.structs.replace(
        policy,
        also_writable=(*policy.also_writable, *writable),
        read_only=(*policy.read_only, *steering, alternates),
    )
