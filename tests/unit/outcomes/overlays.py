"""Runs commands over a real overlay, and compares folders entry by entry."""

import os
import stat
import subprocess
from pathlib import Path

from outrider.processes.launch import LaunchRequest
from outrider.processes.sandbox.overlay import OverlayChange, OverlayFolders, read_changes
from outrider.processes.sandbox.sandbox import Sandbox, SandboxPolicy


class OverlayRun:
    """A workspace, a command that ran over a copy-on-write view of it, and what it changed there."""

    def __init__(self, sandbox: Sandbox, root: Path) -> None:
        self._sandbox = sandbox
        self._root = root
        self.workspace = root / "workspace"
        self.workspace.mkdir()
        self.folders = OverlayFolders.create(root / "overlay")

    @property
    def upper(self) -> Path:
        return self.folders.upper

    def run(self, script: str) -> list[OverlayChange]:
        launch = LaunchRequest(("/bin/bash", "-euc", script), {"PATH": os.environ["PATH"]}, self.workspace)
        policy = SandboxPolicy(workspace=self.workspace, overlay=self.folders)
        wrapped = self._sandbox.wrap(launch, policy)
        done = subprocess.run(
            wrapped.argv,
            env=dict(wrapped.environment),
            cwd=wrapped.workdir,
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return read_changes(self.workspace, self.folders)


def run_plainly(script: str, folder: Path) -> None:
    subprocess.run(["/bin/bash", "-euc", script], cwd=folder, check=True, capture_output=True, timeout=30)


def tree_of(folder: Path) -> dict[str, tuple[object, ...]]:
    """Returns type, mode and content of every entry, without setuid bits and special files."""
    found: dict[str, tuple[object, ...]] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            status = path.lstat()
            mode, key = stat.S_IMODE(status.st_mode) & 0o1777, str(path.relative_to(folder))
            if path.is_symlink():
                found[key] = ("link", str(path.readlink()))
            elif stat.S_ISDIR(status.st_mode):
                found[key] = ("folder", mode)
            elif stat.S_ISREG(status.st_mode):
                found[key] = ("file", mode, path.read_bytes())
    return found
