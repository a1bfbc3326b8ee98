"""`outrider serve --database`: the sessions and runs of a server that machines share."""

import json
from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.remote.client import ServerClient, resolve_server
from tests.e2e.attach.socket_server import Done, Serving, ended
from tests.fixtures.postgres import fresh_database, postgres_url

__all__ = ["postgres_url"]


async def outrider(machine: Serving, *arguments: str) -> Done:
    return await ended(await machine.start(*arguments))


async def test_a_server_shows_the_runs_that_another_process_submitted_and_submits_its_own(
    tmp_path: Path, postgres_url: str
):
    at = ("--database", fresh_database(postgres_url))
    machines = [tmp_path / "one", tmp_path / "other"]
    for folder in machines:
        folder.mkdir()
    one, other = map(Serving, machines)
    for machine in (one, other):
        machine.script("hello")
    submitted = await outrider(other, "jobs", "submit", *at, "--json", "look for dead links")
    (submitted_run,) = submitted.lines
    await one.begin("--socket", str(one.socket), *at)
    try:
        client = ServerClient(resolve_server(one.url, token=None, environ=one.environ))
        assert [run["id"] for run in await client.get("/api/jobs")] == [submitted_run["id"]]
        assert (await client.get(f"/api/sessions/{submitted_run['id']}"))["mode"] == "background"
        here = await client.post("/api/jobs", {"prompt": "mend them"})
        listed = await outrider(other, "jobs", "list", *at, "--json")
        assert {json.loads(line)["id"] for line in listed.out.splitlines()} == {here["id"], submitted_run["id"]}
        assert (await outrider(one, "worker", "--status")).code == 1
        assert not (one.home / "runs.sqlite").exists()
    finally:
        await one.end()


async def test_what_is_no_address_of_a_database_is_refused_with_a_word(tmp_path: Path):
    refused = await outrider(Serving(tmp_path), "serve", "--database", "sessions.db")
    assert (refused.code, "is not a postgresql://" in refused.err) == (2, True)
