"""Defines launch requests (a program with its arguments, environment, folder and limits) and the status of their
end."""

import marshal
import os
import re
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal, assert_never

import msgspec

from outrider._posix import SIGKILL
from outrider.errors import ProcessError


class ResourceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Kernel limits for one process of a command. Sizes are in bytes.

    - `memory`: address space.
    - `cpu_seconds`: processor time.
    - `file_size`: size of a file that it writes.
    - `open_files`: number of open files.
    - `processes`: number of all processes of the user, including those of other programs.
    """

    memory: int | None = None
    cpu_seconds: int | None = None
    file_size: int | None = None
    open_files: int | None = None
    processes: int | None = None

    def by_name(self) -> list[tuple[str, int]]:
        """Returns the limits that are set, as a list of RLIMIT name and value."""
        names = {
            "RLIMIT_AS": self.memory,
            "RLIMIT_CPU": self.cpu_seconds,
            "RLIMIT_FSIZE": self.file_size,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_NPROC": self.processes,
        }
        return [(name, limit) for name, limit in names.items() if limit is not None]


def no_cleanup() -> str:
    """Does nothing and returns no note: the default cleanup."""
    return ""


PINNED_DESCRIPTOR = 4  # after the standard streams and the seccomp filter


class NamespaceJoin(msgspec.Struct, frozen=True):
    """A faster way to start the same command, without an interpreter inside the sandbox.

    - `holder`: the program that creates the namespaces.
    - `init`: the encoded request of the sandbox init; the command guard does there what the init would do.
    - `pinned`: a folder with its device and inode number, which the holder gets as PINNED_DESCRIPTOR.
    """

    holder: tuple[str, ...]
    init: bytes
    pinned: tuple[bytes, tuple[int, int]] | None = None


class LaunchRequest(msgspec.Struct, frozen=True):
    """A program to start.

    - `argv`: the program and its arguments.
    - `environment`: the complete environment.
    - `workdir`: the working folder.
    - `limits`: resource limits of the kernel.
    - `cleanup`: is called when no process of the command is alive; returns a note for the caller.
    - `session_id`: the session that starts the command, for launch wrappers.
    - `join`: a faster way to start the same command in existing namespaces, if there is one.
    - `foreground_only`: True if the command never moves to the background, because its caller needs its end.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    workdir: Path
    limits: ResourceLimits = ResourceLimits()
    cleanup: Callable[[], str] = no_cleanup
    session_id: str = ""
    join: NamespaceJoin | None = None
    foreground_only: bool = False

    @property
    def is_joined(self) -> bool:
        """Whether the guard starts the command with `join`. Resource limits would also restrict the holder."""
        return self.join is not None and not self.limits.by_name()

    def encode(self) -> bytes:
        """Encodes the request for the command guard. Raises ProcessError for text that no system accepts."""
        join = self.join if self.is_joined else None
        try:
            request = {
                "argv": [] if join else _encode_arguments(self.argv),
                "environment": dict(
                    zip(_encode_arguments(self.environment), _encode_arguments(self.environment.values()), strict=True)
                ),
                "workdir": os.fsencode(self.workdir),
                "limits": self.limits.by_name(),
                "join": join and {"holder": _encode_arguments(join.holder), "init": join.init, "pinned": join.pinned},
            }
        except UnicodeEncodeError as error:
            raise ProcessError(f"the command cannot be started: {error}") from error
        body = marshal.dumps(request)
        return len(body).to_bytes(4, "big") + body


LaunchWrapper = Callable[[LaunchRequest], LaunchRequest]
"""Replaces a launch request before the start; a sandbox returns one that starts its own program first."""


def keep_launch_unchanged(launch: LaunchRequest) -> LaunchRequest:
    """Returns the request unchanged: the default launch wrapper."""
    return launch


_BASH_PATHS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/opt/homebrew/bin/bash")
_NO_BASH = "bash is not installed; Outrider checks commands with a bash grammar, so it does not use another shell"


