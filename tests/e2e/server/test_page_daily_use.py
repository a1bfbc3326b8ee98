"""Daily use of the web page: many tabs, drafts, session states, following, editing, keys."""

import asyncio
import re
import sqlite3
from contextlib import AsyncExitStack, closing
from typing import Any

import pytest

from outrider import Agent, Engine, Tool
from outrider.providers.scripted import call
from outrider.server.auth import BrowserLogins, ListenAddress
from outrider.server.server import bind_socket
from outrider.server.state import IdleSessionCloser
from outrider.sessions.records import Approval, StoredSession
from outrider.sessions.sqlite.store import SqliteStore
from outrider.testing import Simulator
from outrider.types.events import ModelProgressEvent
from outrider.types.messages import Message, MessageTime
from outrider.types.outcomes import CommandOutcome, OutcomeFile
from outrider.types.parts import ModelRef, SubtaskPart, Tokens, ToolPart
from outrider.types.tool_state import RunningTime, ToolRunning
from tests.e2e.server.http_server import Client, served
from tests.e2e.server.test_page import browsing, launch, pytestmark, running, say

__all__ = ["pytestmark"]
LONG = "\n\n".join(f"Paragraph {number} of a long answer." for number in range(80))


async def open_session(page: Any, client: Any, **fields: Any) -> str:
    session_id = await client.create(**fields)
    await page.goto(f"{client.address.url}/#/{session_id}")
    await page.locator("#input").wait_for()
    return session_id


async def test_seven_tabs_share_one_connection(tmp_path):
    async with served(tmp_path, ["the answer"] * 8) as client, browsing(client) as page:
        tabs = [page, *[await page.context.new_page() for _ in range(6)]]
        for tab in tabs:
            await open_session(tab, client)
        for tab in tabs:
            await say(tab, "hello")
        for tab in tabs:
            await tab.locator(".message.assistant").get_by_text("the answer").wait_for()
        for tab in tabs[1:]:
            await tab.close()


async def test_a_draft_belongs_to_its_session_and_survives_a_reload(tmp_path):
    async with served(tmp_path, []) as client, browsing(client) as page:
        first = await open_session(page, client, title="first")
        await page.fill("#input", "half a thought")
        await open_session(page, client, title="second")
        assert await page.input_value("#input") == ""
        await page.goto(f"{client.address.url}/#/{first}")
        await page.locator("#title").get_by_text("first").wait_for()
        await page.reload()
        await page.locator("#input").wait_for()
        assert await page.input_value("#input") == "half a thought"


async def test_the_list_shows_which_sessions_wait_and_the_title_has_their_number(tmp_path):
    script = [call("launch", where="moon"), "It is up."]
    async with served(tmp_path, script, [launch]) as client, browsing(client) as page:
        waiting = await client.create(title="the launch")
        await open_session(page, client, title="another")
        await client.engine.enqueue(waiting, "go")
        row = page.locator(".session-row", has_text="the launch")
        await row.locator(".state.waiting").wait_for()
        await page.wait_for_function("document.title.startsWith('(1) ')")
        await row.locator("a").click()
        await page.locator(".question").get_by_role("button", name="Yes, once").click()
        await page.get_by_text("It is up.").wait_for()
        await row.locator(".state").wait_for(state="detached")
        await page.wait_for_function("!document.title.startsWith('(')")


async def test_what_a_model_does_before_its_answer_is_shown_until_the_answer_begins(tmp_path):
    begin = asyncio.Event()
    async with served(tmp_path, [[begin, "Read."]]) as client, browsing(client) as page:
        session_id = await open_session(page, client)
        await say(page, "go")
        await page.locator("#abort").wait_for()
        state = page.locator("#state")
        async with asyncio.timeout(30):
            while "reading the prompt 34 %" not in await state.inner_text():
                progress = ModelProgressEvent(session_id=session_id, stage="reading", done=34, total=100)
                client.engine.bus.publish(progress)
                await asyncio.sleep(0.1)
        begin.set()
        await page.locator(".message.assistant").get_by_text("Read.").wait_for()
        assert await state.inner_text() == ""


