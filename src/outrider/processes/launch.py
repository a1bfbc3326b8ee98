"""What is started: a program with its arguments, its environment, its folder and its limits."""

import marshal
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from outrider.errors import ProcessError


class ResourceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of a command may use at most; the kernel refuses or ends what asks for more. Sizes in bytes.

    `processes` counts all of the user's, also those of other programs."""

    memory: int | None = None
    cpu_seconds: int | None = None
    file_size: int | None = None
    open_files: int | None = None
    processes: int | None = None

    def by_name(self) -> list[tuple[str, int]]:
        names = {
            "RLIMIT_AS": self.memory,
            "RLIMIT_CPU": self.cpu_seconds,
            "RLIMIT_FSIZE": self.file_size,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_NPROC": self.processes,
        }
        return [(name, most) for name, most in names.items() if most is not None]


def nothing_to_say() -> str:
    return ""


class Launch(msgspec.Struct, frozen=True):
    """`afterwards` is asked when nothing of the command is alive: it tidies up, and says what must be known.
    `session_id` names who starts it, for whoever wraps it."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    workdir: Path
    limits: ResourceLimits = ResourceLimits()
    afterwards: Callable[[], str] = nothing_to_say
    session_id: str = ""

    def encode(self) -> bytes:
        """As the keeper reads it. What no system could start raises ProcessError."""
        try:
            request = {
                "argv": [_encoded(word) for word in self.argv],
                "environment": {_encoded(name): _encoded(value) for name, value in self.environment.items()},
                "workdir": _encoded(str(self.workdir)),
                "limits": self.limits.by_name(),
            }
        except UnicodeEncodeError as error:
            raise ProcessError(f"the command cannot be started: {error}") from error
        body = marshal.dumps(request)
        return len(body).to_bytes(4, "big") + body


Wrap = Callable[[Launch], Launch]
"""The last word before a start. A sandbox answers with a launch of its own program, which starts the given one."""


def unwrapped(launch: Launch) -> Launch:
    return launch


_BASH = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/opt/homebrew/bin/bash")
_NO_BASH = "there is no bash on this machine; commands are judged as bash reads them, so no other shell runs them"


def argv_of(command: str | Sequence[str]) -> tuple[str, ...]:
    """A text is for bash, which reads none of the user's start-up files; a sequence is a program as it stands."""
    if not isinstance(command, str):
        return tuple(command)
    return (find_bash(), "--noprofile", "--norc", "-c", command)


def find_bash(places: Sequence[str] = _BASH, search_path: str | None = None) -> str:
    """The system's own before any other: a folder that a workspace can write to may stand in the search path."""
    own = (place for place in places if os.access(place, os.X_OK))
    found = next(own, None) or _on_path("bash", search_path)
    if found is None or not Path(found).is_absolute():
        raise ProcessError(_NO_BASH)
    return found


def _on_path(program: str, search_path: str | None) -> str | None:
    from shutil import which  # brings every kind of archive along, and few machines need it here

    return which(program, path=search_path)


def _encoded(word: str) -> bytes:
    if "\0" in word:
        raise ProcessError("the command cannot be started: it contains a NUL character")
    return os.fsencode(word)


ALLOWED = frozenset({
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
ALLOWED_BEGINNINGS = ("LC_", "XDG_")

# Nobody sits at a terminal: no colours, no pagers, no questions.
FIXED = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",  # so that looking at a repository does not rewrite its index
    "DEBIAN_FRONTEND": "noninteractive",
    "PYTHONUNBUFFERED": "1",  # so that output is seen when it is written
}

_PASSWORD_IN_ADDRESS = re.compile(r"://[^/\s]*@")


# Lists of places that programs, their parts and their settings are looked for in; and single such places.
_LISTS = re.compile(r"PATH|(?:LD_LIBRARY|DYLD_LIBRARY|PYTHON|NODE|GEM|PKG_CONFIG|GO)_?PATH|XDG_\w+_DIRS")
_PLACES = re.compile(r"\w+_(?:HOME|DIR|ROOT|PREFIX)|VIRTUAL_ENV|NVM_BIN|GOROOT|GOBIN|GOMODCACHE|BUN_INSTALL|CONDA_EXE")


def child_environment(
    source: Mapping[str, str], extra: Mapping[str, str] | None = None, *, outside: Path | None = None
) -> dict[str, str]:
    """From an allow-list: a name that nobody thought of stays out, since it may be a key. `extra` is the user's own
    choice and is taken as it is.

    Programs and their settings are not looked for in the working directory, whatever the source says, nor in the
    folder that they are to come from `outside` of."""
    kept = {name: _placed(name, value, outside) for name, value in source.items() if _is_allowed(name, value)}
    return {name: value for name, value in kept.items() if value is not None} | FIXED | dict(extra or {})


def _placed(name: str, value: str, outside: Path | None) -> str | None:
    if _LISTS.fullmatch(name):
        return os.pathsep.join(place for place in value.split(os.pathsep) if _is_elsewhere(place, outside))
    return value if not _PLACES.fullmatch(name) or _is_elsewhere(value, outside) else None


def _is_elsewhere(place: str, outside: Path | None) -> bool:
    path = Path(place)
    return path.is_absolute() and not (outside and path.resolve().is_relative_to(outside))


def _is_allowed(name: str, value: str) -> bool:
    if name not in ALLOWED and not name.startswith(ALLOWED_BEGINNINGS):
        return False
    return not _PASSWORD_IN_ADDRESS.search(value)
