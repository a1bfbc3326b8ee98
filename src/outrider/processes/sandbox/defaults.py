"""The default sandbox policy: paths of secrets to hide, and protected workspace files that a command planted."""

import errno
import os
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from outrider.processes.sandbox.sandbox import Network, SandboxLimits, SandboxPolicy

# In the home folder: keys, tokens, cookies, mail, and the credentials of other agents.
_HOME_SECRETS = """
.ssh .gnupg .pki .aws .azure .gcloud .config/gcloud .oci .aliyun .bluemix .config/doctl .config/hcloud .config/scw
.kube .docker .config/containers .local/share/containers/auth.json .local/share/containers/podman .orbstack .finch
.colima .lima .rd .minikube .terraform.d
.terraformrc .vault-token .config/op .1password .password-store .local/share/keyrings .local/share/kwalletd
.config/keybase .netrc .git-credentials .config/git/credentials .config/gh .config/glab-cli .config/hub .npmrc .yarnrc
.yarnrc.yml .pypirc .config/pypoetry/auth.toml .local/share/uv/credentials .cargo/credentials .cargo/credentials.toml
.gem/credentials .composer/auth.json .m2/settings.xml .gradle/gradle.properties .nuget/NuGet/NuGet.Config .pgpass
.my.cnf .mylogin.cnf .config/rclone .s3cfg .boto .databrickscfg .snowsql .config/snowflake .huggingface
.cache/huggingface/token .kaggle .config/wandb .openai .anthropic .claude .claude.json .config/claude .codex .gemini
.qwen .aider .config/github-copilot .cursor .windsurf .codeium .continue .config/opencode .local/share/opencode
.config/goose .config/crush .local/share/crush .config/amp .local/share/amp .kimi .vibe .config/Code .config/Cursor
.mozilla .config/google-chrome .config/chromium .config/BraveSoftware .config/microsoft-edge .thunderbird
.local/share/evolution .electrum .bitcoin .ethereum .bash_history .zsh_history .python_history .node_repl_history
.psql_history .mysql_history .local/share/fish/fish_history .Xauthority .ICEauthority .msmtprc .mbsyncrc .authinfo
.authinfo.gpg
"""

# Settings that commands need, unless they contain the password of a private registry.
_REGISTRY_SETTINGS = ".config/pip/pip.conf .pip/pip.conf .config/uv/uv.toml .condarc .bunfig.toml .gemrc .config/go/env"
_PASSWORD_IN_URL = re.compile(rb"://[^/\s@]+@")
_MAX_SETTINGS = 100_000

# Root can read these files even without capabilities.
_SYSTEM_SECRETS = """
/etc/shadow /etc/shadow- /etc/gshadow /etc/gshadow- /etc/sudoers /etc/sudoers.d /etc/ssl/private /etc/krb5.keytab
/etc/NetworkManager/system-connections /etc/wireguard /var/lib/docker /var/lib/containerd /var/lib/kubelet
/var/spool/cron /var/mail /var/spool/mail /sys/kernel/debug /sys/kernel/tracing /sys/kernel/security /sys/fs/bpf
"""


@cache
def list_secret_paths(home: Path) -> tuple[Path, ...]:
    """Returns the paths of secrets in the home folder and the system, which the default policy hides."""
    keys = tuple(Path("/etc/ssh").glob("ssh_host_*_key"))
    settings = (path for name in _REGISTRY_SETTINGS.split() if _contains_password(path := home / name))
    return (*(home / name for name in _HOME_SECRETS.split()), *map(Path, _SYSTEM_SECRETS.split()), *keys, *settings)


def _contains_password(path: Path) -> bool:
    """Returns whether a file contains a URL with a password or a token."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return _PASSWORD_IN_URL.search(file.read(_MAX_SETTINGS)) is not None
    except OSError:
        return False


# In the home folder: what package managers and compilers download or build, and can write again.
_CACHE_FOLDERS = (
    *(".cache", ".npm", ".cargo/registry", ".cargo/git"),
    *("go/pkg/mod", ".gradle/caches", ".m2/repository", ".nuget/packages"),
)
_CACHE_FOLDER_PARTS = {
    name[: len(name) if end < 0 else end] for name in _CACHE_FOLDERS for end in (name.find("/"), name.rfind("/"), -1)
}


def default_policy(
    workspace: Path,
    *,
    writable: bool,
    home: Path,
    own_files: Iterable[Path] = (),
    protected: Iterable[Path] = (),
    network: Network = "off",
    limits: SandboxLimits | None = None,
    temporary: Path | None = None,
) -> SandboxPolicy:
    """Builds the default policy; `own_files` (Outrider's data and configuration) are hidden, `protected` files of the
    workspace cannot be changed."""
    return SandboxPolicy(
        workspace=workspace,
        writable=writable,
        read_only=tuple(protected),
        hidden=(*list_secret_paths(home), *own_files),
        caches=_list_cache_folders(home),
        temporary=temporary,
        network=network,
        limits=limits or SandboxLimits(),
    )


def _list_cache_folders(home: Path) -> tuple[Path, ...]:
    """Returns the cache folders, without those that are reached through a link."""
    root = str(home)
    if os.path.realpath(root) != root:
        return ()
    links = [name for name in _CACHE_FOLDER_PARTS if os.path.islink(f"{root}/{name}")]  # noqa: PTH114
    return tuple(home / name for name in _CACHE_FOLDERS if not any(f"{name}/".startswith(f"{link}/") for link in links))


class ProtectedState:
    """The protected files of a workspace before a command, to find out which ones it planted or replaced.

    `find` returns those that exist. A mount protects the target of a link and not the link itself, and cannot protect a
    file that does not exist.
    """

    def __init__(self, find: Callable[[], Iterable[Path]]) -> None:
        self._find = find
        self._before = {path: _read_link(path) for path in find()}

    def quarantine_planted(
        self, quarantine: Path, is_allowed: Callable[[Path], bool] = lambda _: False
    ) -> tuple[Path, ...]:
        """Moves files that the command has planted to the quarantine folder, puts replaced links back, and returns the
        paths. Files that another call was allowed to write stay."""
        links = {path: target for path, target in self._before.items() if target is not None}
        planted = [path for path in self._find() if path not in self._before]
        planted += (path for path, target in links.items() if path not in planted and _read_link(path) != target)
        planted = [path for path in planted if not is_allowed(path)]
        for path in planted:
            quarantine.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(path):
                _move_to_quarantine(path, quarantine)
            if path in links and path.parent.is_dir():
                path.symlink_to(links[path])
        return tuple(planted)


def _read_link(path: Path) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return None


def _move_to_quarantine(path: Path, quarantine: Path) -> None:
    try:
        path.rename(_free_name(quarantine, path.name))
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # On another file system it would have to be copied. Renamed in place, no program reads it either.
        path.rename(_free_name(path.parent, f"{path.name}.planted"))


def describe_planted(planted: Iterable[Path], quarantine: Path) -> str:
    """Returns the note about quarantined files for the caller of the command."""
    names = ", ".join(str(path) for path in planted)
    return f"the sandbox does not allow these files; moved away to {quarantine}: {names}" if names else ""


def _free_name(folder: Path, name: str) -> Path:
    """Returns a path in the folder that does not exist yet; adds a number to the name if necessary."""
    number = 0
    while os.path.lexists(candidate := folder / (f"{name}.{number}" if number else name)):
        number += 1
    return candidate