async def test_a_risky_fact_of_a_question_is_emphasized(tmp_path):
    files = (OutcomeFile(path=".env", kind="modified", protected=True), OutcomeFile(path="a.txt", kind="created"))
    async with served(tmp_path, []) as client, browsing(client) as page:
        session_id = await client.create()
        outcome = CommandOutcome(files=files)
        asked = Approval(session_id=session_id, call_id="c", tool="shell", input={"command": "make"}, outcome=outcome)
        await client.engine.store.ask(asked)
        await page.goto(f"{client.address.url}/#/{session_id}")
        facts = page.locator(".question .facts-list li")
        await facts.nth(1).wait_for()
        assert await facts.all_text_contents() == ["modified: .env (PROTECTED)", "created: a.txt"]
        assert await page.locator(".question .facts-list .risky").all_text_contents() == ["modified: .env (PROTECTED)"]
        colours = await facts.evaluate_all("items => items.map((item) => getComputedStyle(item).color)")
        assert colours[0] != colours[1]
        await page.get_by_role("button", name="Drop them, because").click()
        await page.get_by_placeholder("Why not? The model reads this (Enter sends it)").wait_for()


async def test_the_conversation_follows_its_end_through_approvals_until_the_user_scrolls_up(tmp_path):
    script = [part for number in range(6) for part in (LONG, call("launch", where=str(number)))] + ["The end."]
    steps = [[text, made] for text, made in zip(script[0:-1:2], script[1:-1:2], strict=True)]
    async with served(tmp_path, [*steps, "The end."], [launch]) as client, browsing(client) as page:
        await open_session(page, client)
        await say(page, "launch six")
        at_end = "(() => { const c = document.getElementById('conversation');"
        at_end += " return c.scrollHeight - c.scrollTop - c.clientHeight < 100; })()"
        for number in range(6):
            await page.locator(".question pre").get_by_text(f'"{number}"').wait_for()
            await page.wait_for_function(at_end)
            await page.locator(".question").get_by_role("button", name="Yes, once").click()
        await page.get_by_text("The end.").wait_for()
        await page.wait_for_function(at_end)
        await page.locator("#conversation").hover()
        await page.mouse.wheel(0, -2000)
        await page.locator("#to-end").wait_for()
        await page.click("#to-end")
        await page.wait_for_function(at_end)


async def test_a_reload_while_a_silent_tool_runs_shows_that_it_works_and_can_be_stopped(tmp_path):
    release = asyncio.Event()

    @Tool
    async def wait_long() -> str:
        """Wait."""
        await release.wait()
        return "waited"

    async with served(tmp_path, [call("wait_long"), "Over."], [wait_long]) as client, browsing(client) as page:
        session_id = await open_session(page, client)
        await say(page, "wait")
        await page.locator(".status.calling").wait_for()
        await page.reload()
        await page.locator("#abort").wait_for()
        await page.locator("#state.busy").wait_for()
        await page.click("#abort")
        await page.locator("#continue").wait_for()
        release.set()
        assert session_id in page.url


async def test_escape_ends_a_turn_only_where_nothing_else_is_meant(tmp_path):
    release = asyncio.Event()

    @Tool
    async def wait_long() -> str:
        """Wait."""
        await release.wait()
        return "waited"

    async with served(tmp_path, [call("wait_long"), "Over."], [wait_long]) as client, browsing(client) as page:
        await open_session(page, client)
        await say(page, "wait")
        await page.locator("#abort").wait_for()
        await page.fill("#search", "something")
        await page.press("#search", "Escape")
        assert await page.input_value("#search") == ""
        await page.keyboard.press("Control+k")
        await page.locator("#palette").wait_for()
        await page.keyboard.press("Escape")
        await page.locator("#palette").wait_for(state="detached")
        release.set()
        await page.get_by_text("Over.").wait_for()


