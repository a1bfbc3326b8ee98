"""Many, long and hostile commands in real shells do not hang, leak or outlive their owner."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.processes import platform
from outrider.processes.launch import ResourceLimits
from outrider.processes.supervisor import ProcessSupervisor
from tests.fixtures.leaks import child_processes
from tests.fixtures.process_checks import wait_until_dead

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def zombies() -> int:
    states = (Path(f"/proc/{pid}/stat") for pid in os.listdir("/proc") if pid.isdigit())  # noqa: PTH208
    me = str(os.getpid())
    rows = [fields for path in states if (fields := stat_fields(path))]
    return sum(state == "Z" and parent == me for state, parent in rows)


def stat_fields(path: Path) -> tuple[str, str] | None:
    try:
        state, parent, *_ = path.read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return state, parent


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


@linux
@pytest.mark.slow
async def test_a_thousand_quick_commands_leave_no_process():
    before, dead_before = child_processes(), zombies()
    async with ProcessSupervisor() as supervisor:
        await supervisor.run_command("warm", "true")
        descriptors = len(list(Path("/dev/fd").iterdir()))
        outcomes = await asyncio.gather(*(supervisor.run_command(f"c{n}", f"echo {n}") for n in range(1000)))
        assert [outcome.text for outcome in outcomes] == [f"{n}\n" for n in range(1000)]
        assert len(list(Path("/dev/fd").iterdir())) == descriptors
        assert supervisor.get_running_ids() == []
        (guardian,) = child_processes() - before
        await until(lambda: len(platform.list_children(guardian)) == 1)  # the keeper in waiting
    assert child_processes() == before
    assert zombies() < dead_before + 100  # orphans of earlier tests may end meanwhile


@linux
async def test_a_bomb_of_forks_is_put_out(tmp_path: Path):
    """Every process starts others and ignores being asked to end; a limit of the system keeps the machine usable."""
    user = len([pid for pid in Path("/proc").iterdir() if pid.name.isdigit()])
    bomb = "trap '' TERM; b() { b & b & sleep 60; }; b"
    async with ProcessSupervisor(resources=ResourceLimits(processes=user + 60)) as supervisor:
        if os.getuid() == 0:  # that limit does not apply to root
            bomb = "trap '' TERM; b() { [ $1 -gt 0 ] && { b $(($1-1)) & b $(($1-1)) & }; sleep 60; }; b 5"
        task = asyncio.create_task(supervisor.run_command("c", bomb))
        await asyncio.sleep(0)
        await until(lambda: supervisor.status("c").pid is not None)
        pid = supervisor.status("c").pid
        assert pid is not None
        await until(lambda: len(platform.list_descendants(pid)) > 5)
        pids = [pid, *(process.pid for process in platform.list_descendants(pid))]
        await asyncio.wait_for(supervisor.kill_process("c", grace=0.1), 30)
        await task
        await asyncio.to_thread(wait_until_dead, *pids)


@pytest.mark.parametrize(
    "command",
    [
        "exec 1>&- 2>&-; sleep 0.1",
        "exec 0<&-; true",
        "sleep 0.3 & disown; exit 0",
        "nohup sleep 60 >/dev/null 2>&1 &",
        "(sleep 60 &); (sleep 60 | sleep 60 &)",
        "coproc cat; echo started",
        "ulimit -f 0; echo x > /dev/null",
        "python3 -c 'import os; os.setsid()' ; true",
        "read -t 1 x; echo ${x:-nothing}",
        "cat /dev/stdin",
        "ssh -o BatchMode=yes -o ConnectTimeout=1 127.0.0.1 true",
        "stty -a; tput cols; clear",
        "exec sleep 0.1",
    ],
)
async def test_odd_commands_end(command: str):
    async with ProcessSupervisor() as supervisor:
        outcome = await supervisor.run_command("c", command, limit=30)
        assert outcome.ending is not None
        assert outcome.ending.cause != "timeout"


@linux
async def test_a_command_that_stops_itself_can_be_killed():
    async with ProcessSupervisor() as supervisor:
        outcome = await asyncio.wait_for(supervisor.run_command("c", "kill -STOP $$", limit=0.3), 30)
        assert outcome.ending is not None
        assert outcome.ending.cause == "timeout"


async def test_several_supervisors_live_side_by_side():
    async with ProcessSupervisor() as one, ProcessSupervisor() as two:
        await one.start_command("c", "sleep 60")
        await two.start_command("c", "sleep 60")
        await two.close()
        assert one.get_running_ids() == ["c"]
        assert two.get_running_ids() == []


async def test_the_event_loop_stays_responsive_during_a_flood():
    rounds = 0

    async def watch() -> None:
        nonlocal rounds
        while True:
            await asyncio.sleep(0.001)
            rounds += 1

    async with ProcessSupervisor() as supervisor:
        await supervisor.run_command("warm", "true")
        watcher = asyncio.create_task(watch())
        await supervisor.run_command("c", "head -c 500000000 /dev/zero", lambda text: None)
        watcher.cancel()
    assert rounds > 20  # between two reads of the output
