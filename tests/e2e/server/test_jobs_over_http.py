"""Background runs over the HTTP API."""

import asyncio
from decimal import Decimal
from typing import Any

import msgspec
import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.background.database import RunDatabase
from outrider.background.jobs import open_job_client
from outrider.background.schedules import ScheduleTable
from outrider.server.users import ServerTeam
from outrider.types.ids import new_id
from tests.e2e.server.http_server import served
from tests.e2e.server.jobs_server import Runs, serving_runs
from tests.e2e.server.test_users import ANA, BEN, directory_of

SECONDS = 60


async def until(runs: Runs, run_id: str, *states: str) -> dict[str, Any]:
    async with asyncio.timeout(SECONDS):
        while True:
            status, found = await runs.client.ask("GET", f"/api/jobs/{run_id}")
            assert status == 200, found
            if found["run"]["state"] in states:
                return found
            await asyncio.sleep(0.1)


async def test_a_run_is_submitted_once_followed_answered_and_shown_with_what_came_of_it(tmp_path):
    async with serving_runs(tmp_path) as runs:
        order = {"prompt": "2 steps of ask", "id": new_id(), "workspace": str(tmp_path), "user": "ann"}
        status, run = await runs.client.ask("POST", "/api/jobs", order)
        assert (status, run["state"], run["user"]) == (201, "queued", "ann")
        assert (await runs.client.ask("POST", "/api/jobs", order))[1]["id"] == run["id"] == order["id"]
        runs.workers.start()
        found = await until(runs, run["id"], "waiting")
        assert [question["tool"] for question in found["approvals"]] == ["risky"]
        assert (await runs.client.ask("POST", f"/api/jobs/{run['id']}/approve", {}))[0] == 200
        found = await until(runs, run["id"], "done")
        assert found["run"]["outcome"]["output"] == "ask is done after 2 calls"
        listed = (await runs.client.ask("GET", "/api/jobs"))[1]
        assert [one["id"] for one in listed] == [run["id"]]
        async with runs.client.follow(run["id"], 0) as events:
            text_event = await events.until(
                lambda event: event["data"].get("part", {}).get("text", "").endswith("2 calls")
            )
        assert text_event["event"] == "change"
        status, refused = await runs.client.ask("POST", f"/api/jobs/{run['id']}/deny", {"words": "too late"})
        assert (status, refused["error"]["message"]) == (409, "the run has no open approvals")


async def test_a_run_and_those_of_a_schedule_have_the_approval_level_that_they_were_given(tmp_path):
    async with serving_runs(tmp_path) as runs:
        _, run = await runs.client.ask("POST", "/api/jobs", {"prompt": "look", "approval": "edits"})
        assert (await runs.client.ask("GET", f"/api/sessions/{run['id']}"))[1]["approval"] == "edits"
        order = {"cron": "0 7 * * *", "prompt": "look", "approval": "edits", "mode": "agent", "queue": "nightly"}
        assert (await runs.client.ask("POST", "/api/schedules", order))[0] == 201
        database = RunDatabase(runs.workers.database)
        (schedule,) = ScheduleTable(database).list_schedules()
        database.close()
        assert (schedule.order["approval"], schedule.order["mode"]) == ("edits", "agent")
        assert schedule.order["place"]["queue"] == "nightly"
        assert (await runs.client.ask("POST", "/api/jobs", {"prompt": "look", "approval": "everything"}))[0] == 400


async def test_an_answer_to_a_question_wakes_a_worker_for_the_run_that_waited_for_it(tmp_path):
    async with serving_runs(tmp_path) as runs:
        run = (await runs.client.ask("POST", "/api/jobs", {"prompt": "1 steps of ask"}))[1]
        worker, _ = runs.workers.start()
        (question,) = (await until(runs, run["id"], "waiting"))["approvals"]
        runs.workers.kill(worker)
        before = runs.woken
        status, answered = await runs.client.ask("POST", f"/api/approvals/{question['id']}", {"allow": True})
        assert (status, answered["answer"], runs.woken) == (200, "allowed", before + 1)
        runs.workers.start()
        await until(runs, run["id"], "done")


async def test_a_run_is_canceled_and_retried(tmp_path):
    async with serving_runs(tmp_path) as runs:
        run = (await runs.client.ask("POST", "/api/jobs", {"prompt": "1 steps of again"}))[1]
        status, canceled = await runs.client.ask("POST", f"/api/jobs/{run['id']}/cancel")
        assert (status, canceled["state"]) == (200, "canceled")
        status, retried = await runs.client.ask("POST", f"/api/jobs/{run['id']}/retry")
        assert (status, retried["state"]) == (200, "queued")
        assert (await runs.client.ask("POST", f"/api/jobs/{run['id']}/retry"))[0] == 409


async def test_schedules_are_made_listed_paused_resumed_and_removed(tmp_path):
    async with serving_runs(tmp_path) as runs:
        order = {"cron": "0 7 * * *", "timezone": "Europe/Berlin", "prompt": "look for dead links"}
        terms = {"priority": 7, "worktree": False, "limits": {"turns": 3}}
        status, made = await runs.client.ask("POST", "/api/schedules", order | terms)
        assert (status, made["cron"], made["due"] > 0) == (201, "0 7 * * *", True)
        assert made["workspace"] == str(tmp_path), "the folder of the server is where it works, unless one is named"
        assert (await runs.client.ask("GET", "/api/schedules"))[1] == [made]
        before = runs.woken
        paused = await runs.client.ask("POST", f"/api/schedules/{made['id']}/pause")
        assert paused == (200, made | {"paused": True})
        assert runs.woken == before, "there is nothing to do for a worker"
        assert await runs.client.ask("POST", f"/api/schedules/{made['id']}/resume") == (200, made)
        assert runs.woken == before + 1
        for turn in ("pause", "resume"):
            assert (await runs.client.ask("POST", f"/api/schedules/nothing/{turn}"))[0] == 404
        assert (await runs.client.ask("DELETE", f"/api/schedules/{made['id']}"))[0] == 204
        assert (await runs.client.ask("GET", "/api/schedules"))[1] == []
        assert (await runs.client.ask("POST", "/api/schedules", {**order, "cron": "often"}))[0] == 400


