"""`sessions`, `trace`, `stats`, `undo` and `jobs` work on a server that another terminal uses."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.e2e.attach.socket_server import Done, Serving, call, ended


async def command(serving: Serving, *arguments: str) -> Done:
    """Run a command with a different home, so that it can find everything on the server only."""
    own = serving.extra
    (token,) = serving.home.rglob("server/token")
    other = serving.home.parent / "other"
    other.mkdir(exist_ok=True)
    serving.extra = own | {
        "HOME": str(other),
        "OUTRIDER_HOME": str(other),
        "OUTRIDER_SERVER_TOKEN": token.read_text().strip(),
    }
    try:
        return await ended(await serving.start(*arguments, "--attach", serving.url))
    finally:
        serving.extra = own


@pytest.fixture
async def used(serving: Serving) -> str:
    """A server with a session that has changed a file; returns its id."""
    serving.script([call("write", file_path="made.txt", content="one\n")], "It is made.")
    await serving.begin("--socket", str(serving.socket), "--allow", "write")
    result = (await serving.run("--attach", serving.url, "-o", "json", "make a file")).lines[-1]
    assert (serving.workspace / "made.txt").read_text() == "one\n"
    return result["session_id"]


async def test_sessions_of_a_server_are_listed_shown_searched_and_changed(serving: Serving, used: str, tmp_path: Path):
    listed = await command(serving, "sessions", "list", "--json")
    assert [line["id"] for line in listed.lines] == [used]
    shown = await command(serving, "sessions", "show", "last")
    assert (shown.code, "It is made." in shown.out) == (0, True)
    assert used[-8:] in (await command(serving, "sessions", "search", "make")).out
    assert (await command(serving, "sessions", "rename", used, "a new title")).code == 0
    copy = (await command(serving, "sessions", "fork", used)).out.strip()
    listed = (await command(serving, "sessions", "list")).out
    assert "a new title" in listed
    assert copy[-8:] in listed
    exported = await command(serving, "sessions", "export", copy)
    assert json.loads(exported.out)["sessions"]
    assert "It is made." in (await command(serving, "sessions", "share", copy)).out
    assert (await command(serving, "sessions", "delete", "--yes", copy)).code == 0
    (tmp_path / "copy.json").write_text(exported.out)
    imported = await command(serving, "sessions", "import", str(tmp_path / "copy.json"))
    assert (imported.code, imported.out.strip()) == (0, copy)
    cleared = await command(serving, "sessions", "clear", "--yes")
    assert (cleared.code, "deleted" in cleared.err) == (0, True), cleared.err


async def test_trace_stats_and_undo_use_the_server(serving: Serving, used: str):
    trace = await command(serving, "trace", used)
    assert (trace.code, "write" in trace.out) == (0, True)
    stats = json.loads((await command(serving, "stats", "--json")).out)
    assert stats["tool"][0]["key"] == "write"
    preview = await command(serving, "undo", "--preview")
    assert (preview.code, "made.txt: would be deleted" in preview.out) == (0, True)
    undone = await command(serving, "undo", "--session", used)
    assert (undone.code, (serving.workspace / "made.txt").exists()) == (0, False)
    redone = await command(serving, "redo")
    assert (redone.code, (serving.workspace / "made.txt").read_text()) == (0, "one\n")


@pytest.mark.slow
async def test_runs_of_a_server_are_submitted_listed_shown_and_canceled(serving: Serving):
    pytest.importorskip("dbos", reason="the extra `background` is not installed")
    serving.script("It is done.")
    await serving.begin()
    try:
        await _use_runs(serving)
    finally:
        assert (await ended(await serving.start("worker", "--stop"))).code == 0


@pytest.mark.slow
async def test_the_question_of_a_run_of_a_server_is_answered_with_a_choice_of_files_or_a_reason(serving: Serving):
    pytest.importorskip("dbos", reason="the extra `background` is not installed")
    serving.script([call("shell", command="touch a.txt b.txt")], [call("shell", command="touch c.txt")], "Ended.")
    await serving.begin()
    try:
        submitted = await command(serving, "jobs", "submit", "--json", "--no-worktree", "--mode", "agent", "do it")
        run = json.loads(submitted.out)["id"]
        assert "- created: b.txt" in await _until_shown(serving, run, "touch a.txt b.txt")
        refused = await command(serving, "jobs", "approve", run, "--choice", "hosts")
        assert (refused.code, "its choices are keep, keep-some" in refused.err) == (2, True), refused.err
        done = await command(serving, "jobs", "approve", run, "--keep", "a.txt")
        assert done.code == 0, done.err
        await _until_shown(serving, run, "touch c.txt")
        denied = await command(serving, "jobs", "deny", run, "--reason", "Enough of them.")
        assert denied.code == 0, denied.err
        await _until_shown(serving, run, "Ended.")
        assert "Enough of them." in (await command(serving, "sessions", "show", run, "--json")).out
    finally:
        assert (await ended(await serving.start("worker", "--stop"))).code == 0
    made = {path.name for path in serving.workspace.iterdir()}
    assert ("a.txt" in made, "b.txt" in made, "c.txt" in made) == (True, False, False)


async def _until_shown(serving: Serving, run: str, text: str) -> str:
    """What `jobs show` prints once it contains the text."""
    async with asyncio.timeout(60):
        while text not in (shown := (await command(serving, "jobs", "show", run)).out):
            await asyncio.sleep(0.3)
    return shown


async def _use_runs(serving: Serving) -> None:
    submitted = await command(serving, "jobs", "submit", "--json", "--no-worktree", "do it")
    run = json.loads(submitted.out)
    async with asyncio.timeout(60):
        while json.loads((await command(serving, "jobs", "show", "--json", run["id"])).out)["state"] != "done":
            await asyncio.sleep(0.5)
    shown = await command(serving, "jobs", "show", run["id"][-8:])
    assert (shown.code, "It is done." in shown.out) == (0, True)
    assert run["id"][-8:] in (await command(serving, "jobs", "list")).out
    later = json.loads((await command(serving, "jobs", "submit", "--json", "--after", "2h", "later")).out)
    canceled = await command(serving, "jobs", "cancel", later["id"])
    assert (canceled.code, "canceled" in canceled.out) == (0, True)
    scheduled = await command(serving, "jobs", "schedule", "--json", "0 7 * * *", "every day")
    schedule = json.loads(scheduled.out)["id"]
    assert schedule[-8:] in (await command(serving, "jobs", "schedules")).out
    assert (await command(serving, "jobs", "pause", schedule)).code == 0
    assert (await command(serving, "jobs", "unschedule", schedule)).code == 0
    order = ("--mode", "agent", "--queue", "nightly", "--approval", "edits")
    scheduled = await command(serving, "jobs", "schedule", "--json", *order, "0 7 * * *", "every day")
    assert (scheduled.code, scheduled.err) == (0, ""), scheduled.err
    (stored,) = (await ended(await serving.start("jobs", "schedules", "--json"))).lines
    assert [stored["order"][name] for name in ("mode", "approval")] == ["agent", "edits"]
    assert stored["order"]["place"]["queue"] == "nightly"
    assert (await command(serving, "jobs", "unschedule", stored["id"])).code == 0
    refused = await command(serving, "jobs", "submit", "--allow", "shell", "do it")
    assert (refused.code, "--allow" in refused.err) == (2, True)