async def test_an_approval_is_answered_with_the_keyboard_and_a_reason_is_sent_with_enter(tmp_path):
    script = [call("launch", where="moon"), "Up.", call("launch", where="mars"), "Left."]
    async with served(tmp_path, script, [launch]) as client, browsing(client) as page:
        await open_session(page, client)
        await say(page, "moon")
        await page.locator(".question").wait_for()
        await page.locator("#conversation").focus()
        await page.keyboard.press("q")
        await page.keyboard.press("y")
        await page.get_by_text("Up.").wait_for()
        await say(page, "mars")
        await page.locator(".question").get_by_role("button", name="No, because…").click()
        await page.locator(".question textarea:focus").wait_for()
        await page.keyboard.type("too far")
        await page.keyboard.press("Enter")
        await page.get_by_text("Left.").wait_for()
        await page.locator("details.call").last.locator("summary").click()
        await page.get_by_text("too far").wait_for()


async def test_escape_leaves_a_question_and_the_focus_moves_on_when_it_is_answered(tmp_path):
    script = [[call("launch", where="moon"), call("launch", where="mars")], "Up."]
    async with served(tmp_path, script, [launch]) as client, browsing(client) as page:
        await open_session(page, client)
        await say(page, "go")
        await page.locator(".question[data-approval]").nth(1).wait_for()
        await page.locator("#conversation").focus()
        await page.keyboard.press("q")
        await page.locator(".question[data-group]:focus").wait_for()
        await page.keyboard.press("Escape")
        await page.locator("#input:focus").wait_for()
        await page.locator(".question[data-approval]").first.focus()
        await page.keyboard.press("y")
        await page.wait_for_function("() => document.querySelectorAll('.question[data-approval]').length === 1")
        await page.locator(".question[data-approval]:focus").wait_for()
        await page.keyboard.press("y")
        await page.get_by_text("Up.").wait_for()
        await page.locator("#input:focus").wait_for()


async def test_a_plan_is_edited_with_several_lines_and_accepted_with_its_key(tmp_path):
    async with served(tmp_path, ["1. look\n2. mend", "It is mended."]) as client, browsing(client) as page:
        session_id = await open_session(page, client, mode="plan")
        await say(page, "mend it")
        plan = page.locator(".question[data-plan]")
        await page.locator(".session-row .state.waiting").wait_for()
        await page.wait_for_function("() => document.title.startsWith('(1) ')")
        assert await page.locator("#abort").count() == 0  # the turn is over
        await plan.get_by_text("Execute the plan?").wait_for()
        await plan.get_by_role("button", name="Edit it first").click()
        await plan.get_by_label("Text of the plan").press("Control+End")
        await page.keyboard.press("Enter")
        await page.keyboard.type("3. paint")
        await plan.get_by_role("button", name="Preview").click()
        await plan.locator("ol > li", has_text="paint").wait_for()
        await plan.focus()
        await page.keyboard.press("y")
        await page.get_by_text("It is mended.").wait_for()
        stored = (await client.ask("GET", f"/api/sessions/{session_id}/messages"))[1]["messages"]
        assert "1. look\n2. mend\n3. paint" in "".join(part.get("text", "") for one in stored for part in one["parts"])


async def test_a_message_on_the_first_page_starts_a_session(tmp_path):
    async with served(tmp_path, ["Hello to you."]) as client, browsing(client) as page:
        await page.locator("#start-input").wait_for()
        await page.keyboard.press("Escape")
        await page.keyboard.press("i")
        await page.keyboard.type("hello")
        await page.reload()
        await page.locator("#start-input").wait_for()
        assert await page.input_value("#start-input") == "hello"
        await page.press("#start-input", "Enter")
        await page.locator("#conversation").get_by_text("Hello to you.").wait_for()
        await page.evaluate("location.hash = '#/'")
        await page.fill("#start-input", "/rename the boat")
        await page.get_by_role("button", name="Start", exact=True).click()
        await page.press("#input", "Enter")
        await page.locator("#title").get_by_text("the boat").wait_for()
        assert len((await client.ask("GET", "/api/sessions"))[1]["sessions"]) == 2


