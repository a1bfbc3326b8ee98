"""What `import outrider` costs over a bare interpreter, in time and memory (the latter needs /proc)."""

import statistics
import subprocess
import sys
import time

from benchmarks.figure import Figure

ROUNDS = 15
MAX_MILLISECONDS, MAX_MEGABYTES = 60, 15
STATEMENTS = ("import outrider", "from outrider import EventBus, Session")
# Not getrusage: its peak survives exec, so a child would report the memory of the process that started it.
PEAK = "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"


def bench() -> list[Figure]:
    """The interpreters run in turns, so that a busy moment of the machine hits all of them."""
    runs: dict[str, list[tuple[float, float]]] = {code: [] for code in ("pass", *STATEMENTS)}
    for _ in range(ROUNDS):
        for code, measured in runs.items():
            measured.append(start(code))
    medians = {
        code: [statistics.median(column) for column in zip(*measured, strict=True)] for code, measured in runs.items()
    }
    bare = medians["pass"]
    return [figure for code in STATEMENTS for figure in compare(code, medians[code], bare)]


def compare(code: str, cost: list[float], bare: list[float]) -> list[Figure]:
    limits = ((MAX_MILLISECONDS, "ms"), (MAX_MEGABYTES, "MB"))
    return [
        Figure(f"{code}, over bare", full - base, unit, full / base, f"<= {limit} {unit}", ok=full - base <= limit)
        for full, base, (limit, unit) in zip(cost, bare, limits, strict=True)
    ]


def start(code: str) -> tuple[float, float]:
    """Milliseconds and peak megabytes of a fresh interpreter that runs the code."""
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", f"{code}\n{PEAK}"], check=True, capture_output=True, text=True)
    return (time.perf_counter() - begin) * 1000, int(done.stdout) / 1024
