"""Running commands: overhead over asyncio's subprocess, a gigabyte of output, and the memory of the guard processes."""

import asyncio
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.figure import Figure
from outrider.processes import platform
from outrider.processes.launch import build_argv
from outrider.processes.supervisor import ProcessSupervisor

GIGABYTE = 1 << 30
COMMANDS = 100
ROUNDS = 3


def bench() -> list[Figure]:
    return [*asyncio.run(starting()), *asyncio.run(flooding()), *asyncio.run(weighing())]


async def starting() -> list[Figure]:
    """Commands alternate, with a pause as between calls, so that load on the machine affects both equally."""

    async def plain() -> None:
        child = await asyncio.create_subprocess_exec(*build_argv("true"), stdin=DEVNULL, stdout=PIPE, stderr=STDOUT)
        await child.communicate()

    async with ProcessSupervisor() as supervisor:

        async def supervised() -> None:
            await supervisor.run_command("c", "true")

        start = time.perf_counter()
        await supervised()
        first = (time.perf_counter() - start) * 1e3
        times: dict[str, list[float]] = {"plain": [], "supervised": []}
        for _ in range(COMMANDS):
            times["plain"].append(await milliseconds(plain))
            times["supervised"].append(await milliseconds(supervised))
        start = time.perf_counter()
        await asyncio.gather(*(supervisor.run_command(f"c{number}", "true") for number in range(1000)))
        thousand = time.perf_counter() - start
    plain_ms, ours_ms = statistics.median(times["plain"]), statistics.median(times["supervised"])
    best_ours = min(times["supervised"])
    best = best_ours / min(times["plain"])
    return [
        Figure("a shell command / asyncio, median", ours_ms, "ms", ours_ms / plain_ms),
        Figure("a shell command / asyncio, best", best_ours, "ms", best, "<= 2x", best <= 2),
        Figure("the first command (starts the guardian)", first, "ms"),
        Figure("a thousand commands at once", thousand, "s"),
    ]


async def milliseconds(command: Callable[[], Awaitable[None]]) -> float:
    await asyncio.sleep(0.01)
    start = time.perf_counter()
    await command()
    return (time.perf_counter() - start) * 1e3


async def flooding() -> list[Figure]:
    folder = Path(tempfile.mkdtemp())
    try:
        source = folder / "gigabyte"
        line = b"one of very many lines that a command prints when it is not stopped in time\n"
        with source.open("wb") as file:
            for _ in range(256):
                file.write((line * (GIGABYTE // 256 // len(line) + 1))[: GIGABYTE // 256])
        read_bare(source)
        async with ProcessSupervisor(folder=folder) as supervisor:
            await supervisor.run_command("warm", "true")
            peak, bare, ours = 0, 0.0, 0.0
            for number in range(ROUNDS):
                bare = max(bare, read_bare(source))
                before = resident()
                forget_highest_mark()
                start = time.perf_counter()
                outcome = await supervisor.run_command(f"c{number}", f"cat {source}", lambda text: None)
                ours = max(ours, GIGABYTE / (time.perf_counter() - start))
                assert outcome.output.size == GIGABYTE
                peak = max(peak, resident("VmHWM:") - before)
    finally:
        shutil.rmtree(folder)
    growth = peak / (1 << 20)
    return [
        Figure("1 GB of output / cat into a bare loop", ours / 1e9, "GB/s", ours / bare, ">= 0.5x", ours >= bare / 2),
        Figure("memory growth by 1 GB of output", growth, "MiB", None, "< 64 MiB", growth < 64),
    ]


def read_bare(source: Path) -> float:
    """Returns bytes per second."""
    readable, writable = os.pipe()
    start = time.perf_counter()
    child = subprocess.Popen(["cat", source], stdout=writable)
    os.close(writable)
    size = 0
    while piece := os.read(readable, 1 << 16):
        size += len(piece)
    os.close(readable)
    child.wait()
    return size / (time.perf_counter() - start)


async def weighing() -> list[Figure]:
    """Private memory of the engine guard with its spare command guard, and of one additional command guard."""
    async with ProcessSupervisor() as supervisor:
        await supervisor.run_command("c", "true")
        await asyncio.sleep(0.2)
        alone = sum(weight(guard.pid) for guard in platform.list_descendants(os.getpid()))
        await supervisor.start_command("c", "sleep 60")
        await asyncio.sleep(0.2)
        busy = sum(weight(guard.pid) for guard in platform.list_descendants(os.getpid()))
        await supervisor.kill_process("c", grace=0)
    return [
        Figure("memory of the guardian and its keeper", alone, "MB", None, "<= 10 MB", alone <= 10),
        Figure("memory of one running command's keeper", busy - alone, "MB"),
    ]


def weight(pid: int) -> float:
    """The proportional set size, in MB."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("Pss:")) / 1e3


def forget_highest_mark() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def resident(mark: str = "VmRSS:") -> int:
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith(mark)) * 1024