async def test_input_during_a_turn_steers_it_or_waits_for_its_end(tmp_path):
    release = asyncio.Event()

    @Tool
    async def wait_long() -> str:
        """Wait."""
        await release.wait()
        return "waited"

    script = [call("wait_long"), "First turn.", "Second turn."]
    async with served(tmp_path, script, [wait_long]) as client, browsing(client) as page:
        session_id = await open_session(page, client, title="the boat")
        await say(page, "go")
        await page.locator(".status.calling").wait_for()
        await say(page, "faster")
        await page.fill("#input", "and then paint it")
        await page.click("#enqueue")
        await page.fill("#input", "never mind this")
        await page.press("#input", "Alt+Enter")
        await page.locator("#queue li", has_text="never mind this").get_by_role("button").click()
        await page.locator("#queue li", has_text="never mind this").wait_for(state="detached")
        release.set()
        await page.get_by_text("Second turn.").wait_for()
        stored = (await client.ask("GET", f"/api/sessions/{session_id}/messages"))[1]["messages"]
        texts = [part["text"] for one in stored for part in one["parts"] if part["type"] == "text"]
        texts = [text for text in texts if text in ("go", "faster", "First turn.", "and then paint it", "Second turn.")]
        assert texts == ["go", "faster", "First turn.", "and then paint it", "Second turn."]
        await page.goto(f"{client.address.url}/#/")
        await page.locator("#conversation").focus()
        await page.keyboard.press("Control+k")
        await page.locator("#palette input").fill("boat")
        await page.keyboard.press("Enter")
        await page.locator("#title").get_by_text("the boat").wait_for()


async def test_a_session_is_run_with_another_model_compared_and_replayed(tmp_path):
    script = ["First answer.", "Second answer."]
    async with served(tmp_path, script, cassettes=tmp_path / "cassettes") as client, browsing(client) as page:
        await open_session(page, client)
        await say(page, "go")
        await page.get_by_text("First answer.").wait_for()
        check = page.locator("#session-check")

        async def start(command: str) -> None:
            await page.locator("#conversation").focus()
            await page.keyboard.press("Control+k")
            await page.locator("#palette input").fill(command)
            await page.keyboard.press("Enter")
            await check.wait_for()

        await start("Compare")
        await check.get_by_text("There is no other session to compare with.").wait_for()
        assert await check.get_by_role("button", name="Run").is_disabled()
        await check.get_by_role("button", name="Close").click()
        await start("What if")
        await check.get_by_label("Model").fill("other")
        await check.get_by_role("button", name="Run").click()
        await check.get_by_role("row", name="model").get_by_text("other").wait_for()
        await check.get_by_role("button", name="Close").click()
        await start("Compare")
        await check.get_by_role("button", name="Run").click()
        await check.get_by_role("row", name="model").get_by_text("other").wait_for()
        await page.keyboard.press("Escape")
        await check.wait_for(state="detached")
        await start("Replay")
        await check.get_by_role("button", name="Run").click()
        await check.locator("pre").get_by_text("1 step, 0 differences").wait_for()


async def test_the_panel_shows_what_fills_the_context(tmp_path):
    agent = Agent("writer", "You write.", "claude-sonnet-4-5", "simulator")
    async with served(tmp_path, []) as client, Simulator(["Hello."]) as simulator, browsing(client) as page:
        async with Engine([agent], [simulator.provider()], store=client.engine.store) as engine:
            session_id = await engine.create()
            await engine.prompt(session_id, "hello there")
        await page.goto(f"{client.address.url}/#/{session_id}")
        await page.locator("#panel-toggle").click()
        await page.locator(".context-map summary").click()
        await page.locator(".treemap div", has_text=re.compile(r"user message .* · <\$0\.0001")).wait_for()
        boxes = await page.locator(".treemap div").evaluate_all(
            "all => all.map(one => one.offsetWidth * one.offsetHeight)"
        )
        whole = await page.locator(".treemap").evaluate("map => map.offsetWidth * map.offsetHeight")
        assert 0.95 < sum(boxes) / whole < 1.1


