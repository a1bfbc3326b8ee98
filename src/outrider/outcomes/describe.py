"""Describes, for a question or a report, what a command changed in its overlay (files with diffs, caches separately),
what the sandbox has denied it, and the result of a command whose outcome is settled."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import msgspec

from outrider._posix import O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK
from outrider.errors import ToolFailure
from outrider.outcomes.commit import find_conflicts
from outrider.outcomes.git_operations import RunInView, read_operations
from outrider.outcomes.pending import PendingOutcome
from outrider.outcomes.repository import (
    OutsideRepository,
    OverlayView,
    list_protected,
    sort_changes,
    sort_recorded,
)
from outrider.permissions import reasons
from outrider.permissions.paths.containment import read_regular_file
from outrider.permissions.paths.gitignore import IGNORE_FILES, VCS_FOLDERS, is_ignored
from outrider.permissions.paths.protected import GIT_DATA_NAMES, GIT_FOLDER
from outrider.permissions.redaction.secret_patterns import split_names
from outrider.permissions.shell.programs.workspace_config import list_hooks_folders
from outrider.processes.output import append_note
from outrider.processes.sandbox.overlay import OverlayChange, is_text, parents_of, show_path
from outrider.tools.tool import ToolResult
from outrider.types.outcomes import BlockedAccess, CommandOutcome, GitOperation, OutcomeAnswer, OutcomeFile

MAX_FILES = 200
MAX_DIFF_BYTES = 200_000
MAX_DIFF_LINES = 400
MAX_OUTPUT = 4_000
COMMIT_HOOKS = ("pre-commit", "prepare-commit-msg", "commit-msg", "post-commit")

# Folders and files that tools write as a by-product and can write again.
CACHE_NAMES = split_names(
    """__pycache__ .pytest_cache .benchmarks .coverage .mypy_cache .ruff_cache .hypothesis .tox .nox .eggs .gradle
    .ipynb_checkpoints .parcel-cache .turbo .vite .angular .nyc_output .eslintcache .stylelintcache .sass-cache
    .tsbuildinfo .phpunit.cache .phpunit.result.cache .dart_tool .pytype .pyre .basedpyright .import_linter_cache"""
)
_CACHE_PAIRS = frozenset({("node_modules", ".cache"), ("node_modules", ".vite"), (".next", "cache")})
_CACHE_SUFFIXES = (".pyc", ".pyo", ".tsbuildinfo")


def is_cache(path: str) -> bool:
    """Returns whether a path belongs to a cache of a known tool."""
    names = path.split("/")
    return (
        not CACHE_NAMES.isdisjoint(names)
        or names[-1].endswith(_CACHE_SUFFIXES)
        or any(pair in _CACHE_PAIRS for pair in pairwise(names))
    )


def ignored_paths(workspace: Path, changes: Iterable[OverlayChange]) -> set[str]:
    """Returns the changed paths that the ignore files of the workspace exclude from version control. Ignore files that
    the command wrote have no effect."""

    @cache
    def lines_of(folder: str) -> list[str]:
        lines: list[str] = []
        for name in IGNORE_FILES:
            path = f"{workspace}/{folder}{name}"
            try:
                lines += read_regular_file(path, 1_000_000).decode("utf-8", "replace").splitlines()
            except OSError:
                continue
        return lines

    return {
        change.path
        for change in changes
        # A pattern with a trailing slash matches folders only, and a name inside shows that the path is one.
        if VCS_FOLDERS.isdisjoint(change.path.split("/"))
        and is_ignored(f"{change.path}/x" if change.file == "folder" else change.path, lines_of)
    }


def expand_selection(changes: Iterable[OverlayChange], keep: Iterable[str], data: Mapping[str, str]) -> list[str]:
    """Returns the changed paths that an answer keeps: the paths that it names, new folders above them, and with a git
    folder all data that git recorded in it. `data` maps paths of such data to their git folder."""
    selected = set(keep)
    selected |= {parent for path in keep for parent in parents_of(path)}
    return [
        change.path
        for change in changes
        if (show_path(data[change.path]) if change.path in data else change.shown_path) in selected
    ]


def describe_outcome(
    pending: PendingOutcome, upper: Path, recorded_upper: Path | None = None, run: RunInView | None = None
) -> CommandOutcome:
    """Returns what a question about a pending outcome shows. `run` lets git read what it recorded."""
    files = [*_describe_files(pending, upper, run)]
    if pending.repository is not None and recorded_upper is not None and pending.recorded:
        files = [*_describe_recorded(pending, pending.repository, recorded_upper, run), *files]
    files.sort(key=lambda file: (not file.protected, file.ignored))
    return CommandOutcome(
        files=tuple(files[:MAX_FILES]),
        more_files=max(0, len(files) - MAX_FILES),
        exit_code=pending.exit_code,
        output=pending.content[-MAX_OUTPUT:],
        blocked=pending.blocked,
        left_running=pending.left_running,
    )


def _describe_files(pending: PendingOutcome, upper: Path, run: RunInView | None) -> Iterator[OutcomeFile]:
    """Yields the changed files of the workspace, and one entry for each git folder."""
    workspace = Path(pending.workspace)
    view = OverlayView(workspace, upper)
    sorted_changes = sort_changes(view, pending.changes)
    data, entries = sorted_changes.data, sorted_changes.entries
    ignored, protected = (
        ignored_paths(workspace, pending.changes),
        list_protected(workspace, upper, pending.changes),
    )
    conflicts = set(find_conflicts(workspace, upper, pending.changes))
    for folder in sorted(set(data.values())):
        changes = [change for change in pending.changes if data.get(change.path) == folder]
        operations = read_operations(view, folder, changes, run)
        hooks = (workspace / folder / "hooks", *(workspace / name for name in list_hooks_folders(workspace)))
        yield OutcomeFile(
            path=show_path(folder),
            kind="modified",
            file="folder",
            note=_repository_note(folder, changes) + _hooks_note(hooks, operations),
            conflict=any(change.path in conflicts for change in changes),
            can_undo=all(map(_can_undo, changes)),
            operations=operations,
        )
    ordered = sorted(pending.changes, key=lambda change: (change.path not in protected, change.path in ignored))
    for number, change in enumerate(
        _without_implied_folders([change for change in ordered if change.path not in entries])
    ):
        yield OutcomeFile(
            path=change.shown_path,
            kind=change.kind,
            file=change.file,
            size=change.size,
            diff="" if change.path in ignored or number > MAX_FILES else make_diff(workspace, upper, change),
            note=_note_of(change, upper),
            protected=change.path in protected,
            ignored=change.path in ignored,
            conflict=change.path in conflicts,
            can_undo=_can_undo(change),
        )


def _describe_recorded(
    pending: PendingOutcome, repository: OutsideRepository, upper: Path, run: RunInView | None
) -> Iterator[OutcomeFile]:
    """Yields one entry for a git folder outside the workspace, and one for each of its files that can steer git."""
    folder = Path(repository.folder)
    view = OverlayView(folder, upper)
    sorted_changes = sort_recorded(view, pending.recorded, repository)
    conflicts = set(find_conflicts(folder, upper, pending.recorded))
    changes = [change for change in pending.recorded if change.path in sorted_changes.data]
    if changes:
        operations = read_operations(view, "", changes, run, own=repository.own)
        yield OutcomeFile(
            path=show_path(repository.folder),
            kind="modified",
            file="folder",
            note=_repository_note("", changes) + _hooks_note((folder / "hooks",), operations),
            conflict=any(change.path in conflicts for change in changes),
            can_undo=False,
            operations=operations,
        )
    for change in _without_implied_folders(
        [change for change in pending.recorded if change.path not in sorted_changes.data]
    ):
        yield OutcomeFile(
            path=show_path(f"{repository.folder}/{change.path}"),
            kind=change.kind,
            file=change.file,
            size=change.size,
            diff=make_diff(folder, upper, change),
            note=_note_of(change, upper),
            protected=True,
            conflict=change.path in conflicts,
            can_undo=False,
        )


def _repository_note(folder: str, changes: Sequence[OverlayChange]) -> str:
    """Returns the names of the files that git wrote, such as "3 objects, refs/heads/main, index"."""
    names = [change.path.removeprefix(f"{folder}/") for change in changes if change.file != "folder"]
    objects = sum(name.startswith("objects/") for name in names)
    other_names = [show_path(name) for name in names if not name.startswith(("objects/", "logs/"))]
    return ", ".join([*([f"{objects} objects"] if objects else []), *other_names[:8]]) or "logs"


def _hooks_note(folders: Iterable[Path], operations: Iterable[GitOperation]) -> str:
    """Returns a note about the hooks that the user's git would have run for the commits."""
    if not any(operation.kind == "commit" for operation in operations):
        return ""
    hooks = sorted({name for name in COMMIT_HOOKS for folder in folders if os.access(folder / name, os.X_OK)})
    return f"; its hooks did not run: {', '.join(hooks)}" if hooks else ""


