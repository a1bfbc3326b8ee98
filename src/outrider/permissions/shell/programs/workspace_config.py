"""Finds workspace files that change what an installed program does: configuration and hooks of git, npm, cargo
and others."""

import hashlib
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from outrider.permissions.paths.containment import read_regular_file
from outrider.permissions.paths.protected import find_linked_git_folder
from outrider.permissions.redaction.secret_patterns import split_names

MAX_FILE_BYTES = 1_000_000
_MAX_INDEX_BYTES = 64_000_000
_GITLINK = b"\x00\x00\xe0\x00"
_SPLIT_INDEX = b"link"
_INDEX_MODES = frozenset({_GITLINK, b"\x00\x00\x81\xa4", b"\x00\x00\x81\xed", b"\x00\x00\xa0\x00", b"\x00\x00\x40\x00"})
_SECTION = re.compile(r'^\s*\[\s*(?P<name>[A-Za-z0-9.-]+)\s*(?:"(?P<sub>(?:[^"\\]|\\.)*)")?\s*\](?P<rest>.*)$')
_KEY = re.compile(r"^\s*(?P<key>[A-Za-z][A-Za-z0-9-]*)\s*(?:=|$|[#;])")
_HOOKS_PATH = re.compile(r"^\s*(?:\[\s*core\s*\])?\s*hooksPath\s*=\s*(?P<path>[^#;]*)", re.IGNORECASE)
# Control characters and continued lines, which programs read in different ways.
_UNUSUAL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)|\\\r?\n|\\\Z")
# Settings of a repository's configuration that do not change which programs git runs.
_HARMLESS_SECTIONS = split_names(
    """user author committer branch color column advice init pull push gui status blame tag"""
)
_HARMLESS_KEYS = split_names(
    """core.repositoryformatversion core.filemode core.bare core.logallrefupdates core.ignorecase
    core.precomposeunicode core.symlinks core.autocrlf core.eol core.safecrlf core.abbrev core.quotepath
    core.longpaths core.protecthfs core.protectntfs core.untrackedcache core.checkstat core.trustctime
    core.preloadindex core.compression core.sparsecheckout core.sparsecheckoutcone core.whitespace
    core.commitgraph core.multipackindex core.fscache remote.url remote.fetch remote.pushurl remote.push
    remote.tagopt remote.prune remote.mirror remote.skipdefaultupdate submodule.url submodule.active
    submodule.branch extensions.objectformat extensions.worktreeconfig log.date log.decorate log.abbrevcommit
    log.follow extensions.noop diff.renames diff.algorithm diff.mnemonicprefix diff.noprefix diff.colormoved
    diff.context merge.conflictstyle merge.ff rebase.autosquash rebase.autostash fetch.prune fetch.prunetags
    fetch.parallel commit.verbose gc.auto gc.autodetach feature.manyfiles index.version
    receive.denycurrentbranch rerere.enabled versionsort.suffix http.postbuffer pack.threads"""
)
# Settings that run a program, but never in a call that only reads, prints to no terminal and uses no network.
_UNUSED_WHEN_READING = re.compile(
    r"^(?:core\.(?:hookspath|editor|pager|sshcommand|askpass)|alias\..*|sequence\..*|commit\..*|gpg\..*|merge\..*|mergetool\..*|"
    r"difftool\..*|credential\..*|url\..*|pager\..*|filter\.(?:smudge|required)|http\..*|remote\.(?!promisor|partialclone).*|rebase\..*|fetch\..*|"
    r"pull\..*|receive\..*|uploadpack\..*|sendemail\..*|instaweb\..*|web\..*|browser\..*|man\..*|help\..*|submodule\..*|"
    r"lfs\..*|init\..*|maintenance\..*|gc\..*|rerere\..*|notes\..*|mailmap\..*|interactive\..*|add\..*)$"
)
_NPM_KEYS = split_names(
    """save-exact save-prefix engine-strict fund audit legacy-peer-deps package-lock progress loglevel
    strict-peer-deps auto-install-peers shamefully-hoist hoist node-linker save color lockfile
    prefer-frozen-lockfile public-hoist-pattern[] hoist-pattern[] resolution-mode update-notifier"""
)


