"""The page over a real `outrider serve`: questions of models and called agents, and shell commands of the user."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.e2e.attach.socket_server import Serving, call, until
from tests.e2e.server.http_server import TOKEN
from tests.e2e.server.test_page import browsing, pytestmark, say

__all__ = ["pytestmark"]


@asynccontextmanager
async def page_of(serving: Serving, *, session: bool = True) -> AsyncIterator[Any]:
    """Signed in, with a new session open, or on the first page."""
    token = serving.home / "server" / "token"
    token.parent.mkdir(mode=0o700)
    token.write_text(TOKEN)
    token.chmod(0o600)
    url = re.search(r"http://[\d.:]+", await serving.begin("--port", "0"))
    assert url is not None
    try:
        async with browsing(SimpleNamespace(address=SimpleNamespace(url=url[0]))) as page:
            if session:
                await page.click("#new-session")
                await page.locator("#input").wait_for()
            yield page
    finally:
        await serving.end()


async def test_a_model_s_questions_are_answered_on_the_page(tmp_path: Path):
    serving = Serving(tmp_path)
    one = call("question", question="Which **colour**?", options=["red", "blue"])
    many = call("question", question="Which sizes?", options=["large", "small", "tiny"], multiple=True)
    serving.script(one, many, call("question", question="Anything else?"), "Painted.")
    async with page_of(serving) as page:
        await say(page, "paint it")
        question = page.locator(".question")
        await question.get_by_role("button", name="blue").click()
        await question.get_by_text("Which sizes?").wait_for()
        await question.get_by_label("small").check()
        await question.get_by_label("tiny").check()
        await question.get_by_label("Your own answer").fill("or none")
        await question.get_by_role("button", name="Answer", exact=True).click()
        await question.get_by_text("Anything else?").wait_for()
        await page.reload()  # it waits for the next input
        await question.get_by_text("Anything else?").wait_for()
        await question.get_by_role("button", name="No answer").click()
        await page.get_by_text("Painted.").wait_for()
        assert await question.count() == 0
        outputs = await page.locator("details.call pre.output").all_text_contents()
        assert outputs == [
            "The user answered: blue", "The user answered: small; tiny; or none", "The user gave no answer.",
        ]  # fmt: skip


async def test_a_command_runs_on_the_server_and_is_sent_with_the_next_input(tmp_path: Path):
    serving = Serving(tmp_path)
    serving.script("I have seen it.")
    async with page_of(serving) as page:
        await say(page, "!echo begun; while [ ! -e go ]; do sleep 0.05; done; echo over")
        shown = page.locator("details.by-hand")
        await shown.get_by_text("begun", exact=True).wait_for()
        (serving.workspace / "go").touch()
        await shown.locator(".status.done").wait_for()
        await say(page, "!echo $$ > pid; exec sleep 1000")
        await until(lambda: (serving.workspace / "pid").exists() and (serving.workspace / "pid").read_text().strip())
        await page.get_by_role("button", name="End it").click()
        await shown.get_by_text("interrupted").wait_for()
        pid = (serving.workspace / "pid").read_text().strip()
        await until(lambda: not Path(f"/proc/{pid}").exists())
        await say(page, "do you see?")
        await page.get_by_text("I have seen it.").wait_for()
        calls = page.locator(".message.user details.call")
        assert await calls.count() == 2
        assert await calls.first.locator("pre").text_content() == "begun\nover\n"
        assert await shown.count() == 0
        await say(page, "!exit 3")
        await shown.locator(".status.errored").get_by_text("exit code 3").wait_for()


async def test_what_a_called_agent_asks_is_asked_in_the_session_that_people_look_at(tmp_path: Path):
    serving = Serving(tmp_path)
    asks = call("question", question="Which colour?", options=["red", "blue"])
    serving.script(
        call("call_agent", agent_name="helper", message="paint"), call("shell", command="touch made"), asks,
        "Painted blue.", "The helper has painted it.",
    )  # fmt: skip
    with (serving.home / "config.toml").open("a") as config:
        config.write('[agents.lead]\ninstructions = "You lead."\n[agents.helper]\ninstructions = "You help."\n')
    async with page_of(serving) as page:
        await say(page, "let it be painted")
        question = page.locator(".question")
        await question.get_by_text("Keep what this command changed for helper?").wait_for()
        await page.reload()  # it is asked by what is stored, too
        await question.get_by_text("touch made", exact=True).wait_for()
        await question.get_by_role("button", name="Keep the changes").click()
        await question.get_by_role("button", name="blue").click()
        await page.get_by_text("The helper has painted it.").wait_for()
        assert await question.count() == 0
    assert (serving.workspace / "made").exists()


async def test_a_session_that_another_program_owns_is_taken_over_on_request(tmp_path: Path):
    serving = Serving(tmp_path)
    serving.script("Here I am.")
    other = Serving(tmp_path, "other.sock")
    async with page_of(serving) as page:
        await other.begin()
        try:
            async with other.client() as client:
                session_id = await client.create(title="theirs")
            await page.goto(f"{page.url.partition('#')[0]}#/{session_id}")
            await page.locator("#title").get_by_text("theirs").wait_for()
            await say(page, "hello?")
            await page.locator("#notice").get_by_text("is in use by process").wait_for()
            await page.get_by_role("button", name="Take it over").click()
            await page.locator("#notice").wait_for(state="hidden")
            await page.press("#input", "Enter")
            await page.get_by_text("Here I am.").wait_for()
        finally:
            await other.end()


async def test_an_answer_for_the_folder_holds_in_the_next_session_there(tmp_path: Path):
    serving = Serving(tmp_path)
    serving.script(
        call("write", file_path="made.txt", content="once"),
        "First answer",
        call("write", file_path="made.txt", content="twice"),
        "Second answer",
    )
    async with page_of(serving) as page:
        await say(page, "make it")
        question = page.locator(".question")
        await question.get_by_text("write(/made.txt)").wait_for()
        labels = await question.get_by_role("button").all_text_contents()
        assert labels == ["Yes, once", "This session", "This folder", "Always", "No", "No, because…"]
        await question.get_by_role("button", name="This folder").click()
        await page.get_by_text("First answer").wait_for()
        await page.click("#new-session")
        await page.get_by_text("This session has no messages yet.").wait_for()
        await say(page, "make it again")
        await page.get_by_text("Second answer").wait_for()


async def test_a_requested_change_is_shown_as_the_lines_that_come_and_go(tmp_path: Path):
    serving = Serving(tmp_path)
    (serving.workspace / "notes.txt").write_text("remember the milk\n")
    edit = call("edit", file_path="notes.txt", old_string="the milk", new_string="the tea")
    serving.script(call("read", file_path="notes.txt"), edit, "Changed.")
    async with page_of(serving) as page:
        await say(page, "tea instead")
        question = page.locator(".question")
        await question.locator(".file", has_text="notes.txt").wait_for()
        assert await question.locator(".diff .removed").all_text_contents() == ["-remember the milk"]
        assert await question.locator(".diff .added").all_text_contents() == ["+remember the tea"]
        await question.get_by_role("button", name="Once").click()
        await page.get_by_text("Changed.").wait_for()
    assert (serving.workspace / "notes.txt").read_text() == "remember the tea\n"


async def test_a_rule_is_widened_on_the_page(tmp_path: Path):
    serving = Serving(tmp_path)
    calls = [call("write", file_path=f"src/{name}.py", content="x") for name in "ab"]
    serving.script(calls[0], calls[1], "Both made.")
    async with page_of(serving) as page:
        await say(page, "make them")
        question = page.locator(".question")
        await question.get_by_label("What an answer that lasts covers").select_option("under src")
        await question.get_by_text("may write /src/**").wait_for()
        await question.get_by_role("button", name="This session").click()
        await page.get_by_text("Both made.").wait_for()
    assert (serving.workspace / "src/b.py").read_text() == "x"


async def test_many_edits_of_one_step_are_answered_together(tmp_path: Path):
    serving = Serving(tmp_path)
    calls = [call("write", file_path=f"{name}.txt", content="x") for name in "abcde"]
    serving.script(calls, "All made.")
    async with page_of(serving) as page:
        await say(page, "make them")
        await page.get_by_text("5 edits wait for an answer").wait_for()
        await page.get_by_role("button", name="No to all 5").wait_for()
        await page.get_by_role("button", name="Yes to all 5 edits").click()
        await page.get_by_text("All made.").wait_for()
        assert await page.locator(".question").count() == 0
    assert sorted(path.name for path in serving.workspace.glob("*.txt")) == [f"{name}.txt" for name in "abcde"]


async def test_the_page_shows_why_a_turn_was_stopped(tmp_path: Path):
    serving = Serving(tmp_path)
    serving.script(call("list", path="."), call("list", path="."), "Never said.")
    with (serving.home / "config.toml").open("a") as config:
        config.write("[limits]\nturns = 1\n")
    async with page_of(serving) as page:
        await say(page, "look around")
        await page.locator(".note.warning").get_by_text("stopped: the limit of 1").wait_for()
