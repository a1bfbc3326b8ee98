"""Files of a workspace that change what an installed program does: configuration, hooks, wrappers of a repository."""

import hashlib
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from outrider.permissions.paths.protected import linked_git_folder
from outrider.permissions.redaction.secret_patterns import names

LARGEST = 1_000_000
_LARGEST_INDEX = 64_000_000
_GITLINK = b"\x00\x00\xe0\x00"
_MODES = frozenset({_GITLINK, b"\x00\x00\x81\xa4", b"\x00\x00\x81\xed", b"\x00\x00\xa0\x00", b"\x00\x00\x40\x00"})
_SECTION = re.compile(r'^\s*\[\s*(?P<name>[A-Za-z0-9.-]+)\s*(?:"(?P<sub>(?:[^"\\]|\\.)*)")?\s*\](?P<rest>.*)$')
_KEY = re.compile(r"^\s*(?P<key>[A-Za-z][A-Za-z0-9-]*)\s*(?:=|$|[#;])")
_HOOKS_PATH = re.compile(r"^\s*(?:\[\s*core\s*\])?\s*hooksPath\s*=\s*(?P<path>[^#;]*)", re.IGNORECASE)
# What a repository's own configuration may say without steering which program runs.
_HARMLESS_SECTIONS = names("""user author committer branch color column advice init pull push gui status blame tag""")
_HARMLESS_KEYS = names(
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
# These run something too, but never in a command that only reads, prints to no terminal and stays on this machine.
_IDLE_WHEN_READING = re.compile(
    r"^(?:core\.(?:hookspath|editor|pager|sshcommand|askpass)|alias\..*|sequence\..*|commit\..*|gpg\..*|merge\..*|mergetool\..*|"
    r"difftool\..*|credential\..*|url\..*|pager\..*|filter\.(?:smudge|required)|http\..*|remote\.(?!promisor|partialclone).*|rebase\..*|fetch\..*|"
    r"pull\..*|receive\..*|uploadpack\..*|sendemail\..*|instaweb\..*|web\..*|browser\..*|man\..*|help\..*|submodule\..*|"
    r"lfs\..*|init\..*|maintenance\..*|gc\..*|rerere\..*|notes\..*|mailmap\..*|interactive\..*|add\..*)$"
)
_NPM_KEYS = names(
    """save-exact save-prefix engine-strict fund audit legacy-peer-deps package-lock progress loglevel
    strict-peer-deps auto-install-peers shamefully-hoist hoist node-linker save color lockfile
    prefer-frozen-lockfile public-hoist-pattern[] hoist-pattern[] resolution-mode update-notifier"""
)


class Item:
    """One file that steers, with the hash of its content: approved as it is, asked about again when it changes."""

    def __init__(self, path: Path, why: str) -> None:
        self.path, self.why = path, why
        self.content = _hash(path)


def unapproved(items: Iterator[Item], approved: Collection[str]) -> Item | None:
    return next((item for item in items if item.content not in approved), None)


def steering(program: str, args: tuple[str, ...], *, root: Path, cwd: Path, reads_only: bool) -> Iterator[Item]:
    """What in the workspace would steer this program, most dangerous first."""
    match program:
        case "git":
            yield from _git(root, cwd, reads_only=reads_only)
        case "cargo" | "rustc" | "rustup" | "rustfmt":
            chosen = (".cargo/config.toml", ".cargo/config", "rust-toolchain.toml", "rust-toolchain")
            yield from _present(root, cwd, chosen, "it chooses the tools that cargo runs")
        case "go" if reads_only:
            yield from _present(root, cwd, ("go.mod", "go.work"), "it can make go fetch another version of itself")
        case _ if reads_only:
            return
        case "npm" | "npx" | "yarn" | "pnpm" | "bun" | "corepack":
            yield from _node(root, cwd)
        case "pytest" | "py.test" | "tox" | "nox":
            yield from _present(
                root, cwd, ("conftest.py", "tests/conftest.py", "test/conftest.py"), "pytest runs it first"
            )
        case "python" | "python3" if args[:2] == ("-m", "pytest"):
            yield from _present(
                root, cwd, ("conftest.py", "tests/conftest.py", "test/conftest.py"), "pytest runs it first"
            )
        case _:
            return


def _between(root: Path, cwd: Path) -> list[Path]:
    """The folders from here up to the workspace."""
    folders = [cwd, *cwd.parents]
    return folders[: folders.index(root) + 1] if root in folders else [cwd]


def _present(root: Path, cwd: Path, names: tuple[str, ...], why: str) -> Iterator[Item]:
    for folder in _between(root, cwd):
        for name in names:
            if (path := folder / name).is_file():
                yield Item(path, why)


def _node(root: Path, cwd: Path) -> Iterator[Item]:
    for item in _present(root, cwd, (".npmrc",), "it configures npm"):
        keys = {line.partition("=")[0].strip() for line in _lines(item.path)}
        if any(key and key[0] not in "#;" and key not in _NPM_KEYS for key in keys):
            yield item
    names = (".yarnrc.yml", ".yarnrc", ".pnpmfile.cjs", "bunfig.toml")
    yield from _present(root, cwd, names, "it configures the package manager")


def _git(root: Path, cwd: Path, *, reads_only: bool) -> Iterator[Item]:
    folder = git_folder(cwd)
    if folder is None:
        return
    for path in _configurations(folder):
        if key := foreign_key(path, reads_only=reads_only):
            yield Item(path, f"it sets {key}, by which git can run something")
    yield from _nested(folder, cwd)
    yield from _hooks(_common(folder) / "hooks", reads_only=reads_only)
    for path in _configurations(folder):
        for found in filter(None, map(_HOOKS_PATH.match, _lines(path))):
            if set(found["path"]) & set('"\\'):
                yield Item(path, "it says in an unusual way where its hooks are")
            hooks = os.path.expanduser(found["path"].strip())  # noqa: PTH111
            yield from _hooks(_worktree(cwd) / hooks, reads_only=reads_only)


def _hooks(folder: Path, *, reads_only: bool) -> Iterator[Item]:
    """Even `git diff` writes the index anew, and tells a hook, where it finds that nothing has changed but a time."""
    for name in sorted(os.listdir(folder)) if folder.is_dir() and os.access(folder, os.R_OK) else ():  # noqa: PTH208
        meant = name == "post-index-change" if reads_only else not name.endswith(".sample")
        if meant and (folder / name).is_file():
            yield Item(folder / name, "git runs it")


def _worktree(cwd: Path) -> Path:
    return next((place for place in (cwd, *cwd.parents) if (place / ".git").exists()), cwd)


def _nested(folder: Path, cwd: Path) -> Iterator[Item]:
    """Repositories that the index names as parts of this one: git runs itself in them, under their configuration."""
    home = _worktree(cwd)
    for name in _gitlinks(folder / "index"):
        if name is None:
            yield Item(folder / "index", "it names repositories inside this one in a way that is not understood")
            return
        inner = git_folder(home / name)
        if inner is None or inner == folder:
            continue
        for path in _configurations(inner):
            if key := foreign_key(path, reads_only=True):
                yield Item(path, f"it sets {key} for a repository inside this one")


def _gitlinks(index: Path) -> Iterator[str | None]:
    """Names of nested repositories in an index; None: it is of a kind that cannot be read here."""
    try:
        with index.open("rb") as file:
            content = file.read(_LARGEST_INDEX)
    except OSError:
        return
    if _GITLINK not in content:
        return
    version, count, at = int.from_bytes(content[4:8]), int.from_bytes(content[8:12]), 12
    for _ in range(count):
        mode, flags = content[at + 24 : at + 28], int.from_bytes(content[at + 60 : at + 62])
        start = at + (64 if flags & 0x4000 else 62)
        end = content.find(b"\0", start)
        if version not in {2, 3} or mode not in _MODES or end < 0:
            yield None
            return
        if mode == _GITLINK:
            yield content[start:end].decode("utf-8", "surrogateescape")
        at += (end - at + 8) // 8 * 8


def _configurations(folder: Path) -> Iterator[Path]:
    common = _common(folder)
    modules = common / "modules"
    for path in (common / "config", folder / "config", folder / "config.worktree"):
        if path.is_file():
            yield path
    if modules.is_dir():
        yield from sorted(modules.rglob("config"))[:50]


def _common(folder: Path) -> Path:
    """Where a linked worktree keeps what it shares with the others."""
    pointer = folder / "commondir"
    return (folder / "".join(_lines(pointer)[:1]).strip()).resolve() if pointer.is_file() else folder


def git_folder(cwd: Path) -> Path | None:
    """The repository that git would use here, found as git finds it; a bare one in the way counts."""
    for folder in (cwd, *cwd.parents):
        marker = folder / ".git"
        if marker.is_dir():
            return marker
        if marker.is_file():
            return linked_git_folder(folder) or marker
        if all((folder / name).exists() for name in ("HEAD", "objects", "refs")):
            return folder
    return None


def is_harmless_key(name: str) -> bool:
    """Whether a setting of git, with or without the name in its middle, cannot make git run anything."""
    section, _, rest = name.lower().partition(".")
    return section in _HARMLESS_SECTIONS or f"{section}.{rest.rpartition('.')[2]}" in _HARMLESS_KEYS


def foreign_key(path: Path, *, reads_only: bool) -> str | None:
    """The first key of a git configuration that is not known to be harmless."""
    section = ""
    for raw in _lines(path):
        line = raw
        if found := _SECTION.match(raw):
            section, line = found["name"].lower(), found["rest"]
        if not line.strip() or line.lstrip()[0] in "#;":
            continue
        key = _KEY.match(line)
        name = f"{section}.{key['key'].lower()}" if key else line.strip()
        if is_harmless_key(name):
            continue
        if not (reads_only and _IDLE_WHEN_READING.match(name)):
            return name
    return None


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST).decode("utf-8", "replace").splitlines()
    except OSError:
        return ["[unreadable]", "unreadable"]


def _hash(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.sha256(file.read(LARGEST)).hexdigest()
    except OSError:
        return "unreadable"
