"""The web page in a real browser: what a person sees and does."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider import Agent, Engine, Provider, Tool
from outrider.errors import NetworkError
from outrider.providers.scripted import call
from outrider.server.app import create_app
from outrider.server.auth import BrowserLogins, ListenAddress
from outrider.server.event_stream import SessionFeedRegistry
from outrider.server.server import OutriderServer, bind_socket
from outrider.sessions.sqlite.store import SqliteStore
from outrider.tools.tool import ToolResult
from outrider.types.events import Event
from outrider.types.request import Retry
from tests.e2e.server.http_server import TOKEN, Client, served
from tests.fixtures.browser import BROWSER, CHROMIUM

pytest.importorskip("playwright.async_api")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here"),
    pytest.mark.usefixtures("browser"),
    pytest.mark.asyncio(loop_scope="session"),  # as the driver of the browser, which takes long to start
]
PATIENCE = 60_000  # milliseconds


@asynccontextmanager
async def browsing(client: Client, **look: Any) -> AsyncIterator[Any]:
    """A signed-in page. An error on its console fails the test."""
    context = await BROWSER.connection.new_context(**look)
    try:
        page = await context.new_page()
        page.set_default_timeout(PATIENCE)
        wrong: list[str] = []
        page.on("console", lambda entry: wrong.append(entry.text) if entry.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        hosts: set[str] = set()
        page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
        await page.goto(f"{client.address.url}/?token={TOKEN}")
        yield page
        assert hosts == {client.address.url.split("/")[2]}, "the page asked somebody else"
        assert [line for line in wrong if not any(word in line for word in ("404", "409", "ERR_"))] == []
    finally:
        await context.close()


async def say(page: Any, text: str) -> None:
    await page.fill("#input", text)
    await page.press("#input", "Enter")


class DeployedEvent(Event, frozen=True, tag="DeployedEvent"):
    """An event of a program that uses the engine."""


@Tool(policy="ask")
def launch(where: str) -> str:
    """Launch it."""
    return f"launched to {where}"


async def test_a_person_starts_a_session_and_sees_the_answer_come(tmp_path):
    async with (
        served(tmp_path, ["Here is **the plan**:\n\n- one\n- two\n"], delay=0.01) as client,
        browsing(client) as page,
    ):
        await page.click("#new-session")
        await say(page, "what now?")
        await page.get_by_text("the plan").wait_for()
        await page.locator(".markdown strong", has_text="the plan").wait_for()
        await page.locator(".markdown li").get_by_text("two").wait_for()
        assert await page.locator(".markdown li").count() == 2
        await page.locator("#sessions a[aria-current=page]").get_by_text("what now?").wait_for()


async def test_a_call_is_approved_and_another_refused_with_a_word(tmp_path):
    script = [call("launch", where="moon"), "It is up.", call("launch", where="mars"), "I left it."]
    async with served(tmp_path, script, [launch]) as client, browsing(client) as page:
        await page.click("#new-session")
        await say(page, "to the moon")
        question = page.locator(".question")
        await question.get_by_text('"where": "moon"').wait_for()
        await question.get_by_role("button", name="Once").click()
        await page.get_by_text("It is up.").wait_for()
        await say(page, "to mars")
        await question.get_by_text('"where": "mars"').wait_for()
        await question.get_by_role("button", name="No, because…").click()
        await question.get_by_label("A word to the model").fill("too far")
        await question.get_by_role("button", name="No, because…").click()
        await page.get_by_text("I left it.").wait_for()
        assert await page.locator(".status.done").count() == 1
        await page.locator("details.call").last.locator("summary").click()
        await page.get_by_text("too far").wait_for()


async def test_what_others_do_in_the_session_is_seen(tmp_path):
    async with served(tmp_path, ["from elsewhere"]) as client, browsing(client) as page:
        session_id = await client.create(title="shared")
        await page.goto(f"{client.address.url}/#/{session_id}")
        await page.get_by_text("This session has no messages yet.").wait_for()
        await client.engine.prompt(session_id, "typed in a terminal")
        await page.get_by_text("from elsewhere").wait_for()
        await page.get_by_text("typed in a terminal").first.wait_for()


async def test_nothing_that_a_model_writes_is_obeyed_by_the_page(tmp_path):
    nasty = (
        "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script> [x](javascript:alert(1))"
    )
    async with served(tmp_path, [nasty]) as client, browsing(client) as page:
        await page.click("#new-session")
        await say(page, nasty)
        await page.locator(".message.assistant").get_by_text("onerror").wait_for()
        assert await page.locator("#conversation img, #conversation script").count() == 0
        assert await page.locator("#conversation a").count() == 0
        assert await page.title() != "owned"


NASTY_LINES = (
    r"$\href{javascript:alert(1)}{a}$ $\url{javascript:alert(1)}$ $\includegraphics{https://other.example/x.png}$",
    r"$\htmlStyle{position:fixed}{a}$ $\htmlId{input}{a}$ $\htmlData{a=b}{c}$ $\class{question}{a}$",
    r"$\rule{90000em}{90000em}$ $\hspace{90000em}$ $\def\a{\a\a}\a$ $\text{<img src=x onerror=alert(1)>}$",
    "![a](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIi8+) [a](data:text/html,<script>alert(1)</script>)",
    "[a](vbscript:alert(1)) [b](&#106;avascript:alert(1)) [c](//other.example/) [d](file:///etc/passwd) <javascript:a>",
    "<svg><style><img src=x onerror=alert(1)></style></svg> <math><mi xlink:href='javascript:alert(1)'>x</mi></math>",
    '```html"onmouseover="alert(1)\n<b onclick=alert(1)>x</b>\n```',
    "```xml\n<a href='javascript:alert(1)'>]]></a><script>alert(1)</script>\n```",
)


async def test_formulas_images_links_and_code_of_a_model_stay_inert(tmp_path):
    async with served(tmp_path, ["\n\n".join(NASTY_LINES) + "\n\nThe end."]) as client, browsing(client) as page:
        await page.click("#new-session")
        await say(page, "go")
        answer = page.locator(".message.assistant .markdown")
        await answer.get_by_text("The end.").wait_for()
        await answer.locator("math").first.wait_for()
        await answer.locator("code .hljs-tag, code .hljs-name").first.wait_for()
        found = await answer.evaluate(
            """answer => {
                const all = [...answer.querySelectorAll("*")];
                return {
                    tags: [...new Set(all.map(one => one.localName))],
                    handlers: all.flatMap(one => [...one.attributes]).filter(({ name, value }) =>
                        /^on|^style$|href$|^src$|^id$/.test(name) || /javascript:/i.test(value)).map(one => one.name),
                    width: answer.scrollWidth, height: answer.scrollHeight,
                };
            }"""
        )
        assert not set(found["tags"]) & {"script", "style", "svg", "img", "iframe", "form", "object", "embed"}
        assert found["handlers"] == []
        assert found["width"] < 3000 and found["height"] < 6000


async def test_code_that_takes_a_grammar_long_does_not_block_the_page(tmp_path):
    code = "```cpp\n" + "a" * 50_000 + "\n```\n\n```python\ndef last(): pass\n```\n"
    async with served(tmp_path, [code], chunk=100_000) as client, browsing(client) as page:
        await page.click("#new-session")
        await say(page, "go")
        await page.locator(".message.assistant code.language-python").wait_for()
        longest = await page.evaluate(
            """() => new Promise(resolve => {
                let last = performance.now(), longest = 0;
                const timer = setInterval(() => {
                    const now = performance.now();
                    longest = Math.max(longest, now - last);
                    last = now;
                    if (!document.querySelector("code.language-python .hljs-keyword")) return;
                    clearInterval(timer);
                    resolve(longest);
                }, 20);
            })"""
        )
        assert longest < 2500


async def test_a_plan_is_accepted_and_carried_out(tmp_path):
    async with served(tmp_path, ["1. look\n2. mend", "It is mended."]) as client, browsing(client) as page:
        session_id = await client.create(mode="plan")
        await page.goto(f"{client.address.url}/#/{session_id}")
        await say(page, "mend it")
        await page.locator(".question").get_by_role("button", name="Execute it").click()
        await page.get_by_text("It is mended.").wait_for()
        assert await page.locator("#mode").input_value() == "agent"


async def test_what_the_page_does_not_know_is_shown_all_the_same(tmp_path):
    """An event of the program itself. (Parts of unknown kinds: web/test/transcript.test.ts.)"""
    async with served(tmp_path, ["hello"]) as client, browsing(client) as page:
        session_id = await client.create()
        await page.goto(f"{client.address.url}/#/{session_id}")
        await page.get_by_text("This session has no messages yet.").wait_for()
        note = page.locator("#conversation .note").get_by_text("deployed")
        async with asyncio.timeout(30):
            while not await note.count():  # the page may not follow the session yet, and this event is not stored
                client.engine.bus.publish(DeployedEvent(session_id=session_id))
                client.engine.bus.publish(DeployedEvent(session_id=session_id))
                await asyncio.sleep(0.1)
        assert await page.locator("#conversation .note").count() == 1
        await client.engine.prompt(session_id, "hi")
        await page.locator(".message.assistant").get_by_text("hello").wait_for()
        await page.locator("#facts").get_by_text("tokens").wait_for()


async def test_a_call_its_figures_and_its_tasks_are_shown_as_the_server_describes_them(tmp_path):
    patch = "*** Begin Patch\n*** Add File: tea.txt\n+green\n*** End Patch"
    todos = [{"content": "buy tea", "status": "completed"}, {"content": "drink it", "status": "pending"}]

    @Tool
    def todo(todos: list[dict[str, str]]) -> ToolResult:
        """Store the tasks."""
        return ToolResult("stored", metadata={"todos": todos})

    @Tool
    def apply_patch(patch: str) -> str:
        """Apply it."""
        return "applied"

    script = [call("todo", todos=todos), call("apply_patch", patch=patch), "Done."]
    async with served(tmp_path, script, [todo, apply_patch]) as client, browsing(client) as page:
        session_id = await client.create()
        await client.engine.prompt(session_id, "tea")
        await page.goto(f"{client.address.url}/#/{session_id}")
        await page.get_by_text("Done.").wait_for()
        first, second = page.locator("details.call").nth(0), page.locator("details.call").nth(1)
        assert await first.locator(".subject").inner_text() == "2 items"
        assert (await second.locator(".status").inner_text()).startswith("done")
        assert await second.locator(".subject").inner_text() == "tea.txt"
        await first.locator("summary").click()
        assert await first.locator(".todos .completed").inner_text() == "buy tea"
        await page.keyboard.press("Escape")
        await page.locator("#panel-toggle").click()
        await page.get_by_role("tab", name="Trace").click()
        await page.locator(".waterfall .took").nth(4).wait_for()
        took = await page.locator(".waterfall .took").all_text_contents()
        assert len(took) == 5 and all(text.endswith("s") for text in took), took


async def test_the_keys_do_what_the_hint_shows(tmp_path):
    async with served(tmp_path, ["hello"]) as client, browsing(client) as page:
        await page.locator("#start-input").wait_for()
        await page.keyboard.press("Escape")  # leaves the input of the first page
        await page.keyboard.press("n")
        await page.locator("#input").wait_for()
        await say(page, "hi")
        await page.get_by_text("hello").wait_for()
        await page.locator("#conversation").focus()
        await page.keyboard.press("d")
        await page.get_by_role("tab", name="Session").focus()
        await page.keyboard.press("ArrowRight")
        assert await page.get_by_role("tab", name="Changes").get_attribute("aria-selected") == "true"
        await page.get_by_role("button", name="Close the details").click()
        assert await page.locator("#panel").is_hidden()
        await page.locator("#conversation").focus()
        await page.keyboard.press("/")
        await page.keyboard.type("hello")
        await page.locator("#sessions a .about").get_by_text("«hello»").first.wait_for()


@pytest.mark.parametrize("look", ["light", "dark", "telephone"])
async def test_the_page_is_looked_at(look, tmp_path):
    """Screenshots of a conversation with everything in it, for review."""
    script = [
        [{"reasoning": "I should look at the launch pad first."}, "I will launch it.", call("launch", where="moon")],
        "It is **up**.\n\n```python\nprint('moon')\n```\n\n| leg | time |\n|---|---|\n| ascent | 8 min |\n",
        call("launch", where="mars"),
    ]
    size = {"width": 390, "height": 844} if look == "telephone" else {"width": 1280, "height": 800}
    scheme = "dark" if look == "dark" else "light"
    folder = tmp_path / "screens"
    async with (
        served(tmp_path, script, [launch]) as client,
        browsing(client, viewport=size, color_scheme=scheme) as page,
    ):
        await page.click("#menu") if look == "telephone" else None
        await page.click("#new-session")
        await say(page, "Launch it to the moon, then show me how.")
        await page.locator(".question").get_by_role("button", name="Once").click()
        await page.get_by_text("ascent").wait_for()
        await say(page, "And to mars?")
        await page.locator(".question").get_by_text("mars").wait_for()
        if look != "telephone":
            await page.click("#panel-toggle")
            await page.get_by_role("tab", name="Trace").click()
            await page.locator(".waterfall .span").first.wait_for()
        await page.screenshot(path=folder / f"{look}.png")
        wide = await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert wide, "the page is wider than the screen"
        keep = Path(__file__).parents[3] / ".cache" / "screens"
        keep.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / f"{look}.png", keep / f"page-{look}.png")
        await client.engine.abort((await client.ask("GET", "/api/sessions"))[1]["sessions"][0]["id"])
        await asyncio.sleep(0)


@asynccontextmanager
async def running(
    store: Any, script: Any, listening: Any, address: Any, logins: BrowserLogins
) -> AsyncIterator[Engine]:
    """A server that can be ended and followed by another at the same address; who knocks in between waits."""
    provider = Provider("scripted", "scripted", options={"script": script, "delay": 0.01})
    async with Engine([Agent("writer", "You write.", "model-1", "scripted")], [provider], store=store) as engine:
        feeds = SessionFeedRegistry(engine)
        app = create_app(engine, feeds, address=address, token=TOKEN, version="0", logins=logins)
        server = OutriderServer(app, address, feeds)
        serving = asyncio.create_task(server.serve([listening.dup()]))
        try:
            yield engine
        finally:
            server.should_exit = True
            await serving


@pytest.mark.timeout(300)
async def test_after_a_restart_of_the_server_nothing_is_missed_and_nothing_seen_twice(tmp_path):
    listening, address = bind_socket(ListenAddress())
    logins = BrowserLogins(tmp_path / "logins.json")
    async with AsyncExitStack() as opened:
        opened.callback(listening.close)
        store = await opened.enter_async_context(SqliteStore(tmp_path / "sessions.db"))
        first = await opened.enter_async_context(AsyncExitStack())
        engine = await first.enter_async_context(running(store, ["the first answer"], listening, address, logins))
        session_id = await engine.create()
        async with browsing(Client(None, address, engine)) as page:
            await page.goto(f"{address.url}/#/{session_id}")
            await say(page, "one")
            await page.get_by_text("the first answer").wait_for()
            await first.aclose()
            await page.locator("#state.away").wait_for()
            provider = Provider("scripted", "scripted", options={"script": ["said meanwhile"]})
            async with Engine([Agent("writer", "", "m", "scripted")], [provider], store=store) as terminal:
                await terminal.prompt(session_id, "two")
            async with running(store, ["the last answer"], listening, address, logins):
                await page.get_by_text("said meanwhile").wait_for()
                await page.locator("#state:not(.away)").wait_for(state="attached")
                await say(page, "three")
                await page.get_by_text("the last answer").wait_for()
                texts = await page.locator("#conversation .text, #conversation .markdown").all_inner_texts()
                assert texts == ["one", "the first answer", "two", "said meanwhile", "three", "the last answer"]
                await page.goto("about:blank")


async def test_the_reasoning_effort_is_chosen_for_the_session(tmp_path):
    async with served(tmp_path, ["Done."]) as client, browsing(client) as page:
        session_id = await client.create()
        await page.goto(f"{client.address.url}/#/{session_id}")
        await page.select_option("#effort", "high")
        async with asyncio.timeout(30):
            while (
                session_id not in client.engine.live or client.engine.live[session_id].agent.reasoning_effort != "high"
            ):
                await asyncio.sleep(0.01)
        await say(page, "think about it")
        await page.get_by_text("Done.").wait_for()
        assert await page.locator("#effort").input_value() == "high"
        await page.select_option("#effort", "none")
        async with asyncio.timeout(30):
            while client.engine.live[session_id].agent.reasoning_effort != "none":
                await asyncio.sleep(0.01)


async def test_text_that_is_withdrawn_is_struck_out_while_the_retry_counts_down(tmp_path):
    release = asyncio.Event()
    failed = [Retry(number, 9_000, f"overloaded {number}", 12) for number in (1, 2, 3)]
    script = [["It was a dark night.", *failed, release, "It was a bright day."]]
    async with served(tmp_path, script) as client, browsing(client) as page:
        await page.click("#new-session")
        await say(page, "tell me a story")
        struck = page.locator(".message.assistant .withdrawn", has_text="It was a dark night.")
        await struck.wait_for()
        assert "line-through" in await struck.evaluate("element => getComputedStyle(element).textDecorationLine")
        state = page.locator("#state")
        await state.get_by_text("attempt 3 of 12 failed: overloaded 3").wait_for()
        first = re.match(r"retrying in (\d+)s", await state.inner_text())
        assert first is not None
        await state.get_by_text(f"retrying in {int(first[1]) - 2}s").wait_for()
        await page.locator(".note", has_text="attempt 3 failed: overloaded 3").wait_for()
        assert await page.locator(".note", has_text="failed: overloaded").count() == 1
        release.set()
        await page.get_by_text("It was a bright day.").wait_for()
        await page.reload()
        await page.locator(".withdrawn", has_text="dark night").wait_for()
        assert await page.locator(".note", has_text="failed: overloaded").count() == 1
        assert await page.locator(".withdrawn", has_text="bright day").count() == 0


async def test_after_a_failure_the_page_offers_to_continue_with_this_or_another_model(tmp_path):
    script = [NetworkError("the network is gone"), NetworkError("still gone"), "Here again.", "And done."]
    async with served(tmp_path, script) as client, browsing(client) as page:
        await page.click("#new-session")
        await say(page, "hello?")
        await page.locator(".failure", has_text='Send "continue" to try again, or choose another model').wait_for()
        await page.locator("#continue").click()
        await page.locator(".failure", has_text="still gone").wait_for()
        await page.focus("#next-model")
        await page.locator("#next-model option", has_text="scripted/model-1").wait_for(state="attached")
        await page.select_option("#next-model", "scripted/model-1")
        await page.get_by_text("Here again.").wait_for()
        await page.locator("#continue").wait_for(state="hidden")
        [session] = (await client.engine.store.list(limit=9)).sessions
        stored = await client.engine.store.load(session.id)
        assert [message.role for message in stored.messages].count("user") == 1
