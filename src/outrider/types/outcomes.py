"""Parts of an approval question: what a call does, the rules that an answer stores, and the outcome of a sandboxed
command (the files that it changed, and what the sandbox blocked)."""

from typing import Literal, NamedTuple, assert_never

import msgspec

from outrider.types.origins import DataFlow

ChangeKind = Literal["created", "modified", "deleted"]
FileKind = Literal["file", "link", "folder", "special"]
Confinement = Literal["none", "read-only", "workspace"]
"""How a command runs: unconfined, with a read-only view, or with a copy-on-write view of the workspace."""
OutcomeChoice = Literal["keep", "hosts", "paths", "outside"]
"""What a yes means: keep the changes, or run a blocked command again with hosts, with paths or outside the sandbox."""
BlockedKind = Literal["network", "path", "socket"]


GitOperationKind = Literal["commit", "branch", "tag", "stash", "ref", "head", "index"]


class GitOperation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What git recorded: a commit, a branch, tag or other ref that was set from `old` to `new`, an entry of the stash,
    another HEAD, or staged files.

    `files` are the files of a commit or of the index, each with what happened to it. `lost` counts commits that a
    moved or deleted ref does not contain any more.
    """

    kind: GitOperationKind
    name: str = ""
    old: str = ""
    new: str = ""
    subject: str = ""
    author: str = ""
    files: tuple[str, ...] = ()
    more_files: int = 0
    lost: int = 0

    @property
    def description(self) -> str:
        """The operation in one line."""
        more = f" and {self.more_files} more" if self.more_files else ""
        files = ", ".join(self.files) + more
        match self.kind:
            case "commit":
                return f'commit {self.new[:8]} "{self.subject}" by {self.author}' + (f": {files}" if files else "")
            case "index":
                return f"staged: {files}"
            case "head":
                return f"HEAD: {self.old} -> {self.new}"
            case "branch" | "tag" | "ref" | "stash":
                return self._describe_ref()

    def _describe_ref(self) -> str:
        what = self.kind if self.kind == "stash" else f"{self.kind} {self.name}"
        subject = f' "{self.subject}"' if self.subject else ""
        lost = f", which drops {self.lost} commit{'' if self.lost == 1 else 's'} from it" if self.lost else ""
        if not self.old:
            return f"new {what}{subject} at {self.new[:8]}"
        if not self.new:
            return f"{what} deleted, it was {self.old[:8]}{lost}"
        return f"{what}{subject}: {self.old[:8]} -> {self.new[:8]}{lost}"


class OutcomeFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One changed path of the workspace. `diff` is a unified diff, empty for binary and large files.

    `protected` files steer tools or contain secrets. `ignored` files are ignored by version control. A `conflict` was
    changed by another program since the command saw it. Without `can_undo` an undo cannot restore the old content.
    A git folder is one entry with the `operations` of git; its settings and hooks are separate, protected entries.
    """

    path: str
    kind: ChangeKind
    file: FileKind = "file"
    size: int = 0
    diff: str = ""
    note: str = ""
    protected: bool = False
    ignored: bool = False
    conflict: bool = False
    can_undo: bool = True
    operations: tuple[GitOperation, ...] = ()


class BlockedAccess(msgspec.Struct, frozen=True):
    """What the sandbox denied: a host, a path outside the workspace or a socket. `target` is "" if it is unknown.

    Without `grantable` no answer can give access to exactly this; the command could only run outside the sandbox.
    """

    kind: BlockedKind
    target: str = ""
    grantable: bool = True

    @property
    def description(self) -> str:
        names = {"network": "the network", "path": "a path outside the workspace", "socket": "a local socket"}
        return self.target or names[self.kind]


class CommandOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a command did inside the sandbox, for the question whether to keep it. `output` is its end.

    `more_files` counts changed files that are not listed. With `flow` the command was blocked because the session has
    read text of others. `left_running` are the command lines of processes that still ran when the command ended, and
    were ended. With `predicted` the command has not started yet: this is what it will probably do, and `blocked` is the
    access that it needs for that.
    """

    files: tuple[OutcomeFile, ...] = ()
    more_files: int = 0
    exit_code: int | None = None
    output: str = ""
    blocked: tuple[BlockedAccess, ...] = ()
    flow: DataFlow | None = None
    left_running: tuple[str, ...] = ()
    predicted: str = ""


class GrantedAccess(NamedTuple):
    """What the answer about a blocked command grants: the hosts, the paths, or to run outside the sandbox."""

    hosts: bool = False
    paths: bool = False
    unconfined: bool = False


class OutcomeAnswer(msgspec.Struct, frozen=True):
    """The answer to a question about an outcome. `keep` names the files to keep, None for all.

    `choice` is how to run a blocked command again. `attended` is False if no user could be asked.
    """

    allowed: bool
    words: str = ""
    keep: tuple[str, ...] | None = None
    choice: OutcomeChoice = "keep"
    attended: bool = True

    @property
    def access(self) -> GrantedAccess:
        """What a blocked command may use when it runs again."""
        match self.choice:
            case "keep":
                return GrantedAccess(hosts=True, paths=True)
            case "hosts":
                return GrantedAccess(hosts=True)
            case "paths":
                return GrantedAccess(paths=True)
            case "outside":
                return GrantedAccess(unconfined=True)
            case _:
                assert_never(self.choice)


class CallEffect(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one command of a call does, in plain words. A `risky` effect is listed first."""

    text: str
    risky: bool = False


class RuleWidth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A choice of rules that a lasting answer would store, and what it would have meant so far.

    `contents` are hashes of files that it approves too. Of the `asked` earlier questions in this workspace, these rules
    would have answered `covered`; the user had refused `refused` of those.
    """

    id: str
    label: str
    rules: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()
    asked: int = 0
    covered: int = 0
    refused: int = 0
