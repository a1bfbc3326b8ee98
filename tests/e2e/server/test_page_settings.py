"""Stories of settings and of the list of sessions on the web page: trust, keys, servers, folders, archive, notices."""

import asyncio
import json
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from outrider import Tool
from outrider.config.settings import CommandFlags, read_settings
from outrider.providers.scripted import call as scripted_call
from outrider.sessions.records import Approval, StoredSession
from tests.e2e.attach.socket_server import Serving, call, until
from tests.e2e.server.http_server import served
from tests.e2e.server.test_page import browsing, launch, pytestmark, say
from tests.e2e.server.test_page_daily_use import open_session
from tests.e2e.server.test_page_user_commands import page_of
from tests.e2e.test_mcp_login import ProtectedServer

__all__ = ["pytestmark"]
COLLECT_NOTICES = """() => {
    window.notices = [];
    window.Notification = class { constructor(title, options) { window.notices.push(`${title}: ${options.body}`); } };
    window.Notification.permission = "granted";
    window.Notification.requestPermission = async () => "granted";
    Object.defineProperty(document, "hidden", { get: () => true });
}"""


@pytest.fixture
def oauth_server(tmp_path: Path) -> Iterator[ProtectedServer]:
    pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    (folder := tmp_path / "oauth").mkdir()
    server = ProtectedServer(folder)
    yield server
    server.process.kill()
    server.process.wait()


async def test_a_folder_is_trusted_after_its_files_were_shown_and_the_trust_is_ended(tmp_path):
    serving = Serving(tmp_path)
    serving.script("fine")
    (serving.workspace / "AGENTS.md").write_text("Use tabs.")
    async with page_of(serving) as page:
        await page.get_by_role("button", name="Settings").click()
        trust = page.get_by_role("region", name="Trust")
        await trust.get_by_text("untrusted", exact=True).wait_for()
        await trust.locator("summary", has_text="AGENTS.md").click()
        await trust.get_by_text("Use tabs.").wait_for()
        (serving.workspace / "AGENTS.md").write_text("Use tabs and delete everything.")
        await trust.get_by_role("button", name="Trust this folder").click()
        await trust.get_by_role("button", name="Trust all that is listed?").click()
        await page.locator("#notice").get_by_text("have changed since they were shown").wait_for()
        await page.get_by_role("tab", name="Usage").click()
        await page.get_by_role("tab", name="Settings").click()
        await trust.get_by_role("button", name="Trust this folder").click()
        await trust.get_by_role("button", name="Trust all that is listed?").click()
        await trust.get_by_text("trusted", exact=True).wait_for()
        await trust.get_by_role("button", name="End the trust").click()
        await trust.get_by_role("button", name="Really end it?").click()
        await trust.get_by_text("untrusted", exact=True).wait_for()


async def test_a_key_is_checked_stored_never_shown_and_used_at_once(tmp_path):
    serving = Serving(tmp_path)
    serving.script("fine")
    async with AsyncExitStack() as stack:
        address, used_keys = await stack.enter_async_context(vendor())
        serving.extra["ANTHROPIC_BASE_URL"] = address
        page = await stack.enter_async_context(page_of(serving))
        await page.click("#show-settings")
        shown = page.get_by_role("region", name="Models and keys")
        await shown.locator("li", has_text="google").get_by_text("no key").wait_for()
        await shown.get_by_role("button", name="Enter a key for anthropic").click()
        await shown.get_by_label("Key of anthropic").fill("sk-wrong")
        await shown.get_by_role("button", name="Store").click()
        await page.locator("#notice").get_by_text("anthropic refused the key: status 401").wait_for()
        assert not (serving.home / "keys.json").exists()
        await shown.get_by_label("Key of anthropic").fill("sk-secret-key")
        await shown.get_by_role("button", name="Store").click()
        await shown.get_by_text("The key is stored").wait_for()
        await shown.locator("li", has_text="anthropic").get_by_text("key stored here").wait_for()
        await page.locator("#model").focus()
        await page.select_option("#model", "anthropic/claude-new-1")
        await say(page, "hello")
        await page.get_by_text("The vendor answers.").wait_for()
        assert used_keys[-1] == "sk-secret-key"
        fetch = "fetch('/api/settings', {headers: {Authorization: 'Bearer ' + localStorage.credential}})"
        text = await page.evaluate(f"{fetch}.then(answer => answer.text())")
        assert "anthropic" in text and "sk-secret-key" not in text + await page.content()
        file = serving.home / "keys.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        found = read_settings(cwd=serving.workspace, environ=serving.environ, flags=CommandFlags(model="anthropic/x"))
        assert found.providers[0].api_key == "sk-secret-key" and "sk-secret-key" not in repr(found)
        own = serving.environ | {"ANTHROPIC_API_KEY": "of the environment"}
        found = read_settings(cwd=serving.workspace, environ=own, flags=CommandFlags(model="anthropic/x"))
        assert found.providers[0].api_key == "of the environment"

        await shown.get_by_role("button", name="Remove the key of anthropic").click()
        await shown.get_by_role("button", name="Really remove?").click()
        await shown.locator("li", has_text="anthropic").get_by_text("no key").wait_for()
        await say(page, "again")
        await page.locator("#next").wait_for()
        assert used_keys[-1] == ""


