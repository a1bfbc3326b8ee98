"""The main views of the web page, checked by axe-core in light and dark and on a phone, and used with the keyboard."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.attach.socket_server import call
from tests.e2e.server.test_page import pytestmark as page_marks
from tests.e2e.server.test_page import say
from tests.e2e.server.test_page_review import edits, reviewed
from tests.e2e.server.test_page_user_commands import page_of

AXE = Path(__file__).parents[3] / "web" / "node_modules" / "axe-core" / "axe.min.js"
pytestmark = page_marks
ANSWER = "# Title\n\nA [link](https://example.com) and `code`.\n\n```python\nx = 1  # one\n```\n\n| a |\n|--|\n| 1 |\n"
TABS = ("Session", "Changes", "Files", "Trace", "Processes", "Usage", "Settings")


COLOUR_RULES = ["color-contrast", "link-in-text-block"]
"""The rules that colours can violate; dark colours on the same elements can violate no other."""


async def find_violations(page: Any, view: str, rules: list[str] | None = None) -> list[str]:
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE.read_text())
    options = {"resultTypes": ["violations"]} | ({"runOnly": rules} if rules else {})
    found = await page.evaluate("async (options) => (await axe.run(document, options)).violations", options)
    return [f"{view}: {one['id']}: {node['target']} {node['failureSummary']}" for one in found for node in one["nodes"]]


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed; `npm ci` in web/ installs it")
@pytest.mark.parametrize("look", ["light", "dark", "telephone"])
async def test_the_main_views_have_no_violations_of_axe(look, tmp_path):
    serving = reviewed(
        tmp_path, *edits(), ANSWER, call("write", file_path=".github/workflows/x.yml", content="on: push\n"), "Over."
    )
    rules = COLOUR_RULES if look == "dark" else None
    async with page_of(serving) as page:
        await page.emulate_media(color_scheme="dark" if look == "dark" else "light", reduced_motion="reduce")
        wrong = await find_violations(page, "empty session", rules)
        await say(page, "improve it")
        await page.locator(".message.assistant h1").wait_for()
        if look == "telephone":
            await page.set_viewport_size({"width": 390, "height": 844})
        wrong += await find_violations(page, "conversation", rules)
        await page.locator("#panel-toggle").click()
        for tab in TABS:
            await page.get_by_role("tab", name=tab, exact=True).click()
            await page.locator("#panel-body > *").first.wait_for(state="attached")
            await page.wait_for_timeout(300)
            wrong += await find_violations(page, tab, rules)
        await page.get_by_role("tab", name="Files").click()
        await page.locator('[data-path="long.txt"]').click()
        await page.locator(".viewer code").get_by_text("line 40").wait_for()
        wrong += await find_violations(page, "file", rules)
        await page.locator("#panel-close").click()
        await page.keyboard.press("Control+k")
        await page.locator("#palette").wait_for()
        wrong += await find_violations(page, "palette", rules)
        await page.keyboard.press("Escape")
        await page.locator("#palette").wait_for(state="detached")
        await page.locator("#folder").click()
        await page.locator("#folder-picker .folders").first.wait_for()
        wrong += await find_violations(page, "folder picker", rules)
        await page.keyboard.press("Escape")
        await say(page, "write the workflow")
        await page.locator(".question").wait_for()
        wrong += await find_violations(page, "question", rules)
        await page.locator(".question").get_by_role("button", name="Yes, once").click()
        await page.get_by_text("Over.").wait_for()
        await page.evaluate("location.hash = '#/jobs'")
        await page.locator(".new-job").wait_for()
        wrong += await find_violations(page, "jobs", rules)
        await page.evaluate("location.hash = ''")
        await page.get_by_text("What should be done?").wait_for()
        if look == "telephone":
            await page.click("#menu")
        wrong += await find_violations(page, "start", rules)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert wrong == [], "\n".join(wrong)


async def test_a_review_is_done_with_the_keyboard_alone_and_escape_stays_in_its_context(tmp_path):
    serving = reviewed(tmp_path, *edits(), "All done.")
    async with page_of(serving) as page:
        await say(page, "improve it")
        await page.get_by_text("All done.").wait_for()
        await page.keyboard.press("Control+k")
        await page.keyboard.type("review")
        await page.keyboard.press("Enter")
        await page.locator(".hunk").first.wait_for()
        await page.locator("#tab-changes").focus()
        await page.keyboard.press("ArrowRight")
        await page.locator("#tab-files[aria-selected=true]:focus").wait_for()
        await page.keyboard.press("ArrowLeft")
        for _ in range(60):
            await page.keyboard.press("Tab")
            if await page.evaluate("document.activeElement.matches('.hunk .lines')"):
                break
        await page.keyboard.press("j")
        await page.keyboard.press("c")
        await page.locator(".comment textarea:focus").wait_for()
        await page.keyboard.press("Escape")
        await page.locator(".comment textarea").wait_for(state="detached")
        assert await page.locator("#panel").is_visible(), "Escape closed more than the comment"
        await page.locator("#panel-body").focus()
        await page.keyboard.press("Escape")
        await page.locator("#panel").wait_for(state="detached")
        await page.locator("#panel-toggle:focus").wait_for()
