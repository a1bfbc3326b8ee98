"""Protected file names: configuration that agents, editors, shells or CI execute, and files that contain secrets.

A protected name applies at any depth of the workspace. Secret files need approval to read, both kinds to write.
"""

import os
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from time import monotonic
from typing import Literal

from outrider._lazy import lazy_pattern
from outrider.permissions.redaction.secret_patterns import split_names

Access = Literal["read", "write"]

GIT_FOLDER = ".git"
# What git writes in its folder when it records work. Everything else there can steer git.
GIT_DATA_FILES = split_names(
    """index HEAD ORIG_HEAD FETCH_HEAD MERGE_HEAD MERGE_MSG MERGE_MODE MERGE_RR MERGE_AUTOSTASH AUTO_MERGE
    CHERRY_PICK_HEAD REVERT_HEAD REBASE_HEAD SQUASH_MSG COMMIT_EDITMSG TAG_EDITMSG NOTES_EDITMSG packed-refs BISECT_LOG
    BISECT_START BISECT_TERMS BISECT_NAMES BISECT_EXPECTED_REV BISECT_ANCESTORS_OK BISECT_HEAD"""
)
GIT_DATA_FOLDERS = split_names("objects refs logs rebase-merge rebase-apply sequencer rr-cache")
GIT_DATA_NAMES = GIT_DATA_FILES | GIT_DATA_FOLDERS
# Everything below these folders is protected against writes.
_CONFIG_FOLDERS = split_names(
    """.git .hg .svn .jj .bzr .vscode .vscode-server .idea .fleet .zed .cursor .windsurf .kiro .roo .cline .continue
    .claude .codex .gemini .agent .agents .outrider .opencode .aider .amp .qwen .crush .goose .vs .nova .helix .trae
    .junie .kilocode .devcontainer .husky .githooks .lefthook .circleci .buildkite .gitea .forgejo .woodpecker
    .direnv .ssh .gnupg .aws .azure .kube .docker .gcloud .password-store"""
)
_CONFIG_PAIRS = frozenset(
    {(".github", "workflows"), (".github", "actions"), (".github", "hooks"), (".cargo", "config"),
     (".cargo", "config.toml"), (".cargo", "credentials"), (".cargo", "credentials.toml"), (".config", "git"),
     (".yarn", "releases"), (".yarn", "plugins"), (".bundle", "config"), (".github", "instructions"),
     (".github", "prompts"), (".github", "agents"), (".github", "skills"),
     (".config", "gcloud"), (".config", "fish"), (".config", "autostart"), (".config", "systemd")}
)  # fmt: skip
_CONFIG_FILES = split_names(
    """.mcp.json mcp.json agents.md claude.md gemini.md agent.md copilot-instructions.md .cursorrules claude.local.md
    agents.local.md agents.override.md .windsurfrules .clinerules .roorules .goosehints outrider.toml .outrider.toml
    opencode.json opencode.jsonc .envrc .env .gitattributes .gitmodules .gitconfig .git-credentials .npmrc .yarnrc
    .yarnrc.yml .pnpmfile.cjs .pypirc pip.conf .netrc _netrc .bashrc .bash_profile .bash_login .bash_logout
    .bash_aliases .profile .zshrc .zshenv .zprofile .zlogin .kshrc .cshrc .tcshrc .login .inputrc .vimrc .exrc
    .nvimrc .nvim.lua .lvimrc .emacs .dir-locals.el .tmux.conf .gdbinit .lldbinit .pythonrc sitecustomize.py
    usercustomize.py .pythonstartup .irbrc .perltidyrc .curlrc .wgetrc .screenrc .xinitrc .xprofile .gitlab-ci.yml
    .travis.yml .drone.yml .appveyor.yml appveyor.yml jenkinsfile azure-pipelines.yml bitbucket-pipelines.yml
    cloudbuild.yaml .pre-commit-config.yaml .pre-commit-hooks.yaml lefthook.yml .lefthook.yml dependabot.yml
    rust-toolchain rust-toolchain.toml .tool-versions .mise.toml mise.toml .justfile .aider.conf.yml .pgpass .my.cnf
    .htpasswd .vault-token .terraformrc .s3cfg .boto .dockercfg"""
)
_SECRET_FILES = split_names(
    """.env .envrc .netrc _netrc .pypirc .npmrc .git-credentials .pgpass .my.cnf .htpasswd .vault-token .s3cfg
    .boto .dockercfg id_rsa id_dsa id_ecdsa id_ed25519 id_ecdsa_sk id_ed25519_sk identity credentials.json
    client_secret.json service-account.json service_account.json secrets.yml secrets.yaml secrets.json
    secrets.toml master.key"""
)
_SECRET_FOLDERS = frozenset({".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".gcloud", ".password-store"})
_SECRET_PAIRS = frozenset({(".config", "gcloud"), (".cargo", "credentials"), (".cargo", "credentials.toml")})
_SECRET_SUFFIXES = (".pem", ".key", ".p12", ".pfx", ".jks", ".keystore", ".kdbx", ".ppk", ".ovpn", ".p8")
_CONFIG_SUFFIXES = (".code-workspace", ".sublime-project")
# Copies and variants such as `.env.local` or `id_rsa.old` contain the same secrets.
_SECRET_VARIANTS = lazy_pattern(r"^(?:.+\.env|(?:\.env|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?)(?:[._~-].*)?)$")
_EXAMPLE = "(?:example|sample|template|dist|defaults?)"
_EXAMPLE_FILES = lazy_pattern(rf"^(?:\.env[._-]{_EXAMPLE}(?:\.[a-z]+)?|{_EXAMPLE}\.env)$")
# The 8.3 short names of Windows, which also replace names with a leading dot.
_DOS_SHORT_NAME = lazy_pattern(r"^(?P<stem>[^.~]{1,6})~[0-9]+(?:\.[^.]{0,3})?$")
_PUBLIC_SUFFIXES = (".pub", ".pub.pem")


_MAX_FOLDERS = 64
# Installed packages and repositories: large, and secrets of the user are not there.
_UNSEARCHED_FOLDERS = frozenset({".git", ".hg", ".svn", ".jj", "node_modules", "site-packages", "__pycache__"})


def find_protected_name(parts: Sequence[str], access: Access) -> str | None:
    """Returns the component that makes a path protected, or None; `parts` are its components below the workspace."""
    names = [fold_name(part) for part in parts]
    names.append("")
    for part, name, child in zip(parts, names, names[1:], strict=False):
        if _holds_secrets(name, child) or (access == "write" and _is_configuration(name, child)):
            return part
    return None


def pattern_matches_secret(pattern: str) -> bool:
    """Returns whether a file name pattern selects secret files specifically; a pattern for all files does not."""
    folded = fold_name(pattern)
    if fnmatchcase("readme.md", folded):
        return False
    examples = (*_SECRET_FILES, ".env.local", "prod.env", "id_rsa.old", "server.pem", "server.key")
    return find_protected_name([pattern], "read") is not None or any(fnmatchcase(name, folded) for name in examples)


def fold_name(name: str) -> str:
    """Folds a name as case-insensitive and normalizing file systems compare it; drops invisible characters."""
    if not name.isascii():
        visible = "".join(char for char in name if unicodedata.category(char) not in {"Cf", "Mn"})
        name = unicodedata.normalize("NFKC", visible)
    return name.casefold().partition("::$")[0].rstrip(" .") or name


def _holds_secrets(name: str, child: str) -> bool:
    """Returns whether a component contains secrets. It is called for each file of a workspace, so the patterns are
    matched only with names that can match them."""
    if name in _SECRET_FILES or name in _SECRET_FOLDERS or (name, child) in _SECRET_PAIRS:
        return True
    if "~" in name and _is_short_name(name, secret=True):
        return True
    is_variant = (".env" in name or name.startswith("id_")) and _SECRET_VARIANTS.match(name) is not None
    if not is_variant and not name.endswith(_SECRET_SUFFIXES):
        return False
    return _EXAMPLE_FILES.match(name) is None and not name.endswith(_PUBLIC_SUFFIXES)


def _is_configuration(name: str, child: str) -> bool:
    if name in _CONFIG_FOLDERS or name in _CONFIG_FILES or (name, child) in _CONFIG_PAIRS:
        return True
    return name.endswith(_CONFIG_SUFFIXES) or _is_short_name(name, secret=False)


def _is_short_name(name: str, *, secret: bool) -> bool:
    match = _DOS_SHORT_NAME.match(name)
    return match is not None and match["stem"] in (_SECRET_STEMS if secret else _CONFIG_STEMS)


def _short_name_stems(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lstrip(".").partition(".")[0][:6] for name in names)


_PAIR_FOLDERS = frozenset(first for first, _ in (*_CONFIG_PAIRS, *_SECRET_PAIRS))
_SECRET_STEMS = _short_name_stems((*_SECRET_FILES, *_SECRET_FOLDERS))
_CONFIG_STEMS = _short_name_stems((*_CONFIG_FILES, *_CONFIG_FOLDERS))


def replaces_protected_folder(parts: Sequence[str]) -> bool:
    """Returns whether a link at a path would provide protected files: `.cargo` as a link provides `.cargo/config`."""
    return fold_name(parts[-1]) in _PAIR_FOLDERS


def list_link_targets(root: str) -> tuple[str, ...]:
    """Returns the paths below the root to which its protected names are links, such as the target of AGENTS.md.

    A change of such a path changes what the protected name contains. Only names in the root and in the folders of
    protected names directly in it are looked at.
    """
    targets: list[str] = []
    real_root = os.path.realpath(root)
    for entry in _list_entries(root):
        name = fold_name(entry.name)
        if entry.is_symlink():
            links = [entry] if name in _PAIR_FOLDERS or find_protected_name([name], "write") else []
        elif (name in _PAIR_FOLDERS or name in _CONFIG_FOLDERS) and entry.is_dir():
            inner = (child for child in _list_entries(entry.path) if child.is_symlink())
            links = [child for child in inner if find_protected_name([name, child.name], "write")]
        else:
            continue
        targets += (os.path.realpath(link.path) for link in links)
    return tuple(path[len(real_root) + 1 :] for path in targets if path.startswith(f"{real_root.rstrip('/')}/"))


def find_secret_files(workspace: Path) -> tuple[Path, ...]:
    """Returns secret files, such as `.env`, in the workspace and the folders directly in it."""
    paths: list[Path] = []
    entries = _list_entries(str(workspace))
    folders = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)][:_MAX_FOLDERS]
    for entry in (*entries, *(inner for folder in folders for inner in _list_entries(folder))):
        if find_protected_name([entry.name], "read"):
            paths.append(Path(entry.path))
    return tuple(paths)


