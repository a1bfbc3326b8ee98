"""What commands do wrong, and what is done to them: session faults SF-070 to SF-077 and SF-013, with real processes."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest

from outrider.processes import platform
from outrider.processes.platform import ProcessInstance
from outrider.processes.supervisor import ProcessSupervisor
from tests.fault.processes import ROOT
from tests.fixtures.process_checks import is_alive, number_in, wait_until_dead

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps hold of processes that detach")

# Forks twice and starts its own session, as daemons do: its parent is gone, and it belongs to no group of ours.
DAEMON = """
import os, sys, time, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
for number in range(3): os.close(number)
with open(sys.argv[1], "w") as file: file.write(f"{os.getpid()}\\n")
time.sleep(60)
"""


def daemon(pid_file: Path) -> str:
    return f"{sys.executable} -S -c '{DAEMON}' {pid_file}"


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[ProcessSupervisor]:
    async with ProcessSupervisor(folder=tmp_path / "outputs") as supervisor:
        yield supervisor


async def until_written(supervisor: ProcessSupervisor, size: int) -> None:
    async with asyncio.timeout(30):
        await asyncio.sleep(0)
        while supervisor.status("c").output_size < size:
            await asyncio.sleep(0.01)


async def test_sf_070_a_child_that_ignores_being_asked_is_killed_and_its_output_preserved(
    supervisor: ProcessSupervisor,
):
    task = asyncio.create_task(supervisor.run_command("c", "trap '' TERM; echo so far; while :; do sleep 1; done"))
    await until_written(supervisor, 1)
    start = time.monotonic()
    await supervisor.kill_process("c", grace=0.5)
    done = await task
    assert time.monotonic() - start > 0.4  # it was asked first
    assert done.text == "so far\n"
    assert done.ending is not None
    assert (done.ending.cause, done.ending.signal) == ("killed", "SIGKILL")


async def test_sf_071_a_daemon_of_a_foreground_command_ends_with_the_call(
    supervisor: ProcessSupervisor, tmp_path: Path
):
    done = await supervisor.run_command("c", f"{daemon(tmp_path / 'pid')}; until [ -s {tmp_path}/pid ]; do :; done")
    assert done.exit_code == 0
    assert not is_alive(number_in(tmp_path / "pid"))


async def test_sf_071_a_daemon_of_a_background_process_lives_until_it_is_killed(
    supervisor: ProcessSupervisor, tmp_path: Path
):
    await supervisor.start_command("c", daemon(tmp_path / "pid"))
    pid = await asyncio.to_thread(number_in, tmp_path / "pid")
    done = await supervisor.wait("c", 30)
    assert done.exit_code == 0
    await asyncio.sleep(0.3)
    assert is_alive(pid)
    assert supervisor.status("c").alive
    assert await supervisor.kill_process("c", grace=0.2)
    assert not is_alive(pid)


async def test_sf_072_a_pipe_that_stays_open_does_not_keep_the_call(supervisor: ProcessSupervisor, tmp_path: Path):
    command = f"exec > >(trap '' PIPE; tee {tmp_path}/f; sleep 60); echo hello"
    done = await asyncio.wait_for(supervisor.run_command("c", command), 30)
    assert done.text == "hello\n"
    assert supervisor.get_running_ids() == []


async def test_sf_072_what_was_written_before_the_end_is_complete(supervisor: ProcessSupervisor):
    done = await supervisor.run_command("c", "sleep 60 & seq 1 20000")
    assert done.text == "".join(f"{number}\n" for number in range(1, 20001))


ENGINE = """
import asyncio, json, sys
from outrider.processes.supervisor import ProcessSupervisor

async def main():
    supervisor = ProcessSupervisor()
    for number, command in enumerate(json.loads(sys.argv[1])):
        await supervisor.start_command(f"c{number}", command)
    print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@contextlib.contextmanager
