"""Names of files that steer agents, editors and shells or hold secrets, wherever they lie in a workspace."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Literal

from outrider.permissions.redaction.secret_patterns import names

Access = Literal["read", "write"]

# Whole folders: nothing in them is written unasked.
_FOLDERS = names(
    """.git .hg .svn .jj .bzr .vscode .vscode-server .idea .fleet .zed .cursor .windsurf .kiro .roo .cline .continue
    .claude .codex .gemini .agent .agents .outrider .opencode .aider .amp .qwen .crush .goose .vs .nova .helix .trae
    .junie .kilocode .devcontainer .husky .githooks .lefthook .circleci .buildkite .gitea .forgejo .woodpecker
    .direnv .ssh .gnupg .aws .azure .kube .docker .gcloud .password-store"""
)
_FOLDER_PAIRS = frozenset(
    {(".github", "workflows"), (".github", "actions"), (".github", "hooks"), (".cargo", "config"),
     (".cargo", "config.toml"), (".cargo", "credentials"), (".cargo", "credentials.toml"), (".config", "git"),
     (".yarn", "releases"), (".yarn", "plugins"), (".bundle", "config"), (".github", "instructions"),
     (".github", "prompts"), (".github", "agents"), (".github", "skills"),
     (".config", "gcloud"), (".config", "fish"), (".config", "autostart"), (".config", "systemd")}
)  # fmt: skip
_FILES = names(
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
_SECRETS = names(
    """.env .envrc .netrc _netrc .pypirc .npmrc .git-credentials .pgpass .my.cnf .htpasswd .vault-token .s3cfg
    .boto .dockercfg id_rsa id_dsa id_ecdsa id_ed25519 id_ecdsa_sk id_ed25519_sk identity credentials.json
    client_secret.json service-account.json service_account.json secrets.yml secrets.yaml secrets.json
    secrets.toml master.key"""
)
_SECRET_FOLDERS = frozenset({".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".gcloud", ".password-store"})
_SECRET_PAIRS = frozenset({(".config", "gcloud"), (".cargo", "credentials"), (".cargo", "credentials.toml")})
_SECRET_ENDS = (".pem", ".key", ".p12", ".pfx", ".jks", ".keystore", ".kdbx", ".ppk", ".ovpn", ".p8")
_STEERING_ENDS = (".code-workspace", ".sublime-project")
# Copies and variants are as secret as the file itself.
_VARIANTS = re.compile(r"^(?:.+\.env|(?:\.env|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?)(?:[._~-].*)?)$")
_EXAMPLE = "(?:example|sample|template|dist|defaults?)"
_EXAMPLES = re.compile(rf"^(?:\.env[._-]{_EXAMPLE}(?:\.[a-z]+)?|{_EXAMPLE}\.env)$")
# How Windows shortens a long name, or one that begins with a dot.
_SHORTENED = re.compile(r"^(?P<stem>[^.~]{1,6})~[0-9]+(?:\.[^.]{0,3})?$")
_PUBLIC_ENDS = (".pub", ".pub.pem")


def protecting(parts: Sequence[str], access: Access) -> str | None:
    """The name that protects a path, given by its components below the workspace."""
    names = [folded(part) for part in parts]
    for part, pair in zip(parts, pairwise([*names, ""]), strict=True):
        if _holds_secrets(pair) or (access == "write" and _steers(pair)):
            return part
    return None


def matches_secret(pattern: str) -> bool:
    """Whether a pattern for file names picks out secrets, other than by taking every file."""
    wanted = folded(pattern)
    if fnmatchcase("readme.md", wanted):
        return False
    examples = (*_SECRETS, ".env.local", "prod.env", "id_rsa.old", "server.pem", "server.key")
    return protecting([pattern], "read") is not None or any(fnmatchcase(name, wanted) for name in examples)


def folded(name: str) -> str:
    """A name as careless file systems compare it: any case, any composition, invisible characters left out."""
    if not name.isascii():
        visible = "".join(char for char in name if unicodedata.category(char) not in {"Cf", "Mn"})
        name = unicodedata.normalize("NFKC", visible)
    return name.casefold().partition("::$")[0].rstrip(" .") or name


def _holds_secrets(pair: tuple[str, str]) -> bool:
    """A name, and the one below it."""
    name = pair[0]
    if name in _SECRETS or name in _SECRET_FOLDERS or pair in _SECRET_PAIRS or _shortens(name, secret=True):
        return True
    if _EXAMPLES.match(name) or name.endswith(_PUBLIC_ENDS):
        return False
    return _VARIANTS.match(name) is not None or name.endswith(_SECRET_ENDS)


def _steers(pair: tuple[str, str]) -> bool:
    name = pair[0]
    if name in _FOLDERS or name in _FILES or pair in _FOLDER_PAIRS:
        return True
    return name.endswith(_STEERING_ENDS) or _shortens(name, secret=False)


def _shortens(name: str, *, secret: bool) -> bool:
    found = _SHORTENED.match(name)
    return found is not None and found["stem"] in (_SECRET_STEMS if secret else _STEMS)


def _stems(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lstrip(".").partition(".")[0][:6] for name in names)


_SECRET_STEMS = _stems((*_SECRETS, *_SECRET_FOLDERS))
_STEMS = _stems((*_FILES, *_FOLDERS))


def plants_repository(path: Path) -> bool:
    """Whether writing here helps to turn a plain folder into a bare repository, whose configuration git obeys."""
    if path.name == "HEAD":
        return True
    for folder, name in ((path.parent, path.name), (path.parent.parent, path.parent.name)):
        if name in {"config", "config.worktree", "hooks", "objects", "refs"}:
            return sum((folder / part).exists() for part in ("HEAD", "objects", "refs")) >= 2
    return False


def linked_git_folder(root: Path) -> Path | None:
    """The folder that a `.git` file of the workspace points to."""
    marker = root / ".git"
    try:
        if not marker.is_file():
            return None
        with marker.open("rb") as file:
            first = file.read(4096).decode("utf-8", "surrogateescape").splitlines()[0]
    except (OSError, IndexError):
        return None
    return (root / first.removeprefix("gitdir:").strip()).resolve() if first.startswith("gitdir:") else None
