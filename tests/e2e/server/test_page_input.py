"""The input of the page: files of drafts, the first page, chosen models, custom commands, and small screens."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from outrider.providers.scripted import call
from outrider.server.state import IdleSessionCloser
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import CompactionPart, TextPart
from tests.e2e.attach.socket_server import Serving
from tests.e2e.server.http_server import served
from tests.e2e.server.test_page import browsing, launch, pytestmark, say
from tests.e2e.server.test_page_daily_use import LONG, open_session
from tests.e2e.server.test_page_user_commands import page_of

__all__ = ["pytestmark"]
PICTURE = {"name": "picture.png", "mimeType": "image/png", "buffer": bytes.fromhex("89504e470d0a1a0a") + b"\0" * 20}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True}
# Waits until the database has what was written before, since the transactions of a store are executed in their order.
COUNT_STORED_FILES = """new Promise((resolve) => {
  indexedDB.open("outrider-drafts", 1).onsuccess = ({ target }) => {
    const count = target.result.transaction("files").objectStore("files").count();
    count.onsuccess = () => resolve(count.result);
  };
})"""
# Faster than the page draws.
COMPLETE_AND_TYPE = """(text) => {
  const tab = new KeyboardEvent("keydown", { key: "Tab", bubbles: true, cancelable: true });
  document.querySelector("#input").dispatchEvent(tab);
  document.execCommand("insertText", false, text);
}"""
CHOICE = {"model": "scripted/other", "effort": "high"}


async def test_attached_files_stay_with_their_draft_in_other_sessions_and_after_a_reload(tmp_path):
    async with served(tmp_path, ["seen"]) as client, browsing(client) as page:
        first = await open_session(page, client, title="first")
        await page.locator("#composer input[type=file]").set_input_files([PICTURE])
        name = page.locator(".attachments").get_by_text("picture.png")
        await name.wait_for()
        await open_session(page, client, title="second")
        assert await page.locator(".attachments").count() == 0
        await page.goto(f"{client.address.url}/#/{first}")
        await name.wait_for()
        await page.reload()
        await name.wait_for()
        await say(page, "look")
        await page.locator(".message.assistant").get_by_text("seen").wait_for()
        await page.locator(".attachments").wait_for(state="detached")
        await page.locator(".message.user").hover()
        await page.get_by_role("button", name="Edit this message").click()
        await name.wait_for()  # an edited message has its files
        await page.reload()
        await page.get_by_role("button", name="Remove picture.png").click()
        assert await page.evaluate(COUNT_STORED_FILES) == 0
        await page.reload()
        await page.locator("#input").wait_for()
        assert await page.locator(".attachments").count() == 0


async def test_the_first_page_starts_a_session_with_its_settings_files_and_folder(tmp_path):
    (tmp_path / "work").mkdir()
    async with served(tmp_path, ["seen"]) as client, browsing(client) as page:
        await page.locator("#start-input").wait_for()
        await page.select_option("#new-mode", "chat")
        await page.select_option("#new-effort", "high")
        await page.click("#new-folder")
        await page.locator("#folder-picker .folders li").first.wait_for()  # the response also sets the path
        await page.get_by_label("Path of the folder").fill(str(tmp_path / "work"))
        await page.get_by_role("button", name="Choose", exact=True).click()
        await page.locator(".start input[type=file]").set_input_files([PICTURE])
        await page.locator(".attachments").get_by_text("picture.png").wait_for()
        await page.fill("#start-input", "look")
        await page.get_by_role("button", name="Start", exact=True).click()
        await page.locator(".message.assistant").get_by_text("seen").wait_for()
        [session] = (await client.ask("GET", "/api/sessions"))[1]["sessions"]
        assert (session["mode"], session["workspace_directory"]) == ("chat", str(tmp_path / "work"))
        assert await page.input_value("#effort") == "high"
        await page.locator(".message.user img").wait_for()
        await page.evaluate("location.hash = '#/'")
        await page.locator("#start-input").wait_for()
        assert await page.locator(".attachments").count() == 0


async def test_a_chosen_model_and_effort_are_used_again_after_the_session_was_closed(tmp_path):
    async with served(tmp_path, ["one"]) as client, browsing(client) as page:
        session_id = await open_session(page, client)
        for name, value in CHOICE.items():
            assert (await client.ask("POST", f"/api/sessions/{session_id}/{name}", {name: value}))[0] == 200
        async with IdleSessionCloser(client.engine, idle_seconds=0.05), asyncio.timeout(10):
            while session_id in client.engine.live:
                await asyncio.sleep(0.02)
        await page.reload()
        await page.locator("#input").wait_for()
        assert {name: await page.input_value(f"#{name}") for name in CHOICE} == CHOICE
        status = (await client.ask("POST", f"/api/sessions/{session_id}/open", {}))[1]
        assert {name: status[name] for name in CHOICE} == CHOICE
        await client.ask("POST", f"/api/sessions/{session_id}/model", {"model": ""})
        await client.ask("POST", f"/api/sessions/{session_id}/effort", {"effort": None})
        assert (await client.ask("GET", f"/api/sessions/{session_id}"))[1]["metadata"] == {}


async def test_commands_of_the_user_and_of_a_trusted_folder_are_offered_and_expanded(tmp_path: Path):
    serving = Serving(tmp_path)
    serving.script("Reviewed.", "Greeted.")
    for folder, name, text in (
        (serving.workspace / ".outrider", "check", "---\ndescription: Look closely\n---\nReview $1 closely."),
        (serving.home, "greet", "Say hello to $ARGUMENTS."),
    ):
        (folder / "commands").mkdir(parents=True)
        (folder / "commands" / f"{name}.md").write_text(text)
    async with page_of(serving) as page:
        await page.locator(".hint-bar", has_text="check.md").wait_for()
        await page.locator("#input").press_sequentially("/gr")
        await page.locator("#suggestions").get_by_text("/greet").wait_for()
        await page.fill("#input", "")
        await page.locator(".hint-bar").get_by_role("button", name="Review").click()
        await page.get_by_role("button", name="Trust this folder").click()
        await page.get_by_role("button", name="Trust all that is listed?").click()
        await page.locator(".hint-bar").wait_for(state="detached")
        await page.click("#panel-close")
        await page.locator("#input").press_sequentially("/che")
        await page.locator("#suggestions").get_by_text("Look closely").wait_for()
        await page.evaluate(COMPLETE_AND_TYPE, "shop.py")
        await page.keyboard.press("Enter")
        await page.locator(".message.user").get_by_text("Review shop.py closely.").wait_for()
        await page.get_by_text("Reviewed.").wait_for()
        await say(page, "/greet the crew")
        await page.locator(".message.user").get_by_text("Say hello to the crew.").wait_for()


@pytest.mark.parametrize("look", [{"viewport": {"width": 1200, "height": 700}}, PHONE], ids=["desktop", "phone"])
async def test_the_answers_to_a_long_question_are_visible_on_a_small_screen(tmp_path, look: dict[str, Any]):
    long = "\n".join(f"line {number}" for number in range(200))
    script = [call("launch", where=long), "Up."]
    async with served(tmp_path, script, [launch]) as client, browsing(client, **look) as page:
        await open_session(page, client)
        await page.fill("#input", "go")
        await page.click("#send")
        await page.locator(".question").wait_for()
        for button in await page.locator(".question .buttons button").all():
            box = await button.bounding_box()
            assert box and box["y"] + box["height"] <= look["viewport"]["height"]
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "wider than the screen"
        await page.locator(".question").get_by_role("button", name="Yes, once").click()
        await page.get_by_text("Up.").wait_for()


async def test_a_short_scroll_up_ends_the_following_until_the_user_writes(tmp_path):
    async with served(tmp_path, [LONG, "The second.", "The third."]) as client, browsing(client) as page:
        session_id = await open_session(page, client)
        await say(page, "write")
        await page.get_by_text("Paragraph 79").wait_for()
        await page.locator("#conversation").hover()
        await page.mouse.wheel(0, -40)
        await page.locator("#to-end").wait_for()
        top = await page.locator("#conversation").evaluate("element => element.scrollTop")
        await client.engine.prompt(session_id, "more")  # from another program
        await page.get_by_text("The second.").wait_for()
        assert await page.locator("#conversation").evaluate("element => element.scrollTop") == top
        await say(page, "and more")
        await page.locator("#to-end").wait_for(state="detached")
        await page.get_by_text("The third.").wait_for()


async def test_enter_carries_out_a_command_that_is_written_completely(tmp_path):
    async with served(tmp_path, ["one"]) as client, browsing(client) as page:
        await open_session(page, client)
        await page.locator("#input").press_sequentially("/undo")
        await page.locator("#suggestions").get_by_text("/undo").wait_for()
        await page.keyboard.press("Enter")
        await page.wait_for_function("() => document.getElementById('input').value === ''")
        await page.locator("#conversation .note").wait_for()  # what it did
        await page.locator("#input").press_sequentially("/chan")
        await page.locator("#suggestions").get_by_text("/changes").wait_for()
        await page.keyboard.press("Enter")
        assert await page.input_value("#input") == "/changes "


async def test_sessions_are_chosen_with_the_arrow_keys(tmp_path):
    async with served(tmp_path, []) as client, browsing(client) as page:
        for title in ("first", "second"):
            await client.create(title=title)
        await page.reload()
        await page.locator(".session-row", has_text="first").wait_for()
        await page.locator("#search").focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowUp", "ArrowDown", "Enter"):
            await page.keyboard.press(key)
        await page.locator("#title").get_by_text("first").wait_for()


async def test_an_answer_that_ended_with_its_process_is_marked(tmp_path):
    async with served(tmp_path, []) as client, browsing(client) as page:
        session_id = await client.create()
        await client.engine.close(session_id)
        asked = Message("user", [TextPart("write")], session_id=session_id, time=MessageTime(created=1, completed=1))
        partial = Message("assistant", [TextPart("Half a")], session_id=session_id, time=MessageTime(created=2))
        await client.engine.store.append(session_id, [asked, *asked.parts, partial, *partial.parts])
        await page.goto(f"{client.address.url}/#/{session_id}")
        await page.locator(".message.assistant .interrupted-mark").wait_for()
        await page.locator("#continue").wait_for()


async def test_what_is_seen_in_one_tab_is_seen_in_all(tmp_path):
    async with served(tmp_path, ["one", "two", "three"]) as client, browsing(client) as page:
        other = await page.context.new_page()
        first = await open_session(page, client, title="first")
        second = await open_session(other, client, title="second")
        for session_id, tab, text in ((first, page, "one"), (second, other, "two"), (first, page, "three")):
            await client.engine.prompt(session_id, "more")
            await tab.locator(".message.assistant").get_by_text(text).wait_for()
        for session_id in (first, second):
            seq = (await client.ask("GET", f"/api/sessions/{session_id}"))[1]["seq"]
            arguments = [session_id, seq]
            await page.wait_for_function("([id, seq]) => JSON.parse(localStorage.seen)[id] >= seq", arg=arguments)
        await other.goto(f"{client.address.url}/#/")
        await other.locator(".session-row", has_text="first").wait_for()
        assert await other.locator("#sessions .unread").count() == 0
        await other.close()


async def test_the_menus_of_sessions_and_messages_need_no_mouse(tmp_path):
    async with served(tmp_path, ["Hello."]) as client, browsing(client, **PHONE) as page:
        await open_session(page, client, title="the boat")
        await page.fill("#input", "hello")
        await page.click("#send")
        await page.get_by_text("Hello.").wait_for()
        opacity = "element => getComputedStyle(element).opacity"
        assert await page.locator(".message.assistant .message-menu").evaluate(opacity) == "1"
        await page.click("#menu")
        actions = page.get_by_role("button", name="Actions for the boat")
        assert await actions.evaluate(opacity) == "1"
        await actions.tap()
        await page.get_by_role("button", name="Rename").tap()
        await page.locator(".rename").fill("the ship")
        await page.keyboard.press("Enter")
        await page.locator("#title").get_by_text("the ship").wait_for()


async def test_the_appearance_is_chosen_and_stored(tmp_path):
    async with served(tmp_path, [], users=None) as client, browsing(client, color_scheme="light") as page:
        await page.click("#show-settings")
        section = page.get_by_label("Appearance")
        await section.get_by_label("Colours").select_option("dark")
        await section.get_by_label("Text").select_option("large")
        await section.get_by_label("Break long lines of code").check()
        other = await page.context.new_page()
        await other.goto(client.address.url)
        root = "JSON.stringify({...document.documentElement.dataset})"
        wanted = '{"theme":"dark","size":"large","width":"normal","code":"wrapped"}'
        assert await other.evaluate(root) == wanted
        await section.get_by_label("Colours").select_option("system")
        await other.wait_for_function("() => !document.documentElement.dataset.theme")  # the other tab follows
        await other.close()


async def test_a_compaction_takes_instructions_and_is_undone(tmp_path):
    async with served(tmp_path, ["one " * 200, "two " * 200, "a summary"]) as client, browsing(client) as page:
        session_id = await open_session(page, client)
        for text in ("1", "2"):
            await client.ask("POST", f"/api/sessions/{session_id}/prompt", {"text": text, "wait": True})
        await say(page, "/compact focus on the API")
        await page.get_by_text("earlier messages were summarised").wait_for()
        stored = await client.engine.open(session_id)
        (part,) = stored.messages[-1].get_parts_by_type(CompactionPart)
        assert part.instructions == "focus on the API"
        await say(page, "/compact undo")
        await page.get_by_text("the summarised messages are used again").wait_for()