@asynccontextmanager
async def vendor() -> AsyncIterator[tuple[str, list[str]]]:
    """A server with Anthropic's API that accepts one key; yields its address and the keys of all requests."""
    used: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        used.append(request.headers.get("x-api-key", ""))
        if used[-1] != "sk-secret-key":
            return web.json_response(
                {"error": {"type": "authentication_error", "message": "invalid x-api-key"}}, status=401
            )
        if request.path.endswith("/models"):
            return web.json_response({"data": [{"id": "claude-new-1", "type": "model"}]})
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "claude-new-1",
            "content": [],
            "usage": usage,
        }
        events = [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "The vendor answers."}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
            {"type": "message_stop"},
        ]
        text = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events)
        return web.Response(text=text, content_type="text/event-stream")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield site.name, used
    finally:
        await runner.cleanup()


async def test_an_mcp_server_shows_its_error_and_works_after_a_login_in_the_browser(tmp_path, oauth_server):
    serving = Serving(tmp_path)
    serving.script([call("mcp__secure__greet", name="Ada")], "Greeted.", [call("mcp__secure__delete", name="x")], "So.")
    with (serving.home / "config.toml").open("a") as config:
        config.write(f'[mcp.secure]\ntype = "http"\nurl = "http://127.0.0.1:{oauth_server.port}/mcp"\n')
        config.write(f'[mcp.broken]\ncommand = "{sys.executable}"\nargs = ["-c", "raise SystemExit(3)"]\n')
        config.write('[rules]\nallow = ["mcp__secure__*"]\n')
    async with page_of(serving) as page:
        await page.click("#show-settings")
        secure = page.locator(".server", has_text="secure")
        broken = page.locator(".server", has_text="broken")
        await secure.get_by_text("it needs a login").wait_for()
        await broken.get_by_role("button", name="Connect to broken again").click()
        await broken.get_by_text("failed", exact=True).wait_for()
        assert await broken.get_by_role("button", name="Log in to broken").count() == 0

        async with page.context.expect_page() as opened:
            await secure.get_by_role("button", name="Log in to secure").click()
        tab = await opened.value
        await tab.get_by_text("You are logged in.").wait_for()
        assert await tab.evaluate("window.opener") is None
        await tab.close()
        await secure.get_by_text("ready", exact=True).wait_for()
        await secure.get_by_text("logged in").wait_for()
        await say(page, "greet")
        await page.get_by_text("Greeted.").wait_for()
        assert (await page.locator("#conversation").inner_text()).count("more rights") == 0
        await say(page, "delete")
        await secure.get_by_text("needs more rights").first.wait_for()

        blocked: list[str] = []  # the browser of another machine cannot open the last address

        async def block(route: Any) -> None:
            answer = await route.fetch(max_redirects=0)
            blocked.append(answer.headers["location"])
            await route.abort()

        await page.context.route("**/authorize?*", block)
        await secure.get_by_role("button", name="Log in to secure").click()
        address = secure.get_by_label("Address after the login at secure")
        await address.fill("https://example.com/")
        await secure.get_by_role("button", name="Finish").click()
        await page.locator("#notice").get_by_text("not the address that the login ends with").wait_for()
        await until(lambda: blocked)
        await address.fill(blocked[0])
        await secure.get_by_role("button", name="Finish").click()
        await secure.get_by_text("logged in").wait_for()
        await secure.get_by_role("button", name="Log out of secure").click()
        await secure.get_by_role("button", name="Really log out?").click()
        await secure.get_by_text("logged in").wait_for(state="detached")
    assert stat.S_IMODE((serving.home / "mcp_logins.json").stat().st_mode) == 0o600