def engine(*commands: str) -> Generator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-c", ENGINE, json.dumps(commands)]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT, env=os.environ | {"PYTHONPATH": "src"})
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"ready\n"
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_sf_073_nothing_outlives_an_engine_that_is_killed(tmp_path: Path):
    commands = [
        f"echo $$ > {tmp_path}/0; sleep 60",
        f"trap '' TERM HUP; echo $$ > {tmp_path}/1; while :; do sleep 1; done",
        f"{daemon(tmp_path / '2')}; sleep 60",
        f"(setsid nohup bash -c 'trap : TERM; echo $$ > {tmp_path}/3; sleep 60; sleep 60' >/dev/null 2>&1 &)",
    ]
    with engine(*commands) as child:
        pids = [number_in(tmp_path / str(number)) for number in range(len(commands))]
        guards = [process.pid for process in platform.list_descendants(child.pid)]
        assert len(guards) > len(commands)
        child.kill()
        wait_until_dead(*pids, *guards)


def test_sf_073_a_copy_of_the_engine_that_holds_its_lines_does_not_keep_processes_alive(tmp_path: Path):
    """A fork of the engine, as multiprocessing makes, inherits the sockets, so that they do not end with it."""
    fork = "    import os, time\n    if not os.fork(): time.sleep(100); os._exit(0)\n"
    copy = ENGINE.replace("    print(", f"{fork}    print(")
    argv = [sys.executable, "-c", copy, json.dumps([f"echo $$ > {tmp_path}/0; sleep 60"])]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT, env=os.environ | {"PYTHONPATH": "src"})
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"ready\n"
        pid = number_in(tmp_path / "0")
        copies = [process.pid for process in platform.list_children(child.pid)]
        child.kill()
        child.wait()
        wait_until_dead(pid)
    for process in copies:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


async def test_sf_074_a_flood_stays_small_and_never_blocks_the_command(supervisor: ProcessSupervisor):
    before = resident()
    done = await supervisor.run_command("c", "head -c 300000000 /dev/zero; echo end")
    assert done.output.size == 300_000_004
    assert done.output.tail.endswith("end\n")
    assert done.output.left_out > 299_000_000
    assert done.output.path is not None
    assert done.output.path.stat().st_size == done.output.path_size == 64 << 20
    assert resident() - before < 32 << 20


async def test_sf_074_a_flood_that_never_ends_can_be_killed(supervisor: ProcessSupervisor):
    task = asyncio.create_task(supervisor.run_command("c", "yes"))
    await until_written(supervisor, 1_000_000)
    assert await supervisor.kill_process("c")
    done = await task
    assert done.ending is not None
    assert done.ending.cause == "killed"


async def test_sf_075_bytes_of_any_kind_become_text_that_json_can_hold(supervisor: ProcessSupervisor):
    mixed, long, random = r"\xff\xfe\x00caf\xe9\r10%%\r20%%\n", "/dev/zero | tr '\\0' x", "/dev/urandom"
    script = f"printf '{mixed}'; head -c 1000000 {long}; head -c 5000 {random}"
    received: list[str] = []
    done = await supervisor.run_command("c", script, received.append)
    assert done.output.head.startswith("��\0caf�\r10%\r20%\nxxx")
    assert done.output.replaced > 3
    assert json.loads(json.dumps(done.text)) == done.text
    assert "".join(received).startswith("��\0caf�\r10%\r20%\n" + "x" * 1_000_000)


async def test_sf_076_a_process_of_the_same_number_but_another_start_is_left_alone():
    child = subprocess.Popen(["sleep", "60"])
    try:
        start = platform.start_time_of(child.pid)
        assert start is not None
        platform.send_signal(ProcessInstance(child.pid, "12345"), signal.SIGKILL)
        time.sleep(0.1)
        assert is_alive(child.pid)
        platform.send_signal(ProcessInstance(child.pid, start), signal.SIGKILL)
        wait_until_dead(child.pid)
        platform.send_signal(ProcessInstance(child.pid, start), signal.SIGKILL)
    finally:
        child.kill()
        child.wait()