class WorkspaceConfigFile:
    """A workspace file that changes what a program does. Approval is tied to the hash of its content."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        self.content_hash = _hash_file(path)


def first_unapproved(items: Iterator[WorkspaceConfigFile], approved: Collection[str]) -> WorkspaceConfigFile | None:
    """Returns the first file whose content hash is not approved, or None."""
    return next((config_file for config_file in items if config_file.content_hash not in approved), None)


def find_config_files(
    program: str, args: tuple[str, ...], *, root: Path, cwd: Path, reads_only: bool
) -> Iterator[WorkspaceConfigFile]:
    """Yields the workspace files that change what this program does, the most dangerous first."""
    match program:
        case "git":
            yield from _find_git_config(root, cwd, reads_only=reads_only)
        case "cargo" | "rustc" | "rustup" | "rustfmt":
            chosen = (".cargo/config.toml", ".cargo/config", "rust-toolchain.toml", "rust-toolchain")
            yield from _find_existing(root, cwd, chosen, "it selects the tools that cargo runs")
        case "go" if reads_only:
            yield from _find_existing(
                root, cwd, ("go.mod", "go.work"), "it can make go download another version of itself"
            )
        case _ if reads_only:
            return
        case "npm" | "npx" | "yarn" | "pnpm" | "bun" | "corepack":
            yield from _find_node_config(root, cwd)
        case "pytest" | "py.test" | "tox" | "nox":
            yield from _find_existing(
                root, cwd, ("conftest.py", "tests/conftest.py", "test/conftest.py"), "pytest runs it first"
            )
        case "python" | "python3" if args[:2] == ("-m", "pytest"):
            yield from _find_existing(
                root, cwd, ("conftest.py", "tests/conftest.py", "test/conftest.py"), "pytest runs it first"
            )
        case _:
            return


def _folders_up_to_root(root: Path, cwd: Path) -> list[Path]:
    """Returns the folders from `cwd` up to the workspace root."""
    folders = [cwd, *cwd.parents]
    return folders[: folders.index(root) + 1] if root in folders else [cwd]


def _find_existing(root: Path, cwd: Path, names: tuple[str, ...], reason: str) -> Iterator[WorkspaceConfigFile]:
    """Yields the files with these names that exist between `cwd` and the workspace root."""
    for folder in _folders_up_to_root(root, cwd):
        for name in names:
            if (path := folder / name).is_file():
                yield WorkspaceConfigFile(path, reason)


def _find_node_config(root: Path, cwd: Path) -> Iterator[WorkspaceConfigFile]:
    """Yields configuration files of Node package managers; `.npmrc` only if it has keys that are not harmless."""
    for config_file in _find_existing(root, cwd, (".npmrc",), "it configures npm"):
        keys = {line.partition("=")[0].strip() for line in _read_lines(config_file.path)}
        if any(key and key[0] not in "#;" and key not in _NPM_KEYS for key in keys):
            yield config_file
    names = (".yarnrc.yml", ".yarnrc", ".pnpmfile.cjs", "bunfig.toml")
    yield from _find_existing(root, cwd, names, "it configures the package manager")


def _find_git_config(root: Path, cwd: Path, *, reads_only: bool) -> Iterator[WorkspaceConfigFile]:
    """Yields git configuration, nested repositories and hooks that can make git run a program."""
    for folder in find_git_folders(cwd):
        yield from _find_folder_config(folder, cwd, reads_only=reads_only)


def _find_folder_config(folder: Path, cwd: Path, *, reads_only: bool) -> Iterator[WorkspaceConfigFile]:
    for path in _git_config_paths(folder):
        if key := find_risky_key(path, reads_only=reads_only):
            yield WorkspaceConfigFile(path, f"it sets {key}, which can make git run a program")
    yield from _find_nested_repositories(folder, cwd)
    yield from _find_hooks(_common_git_folder(folder) / "hooks", reads_only=reads_only)
    for path, hooks in _find_hooks_settings(folder):
        if set(hooks) & set('"\\'):
            yield WorkspaceConfigFile(path, "it sets the hooks folder in an unusual form")
        yield from _find_hooks(find_worktree_root(cwd) / hooks, reads_only=reads_only)


def _find_hooks_settings(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yields the configuration files of a git folder that set the folder of hooks, and its value."""
    for path in _git_config_paths(folder):
        for match in filter(None, map(_HOOKS_PATH.match, _read_lines(path))):
            yield path, os.path.expanduser(match["path"].strip())  # noqa: PTH111


