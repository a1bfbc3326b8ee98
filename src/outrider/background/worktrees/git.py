"""git, without anything that a repository would have it run: hooks, filters, monitors, other transports."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

from outrider.errors import ProcessError

SECONDS = 300.0
LONGEST = 1 << 20  # bytes of output that are kept
_PLAIN = (
    *("core.hooksPath=/dev/null", "core.fsmonitor=false", "commit.gpgSign=false", "submodule.recurse=false"),
    *("gc.auto=0", "maintenance.auto=false"),  # which would outlive the command
)
_FILTER = re.compile(r"(filter\..+)\.(clean|smudge|process|required)")
_OBEYED = ("local", "worktree")  # scopes that the repository itself decides


def git(folder: str | Path, *words: str, index: str = "") -> str:
    """What git prints, cut after `LONGEST` bytes; raises ProcessError with its own words."""
    return _run(folder, [*_settings(folder), *words], index)


def has_git(folder: str | Path) -> bool:
    """Whether a folder lies in a working tree that git can tell of."""
    try:
        return _run(folder, ["rev-parse", "--is-inside-work-tree"]).strip() == "true"
    except ProcessError:
        return False


def _settings(folder: str | Path) -> list[str]:
    """Filters of the user's own settings stay; those of the repository would run what its author wrote."""
    words = [word for setting in _PLAIN for word in ("-c", setting)]
    listed = _run(folder, ["config", "--list", "-z", "--show-scope", "--name-only"]).split("\0")
    for scope, key in zip(listed[::2], listed[1::2], strict=False):
        if scope in _OBEYED and (found := _FILTER.fullmatch(key)):
            words += ["-c", f"{key}={'false' if found[2] == 'required' else ''}"]
    return words


def _run(folder: str | Path, words: list[str], index: str = "") -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    if index:
        environment["GIT_INDEX_FILE"] = index
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                timeout=SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise ProcessError(f"git does not work here: {problem}") from problem
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip()
            raise ProcessError(said[-2000:] or f"git ended with {done.returncode}")
        output.seek(0)
        return output.read(LONGEST).decode("utf-8", "replace")
