"""The sandbox contract: a protocol that wraps a launch request so that the command is confined, and its policy.

The default policy hides paths of secrets and reports protected workspace files that a command planted.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from outrider._lazy import lazy_pattern
from outrider._posix import O_NOFOLLOW, check_place, is_within, parent_of
from outrider.processes.launch import LaunchRequest

if TYPE_CHECKING:
    from outrider.processes.sandbox.overlay import OverlayFolders

Access = Literal["writable", "read-only", "hidden"]
GIB = 1 << 30
_PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY)  # opens a path without rights to its content, on Linux


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Resource limits of a command and its descendants together, unless a comment says otherwise. Sizes in bytes."""

    memory: int = 8 * GIB
    processes: int = 1024  # including threads
    file_size: int = 8 * GIB  # per file
    disk: int = 16 * GIB  # growth of the workspace's file system while the command runs
    temporary: int = 2 * GIB  # per temporary folder
    open_files: int = 4096  # per process
    cpu_seconds: int = 3600  # per process
    seconds: float = 24 * 3600


class ProxyNetwork(msgspec.Struct, frozen=True):
    """Network access only through a filtering proxy, which listens on a Unix socket."""

    socket_path: Path


Network = Literal["off", "on"] | ProxyNetwork


class OverlayMount(msgspec.Struct, frozen=True, kw_only=True):
    """A folder outside the workspace with a copy-on-write view, or a read-only view with `layers` above it."""

    folder: Path
    overlay: "OverlayFolders | None" = None
    layers: tuple[Path, ...] = ()


class SandboxPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which paths a command can read and write, its network access and its limits.

    The entry for the deepest path applies; of two entries for the same path, the stricter one. All other paths are
    readable, except /tmp, /var/tmp and /run, which are new and empty for the command.

    - `workspace`: the folder of the session.
    - `writable`: True if commands write to the workspace itself.
    - `also_writable`: further paths that commands write to.
    - `read_only`: paths that commands cannot change.
    - `hidden`: paths that commands cannot see.
    - `temporary`: a folder that is mounted as /tmp and persists; without it, /tmp is new for every command.
    - `network`: whether commands can use the network.
    - `limits`: resource limits.
    - `overlay`: a copy-on-write view. The command sees a writable workspace, and what it writes there is stored in the
      upper folder of the overlay instead.
    - `layers`: folders that lie above a read-only workspace.
    - `outside`: further folders with such a view, such as the git folder of a worktree.
    - `caches`: folders of package managers, which can have such a view too.
    - `exact`: True if the workspace is the folder at exactly this path. A command is refused if another program has put
      a link there.
    """

    workspace: Path
    writable: bool = False
    also_writable: tuple[Path, ...] = ()
    read_only: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    temporary: Path | None = None
    network: Network = "off"
    limits: SandboxLimits = SandboxLimits()
    overlay: "OverlayFolders | None" = None
    layers: tuple[Path, ...] = ()
    outside: tuple[OverlayMount, ...] = ()
    caches: tuple[Path, ...] = ()
    exact: bool = False

    def path_access(self) -> Iterator[tuple[Path, Access]]:
        """Yields each path of the policy with its access."""
        groups: tuple[tuple[Access, tuple[Path, ...]], ...] = (
            ("writable" if self.writable or self.overlay else "read-only", (self.workspace,)),
            ("writable", self.also_writable),
            ("writable", tuple(mount.folder for mount in self.outside if mount.overlay)),
            ("read-only", tuple(mount.folder for mount in self.outside if not mount.overlay)),
            ("read-only", self.read_only),
            ("hidden", self.hidden),
        )
        for access, paths in groups:
            for path in paths:
                yield path, access


class Sandbox(Protocol):
    """Confines commands with the means of the operating system.

    `limitations` describes what this sandbox cannot prevent; `confines` is False if there is no sandbox.
    """

    @property
    def name(self) -> str: ...

    @property
    def confines(self) -> bool: ...

    @property
    def limitations(self) -> tuple[str, ...]: ...

    @property
    def overlays(self) -> bool:
        """Whether a policy may have an overlay."""
        ...

    @property
    def protects_files(self) -> bool:
        """Whether protected files, such as git hooks, stay unchanged in a writable workspace."""
        ...

    @property
    def filters_hosts(self) -> bool:
        """Whether a policy may have a network with single hosts (`ProxyNetwork`)."""
        ...

    @property
    def accepted(self) -> bool:
        """Whether the user has stated that no sandbox is needed."""
        ...

    def wrap(self, launch: LaunchRequest, policy: SandboxPolicy) -> LaunchRequest:
        """Returns a launch request that starts the command confined.

        Raises ConfigurationError for a policy that this sandbox cannot enforce.
        """
        ...


class NoSandbox(msgspec.Struct, frozen=True):
    """Runs commands unconfined. Modes without approval prompts must not run commands with it, unless the user has
    `accepted` that because the machine itself is the sandbox, for example a container."""

    reason: str
    remedy: str
    name: str = "none"
    confines: bool = False
    overlays: bool = False
    protects_files: bool = False
    filters_hosts: bool = False
    accepted: bool = False

    @property
    def limitations(self) -> tuple[str, ...]:
        return (f"nothing confines commands: {self.reason}. {self.remedy}",)

    def wrap(self, launch: LaunchRequest, policy: SandboxPolicy) -> LaunchRequest:
        return launch


_STRICTNESS: dict[Access, int] = {"writable": 0, "read-only": 1, "hidden": 2}

AccessZones = dict[str, Access]


def resolve_zones(policy: SandboxPolicy, runtime_paths: Iterable[str] = ()) -> AccessZones:
    """Resolves the existing paths of a policy to their access, parents first.

    `runtime_paths` are needed by the sandbox itself: they are never hidden and never writable.
    """
    zones: AccessZones = {}
    resolve = cache(real_path)
    hidden = [real for path in policy.hidden if (real := resolve(path))]
    workspace = resolve(policy.workspace) or ""
    for path, access in policy.path_access():
        real = resolve(path)
        if not real or (access == "read-only" and _exposes_hidden(real, workspace, hidden)):
            continue
        if _STRICTNESS[access] >= _STRICTNESS.get(zones.get(real, "writable"), 0):
            zones[real] = access
    for path in runtime_paths:
        zones[path] = "read-only"
    return dict(sorted(zones.items(), key=lambda zone: zone[0].count("/") if zone[0] != "/" else 0))


def _exposes_hidden(real: str, workspace: str, hidden: Iterable[str]) -> bool:
    """Returns whether a read-only entry is a link from the workspace into a hidden folder.

    Such an entry would make the hidden file readable, because the entry for the deeper path applies.
    """
    return not is_within(real, workspace) and any(is_within(real, secret) for secret in hidden)


def real_path(path: str | Path) -> str | None:
    """Resolves links; returns None if the path does not exist or the user cannot reach it."""
    if not os.access(path, os.F_OK):  # most paths of a policy do not exist
        return None
    try:
        return _ask_kernel_for_path(path) or os.path.realpath(path, strict=True)
    except OSError:
        return None


def _ask_kernel_for_path(path: str | Path) -> str | None:
    """Returns the resolved path, with three system calls; realpath makes one per folder. Returns None if /proc is
    missing or the file has just been deleted. Raises OSError if it cannot be opened."""
    descriptor = os.open(path, _PATH_ONLY | os.O_CLOEXEC)
    try:
        resolved = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return resolved if resolved.startswith("/") and not resolved.endswith(" (deleted)") else None


def find_identity(path: str) -> tuple[int, int] | None:
    """Returns the device and inode number of the file at a path without links, or None if there is no such file."""
    try:
        descriptor = os.open(path, _PATH_ONLY | O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        check_place(descriptor, path)
        status = os.fstat(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return status.st_dev, status.st_ino


def access_above(path: str, zones: AccessZones) -> Access | None:
    """Returns the access of the nearest zone above the path, or None."""
    parent = path
    while parent != "/":
        parent = parent_of(parent)
        if parent in zones:
            return zones[parent]
    return None


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
_PASSWORD_IN_URL = lazy_pattern(rb"://[^/\s@]+@")
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
