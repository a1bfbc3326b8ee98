"""Runs git so that the configuration of a repository cannot make it execute anything.

Outrider's own git commands are executed here only. Commands in the sandbox get the same variables, see `GIT_VARIABLES`.
"""

import os
import re
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from outrider._posix import O_CLOEXEC, O_NONBLOCK, is_within
from outrider.errors import ConfigurationError, ProcessError
from outrider.processes.launch import GIT_VARIABLES, LaunchRequest, child_environment
from outrider.processes.sandbox.sandbox import Sandbox, SandboxPolicy

GIT_TIMEOUT_SECONDS = 300.0
VIEW_TIMEOUT_SECONDS = 10.0
MAX_OUTPUT_BYTES = 1 << 20  # the rest of the output is dropped
_MAX_CONFIG_BYTES = 1 << 20

_OWN_VARIABLES = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_REPLACE_OBJECTS": "1", "LC_ALL": "C"}
_FILTER_KEY = re.compile(r"(filter\..+)\.(?:clean|smudge|process|required)", re.DOTALL)
# Settings with which the git-lfs filter of the user runs programs that the repository names.
_LFS_PROGRAM_KEY = re.compile(r"lfs\.(?:extension|customtransfer|standalonetransferagent|.+\.standalone).*", re.DOTALL)
# Sections of a configuration file that name programs, or other files that may do so.
_DRIVER_SECTION = re.compile(rb"\[\s*(?:filter|lfs|include)", re.IGNORECASE)
_REPOSITORY_SCOPES = ("local", "worktree")  # the scopes that the author of a repository controls


