"""Runs in a database that several machines share: submitted on one, executed on another, followed from a third."""

from argparse import Namespace
from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from outrider.background.database import RunDatabase
from outrider.background.jobs import JobClient
from outrider.background.records import Run
from outrider.cli.commands.jobs_common import run_with_jobs
from outrider.types.ids import new_id
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
        submitted = await machine(1).run("jobs", "submit", *at, "--json", "write a list")
        assert "No worker is alive for this database" in submitted.err
        (run,) = submitted.lines
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
    for command in (("sessions", "show", run["id"]), ("sessions", "export", run["id"]), ("trace", run["id"][-8:])):
        read = await machine(3).run(*command, *at)
        assert read.code == 0, read.err
        assert "tea.txt" in read.out
    assert "write" in (await machine(3).run("stats", *at)).out
    assert "write" in (await machine(3).run("context", "last", *at)).out
    refused = await machine(3).run("sessions", "list", *at, "--attach", "http://127.0.0.1:1")
    assert refused.code != 0
    assert "--attach and --database" in refused.err


def test_work_that_loses_its_connection_is_done_again_if_it_is_repeatable(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    where, run_id, tries = Namespace(attach=None, database=fresh_database(postgres_url)), new_id(), list[str]()

    async def submit(jobs: JobClient) -> Run:
        tries.append("submit")
        submitted = await jobs.submit_run("look", run_id=run_id)
        if len(tries) == 1:  # the server ends the connections of this process
            with RunDatabase(where.database).engine.connect() as db:
                db.execute(sa.text("SELECT pg_terminate_backend(pg_backend_pid())"))
        return submitted

    assert run_with_jobs(where, submit, is_repeatable=True).id == run_id
    assert len(run_with_jobs(where, lambda jobs: jobs.list_runs())) == 1
    tries.clear()
    with pytest.raises(OperationalError):
        run_with_jobs(where, submit)
