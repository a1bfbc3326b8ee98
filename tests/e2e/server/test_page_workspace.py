"""Stories of the workspace on the web page: files, tasks, plans, the trace and plots."""

from outrider.providers.scripted import call as scripted_call
from tests.e2e.attach.socket_server import Serving, call
from tests.e2e.server.http_server import TOKEN, served
from tests.e2e.server.test_page import browsing, launch, pytestmark, say
from tests.e2e.server.test_page_daily_use import LONG, open_session
from tests.e2e.server.test_page_user_commands import page_of

__all__ = ["pytestmark"]


async def test_files_are_browsed_with_the_keyboard_and_secrets_are_not_shown(tmp_path):
    serving = Serving(tmp_path)
    serving.script("fine")
    with (serving.home / "config.toml").open("a") as config:
        config.write('[rules]\ndeny = ["read(private/**)"]\n')
    work = serving.workspace
    for folder in ("src", "private"):
        (work / folder).mkdir()
    (work / "src" / "app.py").write_text("def run():\n    return 41\n")
    (work / "private" / "plan.txt").write_text("hidden words")
    (work / ".env").write_text("KEY=hidden-key")
    async with page_of(serving) as page:
        await page.get_by_role("button", name="Details").click()
        await page.get_by_role("tab", name="Files").click()
        tree = page.get_by_role("tree")
        await tree.get_by_text("src").wait_for()
        await tree.locator('[data-path=".env"]').get_by_text("hidden", exact=True).wait_for()
        await tree.locator('[data-path=".env"]').click(force=True)
        await tree.locator('[data-path="src"]').focus()
        await page.keyboard.press("ArrowRight")
        await tree.locator('[data-path="src/app.py"]').wait_for()
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")
        await page.locator(".viewer .hljs-number").get_by_text("41").wait_for()
        await page.get_by_role("button", name="Mention").click()
        assert await page.input_value("#input") == "@src/app.py "
        await page.get_by_role("button", name="← Files").focus()
        await page.keyboard.press("Escape")
        await tree.wait_for()
        assert "hidden-key" not in await page.content()
        address, _, session_id = page.url.partition("/#/")
        for path in (".env", "private/plan.txt", "../home/config.toml", "/etc/passwd"):
            answer = await page.request.get(
                f"{address}/api/sessions/{session_id}/file",
                params={"path": path},
                headers={"Authorization": f"Bearer {TOKEN}"},
            )
            assert answer.status == 400 and "hidden" not in await answer.text()


async def test_tasks_and_a_plan_are_shown_and_the_plan_is_changed_before_it_is_accepted(tmp_path):
    serving = Serving(tmp_path)
    todos = [{"content": "look", "status": "completed"}, {"content": "write", "status": "in_progress"}]
    serving.script(call("todo", todos=todos), "1. first step\n2. second step", "Carried out.")
    async with page_of(serving) as page:
        await page.select_option("#mode", "plan")
        await say(page, "make a plan")
        await page.locator(".question").get_by_text("first step").wait_for()
        await page.get_by_role("button", name="Details").click()
        await page.locator("#panel .todos .completed").get_by_text("look").wait_for()
        await page.locator(".question").get_by_role("button", name="Edit it first").click()
        await page.get_by_label("Text of the plan").fill("1. only one step")
        await page.locator(".question").get_by_role("button", name="Preview").click()
        await page.locator(".question").get_by_text("only one step").wait_for()
        await page.locator(".question").get_by_role("button", name="Execute it").click()
        await page.get_by_text("Carried out.").wait_for()


async def test_the_trace_has_no_idle_gaps_includes_called_agents_and_links_to_messages(tmp_path):
    serving = Serving(tmp_path)
    serving.script(
        call("call_agent", agent_name="helper", message="look"), call("list", path="."), "Seen.", LONG, LONG, "End."
    )
    with (serving.home / "config.toml").open("a") as config:
        config.write('[agents.lead]\ninstructions = "You lead."\n[agents.helper]\ninstructions = "You help."\n')
    async with page_of(serving) as page:
        await say(page, "begin")
        await page.get_by_text("Paragraph 79").last.wait_for()
        await page.wait_for_timeout(1500)  # a pause without a turn
        await say(page, "more")
        await page.locator("#state:not(.busy)").wait_for(state="attached")
        await say(page, "end")
        await page.get_by_text("End.").wait_for()
        await page.get_by_role("button", name="Details").click()
        await page.get_by_role("tab", name="Trace").click()
        await page.locator(".span").nth(6).wait_for()
        names = await page.locator(".span .label").all_text_contents()
        assert names[:4] == ["demo", "call_agent", "helper · demo", "list"]
        offsets = await page.locator(".span .bar").evaluate_all(
            "bars => bars.map(bar => [parseFloat(bar.style.left), parseFloat(bar.style.width)])"
        )
        assert all(0 <= left <= 100.5 and left + width <= 100.5 for left, width in offsets)
        await page.locator(".span").first.click()
        await page.locator(".found > .message").wait_for()
        assert await page.locator(".found > .message").is_visible()


async def test_context_and_cost_are_plotted(tmp_path):
    script = [scripted_call("launch", where="moon"), "one", "two", "three"]
    async with served(tmp_path, script, [launch]) as client, browsing(client) as page:
        session_id = await open_session(page, client)
        for text in ("hello", "again", "and again"):
            await say(page, text)
            if text == "hello":
                await page.locator(".question").get_by_role("button", name="Yes, once").click()
            await page.locator(".message.assistant").nth({"hello": 1, "again": 2, "and again": 3}[text]).wait_for()
        await page.locator("#state:not(.busy)").wait_for(state="attached")
        await page.get_by_role("button", name="Details").click()
        plot = page.locator('[data-plot="context"]')
        await plot.wait_for()
        timeline = (await client.ask("GET", f"/api/sessions/{session_id}/timeline"))[1]
        answers = [entry for entry in timeline if entry["kind"] == "model"]
        assert len(answers) == 4 and [entry["name"] for entry in timeline][1] == "launch"
        points = (await plot.locator("polyline").get_attribute("points") or "").split()
        assert len(points) == len([entry for entry in answers if entry.get("prompt_tokens")])
