"""Runs of MCP clients that answer approvals by repeating their request."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
from outrider.errors import OutriderError
from outrider.server.mcp import MAX_PAUSED_RUNS, McpTools, PausedRun, RunReport


async def test_runs_that_ended_while_their_client_was_away_do_not_count_against_the_limit():
    may_end = asyncio.Event()

    class Runner:
        async def run_prompt(self, *_: Any) -> RunReport:
            await may_end.wait()
            return RunReport("s", "", "completed", [])

    settings, nothing, runner = SimpleNamespace(missing="", mcp_all_sessions=True), Any, Runner()
    async with asyncio.TaskGroup() as tasks:
        tools: Any = McpTools(nothing, None, settings, tasks)  # type: ignore[arg-type]
        runs: list[PausedRun] = [tools._start_run(runner, "go", "", None, "") for _ in range(MAX_PAUSED_RUNS)]
        tools._paused = {run.id: run for run in runs}
        with pytest.raises(OutriderError, match="wait for approvals already"):
            tools._start_run(runner, "go", "", None, "")
        may_end.set()
        while not all(run.has_ended for run in runs):
            await asyncio.sleep(0)
        tools._start_run(runner, "go", "", None, "")
        with pytest.raises(OutriderError, match="this run has ended"):
            tools._find_run(runs[0].id)