def _can_undo(change: OverlayChange) -> bool:
    from outrider.sessions.snapshots.scanner import SnapshotLimits  # lazy: most commands change no file

    largest = max(change.size, change.base.size if change.base else 0)
    return is_text(change.path) and largest <= SnapshotLimits().written_bytes


def _without_implied_folders(changes: Sequence[OverlayChange]) -> list[OverlayChange]:
    """Returns the changes without new and deleted folders whose files are listed."""
    parents = {change.path.rpartition("/")[0] for change in changes}
    for parent in list(parents):
        while parent:
            parents.add(parent)
            parent = parent.rpartition("/")[0]  # noqa: PLW2901
    return [
        change
        for change in changes
        if not (change.file == "folder" and change.kind != "modified" and change.path in parents)
    ]


def _note_of(change: OverlayChange, upper: Path) -> str:
    if change.kind == "deleted":
        return ""
    if change.file == "link":
        return f"link to {show_path(os.readlink(upper / change.path))}"  # noqa: PTH115
    if change.file == "special":
        return "neither a file nor a folder; it is discarded"
    if change.base is not None and not change.changes_type and change.base.mode & 0o777 != change.mode & 0o777:
        return f"mode {change.base.mode & 0o777:o} becomes {change.mode & 0o777:o}"
    return "executable" if change.kind == "created" and change.file == "file" and change.mode & 0o111 else ""


