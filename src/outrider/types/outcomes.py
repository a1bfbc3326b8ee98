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
"""What an approval means: keep the changes, or run a blocked command again with hosts, with paths or outside the
sandbox."""
BlockedKind = Literal["network", "path", "socket"]


GitOperationKind = Literal["commit", "branch", "tag", "stash", "ref", "head", "index"]


class GitOperation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What git recorded.

    - `kind`: a commit, a branch, tag or other ref, an entry of the stash, another HEAD, or staged files (`index`).
    - `name`: the name of a ref.
    - `old`, `new`: the values of a ref before and after; `new` is also the id of a commit.
    - `subject`, `author`: of a commit or an entry of the stash.
    - `files`: the files of a commit or of the index, each with the kind of its change.
    - `more_files`: the number of files that are not listed.
    - `lost`: the number of commits that a moved or deleted ref no longer contains.
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
        suffix = f" and {self.more_files} more" if self.more_files else ""
        files = ", ".join(self.files) + suffix
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
        ref_name = self.kind if self.kind == "stash" else f"{self.kind} {self.name}"
        subject = f' "{self.subject}"' if self.subject else ""
        lost = f", which drops {self.lost} commit{'' if self.lost == 1 else 's'} from it" if self.lost else ""
        if not self.old:
            return f"new {ref_name}{subject} at {self.new[:8]}"
        if not self.new:
            return f"{ref_name} deleted, it was {self.old[:8]}{lost}"
        return f"{ref_name}{subject}: {self.old[:8]} -> {self.new[:8]}{lost}"


class OutcomeFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One changed path of the workspace. A git folder is one entry; its settings and hooks are separate, protected
    entries.

    - `path`: the path in the workspace.
    - `kind`: "created", "modified" or "deleted".
    - `file`: "file", "link", "folder" or "special".
    - `size`: the new size in bytes.
    - `diff`: a unified diff; empty for binary and large files.
    - `note`: further information for the user.
    - `protected`: whether the file steers tools or contains secrets.
    - `ignored`: whether version control ignores the file.
    - `conflict`: whether another program has changed the file since the command read it.
    - `can_undo`: whether an undo can restore the old content.
    - `operations`: what git recorded in a git folder.
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

    Without `grantable`, no answer can grant access to exactly this target; the command could only run outside the
    sandbox.
    """

    kind: BlockedKind
    target: str = ""
    grantable: bool = True

    @property
    def description(self) -> str:
        names = {"network": "the network", "path": "a path outside the workspace", "socket": "a local socket"}
        return self.target or names[self.kind]


class CommandOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a command did inside the sandbox, for the question whether to keep its changes.

    - `files`: the changed files.
    - `more_files`: the number of changed files that are not listed.
    - `exit_code`: the exit code of the command.
    - `output`: the end of the output.
    - `blocked`: the access that the sandbox denied.
    - `flow`: is set if the command was blocked because the session has read untrusted text.
    - `left_running`: the command lines of processes that still ran when the command ended, and were ended.
    - `predicted`: what a command that has not started yet will probably do; `blocked` is then the access that it needs.
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
    """The answer to a question about an outcome.

    - `allowed`: whether the user approved.
    - `words`: the user's comment.
    - `keep`: the files to keep; None keeps all.
    - `choice`: how to run a blocked command again.
    - `attended`: False if no user could be asked.
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
    """A choice of rules that a lasting answer would store, and a backtest over earlier questions.

    - `id`: names the choice in an answer.
    - `label`: what it allows, for the user.
    - `rules`: the rules.
    - `contents`: hashes of files that it approves too.
    - `asked`: the number of earlier questions in this workspace.
    - `covered`: how many of these questions the rules would have answered.
    - `refused`: how many of the covered questions the user had refused.
    """

    id: str
    label: str
    rules: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()
    asked: int = 0
    covered: int = 0
    refused: int = 0
