"""The jobs view of the web page in a real browser: what a person sees and does."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from tests.e2e.server.jobs_server import serving_runs
from tests.e2e.server.test_page import browsing, pytestmark

__all__ = ["pytestmark"]
SCREENS = Path(__file__).parents[3] / ".cache" / "screens"
ZONE = "Intl.DateTimeFormat().resolvedOptions().timeZone"
DIFF = "diff --git a/tea.txt b/tea.txt\n--- a/tea.txt\n+++ b/tea.txt\n@@ -1 +1 @@\n-none\n+<b>buy tea</b>\n"


async def test_a_person_submits_a_run_follows_it_answers_it_and_sees_what_came_of_it(tmp_path):
    async with serving_runs(tmp_path) as runs, browsing(runs.client) as page:
        await page.click("#show-jobs")
        await page.get_by_text("No runs yet.").wait_for()
        await page.fill("#job-prompt", "2 steps of ask")
        await page.press("#job-prompt", "Control+Enter")
        await page.locator(".badge[data-state=queued]").wait_for()
        runs.workers.start()
        await page.locator(".log details.call").first.wait_for()
        await page.locator(".badge[data-state=waiting]").wait_for()
        question = page.locator(".question")
        await question.get_by_text('"name": "ask-1"').wait_for()
        await question.get_by_role("button", name="Once").click()
        await page.locator(".run .badge[data-state=done]").wait_for()
        await page.locator(".outcome").get_by_text("ask is done after 2 calls").wait_for()
        await page.locator(".log").get_by_text("ask is done after 2 calls").wait_for()
        assert await page.locator(".facts dt").filter(has_text="Cost").count() == 1
        run_id = page.url.rpartition("/")[2]
        found = (await runs.client.ask("GET", f"/api/jobs/{run_id}"))[1]
        runs.report(found["run"], DIFF, " tea.txt | 2 +-\n 1 file changed, 1 insertion(+), 1 deletion(-)\n")
        await page.locator(".changes summary").get_by_text("1 file changed").wait_for()
        assert await page.locator(".diff .added").last.inner_text() == "+<b>buy tea</b>"
        assert await page.locator("#conversation b").count() == 0
        assert "null" not in await page.locator(".run").inner_text()


async def test_a_person_sees_what_the_agents_do_that_a_run_calls(tmp_path):
    async with serving_runs(tmp_path) as runs, browsing(runs.client) as page:
        run = (await runs.client.ask("POST", "/api/jobs", {"prompt": "1 steps of delegate"}))[1]
        await page.goto(f"{runs.client.address.url}/#/jobs/{run['id']}")
        runs.workers.start()
        agent = page.locator(".log details.called")
        await agent.locator("summary", has_text="reviewer").first.wait_for()
        await agent.locator("details.call", has_text="ask-0").locator(".status.done").wait_for()
        assert await agent.locator(".message.user .who").inner_text() == "writer", "the caller asks, and no person"
        await page.locator(".question").get_by_role("button", name="Once").click()
        await agent.get_by_text("ask is done after 2 calls").wait_for()
        await page.locator(".run .badge[data-state=done]").wait_for()
        assert await agent.locator("details.call .status.done").count() == 2
        await page.reload()
        await agent.locator("summary", has_text="reviewer").first.wait_for()
        assert await agent.locator("details.call").count() == 0, "one that is done is closed until somebody opens it"
        await agent.locator("summary", has_text="reviewer").first.focus()
        await page.keyboard.press("Enter")
        await agent.get_by_text("ask is done after 2 calls").wait_for()


async def test_runs_are_listed_canceled_and_retried_with_the_keyboard(tmp_path):
    async with serving_runs(tmp_path) as runs, browsing(runs.client) as page:
        nasty = "<img src=x onerror=\"document.title='owned'\">"
        for prompt in (nasty, "1 steps of waited"):
            await runs.client.ask("POST", "/api/jobs", {"prompt": prompt})
        await page.goto(f"{runs.client.address.url}/#/jobs")
        await page.locator("table.jobs tbody tr").nth(1).get_by_text("onerror").wait_for()
        assert await page.locator("#conversation img").count() == 0
        await page.get_by_role("link", name="1 steps of waited", exact=True).focus()
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Cancel").focus()
        await page.keyboard.press("Enter")
        await page.locator(".run .badge[data-state=canceled]").wait_for()
        await page.get_by_role("button", name="Retry").focus()
        await page.keyboard.press("Enter")
        await page.locator(".run .badge[data-state=queued]").wait_for()
        await page.goto(f"{runs.client.address.url}/#/{page.url.rpartition('/')[2]}")
        await page.wait_for_url("**/#/jobs/*")
        await page.get_by_role("link", name="All jobs").click()
        await page.locator("table.jobs .badge[data-state=queued]").nth(1).wait_for()
        assert await page.title() != "owned"


async def test_a_person_schedules_a_run_sees_when_it_is_due_pauses_and_ends_the_schedule_with_the_keyboard(tmp_path):
    async with serving_runs(tmp_path) as runs, browsing(runs.client) as page:
        await page.goto(f"{runs.client.address.url}/#/jobs")
        await page.get_by_text("No runs yet.").wait_for()
        assert await page.locator(".schedules").is_hidden()
        await page.select_option("#job-after", "on a schedule")
        await page.fill("#job-cron", "30 6 * * *")
        await page.fill("#job-prompt", "<b>look for dead links</b>")
        await page.press("#job-prompt", "Control+Enter")
        row = page.locator(".schedules tbody tr")
        await row.get_by_text("<b>look for dead links</b>").wait_for()
        (made,) = (await runs.client.ask("GET", "/api/schedules"))[1]
        assert (made["cron"], made["timezone"]) == ("30 6 * * *", await page.evaluate(ZONE))
        assert await page.evaluate("due => new Date(due).toLocaleString()", made["due"]) in await row.inner_text()
        await page.get_by_role("button", name="Pause the schedule").focus()
        await page.keyboard.press("Enter")
        await row.locator(".badge", has_text="paused").wait_for()
        assert (await runs.client.ask("GET", "/api/schedules"))[1][0]["paused"]
        await page.keyboard.press("Enter")  # the button has become the other one, and has the focus
        await row.locator("time").wait_for()
        assert (await runs.client.ask("GET", "/api/schedules"))[1] == [made]
        await page.get_by_role("button", name="Delete the schedule").focus()
        await page.keyboard.press("Enter")
        await page.get_by_text("Really?").wait_for()
        await page.keyboard.press("Enter")
        await page.locator(".schedules").wait_for(state="hidden")
        assert (await runs.client.ask("GET", "/api/schedules"))[1] == []


async def test_a_response_that_is_older_than_a_change_does_not_show_the_state_before_it(tmp_path):
    held: asyncio.Queue[Any] = asyncio.Queue()

    async def hold(route: Any) -> None:
        await held.put((route, await route.fetch()))

    async with serving_runs(tmp_path) as runs, browsing(runs.client) as page:
        await runs.client.ask("POST", "/api/schedules", {"cron": "0 7 * * *", "prompt": "1 steps of mornings"})
        await page.goto(f"{runs.client.address.url}/#/jobs")
        row = page.locator(".schedules tbody tr")
        await row.locator("time").wait_for()
        await page.route("**/api/schedules", hold)
        route, before = await held.get()
        await page.get_by_role("button", name="Pause the schedule").click()
        await row.locator(".badge", has_text="paused").wait_for()
        await route.fulfill(response=before)
        later, now = await held.get()  # the page has handled the response before: it polls again
        assert await row.locator(".badge", has_text="paused").count() == 1
        await later.fulfill(response=now)
        await page.unroute_all(behavior="ignoreErrors")


LOOKS = {
    "light": ("light", {"width": 1280, "height": 800}),
    "dark": ("dark", {"width": 1280, "height": 800}),
    "telephone": ("light", {"width": 390, "height": 844}),
}


async def test_the_jobs_view_is_looked_at(tmp_path):
    """Screenshots of the list, of a run that is done and of one that waits, for review."""
    async with serving_runs(tmp_path) as runs, browsing(runs.client) as page:
        asked = (await runs.client.ask("POST", "/api/jobs", {"prompt": "2 steps of ask"}))[1]
        done = (await runs.client.ask("POST", "/api/jobs", {"prompt": "1 steps of links"}))[1]
        await runs.client.ask("POST", "/api/jobs", {"prompt": "1 steps of tomorrow", "after": 86400})
        for prompt in ("1 steps of mornings", "1 steps of evenings"):
            made = (await runs.client.ask("POST", "/api/schedules", {"cron": "0 7 * * *", "prompt": prompt}))[1]
        await runs.client.ask("POST", f"/api/schedules/{made['id']}/pause")
        runs.workers.start()
        await page.goto(f"{runs.client.address.url}/#/jobs")
        for state in ("done", "waiting", "delayed"):
            await page.locator(f"table.jobs .badge[data-state={state}]").wait_for(timeout=60_000)
        found = (await runs.client.ask("GET", f"/api/jobs/{done['id']}"))[1]
        runs.report(found["run"], DIFF, " 1 file changed, 1 insertion(+), 1 deletion(-)\n")
        seen = {
            "list": ("", ".schedules .badge"),
            "done": (f"/{done['id']}", ".diff"),
            "waiting": (f"/{asked['id']}", ".question"),
        }
        SCREENS.mkdir(parents=True, exist_ok=True)
        for look, (scheme, size) in LOOKS.items():
            await page.emulate_media(color_scheme=scheme)
            await page.set_viewport_size(size)
            for name, (place, sign) in seen.items():
                await page.goto(f"{runs.client.address.url}/#/jobs{place}")
                await page.locator(sign).wait_for()
                await page.screenshot(path=SCREENS / f"jobs-{name}-{look}.png")
                assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
                    "wider than the screen"
                )
