"""The command line: start-up time, cost until the first request is sent, and a headless job of 20 shell turns.

The job is the one that other terminal agents were measured with: the same command 20 times, then an answer. Their
figures (CPU of goose, bytes of pi) were measured on one machine and not in this run. Needs /proc.
"""

import ctypes
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.scripted_server import ModelServer, serving

ROUNDS, JOBS, TURNS = 11, 5, 20
OUTRIDER = str(Path(sys.executable).with_name("outrider"))
PROMPT = "Please carry out the scripted work and report when it is done."


def bench() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="outrider-bench-") as folder:
        place = Path(folder)
        env = environment(place)
        subprocess.run(
            [sys.executable, "-m", "compileall", "-q", str(Path(__file__).parents[1] / "src")], env=env, check=False
        )
        return [*starts(env), *first_request(place, env), *job(place, env)]


def environment(place: Path) -> dict[str, str]:
    """Byte code is written, as in an installed package."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(place / "home"),
        "OUTRIDER_HOME": str(place / "kept"),
        "PYTHONPYCACHEPREFIX": str(place / "bytecode"),
        "OPENAI_API_KEY": "x",
        "OUTRIDER_MODEL": "openai/mock",
        "LANG": "C.UTF-8",
        **({"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}),
    }


def starts(env: dict[str, str]) -> list[Figure]:
    """Commands alternate, so that load on the machine affects all of them equally."""
    commands = {
        "pass": [sys.executable, "-c", "pass"],
        "--version": [OUTRIDER, "--version"],
        "--help": [OUTRIDER, "--help"],
    }
    took: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            took[name].append(cpu_of(command, env))
    bare, *ours = (statistics.median(times[1:]) for times in took.values())
    return [
        Figure(
            f"outrider {name}, CPU beside python -c pass", value * 1000, "ms", value / bare, "<= 3x", value <= 3 * bare
        )
        for name, value in zip(list(commands)[1:], ours, strict=True)
    ]


def first_request(place: Path, env: dict[str, str]) -> list[Figure]:
    spent: list[float] = []
    running: list[subprocess.Popen[bytes]] = []
    with serving(ModelServer(0, lambda _: spent.append(cpu_so_far(running[-1].pid)))) as model:
        for _ in range(ROUNDS):
            running.append(run(place, env, model.url))
            running[-1].wait()
    bare = statistics.median(cpu_of([sys.executable, "-c", "pass"], env) for _ in range(ROUNDS))
    value = (statistics.median(spent[1:]) - bare) * 1000
    return [
        Figure(
            "outrider run, CPU until the request is there, over python -c pass",
            value,
            "ms",
            None,
            "<= 150 ms",
            value <= 150,
        )
    ]


def job(place: Path, env: dict[str, str]) -> list[Figure]:
    cpus, peaks, sizes = [], [], []
    for number in range(JOBS):
        own = env | {"OUTRIDER_HOME": str(place / f"job-{number}")}
        with serving(ModelServer(TURNS)) as model:
            child = run(place, own, model.url)
            peaks.append(watch(child))
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            if child.returncode or model.requests != TURNS + 1:
                raise RuntimeError(f"the job failed: {child.returncode} after {model.requests} requests")
        cpus.append(usage.ru_utime + usage.ru_stime)
        sizes.append(sum(path.stat().st_size for path in (place / f"job-{number}").rglob("*") if path.is_file()))
    cpu, peak, sent, stored = (
        statistics.median(cpus),
        max(peaks) / 1024,
        model.bytes / 1000,
        statistics.median(sizes) / 1000,
    )
    return [
        Figure("20 shell turns, CPU of the whole tree (goose: 0.65 s)", cpu, "s", None, "<= 0.65 s", cpu <= 0.65),
        Figure("20 shell turns, peak memory of the tree", peak, "MB", None, "<= 43 MB", peak <= 43),
        Figure("20 shell turns, bytes sent in 21 requests (pi: 167 KB)", sent, "KB", None, "<= 167 KB", sent <= 167),
        Figure("20 shell turns, bytes kept on disk", stored, "KB", None, "<= 200 KB", stored <= 200),
    ]


def run(place: Path, env: dict[str, str], url: str) -> subprocess.Popen[bytes]:
    for folder in ("home", "work"):
        (place / folder).mkdir(exist_ok=True)
    return subprocess.Popen(
        [OUTRIDER, "run", PROMPT],
        env=env | {"OPENAI_BASE_URL": url},
        cwd=place / "work",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def cpu_of(command: list[str], env: dict[str, str]) -> float:
    child = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def cpu_so_far(pid: int) -> float:
    """Returns the CPU seconds of all threads of a process, which the kernel measures in nanoseconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def watch(child: "subprocess.Popen[bytes]") -> int:
    """The peak proportional set size of a process and its descendants, in KB, sampled until it ends."""
    peak, ended = 0, threading.Event()

    def until_it_ends() -> None:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        ended.set()

    waiting = threading.Thread(target=until_it_ends)
    waiting.start()
    while not ended.is_set():
        peak = max(peak, tree_memory(child.pid))
        time.sleep(0.05)
    waiting.join()
    return peak


def shares_memory(first: int, second: int) -> bool:
    """Returns whether two processes have one address space (the system call kcmp, on x86-64 only)."""
    same_memory, system_call = 1, 312
    if platform.machine() != "x86_64":
        return False
    return ctypes.CDLL(None).syscall(system_call, first, second, same_memory, 0, 0) == 0


def tree_memory(root: int) -> int:
    """The proportional set size of a process and its descendants, in KB.

    A child between vfork and exec uses the memory of its parent, and the kernel reports it for both: it is left out.
    """
    total, waiting = 0, [(root, 0)]
    while waiting:
        pid, parent = waiting.pop()
        try:
            if parent and shares_memory(parent, pid):
                continue
            total += int(Path(f"/proc/{pid}/smaps_rollup").read_text().partition("\nPss:")[2].split()[0])
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += [(int(child), pid) for child in (task / "children").read_text().split()]
        except (OSError, IndexError):
            continue  # the process ended between two reads
    return total