async def test_markdown_is_complete_and_code_can_be_copied(tmp_path):
    text = (
        "# Title\n\n1. one\n\n   ```python\n   x = 1\n   ```\n2. two\n\n- [x] done\n- [ ] open\n\n"
        "| left | right |\n|:--|--:|\n| `a\\|b` | \\| |\n\n***both*** ~~gone~~ $a^2$\n\n![a picture](https://other.example/x.png)\n"
    )
    async with served(tmp_path, [text]) as client, browsing(client) as page:
        await open_session(page, client)
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await say(page, "write")
        answer = page.locator(".message.assistant .markdown")
        await answer.locator("ol > li").nth(1).wait_for()
        assert await answer.locator("ol").count() == 1
        assert await answer.locator("li.task input:checked").count() == 1
        assert await answer.locator("td.right").inner_text() == "|"
        assert await answer.locator("em strong, strong em").inner_text() == "both"
        assert await answer.locator("s").inner_text() == "gone"
        assert await answer.locator("img").count() == 0
        assert await answer.locator("a").get_attribute("href") == "https://other.example/x.png"
        await answer.locator("math").wait_for(state="attached")
        await answer.locator(".hljs-number").wait_for()
        await answer.locator("button.copy").click()
        await answer.get_by_text("Copied").wait_for()
        assert await page.evaluate("navigator.clipboard.readText()") == "x = 1\n"


async def test_images_are_attached_and_files_are_named_with_at(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "remember.txt").write_text("x")
    async with served(tmp_path, ["seen"]) as client, browsing(client) as page:
        session_id = await open_session(page, client, workspace=str(tmp_path / "work"))
        picture = bytes.fromhex("89504e470d0a1a0a") + b"\0" * 20
        file = {"name": "picture.png", "mimeType": "image/png", "buffer": picture}
        await page.locator("#composer input[type=file]").set_input_files([file])
        await page.locator(".attachments").get_by_text("picture.png").wait_for()
        await page.locator("#input").press_sequentially("look at @rem")
        await page.locator("#suggestions").get_by_text("remember.txt").wait_for()
        await page.keyboard.press("Tab")
        assert await page.input_value("#input") == "look at @remember.txt "
        await page.keyboard.press("Enter")
        await page.locator(".message.assistant").get_by_text("seen").wait_for()
        page_of_messages = (await client.ask("GET", f"/api/sessions/{session_id}/messages"))[1]
        kinds = [part["type"] for part in page_of_messages["messages"][0]["parts"]]
        assert "file" in kinds and "text" in kinds


async def test_sessions_are_renamed_forked_edited_and_deleted(tmp_path):
    async with served(tmp_path, ["first answer", "second answer"]) as client, browsing(client) as page:
        await open_session(page, client, title="old name")
        await say(page, "a question")
        await page.get_by_text("first answer").wait_for()
        row = page.locator(".session-row", has_text="old name")
        await row.hover()
        await row.get_by_role("button", name="Actions").click()
        await row.get_by_role("button", name="Rename").click()
        await page.locator(".rename").fill("new name")
        await page.keyboard.press("Enter")
        await page.locator("#title").get_by_text("new name").wait_for()
        await page.locator(".message.user").hover()
        await page.get_by_role("button", name="Edit this message").click()
        await page.wait_for_function("() => document.getElementById('input')?.value === 'a question'")
        await say(page, "a better question")
        await page.get_by_text("second answer").wait_for()
        row = page.locator(".session-row", has_text="new name")
        await row.hover()
        await row.get_by_role("button", name="Actions").click()
        await row.get_by_role("button", name="Delete").click()
        await row.get_by_role("button", name="Really delete?").click()
        await row.wait_for(state="detached")


IN_VIEW = """text => {
    const found = document.querySelector(".found"), conversation = document.getElementById("conversation");
    if (!found || !conversation) return false;  // the session is being opened
    const box = found.getBoundingClientRect(), area = conversation.getBoundingClientRect();
    return Boolean(found.textContent.includes(text) && box.top >= area.top - 1 && box.top < area.bottom - 20);
}"""


