"""Runs in a database that several machines share: submitted on one, executed on another, followed from a third."""

from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from tests.e2e.cli.program import Program, answering, call, ended, interrupt
from tests.fixtures.postgres import fresh_database, postgres_url

__all__ = ["postgres_url"]

SCRIPT = [[call("write", "call_b", file_path="tea.txt", content="buy tea\n")], "The list is written."]


async def test_a_run_is_submitted_carried_and_seen_on_three_machines(
    program: Program, tmp_path: Path, postgres_url: str
):
    server = fresh_database(postgres_url)
    at = ("--database", server)

    def machine(number: int) -> Program:
        return Program(tmp_path / f"home{number}", program.workspace, program.url)

    async with answering(program, SCRIPT):
        (run,) = (await machine(1).run("jobs", "submit", *at, "--json", "write a list")).lines
        assert (await machine(1).run("worker", "--status")).code == 1
        worker = await machine(2).start("worker", *at)
        followed = await machine(3).run("jobs", "follow", *at, run["id"])
        interrupt(worker)
        assert (await ended(worker)).code == 0
    assert followed.code == 0, followed.err
    assert "The list is written." in followed.out
    assert (program.workspace / "tea.txt").read_text() == "buy tea\n"
    shown = await machine(1).run("jobs", "show", *at, run["id"][-8:], "--trace")
    assert "write" in shown.out
    assert (await machine(3).run("jobs", "list")).out == ""
