"""Without the modules and names that Windows lacks, every public name imports, and runs without a workspace work."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = '''
import asyncio, importlib, os, signal, socket, sys
import argparse, json, logging, multiprocessing, random, selectors, shutil, sqlite3, ssl, subprocess, tempfile

MODULES = "fcntl termios tty pty pwd grp resource syslog readline curses spwd crypt".split()
OS_NAMES = """fork forkpty register_at_fork getuid geteuid getgid getegid getgroups setsid getsid setpgid getpgid
getpgrp killpg setuid setgid chown lchown fchown fchmod mkfifo mknod pipe2 O_NOFOLLOW O_DIRECTORY O_CLOEXEC O_NONBLOCK
O_NOCTTY O_PATH O_SYNC openpty ttyname uname sysconf getloadavg sched_getaffinity wait3 wait4 waitid WNOHANG WIFEXITED
WEXITSTATUS WIFSIGNALED WTERMSIG posix_spawn statvfs fstatvfs sync fdatasync pread pwrite sendfile memfd_create eventfd
pidfd_open getxattr setxattr nice getpriority setpriority chroot lockf copy_file_range tcgetpgrp tcsetpgrp""".split()
SIGNALS = "SIGKILL SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGWINCH SIGPIPE".split()

class WithoutPosix:
    def find_spec(self, name, path=None, target=None):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in MODULES:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, WithoutPosix())
unix = socket.AF_UNIX
for owner, names in ((os, OS_NAMES), (signal, SIGNALS), (socket, ["AF_UNIX", "SO_REUSEPORT", "SCM_RIGHTS"])):
    for name in names:
        if hasattr(owner, name):
            delattr(owner, name)

import outrider

failed = []
for name in ("outrider", "outrider.events", "outrider.stores", "outrider.types", "outrider.testing"):
    module = importlib.import_module(name)
    for public in module.__all__:
        try:
            getattr(module, public)
        except Exception as error:
            failed.append(f"{name}.{public}: {type(error).__name__}: {error}")
assert not failed, failed

socket.AF_UNIX = unix  # the event loop of this system needs it
script = [{"tool": "add", "input": {"a": 1, "b": 2}}, "It is 3."]
model = outrider.Provider("demo", kind="scripted", options={"script": script})
agent = outrider.Agent("helper", "You add.", model="demo", provider="demo")

def add(a: int, b: int) -> int:
    return a + b

assert outrider.run(agent, "1 + 2?", tools=[add], providers=[model]).output == "It is 3."

from outrider.stores import SqliteStore

async def use_store():
    async with SqliteStore(os.path.join(tempfile.mkdtemp(), "sessions.db")) as store:
        await store.list()

try:
    asyncio.run(use_store())
except outrider.OutriderError as error:
    assert "that linux does not have; use" in str(error), error
    print("clear error")
'''


def test_every_public_name_imports_without_posix(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OUTRIDER_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "clear error\n"), done.stderr[-2000:]
