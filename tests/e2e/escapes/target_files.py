"""A temporary folder for one escape attempt: a workspace, files outside it, secrets, and another process."""

import contextlib
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

STEERED = (".git/config", ".git/hooks/pre-commit.sample", ".vscode/tasks.json", ".github/workflows/ci.yml", "AGENTS.md")
LEFT_ALONE = 0.06  # seconds after the end, in which remaining processes would have an effect


class Listeners:
    """Doors outside the sandbox that note who knocked."""

    def __init__(self, folder: Path) -> None:
        self.event_classes: set[str] = set()
        self.path = str(folder / "listener.sock")
        self.name = f"outrider-test-{os.getpid()}"
        self.tcp = self._listen(socket.AF_INET, ("127.0.0.1", 0))
        self.tcp6 = self._listen(socket.AF_INET6, ("::1", 0))
        self.udp = self._listen(socket.AF_INET, ("127.0.0.1", 0), socket.SOCK_DGRAM)
        self._listen(socket.AF_UNIX, self.path)
        self._listen(socket.AF_UNIX, "\0" + self.name)
        self._listen(socket.AF_UNIX, "\0" + self.name + "-dgram", socket.SOCK_DGRAM)
        self.temporary = self._optional(Path(tempfile.gettempdir()) / f"{self.name}.sock")
        self.run = self._optional(Path("/run") / f"{self.name}.sock")

    def _optional(self, path: Path) -> str:
        with contextlib.suppress(OSError):
            self._listen(socket.AF_UNIX, str(path))
        return str(path)

    def _listen(self, family: int, address: object, kind: int = socket.SOCK_STREAM) -> int:
        try:
            door = socket.socket(family, kind)
            door.bind(address)
        except OSError:
            if family == socket.AF_INET6:
                return 9
            raise
        serve = self._packets if kind == socket.SOCK_DGRAM else self._connections
        if kind == socket.SOCK_STREAM:
            door.listen(64)
        threading.Thread(target=serve, args=(door,), daemon=True).start()
        name = door.getsockname()
        return name[1] if isinstance(name, tuple) else 0

    def _connections(self, door: socket.socket) -> None:
        while True:
            connection, _ = door.accept()
            threading.Thread(target=self._receive, args=(connection,), daemon=True).start()

    def _receive(self, connection: socket.socket) -> None:
        connection.settimeout(3)
        with connection, contextlib.suppress(OSError):
            self.event_classes.add(connection.recv(200).decode(errors="replace"))

    def _packets(self, door: socket.socket) -> None:
        while True:
            self.event_classes.add(door.recv(200).decode(errors="replace"))

    def close(self) -> None:
        for path in (self.path, self.temporary, self.run):
            Path(path).unlink(missing_ok=True)