class SecretFileFinder:
    """Finds secret files at any depth of a workspace before each command, within a bounded time.

    The top of the workspace is read every time. The rest is walked breadth first in slices, and again when the result
    is old. Key and certificate files below the top are not reported: tests and programs need those that they contain.
    """

    MAX_FILES = 256
    MAX_AGE = 10.0
    FIRST_SECONDS = 0.05
    MORE_SECONDS = 0.005

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._budget = self.FIRST_SECONDS
        self._known: set[str] = set()  # by the last complete walk
        self._found: set[str] = set()  # by the current one
        self._waiting: deque[str] = deque([str(workspace)])
        self._completed = 0.0

    def find(self) -> tuple[Path, ...]:
        """Returns the secret files that are known now."""
        if not self._waiting and monotonic() - self._completed > self.MAX_AGE:
            self._waiting.append(str(self._workspace))
        if self._waiting:
            self._walk(monotonic() + self._budget)
            self._budget = self.MORE_SECONDS
        deep = sorted(self._known | self._found)[: self.MAX_FILES]
        return (*find_secret_files(self._workspace), *map(Path, deep))

    def _walk(self, deadline: float) -> None:
        while self._waiting and monotonic() < deadline:
            self._read_folder(self._waiting.popleft())
        if not self._waiting:
            self._known, self._found, self._completed = self._found, set(), monotonic()

    def _read_folder(self, folder: str) -> None:
        for entry in _list_entries(folder):
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _UNSEARCHED_FOLDERS:
                    self._waiting.append(entry.path)
            elif find_protected_name([entry.name], "read") and not entry.name.endswith(_SECRET_SUFFIXES):
                self._found.add(entry.path)