async def test_what_cannot_be_a_run_is_refused(tmp_path):
    wrong = [{}, {"prompt": ""}, {"prompt": "x", "priority": 0}, {"prompt": "x", "agent": "nobody"}, {"prompt": 1}]
    async with serving_runs(tmp_path) as runs:
        for order in wrong:
            assert (await runs.client.ask("POST", "/api/jobs", order))[0] == 400
        assert (await runs.client.ask("GET", "/api/jobs"))[1] == []
        assert (await runs.client.ask("GET", "/api/jobs/nothing"))[0] == 404


async def test_a_server_without_runs_reports_it(tmp_path):
    async with served(tmp_path, []) as client:
        status, refused = await client.ask("GET", "/api/jobs")
        assert (status, refused["error"]["message"]) == (400, "background runs are not enabled on this server")


async def test_a_run_of_a_user_has_the_limits_of_the_user(tmp_path):
    """A worker reads the limits from the session, so a session without them does not become a run."""
    users, tokens = directory_of(tmp_path, ANA, BEN)
    async with serving_runs(tmp_path, users) as runs:
        client, token = runs.client, tokens["ana"]
        order = {"prompt": "1 steps of work", "id": new_id()}
        status, run = await client.ask("POST", "/api/jobs", order, token=token)
        assert (status, run["user"]) == (201, "ana")
        assert (await client.ask("POST", "/api/jobs", order, token=token))[0] == 201
        assert (await client.ask("POST", "/api/jobs", order, token=tokens["ben"]))[0] == 403
        own = (await client.ask("POST", "/api/sessions", {}, token=token))[1]["id"]
        status, answer = await client.ask("POST", "/api/jobs", {**order, "id": own}, token=token)
        assert (status, answer["error"]["message"]) == (403, f"{own} is the id of a session that is not a run of ana")
        copy = (await client.ask("POST", f"/api/sessions/{run['id']}/fork", {}, token=token))[1]
        assert "owner_limits" in copy["metadata"]


async def test_runs_that_are_submitted_at_once_share_the_budget(tmp_path):
    """The limit of each run is stored with it; together they may not exceed the budget of the user or the team."""
    users, tokens = directory_of(
        tmp_path, *(msgspec.structs.replace(user, team="red", budget=Decimal(10)) for user in (ANA, BEN))
    )
    users.put_team(ServerTeam(name="red", budget=Decimal(12)))
    async with serving_runs(tmp_path, users) as runs:
        client, made = runs.client, dict[str, list[str]](ana=[], ben=[])

        async def submit(name: str, **order: Any) -> Any:
            status, run = await client.ask("POST", "/api/jobs", {"prompt": "1 steps of x", **order}, token=tokens[name])
            if status == 201:
                made[name].append(run["id"])
            return run

        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(submit("ana"))
                group.create_task(submit("ben", limits={"cost": "1"}))
        database = RunDatabase(runs.workers.database)
        try:
            async with open_job_client(database, client.engine.store) as jobs:
                costs = {
                    name: [limits.cost or 0 for run_id in ids if (limits := (await jobs.get_job(run_id)).limits)]
                    for name, ids in made.items()
                }
        finally:
            database.close()
        assert len(costs["ana"]) == 3
        assert sum(costs["ana"]) <= 10
        assert sum(costs["ana"]) + sum(costs["ben"]) <= 12
        await client.ask("POST", f"/api/jobs/{made['ben'][0]}/cancel", token=tokens["ben"])
        await submit("ana", limits={"cost": "12"})
        refused = await submit("ana")
        assert refused["error"]["type"] == "LimitReachedError"
        assert "runs that are not over may cost" in refused["error"]["message"]
        answer = (await client.ask("POST", f"/api/jobs/{made['ben'][0]}/retry", token=tokens["ben"]))[1]
        assert answer["error"]["type"] == "LimitReachedError"


async def test_a_run_of_an_administrator_is_not_continued_after_the_role_has_ended(tmp_path):
    users, tokens = directory_of(tmp_path, msgspec.structs.replace(ANA, role="admin"))
    async with serving_runs(tmp_path, users) as runs:
        client, token = runs.client, tokens["ana"]
        run = (await client.ask("POST", "/api/jobs", {"prompt": "1 steps of ask"}, token=token))[1]["id"]
        runs.workers.start()
        asked = (await until(runs, run, "waiting"))["approvals"][0]["id"]
        users.change("ana", lambda user: msgspec.structs.replace(user, role="operator"))
        resume = {
            "threadId": "t",
            "runId": "r",
            "resume": [{"interruptId": asked, "status": "resolved", "payload": True}],
        }
        for path, body in (
            (f"/api/jobs/{run}/approve", {}),
            (f"/api/jobs/{run}/retry", None),
            (f"/api/approvals/{asked}", {"allow": True}),
            ("/agui/writer", resume),
        ):
            status, answer = await client.ask("POST", path, body, token=token)
            assert (status, answer["error"]["type"]) == (403, "forbidden"), path
            assert "only an administrator continues it" in answer["error"]["message"]
        assert (await client.ask("GET", f"/api/jobs/{run}", token=token))[0] == 200
        assert (await client.ask("POST", f"/api/jobs/{run}/approve", {}))[0] == 200