@pytest.mark.parametrize("look", [{}, {"viewport": {"width": 390, "height": 800}}], ids=["desktop", "phone"])
async def test_search_hits_are_shown_at_their_places_also_in_the_session_that_is_open(tmp_path, look):
    places = (3, 20, 41, 60, 75, 88)
    answers = [f"answer {number}\n\n" + "some words\n\n" * (number * 7 % 40) for number in range(90)]
    async with served(tmp_path, answers) as client, browsing(client, **look) as page:
        session_id = await client.create(title="long")
        for number in range(90):
            await client.engine.prompt(session_id, f"the needle {number}" if number in places else f"question {number}")
        if look:
            await page.click("#menu")
        await page.fill("#search", "needle")
        hits = page.locator("#sessions a", has_text="needle")
        await hits.nth(4).wait_for()
        await page.get_by_role("button", name="1 more in this session").click()
        assert await hits.count() == len(places)
        for number in (41, 3, 88, 60, 60):
            if look and number != 41:
                await page.click("#menu")
            await hits.filter(has_text=re.compile(rf"needle\W+{number}\b")).click()
            await page.wait_for_function(IN_VIEW, arg=f"needle {number}")
            if look:
                await page.locator("#menu[aria-expanded=false]").wait_for()
                continue
            await page.mouse.move(800, 300)
            await page.mouse.wheel(0, 20_000 if number == 60 else -3000)
            await page.wait_for_timeout(300)


async def test_the_usage_of_a_session_includes_the_agents_that_it_called(tmp_path):
    async with served(tmp_path, ["the answer"]) as client:
        session_id = await client.create()
        await client.engine.prompt(session_id, "hi")
        own = (await client.ask("GET", f"/api/sessions/{session_id}/usage"))[1]
        parent = session_id
        for _ in range(2):  # a called agent, and an agent that it called
            child = StoredSession(parent_id=parent)
            await client.engine.store.create(child)
            time = MessageTime(created=1, completed=2)
            message = Message("assistant", session_id=child.id, time=time, finish="stop", tokens=Tokens(input=1000))
            await client.engine.store.append(child.id, [message])
            parent = child.id
        total = (await client.ask("GET", f"/api/sessions/{session_id}/usage"))[1]
    assert (own["messages"], total["messages"]) == (1, 3)
    assert total["tokens"]["input"] == own["tokens"]["input"] + 2000


async def test_a_called_agent_is_shown_when_its_call_arrives_after_it(tmp_path):
    async with served(tmp_path, []) as client, browsing(client) as page:
        session_id, store = await open_session(page, client), client.engine.store
        await client.engine.close(session_id)
        child = StoredSession(parent_id=session_id)
        await store.create(child)
        message = Message("assistant", session_id=session_id, time=MessageTime(created=1))
        named = {"message_id": message.id, "session_id": session_id}
        agent = SubtaskPart("helper", "look", "look", ModelRef("scripted", "m"), child.id, **named)
        await store.append(session_id, [message, agent])
        called = page.locator("details.called")
        await called.wait_for()
        assert await called.get_attribute("open") is None
        await store.append(session_id, [ToolPart("c", "call_agent", ToolRunning({}, RunningTime(1)), **named)])
        await page.locator("details.called[open]").wait_for(timeout=10_000)


async def test_idle_sessions_are_released_for_other_programs(tmp_path):
    async with served(tmp_path, ["one"]) as client:
        session_id = await client.create()
        await client.engine.prompt(session_id, "hi")
        assert session_id in client.engine.live
        async with IdleSessionCloser(client.engine, idle_seconds=0.05), asyncio.timeout(10):
            while session_id in client.engine.live:
                await asyncio.sleep(0.02)


async def test_a_workspace_must_exist(tmp_path):
    async with served(tmp_path, []) as client:
        for folder in (str(tmp_path / "nowhere"), "../..nowhere"):
            status, answer = await client.ask("POST", "/api/sessions", {"workspace": folder})
            assert status == 400 and re.search("not a folder", answer["error"]["message"])


