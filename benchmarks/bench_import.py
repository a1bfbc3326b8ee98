"""Time and memory of `import outrider`, compared with a bare interpreter (memory needs /proc)."""

import statistics
import subprocess
import sys
import time
from dataclasses import replace

from benchmarks.figure import Figure

ROUNDS = 15
UNITS, LIMITS = ("ms", "MB"), (60, 15)
# The second one includes what the first one loads lazily; only the first has a target.
IMPORT, USED = "import outrider", "from outrider import EventBus, Session"
# Not getrusage: its peak survives exec, so a child would report the memory of the process that started it.
PEAK = "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"


def bench() -> list[Figure]:
    """Interpreters alternate, so that load on the machine affects all of them equally."""
    runs: dict[str, list[tuple[float, float]]] = {code: [] for code in ("pass", IMPORT, USED)}
    for _ in range(ROUNDS):
        for code, measured in runs.items():
            measured.append(start(code))
    medians = {
        code: [statistics.median(column) for column in zip(*measured, strict=True)] for code, measured in runs.items()
    }
    bare, full, used = medians.values()
    return [*judged(full, bare), *(figure(USED, *pair) for pair in zip(used, bare, UNITS, strict=True))]


def judged(full: list[float], bare: list[float]) -> list[Figure]:
    measured = [figure(IMPORT, *pair) for pair in zip(full, bare, UNITS, strict=True)]
    return [
        replace(cost, target=f"<= {limit} {cost.unit}", ok=cost.value <= limit)
        for cost, limit in zip(measured, LIMITS, strict=True)
    ]


def figure(code: str, full: float, bare: float, unit: str) -> Figure:
    return Figure(f"{code}, over bare", full - bare, unit, full / bare)


def start(code: str) -> tuple[float, float]:
    """Milliseconds and peak megabytes of a fresh interpreter that runs the code."""
    start_time = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", f"{code}\n{PEAK}"], check=True, capture_output=True, text=True)
    return (time.perf_counter() - start_time) * 1000, int(done.stdout) / 1024