async def test_a_lasting_answer_is_listed_and_revoked(tmp_path):
    script = [scripted_call("launch", where="moon"), "Up.", scripted_call("launch", where="moon"), "Again."]
    async with served(tmp_path, script, [launch]) as client, browsing(client) as page:
        session_id = await open_session(page, client)
        asked = Approval(
            session_id=session_id,
            call_id="c",
            tool="shell",
            input={"command": "make docs"},
            offers=("shell(make *)",),
            contents=("0" * 64,),
        )
        await client.engine.store.ask(asked)
        await client.engine.store.answer(asked.id, "allowed", scope="project", by="user")
        await say(page, "go")
        await page.locator(".question").get_by_role("button", name="Always").click()
        await page.get_by_text("Up.").wait_for()
        await page.click("#show-settings")
        answers = page.get_by_role("region", name="Lasting answers")
        await answers.locator("li", has_text="launch where=moon").get_by_text("covers launch").wait_for()
        make = answers.locator("li", has_text="make docs")
        covered = "shell(make *), the present content of the configuration files that its programs read"
        assert await make.locator("code").inner_text() == covered
        await make.get_by_text("folder", exact=True).wait_for()
        await make.get_by_role("button", name="Revoke shell").click()
        await make.wait_for(state="detached")
        await answers.get_by_role("button", name="Revoke launch").click()
        await answers.get_by_text("No answer lasts longer than one call.").wait_for()
        await say(page, "go")
        await page.locator(".question").get_by_role("button", name="Yes, once").click()
        await page.get_by_text("Again.").wait_for()


async def test_a_session_is_started_in_a_folder_that_was_found_with_the_picker(tmp_path):
    (tmp_path / "projects" / "boat").mkdir(parents=True)
    async with served(tmp_path, []) as client, browsing(client) as page:
        await client.create(workspace=str(tmp_path))
        await page.reload()
        await page.locator(".session-row").wait_for()
        await page.locator("#new-session-in").click()
        picker = page.locator("#folder-picker")
        await picker.get_by_role("button", name="projects").click()
        await picker.get_by_role("button", name="boat").click()
        await page.wait_for_function(
            "path => document.querySelector('#folder-picker input').value === path", arg=str(tmp_path / "projects/boat")
        )
        await picker.get_by_role("button", name="Start here").click()
        await page.locator("#folder").get_by_text("boat").wait_for()
        await page.click("#folder")
        await page.locator("#folder-picker").get_by_label("Path of the folder").fill(str(tmp_path / "nowhere"))
        await page.locator("#folder-picker").get_by_role("button", name="Open", exact=True).click()
        await page.locator("#folder-picker .failure").wait_for()
        await page.keyboard.press("Escape")
        await page.locator("#folder-picker").wait_for(state="detached")


async def test_archived_sessions_leave_the_list_and_more_than_a_hundred_are_reached(tmp_path):
    async with served(tmp_path, []) as client, browsing(client) as page:
        for number in range(130):
            await client.engine.store.create(StoredSession(title=f"session {number:03}"))
        await page.reload()
        await page.locator(".session-row").nth(99).wait_for()
        await page.get_by_role("button", name="More sessions").click()
        await page.locator(".session-row").nth(129).wait_for()
        oldest = page.locator(".session-row", has_text="session 000")
        await oldest.hover()
        await oldest.get_by_role("button", name="Actions").click()
        await oldest.get_by_role("button", name="Archive").click()
        await oldest.wait_for(state="detached")
        await page.click("#show-archive")
        await oldest.wait_for()
        assert await page.locator(".session-row").count() == 1
        await page.reload()
        await page.locator(".session-row").nth(98).wait_for()
        archived = (await client.ask("GET", "/api/sessions?archived=true"))[1]["sessions"]
        assert [session["title"] for session in archived] == ["session 000"]