async def test_stored_rows_that_cannot_be_read_are_named_when_a_session_is_opened(tmp_path):
    async with served(tmp_path, ["the first answer"]) as client, browsing(client) as page:
        session_id = await open_session(page, client)
        await say(page, "hello")
        await page.get_by_text("the first answer").wait_for()
        with closing(sqlite3.connect(tmp_path / "sessions.db")) as db, db:
            changed = db.execute("UPDATE parts SET body = x'7b' WHERE instr(body, CAST('the first answer' AS BLOB))")
            assert changed.rowcount == 1
        await page.reload()
        await page.locator("#conversation").get_by_text("a damaged part is skipped").wait_for()
        await page.locator("#conversation").get_by_text("hello", exact=True).wait_for()
        assert await page.get_by_text("a damaged part is skipped").count() == 1
        reply = (await client.ask("GET", f"/api/sessions/{session_id}/messages?views=true"))[1]
        assert [notice["level"] for notice in reply["notices"]] == ["warning"]


async def test_a_plan_is_discussed_first_or_refused_with_a_reason(tmp_path):
    script = ["1. look\n2. mend", "1. look\n2. paint", "1. paint"]
    async with served(tmp_path, script) as client, browsing(client) as page:
        session_id = await open_session(page, client, mode="plan")
        await say(page, "mend it")
        plan, waiting = page.locator(".question[data-plan]"), page.locator(".session-row .state.waiting")
        await waiting.wait_for()
        await plan.get_by_role("button", name="Discuss it first").click()
        await plan.wait_for(state="detached")
        await waiting.wait_for(state="detached")
        await page.wait_for_function("() => !document.title.startsWith('(')")
        await say(page, "why not paint it?")
        await plan.locator("li", has_text="paint").wait_for()
        await waiting.wait_for()
        await plan.focus()
        await page.keyboard.press("3")
        await plan.get_by_label("A word to the model").fill("no looking")
        await page.keyboard.press("Enter")
        await plan.locator("li", has_text="paint").wait_for()
        stored = (await client.ask("GET", f"/api/sessions/{session_id}/messages"))[1]["messages"]
        assert "no looking" in str(stored)


@pytest.mark.timeout(300)
async def test_a_plan_that_is_discussed_first_stays_hidden_after_a_reconnect(tmp_path):
    listening, address = bind_socket(ListenAddress())
    logins = BrowserLogins(tmp_path / "logins.json")
    async with AsyncExitStack() as opened:
        opened.callback(listening.close)
        store = await opened.enter_async_context(SqliteStore(tmp_path / "sessions.db"))
        first = await opened.enter_async_context(AsyncExitStack())
        engine = await first.enter_async_context(running(store, ["1. look\n2. mend"], listening, address, logins))
        session_id = await engine.create(mode="plan")
        page = await opened.enter_async_context(browsing(Client(None, address, engine)))
        await page.goto(f"{address.url}/#/{session_id}")
        await say(page, "mend it")
        plan, waiting = page.locator(".question[data-plan]"), page.locator(".session-row .state.waiting")
        await waiting.wait_for()
        await plan.focus()
        await page.keyboard.press("4")
        await plan.wait_for(state="detached")
        await first.aclose()
        await page.locator("#state.away").wait_for()
        await opened.enter_async_context(running(store, [], listening, address, logins))
        async with page.expect_response(lambda response: response.url.endswith(f"{session_id}/plan")) as loaded:
            await page.locator("#state:not(.away)").wait_for(state="attached")
        assert (await (await loaded.value).json())["text"] == "1. look\n2. mend"
        await page.evaluate("() => new Promise((shown) => requestAnimationFrame(() => setTimeout(shown)))")
        assert (await plan.count(), await waiting.count()) == (0, 0)
        await page.goto("about:blank")
        await page.goto(f"{address.url}/#/{session_id}")
        await plan.locator("li", has_text="mend").wait_for()
        await waiting.wait_for()
        await plan.focus()
        await page.keyboard.press("2")
        await plan.get_by_label("Text of the plan").wait_for()
        await page.goto("about:blank")