def list_hooks_folders(workspace: Path) -> tuple[str, ...]:
    """Returns the folders of the workspace that git is configured to run hooks from, relative to the workspace."""
    folder, root = find_git_folder(workspace), os.path.realpath(workspace)
    if folder is None:
        return ()
    top = find_worktree_root(workspace)
    folders = {os.path.realpath(top / hooks.strip('"')) for _, hooks in _find_hooks_settings(folder)}
    return tuple(sorted(path[len(root) + 1 :] for path in folders if path.startswith(f"{root}/")))


def _find_hooks(folder: Path, *, reads_only: bool) -> Iterator[WorkspaceConfigFile]:
    """Yields the hooks that git can run.

    Even `git diff` rewrites the index if only timestamps have changed, and then runs `post-index-change`.
    """
    for name in sorted(os.listdir(folder)) if folder.is_dir() and os.access(folder, os.R_OK) else ():  # noqa: PTH208
        is_active = name == "post-index-change" if reads_only else not name.endswith(".sample")
        if is_active and (folder / name).is_file():
            yield WorkspaceConfigFile(folder / name, "git runs it")


def find_worktree_root(cwd: Path) -> Path:
    """Returns the folder of the work tree that contains `cwd`, or `cwd` if there is none."""
    return next((folder for folder in (cwd, *cwd.parents) if (folder / ".git").exists()), cwd)


def _find_nested_repositories(folder: Path, cwd: Path) -> Iterator[WorkspaceConfigFile]:
    """Yields risky configurations of submodules in the index: git runs itself in them with their configuration."""
    home = find_worktree_root(cwd)
    for name in _read_gitlinks(folder / "index"):
        if name is None:
            yield WorkspaceConfigFile(
                folder / "index", "it lists nested repositories in a format that is not understood"
            )
            return
        inner = find_git_folder(home / name)
        if inner is None or inner == folder:
            continue
        for path in _git_config_paths(inner):
            if key := find_risky_key(path, reads_only=True):
                yield WorkspaceConfigFile(
                    path, f"it sets {key} for a nested repository, which can make git run a program"
                )


def _read_gitlinks(index: Path) -> Iterator[str | None]:
    """Yields the paths of nested repositories in a git index; yields None if the format is not supported."""
    content = _read_index(index)
    if _GITLINK in content or _SPLIT_INDEX in content:
        for entry in parse_index(content):
            if entry is None or entry[1]:
                yield entry if entry is None else entry[0]


def read_index_entries(index: Path) -> Iterator[tuple[str, bool] | None]:
    """Yields each path in a git index and whether it is a nested repository; None if the format is not supported."""
    content = _read_index(index)
    if content:
        yield from parse_index(content)


def _read_index(index: Path) -> bytes:
    try:
        return read_regular_file(index, _MAX_INDEX_BYTES)
    except OSError:
        return b""


def parse_index(content: bytes) -> Iterator[tuple[str, bool] | None]:
    """Yields each path of a git index and whether it is a nested repository; None if the format is not supported.

    A split index is not supported: the rest of its entries is in another file.
    """
    version, count = int.from_bytes(content[4:8]), int.from_bytes(content[8:12])
    if not content:
        return
    if content[:4] != b"DIRC" or version not in {2, 3, 4}:
        yield None
        return
    is_sha256 = hashlib.sha1(content[:-20], usedforsecurity=False).digest() != content[-20:] and (
        hashlib.sha256(content[:-32]).digest() == content[-32:]
    )
    hash_bytes, offset, previous = 32 if is_sha256 else 20, 12, b""
    for _ in range(count):
        entry = _parse_index_entry(content, offset, version, hash_bytes, previous)
        if entry is None:
            yield None
            return
        offset, previous, mode = entry
        yield previous.decode("utf-8", "surrogateescape"), mode == _GITLINK
    if not _has_known_extensions(content, offset, hash_bytes):
        yield None