async def test_a_hidden_page_notifies_about_sessions_that_wait_and_the_icon_has_a_dot(tmp_path):
    script = [scripted_call("launch", where="moon"), "It is up."]
    async with served(tmp_path, script, [launch]) as client, browsing(client) as page:
        await open_session(page, client, title="another")
        await page.evaluate(COLLECT_NOTICES)
        await page.click("#show-settings")
        await page.get_by_label("Tell me when a session waits").check()
        waiting = await client.create(title="the launch")
        await page.locator(".session-row", has_text="the launch").wait_for()
        await client.engine.enqueue(waiting, "go")
        await page.wait_for_function("() => window.notices.length === 1")
        assert await page.evaluate("window.notices") == ["the launch: The session waits for you."]
        icon = page.locator("link[rel=icon]")
        assert (await icon.get_attribute("href") or "").endswith("/page/icon-waiting.svg")
        (approval,) = await client.engine.approvals()
        await client.engine.answer(approval.id, allow=True)
        await page.wait_for_function("() => window.notices.at(-1) === 'the launch: The session is done.'")
        assert (await icon.get_attribute("href") or "").endswith("/page/icon.svg")


async def test_an_interrupted_answer_is_marked_and_its_prompt_is_sent_again(tmp_path):
    release = asyncio.Event()

    @Tool
    async def wait_long() -> str:
        """Wait."""
        await release.wait()
        return "waited"

    script = [["I begin.", scripted_call("wait_long")], "Now it is done."]
    async with served(tmp_path, script, [wait_long]) as client, browsing(client) as page:
        session_id = await open_session(page, client)
        await say(page, "do it")
        await page.locator(".status.calling").wait_for()
        await page.click("#abort")
        await page.locator("#retry").click()
        await page.get_by_text("Now it is done.").wait_for()
        await page.locator("#next").wait_for(state="detached")
        stored = (await client.ask("GET", f"/api/sessions/{session_id}/messages"))[1]["messages"]
        asked = [one["parts"][0].get("text") for one in stored if one["role"] == "user"]
        assert asked[0] == "do it" and asked[-1] == "do it"
        await page.locator(".interrupted-mark").first.wait_for()
        release.set()


async def test_rules_and_agents_are_listed(tmp_path):
    serving = Serving(tmp_path)
    serving.script(call("list", path="."), "Listed.")
    with (serving.home / "config.toml").open("a") as config:
        config.write('[rules]\ndeny = ["shell(git push *)"]\n')
    async with page_of(serving) as page:
        await page.click("#show-settings")
        rules = page.get_by_role("region", name="Rules")
        await rules.get_by_text("shell(git push *)").wait_for()
        await page.get_by_role("region", name="Agents").get_by_text("script/demo").wait_for()


async def test_without_a_model_the_first_page_takes_a_key_and_uses_the_model_of_its_vendor(tmp_path):
    serving = Serving(tmp_path)
    serving.extra["HTTPS_PROXY"] = serving.extra["https_proxy"] = "http://127.0.0.1:9"  # the key cannot be checked
    async with page_of(serving, session=False) as page:
        form = page.get_by_role("form", name="First set-up")
        await form.get_by_label("Vendor").select_option("OPENAI_API_KEY")
        await form.get_by_label("API key").fill("sk-secret-key")
        await form.get_by_role("button", name="Store").click()
        await form.wait_for(state="detached")
        assert await page.evaluate("document.activeElement.id") == "start-input"
        fetch = "fetch('/api/agents', {headers: {Authorization: 'Bearer ' + localStorage.credential}})"
        agents = await page.evaluate(f"{fetch}.then(answer => answer.json())")
        assert {agent["model"] for agent in agents} == {"openai/gpt-5.4"}
        async with page.expect_response("**/api/settings"):
            await page.reload()
        await page.locator("#start-input").wait_for()
        assert await form.count() == 0


