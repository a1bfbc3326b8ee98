"""Runs every attempt as the present user, without a sandbox where that proves something, then inside each; prints JSON.

python run_attempts.py FOLDER WAY...      where a way is control, bubblewrap or landlock
"""

import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

from outrider.permissions.paths.protected import find_protected_files
from outrider.processes.launch import LaunchRequest
from outrider.processes.sandbox import detect
from outrider.processes.sandbox.bubblewrap import INIT_SCRIPT, BubblewrapSandbox
from outrider.processes.sandbox.detect import LandlockSandbox
from outrider.processes.sandbox.sandbox import ProtectedState, Sandbox, SandboxLimits, default_policy
from tests.e2e.escapes import ATTEMPTS
from tests.e2e.escapes.attempt import Attempt, program_of
from tests.e2e.escapes.target_files import Arena, Listeners, plain_python

AT_ONCE = 8
_numbers = count()


def main(folder: Path, ways: list[str]) -> None:
    user = "root" if os.geteuid() == 0 else "ordinary"
    bubblewrap = detect.find_sandbox(folder)
    without = set(os.environ.get("ESCAPES_WITHOUT", "").splitlines())
    found: dict[str, dict[str, dict[str, object]]] = {way: {} for way in ways}
    listeners = Listeners(folder)
    scratch = folder / "scratch"
    scratch.mkdir()
    try:
        # One way after the other: what a control run uses up must not be counted against a confined one.
        for way in ways:
            chosen = [attempt for attempt in ATTEMPTS if takes_part(attempt, way, user) and attempt.name not in without]
            sandbox = {"control": None, "landlock": LandlockSandbox(scratch)}.get(way, bubblewrap)
            trial = partial(try_attempt, sandbox=sandbox, folder=folder, listeners=listeners)
            with ThreadPoolExecutor(AT_ONCE) as pool:
                results = pool.map(trial, chosen)
                found[way] = dict(zip([attempt.name for attempt in chosen], results, strict=True))
    finally:
        listeners.close()
    sys.stdout.write(json.dumps({"user": user, "sandbox": repr(bubblewrap), "found": found}))


def takes_part(attempt: Attempt, way: str, user: str) -> bool:
    if user not in attempt.users:
        return False
    if way == "control":
        return user in attempt.control
    return attempt.landlock or way != "landlock"


def try_attempt(attempt: Attempt, sandbox: Sandbox | None, folder: Path, listeners: Listeners) -> dict[str, object]:
    mark = f"m{os.getpid()}x{next(_numbers)}x"
    arena = Arena(folder / mark, mark, listeners, writable=attempt.writable)
    try:
        # A user may have few keys.
        with a_key(mark, arena.token) if "KEYCTL" in attempt.script else contextlib.nullcontext():
            output = run(attempt, sandbox, arena, listeners)
        if sandbox is not None:
            arena.let_end()
        effects = arena.effects(output)
        # On a busy machine an effect takes its time to show, and a process that forks all the time can be missed.
        for _ in range(10 if sandbox is None and not effects else 0):
            if effects := arena.effects(output, patience=0.5):
                break
        return {"effects": effects, "output": output[-600:]}
    finally:
        arena.close()


def run(attempt: Attempt, sandbox: Sandbox | None, arena: Arena, listeners: Listeners) -> str:
    program = sandbox.program if isinstance(sandbox, BubblewrapSandbox) else next(detect.find_bubblewrap(), "")
    environment = arena.environment() | {"INIT_SCRIPT": INIT_SCRIPT, "BWRAP": program}
    command = (plain_python(), "-I", "-S", "-c", program_of(attempt))
    launch = LaunchRequest(command, environment, arena.workspace)
    before: ProtectedState | None = None
    if sandbox:
        policy = default_policy(
            arena.workspace,
            writable=attempt.writable,
            home=arena.home,
            own_files=[arena.own_data.parent],
            protected=find_protected_files(arena.workspace),
            limits=SandboxLimits(**attempt.bounds),  # pyright: ignore[reportArgumentType]
        )
        before = ProtectedState(lambda: find_protected_files(arena.workspace)) if attempt.writable else None
        launch = sandbox.wrap(launch, policy)
    try:
        return start(launch, attempt, arena, listeners)
    finally:
        if before is not None:
            before.quarantine_planted(arena.folder / "planted")


def start(launch: LaunchRequest, attempt: Attempt, arena: Arena, listeners: Listeners) -> str:
    """With two descriptors left open: one to a secret, one to a listener."""
    secret = os.open(arena.secret, os.O_RDONLY)
    with socket.create_connection(("127.0.0.1", listeners.tcp)) as line:
        process = subprocess.Popen(
            detect.join_argv(launch) if launch.join else launch.argv,
            env=dict(launch.environment),
            cwd=launch.workdir,
            pass_fds=(secret, line.fileno()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=attempt.kill_after or attempt.seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=5)
            output = b""
        finally:
            os.close(secret)
    return f"{output.decode(errors='replace')}\nexit code {process.returncode}"


@contextlib.contextmanager
def a_key(mark: str, token: str) -> Iterator[None]:
    """In the user's key ring, readable for all processes of the user."""
    call, user_ring = ctypes.CDLL(None).syscall, ctypes.c_long(-4)
    add, control = (248, 250) if os.uname().machine == "x86_64" else (217, 219)
    value = token.encode()
    key = call(add, b"user", f"outrider-test-{mark}".encode(), value, ctypes.c_size_t(len(value)), user_ring)
    call(control, 5, ctypes.c_long(key), ctypes.c_long(0x3F3F0000))
    try:
        yield
    finally:
        call(control, 9, ctypes.c_long(key), user_ring)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