def _parse_index_entry(
    content: bytes, offset: int, version: int, hash_bytes: int, previous: bytes
) -> tuple[int, bytes, bytes] | None:
    """Returns where the next entry starts, the path and the mode; None if the entry is damaged."""
    mode, flags_at = content[offset + 24 : offset + 28], offset + 40 + hash_bytes
    flags = int.from_bytes(content[flags_at : flags_at + 2])
    start = flags_at + (4 if flags & 0x4000 and version > 2 else 2)
    retained = 0
    if version == 4:  # a path begins with a part of the path before it
        start, removed = _read_offset(content, start)
        retained = len(previous) - removed
    end = content.find(b"\0", start)
    if mode not in _INDEX_MODES or end < 0 or retained < 0:
        return None
    path = previous[:retained] + content[start:end]
    return (end + 1 if version == 4 else offset + (end - offset + 8) // 8 * 8), path, mode


def _read_offset(content: bytes, position: int) -> tuple[int, int]:
    """Reads git's variable-length integer; returns where it ends and its value."""
    value = -1
    while position < len(content):
        byte = content[position]
        position, value = position + 1, (value + 1) << 7 | byte & 0x7F
        if not byte & 0x80:
            break
    return position, value


def _has_known_extensions(content: bytes, offset: int, hash_bytes: int) -> bool:
    while offset + 8 <= len(content) - hash_bytes:
        if (
            content[offset : offset + 1].islower() and content[offset : offset + 4] != b"sdir"
        ):  # required to understand the index
            return False
        offset += 8 + int.from_bytes(content[offset + 4 : offset + 8])
    return offset == len(content) - hash_bytes


def _git_config_paths(folder: Path) -> Iterator[Path]:
    common = _common_git_folder(folder)
    modules = common / "modules"
    for path in (common / "config", folder / "config", folder / "config.worktree"):
        if path.is_file():
            yield path
    if modules.is_dir():
        yield from sorted(modules.rglob("config"))[:50]


def _common_git_folder(folder: Path) -> Path:
    """Returns the git folder that a linked worktree shares with the main worktree."""
    pointer = folder / "commondir"
    return (folder / "".join(_read_lines(pointer)[:1]).strip()).resolve() if pointer.is_file() else folder


def find_git_folder(cwd: Path) -> Path | None:
    """Returns the git folder that git would use in `cwd`, a bare repository included."""
    return next(find_git_folders(cwd), None)


def find_git_folders(cwd: Path) -> Iterator[Path]:
    """Yields the folders that git may use in `cwd`, the nearest first.

    Git ignores a folder that it does not accept as a repository, such as an empty `.git`, and uses one further up.
    """
    for folder in (cwd, *cwd.parents):
        marker = folder / ".git"
        if marker.is_dir():
            yield marker
        elif marker.is_file():
            yield find_linked_git_folder(folder) or marker
        if all((folder / name).exists() for name in ("HEAD", "objects", "refs")):
            yield folder


def is_harmless_key(name: str) -> bool:
    """Returns whether a git setting cannot make git run a program; `remote.origin.url` is looked up as `remote.url`."""
    section, _, name_in_section = name.lower().partition(".")
    return section in _HARMLESS_SECTIONS or f"{section}.{name_in_section.rpartition('.')[2]}" in _HARMLESS_KEYS


def find_risky_key(path: Path, *, reads_only: bool) -> str | None:
    """Returns the first key of a git configuration file that could make git run a program, or None."""
    section = ""
    for raw in _read_lines(path):
        line = raw
        if match := _SECTION.match(raw):
            section, line = match["name"].lower(), match["rest"]
        if not line.strip() or line.lstrip()[0] in "#;":
            continue
        key = _KEY.match(line)
        name = f"{section}.{key['key'].lower()}" if key else line.strip()
        if is_harmless_key(name):
            continue
        if not (reads_only and _UNUSED_WHEN_READING.match(name)):
            return name
    return None


def _read_lines(path: Path) -> list[str]:
    """Returns the lines of a file, or a key that no list accepts if the file cannot be read completely.

    Only a line feed ends a line, as for git. A line that continues after a backslash has no key either.
    """
    try:
        content = read_regular_file(path, MAX_FILE_BYTES + 1)
    except OSError:
        return ["[unreadable]", "unreadable"]
    if len(content) > MAX_FILE_BYTES or _UNUSUAL.search(content):
        return ["[unreadable]", "unreadable"]
    return content.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")


def _hash_file(path: Path) -> str:
    try:
        return hashlib.sha256(read_regular_file(path, MAX_FILE_BYTES)).hexdigest()
    except OSError:
        return "unreadable"