def find_protected_files(workspace: Path, limit: int = 100_000) -> tuple[Path, ...]:
    """Returns the existing paths that are protected against writes, at any depth, among the first `limit` entries of
    the workspace. The content of a protected folder is not listed, except the settings in `.git`, because commands may
    write the rest of it."""
    paths: list[Path] = []
    waiting = deque([str(workspace)])
    while waiting and limit > 0:
        entries = _list_entries(folder := waiting.popleft())
        limit -= len(entries)
        names = {entry.name for entry in entries}
        if {"HEAD", "objects", "refs"} <= names:  # a bare repository
            paths += (Path(folder, name) for name in ("HEAD", "config", "hooks") if name in names)
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            parts = entry.path[len(str(workspace)) :].strip("/").split("/")
            if is_folder and parts == [GIT_FOLDER]:
                paths += _list_git_settings(entry.path)
            elif find_protected_name(parts, "write") or (entry.is_symlink() and replaces_protected_folder(parts)):
                paths.append(Path(entry.path))
            elif is_folder and entry.name not in _UNSEARCHED_FOLDERS:
                waiting.append(entry.path)
    return tuple(paths)


def _list_git_settings(folder: str) -> Iterator[Path]:
    """Yields what can steer git in the git folder of a workspace; commands may write the rest."""
    for entry in _list_entries(folder):
        if entry.name not in GIT_DATA_NAMES and entry.name != "lfs":
            yield Path(entry.path)
    for name in ("objects/info/alternates", "objects/info/http-alternates", "refs/replace"):
        if os.path.lexists(f"{folder}/{name}"):
            yield Path(folder, name)


def _list_entries(folder: str) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def may_create_bare_repository(path: Path) -> bool:
    """Returns whether a write may turn a plain folder into a bare repository, whose hooks and config git would run."""
    if path.name == "HEAD":
        return True
    for folder, name in ((path.parent, path.name), (path.parent.parent, path.parent.name)):
        if name in {"config", "config.worktree", "hooks", "objects", "refs"}:
            return sum((folder / part).exists() for part in ("HEAD", "objects", "refs")) >= 2
    return False


def find_linked_git_folder(root: Path) -> Path | None:
    """Returns the git directory that a `.git` file of a linked worktree or submodule points to, or None."""
    marker = root / ".git"
    try:
        if not marker.is_file():
            return None
        with marker.open("rb") as file:
            first_line = file.read(4096).decode("utf-8", "surrogateescape").splitlines()[0]
    except (OSError, IndexError):
        return None
    return (root / first_line.removeprefix("gitdir:").strip()).resolve() if first_line.startswith("gitdir:") else None