async def test_sf_077_guards_that_are_asked_to_end_stay(supervisor: ProcessSupervisor, tmp_path: Path):
    await supervisor.start_command("b", f"echo $$ > {tmp_path}/pid; sleep 60")
    pid = await asyncio.to_thread(number_in, tmp_path / "pid")
    guardian, keepers = guards_of(os.getpid())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        for guard in (guardian, *keepers):
            os.kill(guard, number)
    assert (await supervisor.run_command("c", "echo works")).text == "works\n"
    assert is_alive(pid)
    assert supervisor.get_backgrounded_ids() == ["b"]


def guards_of(pid: int) -> tuple[int, list[int]]:
    """The guardian and its keepers."""
    guardian = next(child.pid for child in platform.list_children(pid) if b"engine_guard" in command_line(child.pid))
    return guardian, [child.pid for child in platform.list_children(guardian)]


async def test_sf_077_when_the_guardian_is_killed_processes_continue_and_others_can_be_started(
    supervisor: ProcessSupervisor, tmp_path: Path
):
    await supervisor.start_command("b", f"echo $$ > {tmp_path}/pid; sleep 60")
    pid = await asyncio.to_thread(number_in, tmp_path / "pid")
    os.kill(guards_of(os.getpid())[0], signal.SIGKILL)
    await asyncio.sleep(0.1)
    assert is_alive(pid)
    assert (await supervisor.run_command("c", "echo works")).text == "works\n"
    assert await supervisor.kill_process("b")
    assert not is_alive(pid)


async def test_sf_077_when_the_keeper_in_waiting_is_killed_another_takes_its_place(supervisor: ProcessSupervisor):
    await supervisor.run_command("c", "true")
    for guard in guards_of(os.getpid())[1]:
        os.kill(guard, signal.SIGKILL)
    assert (await supervisor.run_command("c", "echo works")).text == "works\n"


async def test_sf_077_when_a_guard_is_killed_its_processes_end_and_the_call_reports_it(
    supervisor: ProcessSupervisor, tmp_path: Path
):
    command = f"{daemon(tmp_path / 'daemon')}; echo $$ > {tmp_path}/pid; sleep 60"
    task = asyncio.create_task(supervisor.run_command("c", command))
    pids = [await asyncio.to_thread(number_in, tmp_path / name) for name in ("pid", "daemon")]
    keeper = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(keeper, signal.SIGKILL)
    done = await task
    assert done.ending is not None
    assert done.ending.cause == "lost"
    wait_until_dead(*pids)


async def test_sf_013_a_command_that_is_killed_for_memory_reports_it(supervisor: ProcessSupervisor):
    with memory_group() as join:
        hog = f"{sys.executable} -S -c 'x = bytearray(200_000_000); print(len(x))'"
        done = await supervisor.run_command("c", f"{join}; {hog}; true")
        assert "Killed" in done.text or done.ending is not None
        done = await supervisor.run_command("c", f"{join}; exec {hog}")
    assert done.ending is not None
    assert done.ending.description == "killed (memory)"
    assert (await supervisor.run_command("d", "echo goes on")).text == "goes on\n"


@contextlib.contextmanager
def memory_group() -> Generator[str]:
    """A control group with little memory; gives the command by which a shell joins it."""
    root = Path("/sys/fs/cgroup")
    version_1 = (root / "memory" / "memory.limit_in_bytes").exists()
    group = (root / "memory" if version_1 else root) / f"outrider-test-{os.getpid()}"
    limits = ["memory.limit_in_bytes"] if version_1 else ["memory.max", "memory.swap.max"]
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"needs a control group for memory: {error}")
    try:
        for name in limits:
            if (group / name).exists():
                (group / name).write_text(str(0 if "swap" in name else 50 << 20))
        if not (group / limits[0]).exists():
            pytest.skip("needs a control group for memory")
        yield f"echo $$ > {group}/cgroup.procs"
    finally:
        group.rmdir()


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
