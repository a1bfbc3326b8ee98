"""The engine compared with other agent libraries: the same jobs on the same mock server, alternating in one run.

Without the peers (see benchmarks/peers.py) our figures are compared with figures recorded on another machine.
"""

import sys
from dataclasses import dataclass
from typing import Any

from benchmarks.figure import Figure
from benchmarks.mock_server import PEERBENCH, mock_server
from benchmarks.peers import OURS, installed, run_job

EVERYBODY = ("agno", "langgraph", "openai-agents", "pydantic-ai", "agentouto")
QUICKEST = ("agno", "agentouto", "langgraph")


@dataclass(frozen=True)
class Job:
    """`limit` is the target as a share of the fastest peer's figure, `most` an absolute target; `recorded` is what the
    fastest peer needed on the machine where it was first measured."""

    name: str
    unit: str
    job: str
    field: str
    recorded: float
    limit: float | None = None
    most: float | None = None
    stored: bool = False
    params: tuple[tuple[str, Any], ...] = ()
    peers: tuple[str, ...] = EVERYBODY
    rounds: int = 3


JOBS = (
    Job("one turn", "ms", "run1", "cpu_ms", 3.9, limit=1 / 3),
    Job(
        "50 tool turns, stored",
        "ms",
        "loop",
        "cpu_ms",
        1_061,
        limit=1 / 10,
        stored=True,
        params=(("turns", 50), ("tries", 2)),
    ),
    Job(
        "200 tool turns, stored",
        "ms",
        "loop",
        "cpu_ms",
        17_200,
        limit=1 / 40,
        stored=True,
        params=(("turns", 200), ("tries", 2)),
        peers=QUICKEST,
        rounds=2,
    ),
    Job("a streamed chunk, to a listener", "µs", "stream", "cpu_us_per_chunk", 219, most=25, params=(("tries", 1),)),
    Job("8 async calls of 100 ms", "ms", "parallel", "wall_ms", 118, most=110),
    Job("8 plain calls of 100 ms", "ms", "parallel", "wall_ms", 121, most=112, params=(("plain", True),)),
    Job("making an agent with 10 tools", "µs", "construct", "median_us", 33, most=200),
)
CONCURRENT = Job(
    "1,000 runs of 5 turns at once, stored",
    "s",
    "concurrent",
    "cpu_ms",
    107_000,
    limit=1 / 10,
    stored=True,
    peers=("pydantic-ai",),
    rounds=1,
)


def bench() -> list[Figure]:
    if not PEERBENCH.is_dir():
        print(f"loop: needs the mock server of {PEERBENCH.name}, which is absent", file=sys.stderr)
        return []
    there = installed()
    if not there:
        print("loop: no peers to measure; python -m benchmarks.peers installs them", file=sys.stderr)
    with mock_server() as server:
        figures = [figure for job in JOBS for figure in figures_of(job, measure(job, server, there))]
        figures += careful(server)
        figures += growth(server)
        figures += crowd(server, there)
        figures += idle(server)
    return figures


def measure(job: Job, server: str, there: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Libraries alternate, so that load on the machine affects all of them equally."""
    who = [OURS, *(peer for peer in job.peers if peer in there)]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in who}
    for _ in range(job.rounds):
        for name in who:
            params = dict(job.params) | ({"stored": job.stored} if name == OURS else {})
            result = run_job(name, job.job, server, **params)
            if result is not None:
                found[name].append(result)
    return found


def figures_of(job: Job, found: dict[str, list[dict[str, Any]]]) -> list[Figure]:
    best = {name: min(result[job.field] for result in results) for name, results in found.items() if results}
    ours = best.pop(OURS, None)
    if ours is None:
        return []
    if not best:
        target = f"fastest peer: not measured here, elsewhere {job.recorded:,.4g} {job.unit}"
        ok = None if job.most is None else ours <= job.most
        return [Figure(job.name, ours, job.unit, None, target if job.most is None else f"<= {job.most:g}", ok)]
    peer = min(best, key=best.__getitem__)
    ratio = ours / best[peer]
    if job.most is not None:
        return [Figure(f"{job.name} ({peer})", ours, job.unit, ratio, f"<= {job.most:g}", ours <= job.most)]
    limit = job.limit or 1
    return [Figure(f"{job.name} ({peer})", ours, job.unit, ratio, f"<= {limit:.3g}x", ratio <= limit)]


def careful(server: str) -> list[Figure]:
    """The same loop with an fsync before each call, as for tools that may change something."""
    results = [run_job(OURS, "loop", server, stored=True, careful=True, turns=200, tries=2) for _ in range(2)]
    found = [result["cpu_ms"] for result in results if result is not None]
    return [Figure("200 tool turns, of a tool that may write", min(found), "ms")] if found else []


def growth(server: str) -> list[Figure]:
    """Checks that a turn at the end of a long loop costs as much as one at its start."""
    result = run_job(OURS, "loop", server, stored=True, turns=1_000, tries=1)
    if result is None:
        return []
    ratio = result["tail_ms"] / result["head_ms"]
    name = "a turn at the end of 1,000, beside the first hundred"
    return [Figure(name, result["tail_ms"], "ms", ratio, "<= 3x", ratio <= 3)]


def crowd(server: str, there: list[str]) -> list[Figure]:
    found = measure(CONCURRENT, server, there)
    for name, results in found.items():
        for result in results:
            if result["failed"]:  # counted with what it used up to the failure, which is less than a complete run
                print(f"{name}: {result['failed']} of the runs at once failed: {result['failure']}", file=sys.stderr)
                assert name != OURS, result["failure"]
            result["cpu_ms"] /= 1_000
            result["peak_mb"] = result["peak_rss_kb"] / 1_024
    memory = Job(
        "peak memory of these runs", "MB", "concurrent", "peak_mb", 244, limit=1 / 2, peers=CONCURRENT.peers, rounds=1
    )
    return [*figures_of(CONCURRENT, found), *figures_of(memory, found)]


def idle(server: str) -> list[Figure]:
    result = run_job(OURS, "idle", server)
    if result is None:
        return []
    peak = result["peak_kb"] / 1_024
    return [
        Figure("10,000 idle sessions held open, peak memory", peak, "MB", None, "< 1,024", peak < 1_024),
        Figure("an idle session", result["kb_each"], "KB"),
        Figure("10,000 idle sessions, CPU", result["idle_cpu"] * 100, "%"),
    ]