def build_argv(command: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the argv: a string is run by bash without start-up files, a sequence is used unchanged."""
    if not isinstance(command, str):
        return tuple(command)
    return (find_bash(), "--noprofile", "--norc", "-c", command)


def find_bash(candidates: Sequence[str] = _BASH_PATHS, search_path: str | None = None) -> str:
    """Returns the path of bash. Prefers system folders, because PATH may contain a folder of the workspace."""
    installed = (entry for entry in candidates if os.access(entry, os.X_OK))
    path = next(installed, None) or _on_path("bash", search_path)
    if path is None or not Path(path).is_absolute():
        raise ProcessError(_NO_BASH)
    return path


def _on_path(program: str, search_path: str | None) -> str | None:
    from shutil import which  # loaded late: imports the archive modules, and few machines need it

    return which(program, path=search_path)


def _encode_arguments(arguments: Collection[str]) -> list[bytes]:
    """Encodes all arguments at once, which is faster than one by one."""
    encoded = os.fsencode("\0".join(arguments)).split(b"\0") if arguments else []
    if len(encoded) != len(arguments):
        raise ProcessError("the command cannot be started: it contains a NUL character")
    return encoded


ALLOWED_VARIABLES = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP", "HOSTNAME",
    "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PKG_CONFIG_PATH", "MANPATH", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
    "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL", "PIP_CERT", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "NPM_CONFIG_REGISTRY",
    "npm_config_registry", "GOPROXY", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CONDA_EXE", "PYENV_ROOT",
    "PYENV_VERSION", "PYTHONPATH", "NVM_DIR", "NVM_BIN", "NODE_PATH", "VOLTA_HOME", "FNM_DIR", "BUN_INSTALL",
    "DENO_DIR", "PNPM_HOME", "GOPATH", "GOROOT", "GOBIN", "GOMODCACHE", "CARGO_HOME", "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN", "JAVA_HOME", "ANDROID_HOME", "GRADLE_USER_HOME", "M2_HOME", "GEM_HOME", "GEM_PATH",
    "RBENV_ROOT", "RUBY_VERSION", "DOTNET_ROOT", "HOMEBREW_PREFIX", "NIX_PATH", "NIX_PROFILES", "NIX_SSL_CERT_FILE",
    "ASDF_DIR", "ASDF_DATA_DIR", "SDKMAN_DIR", "WSL_DISTRO_NAME", "CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS",
    "MAKEFLAGS",
})  # fmt: skip
ALLOWED_PREFIXES = ("LC_", "XDG_")

# There is no terminal: disable colours, pagers and prompts.
FIXED_VARIABLES = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",  # `git status` must not rewrite the index
    "DEBIAN_FRONTEND": "noninteractive",
    "PYTHONUNBUFFERED": "1",  # output must arrive when it is written
}

# Repositories are hostile until proven otherwise. Settings in the environment have a higher priority than those of a
# repository, and git passes them on to submodules. These keys have a fixed name, and git executes their value, or
# executes more because of it. Drivers whose name the repository chooses (filters, textconv, merge drivers,
# aliases) cannot be overridden without reading the configuration.
GIT_OVERRIDES = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.pager": "cat",
    "core.editor": ":",  # git does not start this editor: the message stays as it is
    "sequence.editor": ":",
    "core.askPass": "",
    "core.sshCommand": "ssh",
    "core.alternateRefsCommand": "true",
    "credential.helper": "",  # an empty value clears the list
    "gpg.program": "gpg",
    "gpg.x509.program": "gpgsm",
    "gpg.ssh.program": "ssh-keygen",
    "gpg.ssh.defaultKeyCommand": "",
    "commit.gpgSign": "false",  # the sandbox hides the keys
    "tag.gpgSign": "false",
    "log.showSignature": "false",
    "merge.verifySignatures": "false",
    "interactive.diffFilter": "cat",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "push.recurseSubmodules": "no",
    "status.submoduleSummary": "false",
    "protocol.ext.allow": "never",
    "safe.bareRepository": "explicit",  # a folder of the work tree that looks like a repository is not used as one
    "init.templateDir": "",  # a new repository has no hooks
    "gc.auto": "0",  # these start processes that outlive the command and rewrite the whole repository
    "maintenance.auto": "false",
}
_GIT_SWITCHES = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",  # `git status` must not rewrite the index
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM": "1",  # a workspace below the top of its repository is its own mount
    "GIT_PAGER": "cat",  # comes before `pager.COMMAND` too
    "GIT_PROXY_COMMAND": "",
}
GIT_VARIABLES = {
    **_GIT_SWITCHES,
    "GIT_CONFIG_COUNT": str(len(GIT_OVERRIDES)),
    **{f"GIT_CONFIG_KEY_{number}": key for number, key in enumerate(GIT_OVERRIDES)},
    **{f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(GIT_OVERRIDES.values())},
}
"""Variables that neutralise the configuration of a repository, for every git command without a rule of the user."""

_PASSWORD_IN_URL = re.compile(r"://[^/\s]*@")


# Variables with a list of folders, and with a single folder, in which programs, libraries or settings are searched.
_PATH_LIST_VARIABLES = re.compile(r"PATH|(?:LD_LIBRARY|DYLD_LIBRARY|PYTHON|NODE|GEM|PKG_CONFIG|GO)_?PATH|XDG_\w+_DIRS")
_FOLDER_VARIABLES = re.compile(
    r"\w+_(?:HOME|DIR|ROOT|PREFIX)|VIRTUAL_ENV|NVM_BIN|GOROOT|GOBIN|GOMODCACHE|BUN_INSTALL|CONDA_EXE"
)


def child_environment(
    source: Mapping[str, str], extra: Mapping[str, str] | None = None, *, exclude: Path | None = None
) -> dict[str, str]:
    """Returns the environment for a command: an allow-list of `source`, since any other variable may contain a key.

    Removes relative paths and paths inside `exclude` (the workspace) from PATH and similar variables, so that programs
    and settings are not loaded from there. Adds `extra` unchanged.
    """
    filtered = {name: _filter_paths(name, value, exclude) for name, value in source.items() if _is_allowed(name, value)}
    return {name: value for name, value in filtered.items() if value is not None} | FIXED_VARIABLES | dict(extra or {})


def _filter_paths(name: str, value: str, exclude: Path | None) -> str | None:
    if _PATH_LIST_VARIABLES.fullmatch(name):
        return os.pathsep.join(entry for entry in value.split(os.pathsep) if _is_trusted_path(entry, exclude))
    return value if not _FOLDER_VARIABLES.fullmatch(name) or _is_trusted_path(value, exclude) else None


def _is_trusted_path(entry: str, exclude: Path | None) -> bool:
    path = Path(entry)
    return path.is_absolute() and not (exclude and path.resolve().is_relative_to(exclude))


def _is_allowed(name: str, value: str) -> bool:
    if name not in ALLOWED_VARIABLES and not name.startswith(ALLOWED_PREFIXES):
        return False
    return not _PASSWORD_IN_URL.search(value)


RequestedEnd = Literal["killed", "timeout"]
ExitCause = Literal["exited", "signaled", "memory", "killed", "timeout", "lost"]


class ExitStatus(msgspec.Struct, frozen=True):
    """How a command ended. `exit_code` is None if a signal ended it; `signal` is the name of that signal."""

    cause: ExitCause
    exit_code: int | None = None
    signal: str | None = None

    @property
    def succeeded(self) -> bool:
        return self.cause == "exited" and self.exit_code == 0

    @property
    def description(self) -> str:
        """Returns the status as text for the model and the user."""
        match self.cause:
            case "exited":
                return f"exit code {self.exit_code}{_shell_signal_note(self.exit_code or 0)}"
            case "signaled":
                return f"killed by {self.signal}"
            case "memory":
                return "killed (memory)"
            case "killed":
                return "killed"
            case "timeout":
                return "killed after its time limit"
            case "lost":
                return "lost: its guard process was killed, and the command with it"
            case _:
                assert_never(self.cause)


def exit_status_of(code: int, *, out_of_memory: bool, requested: RequestedEnd | None) -> ExitStatus:
    """Builds the exit status. `code` is negative for a signal; `requested` means that the engine ended the command."""
    killed = code in (-SIGKILL, 128 + SIGKILL)
    cause: ExitCause = "signaled" if code < 0 else "exited"
    if requested is not None:
        cause = requested
    elif killed and out_of_memory:
        cause = "memory"
    return ExitStatus(cause, code if code >= 0 else None, signal_name(-code) if code < 0 else None)


def signal_name(number: int) -> str:
    """Returns the name of a signal, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have numbers only
        return f"signal {number}"


def _shell_signal_note(code: int) -> str:
    """Returns the signal name for an exit code of 128 + n, which a shell uses if a signal ended its child."""
    name = signal_name(code - 128) if 128 < code < 192 else ""
    return f" ({name})" if name.startswith("SIG") else ""