def make_diff(workspace: Path, upper: Path, change: OverlayChange) -> str:
    """Returns a unified diff, or "" for binary, large and special files."""
    if change.file != "file" or change.changes_type:
        return ""
    before = _read_text(workspace / change.path) if change.base is not None else ""
    after = _read_text(upper / change.path) if change.kind != "deleted" else ""
    if before is None or after is None:
        return ""
    import difflib  # lazy: most commands change no file

    old, new = f"a/{change.shown_path}" if change.base else "/dev/null", f"b/{change.shown_path}"
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        old,
        new if change.kind != "deleted" else "/dev/null",
    )
    diff: list[str] = []
    for number, line in enumerate(lines):
        if number == MAX_DIFF_LINES:
            diff.append("… more lines are not shown\n")
            break
        diff.append(line if line.endswith("\n") else f"{line}\n")
    return "".join(diff)


def _read_text(path: Path) -> str | None:
    """Returns the text of a regular file, None if it is binary, too large or unreadable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(MAX_DIFF_BYTES + 1)
    except OSError:
        return None
    if b"\0" in content or len(content) > MAX_DIFF_BYTES:
        return None
    return content.decode("utf-8", "replace")


def list_changes(changes: Iterable[OverlayChange], limit: int = 20) -> str:
    """Returns changed paths in one line for the model, such as "a.py (modified), b/ (deleted)"."""
    listed = _without_implied_folders(list(changes))
    texts = list(dict.fromkeys(_short_text(change) for change in listed))
    suffix = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + suffix


def _short_text(change: OverlayChange) -> str:
    """Returns a changed path with the kind of its change. All data that git recorded in a folder has the same text."""
    folder, inside, subpath = change.shown_path.partition(f"{GIT_FOLDER}/")
    if inside and subpath.split("/")[0] in GIT_DATA_NAMES:
        return f"{folder}{inside} (modified)"
    return f"{change.shown_path}{'/' if change.file == 'folder' else ''} ({change.kind})"


# Repetitions are bounded, because outputs can be hostile.
_HOST = r"(?P<host>[a-z0-9][a-z0-9-]{0,62}(?:\.[a-z0-9-]{1,63}){1,10}|localhost)"
_QUOTE = "[\"'`\u2018\u201c\u00ab]?"
_NETWORK_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"could not resolve (?:host|hostname|proxy)(?: name)?:? {_QUOTE}{_HOST}",
        rf"(?:unable|failed) to (?:resolve|look ?up)(?: host)?(?: address)?:? {_QUOTE}{_HOST}",
        rf"(?:temporary failure resolving|error resolving|cannot resolve|can't resolve(?: hostname)?) {_QUOTE}{_HOST}",
        rf"(?:getaddrinfo|querya|querysrv|dns lookup)[a-z ]*(?:enotfound|eai_again|econnrefused)? {_QUOTE}{_HOST}",
        rf"lookup {_HOST}(?: on |:)",
        rf"host=['\"]{_HOST}['\"]",
        rf"(?<![a-z0-9.-]){_HOST}(?::\d+)?: "
        "(?:temporary failure in name resolution|name or service not known|network is unreachable)",
        rf"(?:failed to connect to|connect to|connecting to) {_QUOTE}{_HOST}(?:[ :]|$)",
        rf"(?:error fetching|failed to (?:fetch|download)|fetch failed)[^\n]{{0,40}}https?://{_HOST}",
    )
)
_NETWORK_SIGNS = re.compile(
    r"temporary failure in name resolution|name or service not known|network is unreachable|could not resolve"
    r"|eai_again|enotfound|enetunreach|getaddrinfo|no address associated with hostname|err_internet_disconnected"
    r"|name resolution|dns error|resolve host|failure resolving",
    re.IGNORECASE,
)
_READ_ONLY_SIGNS = re.compile(r"read-only file ?system|EROFS", re.IGNORECASE)
_DENIED_SIGNS = re.compile(r"read-only file ?system|EROFS|permission denied|EACCES", re.IGNORECASE)
_OWNER_SIGNS = re.compile(r"value too large for (?:defined )?data type|EOVERFLOW", re.IGNORECASE)
_ROOT_OWNER_SIGNS = re.compile(rf"{_OWNER_SIGNS.pattern}|permission denied|EACCES", re.IGNORECASE)
_PATH_IN_LINE = re.compile(r"(?P<path>(?:/|~/)[^\s'\"`:,;)\]\u2018\u2019]+)")
_SOCKET = re.compile(
    r"(?:cannot|can't|could not|unable to|failed to) connect to (?:the )?(?:docker daemon|server|local|podman)[^\n]*?"
    r"(?P<path>/[^\s'\"`:,;)\]]+\.(?:sock|socket)[^\s'\"`:,;)\]]*)",
    re.IGNORECASE,
)
_METADATA_NETWORK = "169.254."  # services of clouds that hand out credentials; never offered
_MAX_TARGETS = 8
_SCANNED = 40_000  # characters at each end of the output
_SCANNED_OF_LINE = 1_000  # characters at each end of a line


def find_blocked(output: str, exit_code: int | None, *, workspace: str) -> tuple[BlockedAccess, ...]:
    """Returns the accesses that a command was probably denied; an empty tuple if it succeeded."""
    if exit_code == 0:
        return ()
    text = output if len(output) <= 2 * _SCANNED else f"{output[:_SCANNED]}\n{output[-_SCANNED:]}"
    text = "\n".join(map(_shorten_line, text.splitlines()))
    accesses = [*_blocked_hosts(text), *_blocked_sockets(text), *_blocked_paths(text, workspace)]
    return tuple(dict.fromkeys(accesses))[:_MAX_TARGETS]


def _shorten_line(line: str) -> str:
    return line if len(line) <= 2 * _SCANNED_OF_LINE else f"{line[:_SCANNED_OF_LINE]} {line[-_SCANNED_OF_LINE:]}"


def needs_writable_view(output: str, exit_code: int | None) -> bool:
    """Returns whether a command failed because a file system was mounted read-only."""
    return exit_code != 0 and _READ_ONLY_SIGNS.search(output[-_SCANNED:]) is not None


def fails_for_owner(output: str, exit_code: int | None) -> bool:
    """Returns whether a command may have failed because a file belongs to a user or group that its user namespace
    does not have. The superuser has no capabilities there, so the access rights of such files apply to it too."""
    signs = _ROOT_OWNER_SIGNS if os.geteuid() == 0 else _OWNER_SIGNS
    return exit_code != 0 and signs.search(output[-_SCANNED:]) is not None


def was_denied_writing(output: str) -> bool:
    """Returns whether a command without a copy-on-write view was probably denied a write. Its exit code does not show
    this, because a later command may have succeeded."""
    return _DENIED_SIGNS.search(output[-_SCANNED:]) is not None


def _blocked_hosts(text: str) -> Iterator[BlockedAccess]:
    if _NETWORK_SIGNS.search(text) is None:
        return
    hosts = {
        match["host"].lower().rstrip(".")
        for pattern in _NETWORK_PATTERNS
        for match in pattern.finditer(text)
        if match["host"].lower() != "localhost" and not match["host"].startswith(_METADATA_NETWORK)
    }
    yield from (BlockedAccess("network", host) for host in sorted(hosts)) if hosts else [BlockedAccess("network")]


def is_remote_host(host: str) -> bool:
    """Returns whether a HOST or HOST:PORT of a command is another machine. The sandbox has a separate loopback
    device."""
    local = ("localhost", "127.", "[::1]", "0.0.0.0", _METADATA_NETWORK)
    return bool(host) and not host.lower().startswith(local)


def _blocked_sockets(text: str) -> Iterator[BlockedAccess]:
    for match in _SOCKET.finditer(text):
        yield BlockedAccess("socket", f"/{match['path'].strip('/?.')}")


def _blocked_paths(text: str, workspace: str) -> Iterator[BlockedAccess]:
    for line in text.splitlines():
        if not _READ_ONLY_SIGNS.search(line):
            continue
        named = list(_PATH_IN_LINE.finditer(line))
        if len(named) > 1 and named[0].start() == 0 and line.startswith(":", named[0].end()):
            del named[0]  # the program that prints the message
        for match in named:
            path = os.path.expanduser(match["path"].rstrip("."))  # noqa: PTH111
            if path.isprintable() and path != workspace and not path.startswith(f"{workspace}/"):
                yield BlockedAccess("path", path)


def name_grants(blocked: Iterable[BlockedAccess]) -> tuple[BlockedAccess, ...]:
    """Returns the accesses with the paths that would have to be writable for them. For a new file this is its folder,
    and for a link its target, because that becomes writable.

    The root and the home directory are too much for one file, so a new file there cannot be granted.
    """
    too_wide = ("/", os.path.expanduser("~"))  # noqa: PTH111
    named: dict[BlockedAccess, None] = {}
    for access in blocked:
        if access.kind != "path":
            named[access] = None
            continue
        target = os.path.realpath(access.target)
        folder = os.path.dirname(target)  # noqa: PTH120
        is_new = os.path.isdir(folder) and not os.path.lexists(target)  # noqa: PTH112
        if is_new and folder not in too_wide:
            named[BlockedAccess("path", folder)] = None
        else:
            named[BlockedAccess("path", target, grantable=not is_new)] = None
    return tuple(named)


def changes_question(outcome: CommandOutcome) -> str:
    """Returns the question about what a command changed."""
    count = len(outcome.files) + outcome.more_files
    files = "1 file" if count == 1 else f"{count} files"
    return f"it changed {files} in its copy of the workspace; the workspace itself is unchanged"


def reason_clause(answer: OutcomeAnswer) -> str:
    """Returns the end of a sentence: the user's reason if there is one, and a full stop."""
    comment = answer.words.strip()
    return f": {comment}{'' if comment.endswith(('.', '!', '?')) else '.'}" if comment else "."


