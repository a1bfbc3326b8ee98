"""What `import outrider` costs over a bare interpreter, in time and memory."""

import statistics
import subprocess
import sys
import time

from benchmarks.figure import Figure

ROUNDS = 15
MAX_MILLISECONDS, MAX_MEGABYTES = 60, 15
PEAK = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"


def bench() -> list[Figure]:
    """Both interpreters run in turns, so that a busy moment of the machine hits both."""
    bare_runs, full_runs = zip(*((start("pass"), start("import outrider")) for _ in range(ROUNDS)), strict=True)
    bare_time, bare_memory = (statistics.median(column) for column in zip(*bare_runs, strict=True))
    full_time, full_memory = (statistics.median(column) for column in zip(*full_runs, strict=True))
    time_cost, memory_cost = full_time - bare_time, full_memory - bare_memory
    return [
        Figure(
            name="import outrider, time over bare",
            value=time_cost,
            unit="ms",
            ratio=full_time / bare_time,
            target=f"<= {MAX_MILLISECONDS} ms",
            ok=time_cost <= MAX_MILLISECONDS,
        ),
        Figure(
            name="import outrider, memory over bare",
            value=memory_cost,
            unit="MB",
            ratio=full_memory / bare_memory,
            target=f"<= {MAX_MEGABYTES} MB",
            ok=memory_cost <= MAX_MEGABYTES,
        ),
    ]


def start(code: str) -> tuple[float, float]:
    """Milliseconds and peak megabytes of a fresh interpreter that runs the code."""
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", f"{code}\n{PEAK}"], check=True, capture_output=True, text=True)
    return (time.perf_counter() - begin) * 1000, int(done.stdout) / 1024