class Arena:
    def __init__(self, folder: Path, mark: str, listeners: Listeners, *, writable: bool) -> None:
        self.folder, self.mark, self._listeners, self._writable = folder, mark, listeners, writable
        self.workspace, self.outside, self.home = folder / "workspace", folder / "outside", folder / "home"
        self.secret, self.own_data = self.home / ".ssh" / "id_test", self.home / "outrider-data" / "sessions"
        self.token = f"token-{mark}-{os.urandom(8).hex()}"
        self._build()
        self.bystander = subprocess.Popen(
            ["/bin/sleep", "900"], cwd=self.outside, env={"TOKEN": self.token}, start_new_session=True
        )
        wait_for(lambda: "sleep" in comm(self.bystander.pid), 30)
        self._limits = Path(f"/proc/{self.bystander.pid}/limits").read_bytes()
        self._before = self._digests()

    def _build(self) -> None:
        for folder in (self.outside, self.secret.parent, self.own_data.parent, self.workspace / "folder"):
            folder.mkdir(parents=True)
        (self.outside / "file").write_text("untouched")
        self.secret.write_text(self.token)
        self.own_data.write_text(self.token)
        (self.home / ".bashrc").write_text("# untouched")
        for name in STEERED:
            (self.workspace / name).parent.mkdir(parents=True, exist_ok=True)
            (self.workspace / name).write_text("untouched")
        (self.workspace / "plain").write_text("untouched")
        (self.workspace / "to-outside").symlink_to(self.outside)
        (self.workspace / "to-secret").symlink_to(self.secret)

    def environment(self) -> dict[str, str]:
        listeners = self._listeners
        stat = Path(f"/proc/{self.bystander.pid}/stat").read_text().rpartition(")")[2].split()
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "WS": str(self.workspace),
            "OUT": str(self.outside),
            "HOME": str(self.home),
            "SECRET": str(self.secret),
            "DATA": str(self.own_data),
            "MARK": self.mark,
            "VICTIM": str(self.bystander.pid),
            "ENVIRONMENT_AT": stat[47],
            "TCP": str(listeners.tcp),
            "TCP6": str(listeners.tcp6),
            "UDP": str(listeners.udp),
            "SOCKET": listeners.path,
            "SOCKET_TMP": listeners.temporary,
            "SOCKET_RUN": listeners.run,
            "ABSTRACT": listeners.name,
            "SUID": os.environ.get("ESCAPES_SUID", ""),
        }

    def let_end(self) -> None:
        """Waits until the sandbox has ended its processes; a process that escaped runs longer."""
        wait_for(lambda: not remaining_processes(self.mark, self.bystander.pid), 10)

    def effects(self, output: str, patience: float = LEFT_ALONE) -> list[str]:
        """What the attempt achieved, seen from outside."""
        time.sleep(patience)
        found = [name for name, digest in self._digests().items() if digest != self._before[name]]
        if self.token in output:
            found.append("secret read")
        if "ESCAPED" in output:
            found.append("told by the script")
        if self.mark in self._listeners.event_classes:
            found.append("reached a listener")
        if self.bystander.poll() is not None or comm(self.bystander.pid, "stat").partition(") ")[2][:1] not in "SRD":
            found.append("bystander stopped or killed")
        elif Path(f"/proc/{self.bystander.pid}/limits").read_bytes() != self._limits:
            found.append("bystander's limits changed")
        if left := remaining_processes(self.mark, self.bystander.pid):
            found.append("left a process behind")
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, 9)
        return found

    def _digests(self) -> dict[str, str]:
        protected = hashlib.sha256()
        for name in STEERED:
            with contextlib.suppress(OSError):
                protected.update((self.workspace / name).read_bytes())
        for name in (".git/commondir", ".mcp.json", "CLAUDE.md"):
            protected.update(str(os.path.lexists(self.workspace / name)).encode())
        return {
            "outside changed": digest(self.outside),
            "home changed": digest(self.home),
            "steering file changed": protected.hexdigest(),
            "workspace changed": "" if self._writable else digest(self.workspace),
        }

    def close(self) -> None:
        self.bystander.kill()
        self.bystander.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def digest(root: Path) -> str:
    """Names, kinds, rights, times and contents."""
    total = hashlib.sha256()
    for path in sorted([root, *root.rglob("*")]):
        if not os.path.lexists(path):  # it may vanish while a race is run
            continue
        seen = path.lstat()
        total.update(f"{path} {seen.st_mode} {seen.st_uid} {seen.st_nlink} {seen.st_mtime_ns}".encode())
        total.update(str(os.listxattr(path, follow_symlinks=False)).encode())
        if path.is_file() and not path.is_symlink() and os.access(path, os.R_OK):
            total.update(path.read_bytes())
    return total.hexdigest()


def remaining_processes(mark: str, older: int) -> list[int]:
    """The processes with the mark that are newer than the process `older`. A new process has a higher number than all
    older ones, until the highest number is reached and the kernel starts again; then all processes are read."""
    wanted, found = f"MARK={mark}\0".encode(), list[int]()
    newest = int(Path("/proc/loadavg").read_text().split()[-1])
    for name in os.listdir("/proc"):  # noqa: PTH208  called often, and a machine may have a thousand processes
        if not name.isdecimal() or (older < newest and int(name) <= older):
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123
            if wanted in file.read():
                found.append(int(name))
    return [pid for pid in found if pid != os.getpid()]


def comm(pid: int, name: str = "comm") -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.002)


def plain_python() -> str:
    return os.path.realpath(sys.executable)