class GitRunner(msgspec.Struct, frozen=True):
    """Runs git commands of Outrider itself, with the user's own configuration and without that of the repository.

    Commands that read or write a work tree name what they change in `writable` and run in the sandbox, if there is one,
    because the filters of the user's own configuration, such as git-lfs, process contents of the repository, and
    because commands can change its configuration meanwhile. `hidden` files are not visible there. With `exact` the
    folder of a command must not be a link.
    """

    sandbox: Sandbox | None = None
    hidden: tuple[Path, ...] = ()
    exact: bool = False

    def run(self, folder: str | Path, *arguments: str, index: str = "", writable: Sequence[Path] | None = None) -> str:
        """Returns the output, truncated to MAX_OUTPUT_BYTES. Raises ProcessError with git's error output."""
        options = [word for setting in self._driver_settings(folder) for word in ("-c", setting)]
        return self._execute(folder, [*options, *arguments], index, writable)

    def read_state(self, root: Path, folder: Path, *arguments: str, seconds: float) -> str:
        """Returns the output of a command that only reads the repository at `root`, executed in `folder`. It needs one
        process if the configuration of the repository cannot name drivers. Raises ProcessError, also after
        `seconds`."""
        git = root / ".git"
        if _has_plain_configuration(git):
            options = [f"--git-dir={git}", f"--work-tree={root}"]
        else:
            options = [word for setting in self._driver_settings(folder, seconds) for word in ("-c", setting)]
        return self._execute(folder, [*options, *arguments], seconds=seconds)

    def is_work_tree(self, folder: str | Path) -> bool:
        """Returns whether the folder is inside a git work tree."""
        try:
            return self._execute(folder, ["rev-parse", "--is-inside-work-tree"]).strip() == "true"
        except ProcessError:
            return False

    def _driver_settings(self, folder: str | Path, seconds: float = GIT_TIMEOUT_SECONDS) -> Iterator[str]:
        """Yields settings that disable the filters of the repository's own configuration.

        The user's filters stay, except git-lfs if the repository extends it. Raises ProcessError if the repository
        names a work tree outside this folder, because file names would then refer to another folder.
        """
        arguments = ["config", "--list", "-z", "--show-scope", "--name-only"]
        listed = self._execute(folder, arguments, seconds=seconds).split("\0")
        for scope, key in zip(listed[::2], listed[1::2], strict=False):
            if scope not in _REPOSITORY_SCOPES:
                continue
            if key == "core.worktree":
                root = self._execute(folder, ["rev-parse", "--show-toplevel"], seconds=seconds).rstrip("\n")
                if not is_within(os.path.realpath(folder), os.path.realpath(root)):
                    raise ProcessError(f"the repository of {folder} has its work tree in another folder: {root}")
            names = (match[1],) if (match := _FILTER_KEY.fullmatch(key)) else ()
            for name in ("filter.lfs",) if _LFS_PROGRAM_KEY.fullmatch(key) else names:
                yield from (f"{name}.clean=", f"{name}.smudge=", f"{name}.process=", f"{name}.required=false")

    def _execute(
        self,
        folder: str | Path,
        arguments: list[str],
        index: str = "",
        writable: Sequence[Path] | None = None,
        seconds: float = GIT_TIMEOUT_SECONDS,
    ) -> str:
        environment = child_environment(os.environ) | GIT_VARIABLES | _OWN_VARIABLES
        if index:
            environment["GIT_INDEX_FILE"] = index
        launch = LaunchRequest(("git", "-C", str(folder), *arguments), environment, Path("/"))
        if writable is not None and self.sandbox is not None and self.sandbox.confines:
            # Folders below /tmp are visible in the sandbox only if they are named.
            folders = self._execute(
                folder, ["rev-parse", "--path-format=absolute", "--show-toplevel", "--git-common-dir"]
            )
            policy = SandboxPolicy(
                workspace=Path(folder),
                also_writable=(*writable, *([Path(index).parent] if index else ())),
                read_only=tuple(path for path in map(Path, folders.splitlines()) if path not in writable),
                hidden=self.hidden,
                exact=self.exact,
            )
            launch = _confine(launch, self.sandbox, policy)
        return _run_launch(launch, seconds)

    def run_in_view(self, policy: SandboxPolicy, argv: Sequence[str]) -> str:
        """Returns the output of a program that runs git in the sandbox with this policy. Raises ProcessError, also if
        there is no sandbox."""
        if self.sandbox is None or not self.sandbox.confines:
            raise ProcessError("there is no sandbox to read the repository in")
        environment = child_environment(os.environ) | GIT_VARIABLES | _OWN_VARIABLES
        launch = _confine(LaunchRequest(tuple(argv), environment, policy.workspace), self.sandbox, policy)
        if launch.join is not None and launch.join.pinned is not None:  # the workspace must be the one of the policy
            from outrider.processes.sandbox.detect import join_argv  # lazy: for users of a server only

            launch = msgspec.structs.replace(launch, argv=join_argv(launch))
        return _run_launch(launch, VIEW_TIMEOUT_SECONDS)


def _has_plain_configuration(git: Path) -> bool:
    """Returns whether the configuration of the repository is one file without sections that could name a driver."""
    if git.is_symlink() or not git.is_dir() or (git / "commondir").exists() or (git / "config.worktree").exists():
        return False
    try:
        descriptor = os.open(git / "config", os.O_RDONLY | O_CLOEXEC | O_NONBLOCK)  # a pipe could block
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        content = file.read(_MAX_CONFIG_BYTES + 1)
    return len(content) <= _MAX_CONFIG_BYTES and _DRIVER_SECTION.search(content) is None


def _run_launch(launch: LaunchRequest, timeout: float) -> str:
    import tempfile  # lazy: most commands do nothing in a repository

    with tempfile.TemporaryFile() as output:
        try:
            completed = subprocess.run(
                launch.argv,
                env=dict(launch.environment),
                cwd=launch.workdir,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                timeout=timeout,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise ProcessError(f"cannot run git: {problem}") from problem
        if completed.returncode:
            error_output = completed.stderr.decode("utf-8", "replace").strip()
            raise ProcessError(error_output[-2000:] or f"git ended with {completed.returncode}")
        output.seek(0)
        return output.read(MAX_OUTPUT_BYTES).decode("utf-8", "replace")


def _confine(launch: LaunchRequest, sandbox: Sandbox, policy: SandboxPolicy) -> LaunchRequest:
    try:
        return sandbox.wrap(launch, policy)
    except ConfigurationError as error:
        raise ProcessError(f"cannot run git in the sandbox: {error.message}") from error
