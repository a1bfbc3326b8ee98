"""Runs from the command line: submitted, carried on by a worker in a process of its own, looked at."""

import asyncio
from typing import Any

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from tests.end_to_end.cli.program import SECONDS, Program, answering, call, ended, interrupt

SCRIPT = [[call("write", "call_b", file_path="tea.txt", content="buy tea\n")], "The list is written."]


async def state(program: Program, run_id: str, *wanted: str) -> Any:
    async with asyncio.timeout(SECONDS):
        while True:
            (run,) = (await program.run("jobs", "show", run_id, "--json")).lines
            if run["state"] in wanted:
                return run


async def test_a_submitted_run_is_carried_on_by_a_worker_and_shown(program: Program):
    async with answering(program, SCRIPT):
        submitted = await program.run("jobs", "submit", "--json", "--max-turns", "5", "write a list")
        assert submitted.code == 0, submitted.err
        (run,) = submitted.lines
        assert run["state"] == "queued"
        worker = await program.start("worker")
        run = await state(program, run["id"][-8:], "done", "failed")
        interrupt(worker)
        assert (await ended(worker)).code == 0
    assert (run["state"], run["outcome"]["output"]) == ("done", "The list is written.")
    assert (program.workspace / "tea.txt").read_text() == "buy tea\n"
    listed = await program.run("jobs", "list")
    assert "done" in listed.out
    assert "write a list" in listed.out
    shown = await program.run("sessions", "show", run["id"][-8:])
    assert "The list is written." in shown.out


async def test_a_run_that_nobody_has_begun_is_canceled_and_cannot_be_answered(program: Program):
    (run,) = (await program.run("jobs", "submit", "--json", "never mind")).lines
    refused = await program.run("jobs", "approve", run["id"])
    assert (refused.code, "waits for no answer" in refused.err) == (1, True)
    assert (await program.run("jobs", "cancel", run["id"], "--json")).json["state"] == "canceled"
    assert (await program.run("jobs", "show", "nothing-like-it")).code == 1
