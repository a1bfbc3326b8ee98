"""The environment that commands get: what programs need to run, none of the engine's keys."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

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
