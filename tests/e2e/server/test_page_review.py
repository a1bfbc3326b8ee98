"""Stories of review on the web page: changes by turn, file and hunk, comments, undo and commits."""

import os
import subprocess
from pathlib import Path
from typing import Any

from tests.e2e.attach.socket_server import Serving, call
from tests.e2e.server.test_page import pytestmark, say
from tests.e2e.server.test_page_user_commands import page_of

__all__ = ["pytestmark"]
LINES = [f"line {number}" for number in range(1, 41)]


def text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def reviewed(tmp_path: Path, *answers: Any) -> Serving:
    """A server that allows edits without questions, over a repository with one long file."""
    serving = Serving(tmp_path)
    (serving.workspace / "long.txt").write_text(text(LINES))
    serving.script(*answers)
    config = serving.home / "config.toml"
    config.write_text('approval = "edits"\n' + config.read_text())
    (serving.home / ".gitconfig").write_text("[user]\nname = A\nemail = a@example.com\n")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        git(serving, *arguments)
    return serving


def git(serving: Serving, *arguments: str) -> str:
    environ = {"HOME": str(serving.home), "PATH": os.environ["PATH"]}
    command = ["git", "-C", str(serving.workspace), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environ).stdout


def edits() -> list[Any]:
    read = call("read", file_path="long.txt")
    first = call("edit", file_path="long.txt", old_string="line 3\n", new_string="third\n")
    second = call("edit", file_path="long.txt", old_string="line 30\n", new_string="thirtieth\n")
    return [read, [first], [second], [call("write", file_path="made.txt", content="new\n")]]


async def test_a_hunk_and_a_file_are_undone_and_the_rest_is_committed(tmp_path):
    serving = reviewed(tmp_path, *edits(), "All done.")
    async with page_of(serving) as page:
        await say(page, "improve it")
        await page.get_by_text("All done.").wait_for()
        await page.locator("#input").fill("/changes")
        await page.keyboard.press("Escape")
        await page.keyboard.press("Enter")
        long = page.locator('[data-path="long.txt"]')
        await long.locator(".hunk").nth(1).wait_for()
        assert await long.locator(".line.added code").all_text_contents() == ["third", "thirtieth"]
        await page.get_by_label("Side by side").check()
        await long.locator(".pair").first.wait_for()
        assert await long.locator(".line.removed code").all_text_contents() == ["line 3", "line 30"]
        await page.get_by_label("Side by side").uncheck()
        await long.get_by_role("button", name="Undo the change at line 1 of").click()
        await long.get_by_role("button", name="Really undo?").click()
        await page.locator(".review").get_by_text("restored: long.txt").wait_for()
        assert (serving.workspace / "long.txt").read_text() == text([*LINES[:29], "thirtieth", *LINES[30:]])
        made = page.locator('[data-path="made.txt"]')
        await made.get_by_role("button", name="Undo the file").click()
        await made.get_by_role("button", name="Really undo?").click()
        await made.wait_for(state="detached")
        assert not (serving.workspace / "made.txt").exists()
        await page.get_by_label("Commit message").fill("Count further")
        await page.get_by_role("button", name="Commit 1 file").click()
        await page.get_by_text("Committed as").wait_for()
        assert git(serving, "log", "-1", "--format=%s").strip() == "Count further"
        assert git(serving, "status", "--porcelain") == ""


async def test_line_comments_are_written_with_the_keyboard_survive_a_reload_and_reach_the_agent(tmp_path):
    serving = reviewed(tmp_path, *edits(), "All done.", "I see.")
    async with page_of(serving) as page:
        await say(page, "improve it")
        await page.get_by_text("All done.").wait_for()
        await page.get_by_role("button", name="Details").click()
        await page.get_by_role("tab", name="Changes").click()
        lines = page.locator('[data-path="long.txt"] .hunk').first.locator(".lines")
        await lines.focus()
        for _ in range(4):
            await page.keyboard.press("ArrowDown")
        await page.keyboard.press("c")
        await page.locator(".comment textarea:focus").wait_for()
        await page.keyboard.type("write 3rd")
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Send 1 comment to the agent").wait_for()
        await page.reload()
        await page.get_by_role("button", name="Details").click()
        await page.get_by_role("tab", name="Changes").click()
        await lines.locator(".comment").get_by_text("write 3rd").wait_for()
        await page.get_by_role("button", name="Send 1 comment to the agent").click()
        await page.get_by_text("I see.").wait_for()
        sent = await page.locator(".message.user .text").last.inner_text()
        assert "`long.txt`, line 3:" in sent and "+third" in sent and sent.endswith("write 3rd")
        await page.get_by_role("button", name="Send 1 comment").wait_for(state="detached")


async def test_a_turn_is_reviewed_alone_and_undone_with_all_later_ones(tmp_path):
    write = [call("write", file_path="second.txt", content="2\n")]
    serving = reviewed(tmp_path, *edits(), "All done.", write, "More done.")
    async with page_of(serving) as page:
        await say(page, "improve it")
        await page.get_by_text("All done.").wait_for()
        await say(page, "one more")
        await page.get_by_text("More done.").wait_for()
        await page.get_by_role("button", name="Details").click()
        await page.get_by_role("tab", name="Changes").click()
        await page.locator('[data-path="long.txt"]').wait_for()
        await page.get_by_label("Changes of", exact=True).select_option(label="turn 2: one more")
        await page.locator('[data-path="long.txt"]').wait_for(state="detached")
        assert await page.locator(".review .changes").count() == 1
        (serving.workspace / "made.txt").write_text("by hand\n")
        await page.get_by_label("Changes of", exact=True).select_option(label="turn 1: improve it")
        await page.locator('[data-path="made.txt"]').get_by_text("changed again since").wait_for()
        await page.get_by_role("button", name="Undo from here on").click()
        await page.get_by_role("button", name="Undo this turn and all later ones?").click()
        await page.get_by_text("left as it is: made.txt").wait_for()
    assert (serving.workspace / "long.txt").read_text() == text(LINES)
    assert not (serving.workspace / "second.txt").exists()
    assert (serving.workspace / "made.txt").read_text() == "by hand\n"


async def test_the_changes_since_a_message_are_undone_in_the_conversation_with_a_report(tmp_path):
    serving = reviewed(tmp_path, *edits(), "All done.")
    async with page_of(serving) as page:
        await say(page, "improve it")
        await page.get_by_text("All done.").wait_for()
        (serving.workspace / "made.txt").write_text("by hand\n")
        await page.locator(".message.user").first.hover()
        await page.get_by_role("button", name="Undo the file changes since this message").first.click()
        await page.get_by_text("changed outside the session since, left as it is: made.txt").wait_for()
    assert (serving.workspace / "long.txt").read_text() == text(LINES)
    assert (serving.workspace / "made.txt").read_text() == "by hand\n"