def list_all_changes(pending: PendingOutcome) -> str:
    """Returns all changes of a command in one line for the model."""
    recorded = f"{pending.repository.folder}/ (modified)" if pending.repository and pending.recorded else ""
    return ", ".join(filter(None, [list_changes(pending.changes), recorded]))


def settled_result(pending: PendingOutcome, note: str = "") -> ToolResult:
    """Returns the result of a settled command. Raises ToolFailure if the command reached its time limit."""
    if pending.failure is not None:
        raise ToolFailure(append_note(pending.content, note), reason=pending.failure)
    return with_note(ToolResult(pending.content, title=pending.title, metadata=pending.metadata), note)


def with_block(pending: PendingOutcome, note: str, **metadata: str) -> PendingOutcome:
    """Returns the outcome with a note about what stays blocked."""
    content, metadata = append_note(pending.content, note), {**pending.metadata, **metadata}
    return msgspec.structs.replace(pending, content=content, metadata=metadata, block_answered=True)


def with_note(result: ToolResult, note: str) -> ToolResult:
    """Returns the result with a note for the model."""
    return ToolResult(append_note(result.content, note), title=result.title, metadata=result.metadata)


def unchanged_failure(output: str, answer: OutcomeAnswer) -> ToolFailure:
    """Returns the failure of a call that tried to change files without permission."""
    reason = f"The user did not allow this command to change files{reason_clause(answer)}"
    if not answer.attended:
        reason = reasons.UNATTENDED_WRITE
    return ToolFailure(
        f"{reason} It ran with a read-only workspace, which is unchanged. Its output was:\n{output}",
        reason="rejected" if answer.attended else "denied",
    )


def dropped_failure(pending: PendingOutcome, answer: OutcomeAnswer) -> ToolFailure:
    """Returns the failure of a call whose outcome is dropped. The model reads what the command would have changed."""
    effect = f"It would have changed: {list_all_changes(pending)}. The workspace is unchanged."
    reason = f"The user discarded the changes of this command{reason_clause(answer)}"
    if not answer.attended:
        reason = reasons.UNATTENDED_OUTCOME
    output = f"\n\nIts output was:\n{pending.content}" if pending.content.strip() else ""
    return ToolFailure(f"{reason} {effect}{output}", reason="rejected" if answer.attended else "denied")
