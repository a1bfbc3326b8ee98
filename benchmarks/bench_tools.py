"""Calling tools through the runner, and searching a large tree, compared with the bare function and with ripgrep."""

import asyncio
import resource
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.figure import Figure
from outrider import Tool, ToolContext, ToolPart, ToolPending
from outrider.tools.builtin.grep import grep_tool
from outrider.tools.runner import ToolRunner
from outrider.tools.search import find_ripgrep
from outrider.tools.tool import tools_by_name
from outrider.tools.workspace_files import WorkspaceFiles

CALLS, ROUNDS = 2_000, 7
PARALLEL = 1_000
FOLDERS, FILES_EACH = 500, 100
SEARCHES = 7
OVERHEAD, DIP, SEARCH = 50.0, 1.5, 1.2


def bench() -> list[Figure]:
    alone = asyncio.run(_costs(_one_by_one))
    together = asyncio.run(_costs(_at_once))
    figures = [
        Figure("a call through the runner, over the bare function", alone, "us", None, f"<= {OVERHEAD:g} us",
               alone <= OVERHEAD),
        Figure(f"the same with {PARALLEL:,} calls at once, against one by one", together, "us", together / alone,
               f"<= {DIP:g}x", together / alone <= DIP),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        figures += _searches(Path(folder))
    return figures


async def add(left: int, right: int) -> str:
    return str(left + right)


def _runner() -> ToolRunner:
    async def record(part: ToolPart) -> None:
        pass

    return ToolRunner(tools_by_name([Tool(add)]), record)


def _call() -> ToolPart:
    return ToolPart("call", "add", ToolPending({"left": 1, "right": 2}, phase="ready"))


Work = Callable[[], Awaitable[object]]


async def _costs(way: Callable[[Work], Awaitable[None]]) -> float:
    """Microseconds of CPU time that the runner adds to each call of this kind."""
    runner, context = _runner(), ToolContext()
    best = {"bare": 1e9, "runner": 1e9}
    works: dict[str, Work] = {"bare": lambda: add(1, 2), "runner": lambda: runner.run(_call(), context)}
    for _ in range(ROUNDS):
        for name, work in works.items():
            start = time.process_time()
            await way(work)
            best[name] = min(best[name], (time.process_time() - start) / CALLS * 1e6)
    return best["runner"] - best["bare"]


async def _one_by_one(work: Work) -> None:
    for _ in range(CALLS):
        await work()


async def _at_once(work: Work) -> None:
    for _ in range(CALLS // PARALLEL):
        async with asyncio.TaskGroup() as group:
            for _ in range(PARALLEL):
                group.create_task(work())  # pyright: ignore[reportArgumentType]


def _searches(root: Path) -> list[Figure]:
    _plant(root)
    grep = grep_tool(WorkspaceFiles(root))
    program = find_ripgrep() or "rg"
    flags = ["--hidden", "--no-config", "--line-number", "--no-heading", "--no-messages", "--glob=!.git"]

    def plain(pattern: str) -> None:
        subprocess.run([program, *flags, "--", pattern, "."], cwd=root, capture_output=True, check=False)

    figures: list[Figure] = []
    for name, pattern in (("few matches", "needle_[0-9]+"), ("a match in every file", "value = ")):
        ours, theirs = asyncio.run(_taking_turns(partial(grep.execute, pattern=pattern), partial(plain, pattern)))
        title = f"grep over {FOLDERS * FILES_EACH:,} files, {name}, against ripgrep"
        cpu, wall = ours.cpu / theirs.cpu, ours.wall / theirs.wall
        figures.append(Figure(f"{title}: CPU", ours.cpu * 1e3, "ms", cpu, f"<= {SEARCH:g}x", cpu <= SEARCH))
        figures.append(Figure(f"{title}: wall", ours.wall * 1e3, "ms", wall))
    return figures


@dataclass
class Spent:
    wall: float = 1e9
    cpu: float = 1e9

    def took(self, wall: float, cpu: float) -> None:
        self.wall, self.cpu = min(self.wall, wall), min(self.cpu, cpu)


async def _taking_turns(tool: Work, plain: Callable[[], None]) -> tuple[Spent, Spent]:
    """Both run under the same load; on a busy machine only CPU time, children included, is comparable."""
    ours, theirs = Spent(), Spent()
    for _ in range(SEARCHES):
        for spent, work in ((ours, tool), (theirs, lambda: asyncio.to_thread(plain))):
            wall, cpu = time.perf_counter(), _cpu()
            await work()
            spent.took(time.perf_counter() - wall, _cpu() - cpu)
    return ours, theirs


def _cpu() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def _plant(root: Path) -> None:
    """Creates 50,000 small files; one in a thousand contains the searched text."""
    for folder in range(FOLDERS):
        (root / f"package_{folder}").mkdir()
        for number in range(FILES_EACH):
            needle = f"needle_{number}\n" if (folder * FILES_EACH + number) % 1_000 == 0 else ""
            text = f"import os\n\ndef function_{number}():\n    value = {folder}\n    return value\n{needle}" * 5
            (root / f"package_{folder}" / f"module_{number}.py").write_text(text)