async def test_prompts_of_mcp_servers_are_commands_and_a_server_is_switched_off_and_on(tmp_path):
    pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    serving = Serving(tmp_path)
    serving.script(
        "Hello Ada.", [call("mcp__friendly__add", a=1, b=2)], "Off.", [call("mcp__friendly__add", a=1, b=2)], "On."
    )
    program = Path(__file__).parents[1] / "mcp_servers" / "sdk_server.py"
    with (serving.home / "config.toml").open("a") as config:
        config.write(f'[mcp.friendly]\ncommand = "{sys.executable}"\nargs = ["{program}", "stdio"]\n')
        config.write('[mcp.unset]\ncommand = "x"\nenv = { KEY = "${NOT_SET}" }\n')
        config.write('[rules]\nallow = ["mcp__friendly__*"]\n')
    async with page_of(serving) as page:
        await page.click("#show-settings")
        server = page.locator(".server", has_text="friendly")
        await server.get_by_text("ready", exact=True).wait_for()
        await page.get_by_text("mcp.unset.env.KEY: the variable NOT_SET is not set").wait_for()
        await page.locator("#input").press_sequentially("/fri")
        offered = page.get_by_role("option", name="/friendly:greet")
        await offered.get_by_text("NAME [TONE] · Greet a person.").wait_for()
        await page.keyboard.press("Enter")
        await page.get_by_role("option", name="name=").wait_for()
        await page.locator("#input").press_sequentially("name=A")
        await page.get_by_role("option", name="name='Ada Lovelace'").wait_for()
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")  # the second one, because it was selected
        assert await page.input_value("#input") == "/friendly:greet name=Alan "
        await page.get_by_role("option", name="'kind to Alan'").wait_for()
        await page.keyboard.press("Tab")
        assert await page.input_value("#input") == "/friendly:greet name=Alan 'kind to Alan' "
        await page.fill("#input", "")
        await page.locator("#input").press_sequentially("see @friendly:notes://{")
        await page.get_by_role("option", name="friendly:notes://{day}").click()
        assert await page.input_value("#input") == "see @friendly:notes://"
        await page.locator("#input").press_sequentially("mo")
        await page.get_by_role("option", name="friendly:notes://mo%2Fday").click()
        assert await page.input_value("#input") == "see @friendly:notes://mo%2Fday "
        await page.fill("#input", "")
        await page.locator("#input").press_sequentially("/friendly:greet Ada")
        await page.get_by_role("option", name="'Ada Lovelace'").wait_for()
        await page.keyboard.press("Enter")  # what is typed
        await page.get_by_text("Hello Ada.").wait_for()

        await page.locator("#input").press_sequentially("@friendly:")
        await page.get_by_role("option", name="friendly:").first.wait_for()
        await page.keyboard.press("Tab")
        assert "@friendly:" in await page.input_value("#input")
        assert "://" in await page.input_value("#input")
        await page.fill("#input", "")
        await server.get_by_role("button", name="Switch friendly off").click()
        await server.get_by_text("off", exact=True).wait_for()
        await say(page, "add")
        await page.get_by_text("Off.", exact=True).wait_for()
        await server.get_by_role("button", name="Switch friendly on").click()
        await server.get_by_text("ready", exact=True).wait_for()
        await say(page, "add")
        await page.get_by_text("On.", exact=True).wait_for()
        path = "'/api/sessions/' + location.hash.slice(2) + '/messages'"
        fetch = f"fetch({path}, {{headers: {{Authorization: 'Bearer ' + localStorage.credential}}}})"
        stored = await page.evaluate(f"{fetch}.then(answer => answer.json())")
        parts = [part for message in stored["messages"] for part in message["parts"] if part["type"] == "tool"]
        assert [part["state"]["status"] for part in parts] == ["error", "completed"]
        assert "Say hello to Ada." in json.dumps(stored["messages"][0])


async def test_the_page_names_tools_that_an_mcp_server_renames(tmp_path):
    pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    serving = Serving(tmp_path)
    serving.script("First.", [call("mcp__one__close_ticket", id="1")], "Renamed.", "Told.")
    (gate := tmp_path / "gate").touch()
    program = Path(__file__).parents[1] / "mcp_servers" / "large_catalog.py"
    with (serving.home / "config.toml").open("a") as config:
        config.write(f'[mcp.one]\ncommand = "{sys.executable}"\nargs = ["{program}", "one", "5", "{gate}"]\n')
        config.write('[rules]\nallow = ["mcp__one__*"]\n')
    async with page_of(serving) as page:
        await page.click("#show-settings")
        await page.locator(".server", has_text="one").get_by_text("ready", exact=True).wait_for()
        await say(page, "go")
        await page.get_by_text("First.", exact=True).wait_for()
        gate.write_text("rename")
        await say(page, "close it")
        await page.get_by_text("Renamed.", exact=True).wait_for()
        await say(page, "and on")
        await page.get_by_text("Told.", exact=True).wait_for()
        await page.get_by_text("MCP: one has other tools than before; removed: ").wait_for()
