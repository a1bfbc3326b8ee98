"""Every slash command on a real engine, with the application driven from inside."""

import asyncio
import gc
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Static

from outrider.config.settings import read_settings
from outrider.presentation.items import CommandItem, NoticeItem, TextItem, ToolCallItem, UserItem
from outrider.tui import dialogs as panels
from outrider.tui.app import OutriderApp
from outrider.tui.commands import COMMANDS
from outrider.tui.completion import CompletionList
from outrider.tui.composer import Composer
from outrider.tui.rendering.items import item_lines
from outrider.tui.startup import StartOptions, engine_opener
from outrider.tui.theme import DARK
from outrider.tui.widgets.modals import EditorScreen, PageScreen, PickerScreen
from outrider.tui.widgets.transcript import TranscriptWidget, WelcomeView
from outrider.types.parts import CompactionPart, TextPart
from outrider.types.tool_state import ToolCompleted
from tests.e2e.tui.conftest import call, write_script
from tests.e2e.tui.terminal import LIMIT


@asynccontextmanager
async def application(home: Path, workspace: Path) -> AsyncIterator[tuple[OutriderApp, Pilot[int]]]:
    environ = {"OUTRIDER_HOME": str(home), "HOME": str(home), "PATH": os.environ["PATH"]}
    async with AsyncExitStack() as stack:
        app = OutriderApp(StartOptions(lambda: read_settings(cwd=workspace, environ=environ)), engine_opener(stack))
        async with app.run_test(size=(100, 40), notifications=True) as pilot:
            await until(lambda: app.ui.open_controller is not None)
            yield app, pilot


async def until(true: Any, limit: float = LIMIT) -> None:
    async with asyncio.timeout(limit):
        while not true():
            await asyncio.sleep(0.02)


async def say(app: OutriderApp, pilot: Pilot[int], text: str) -> None:
    app.ui.find_widget(Composer).set_text(text)
    await pilot.press("enter")


async def answer(app: OutriderApp, pilot: Pilot[int], key: str) -> None:
    """Dialogs accept keys after a pause."""
    queue = app.ui.find_widget(panels.DialogQueue)
    await until(lambda: queue.shown is not None and queue.shown.has_focus_within)
    await asyncio.sleep(panels.ARMED_AFTER + 0.05)
    await pilot.press(key)


async def opened(app: OutriderApp, kind: type[Screen[Any]]) -> None:
    """Keys reach a screen once it has the focus."""
    await until(lambda: isinstance(app.screen, kind) and app.screen.is_current and app.screen.focused is not None)


def notes(app: OutriderApp) -> list[str]:
    return [item.text for item in app.ui.controller.conversation.items if isinstance(item, NoticeItem)]


def shown_texts(app: OutriderApp) -> list[str]:
    return [item.text for item in app.ui.controller.conversation.items if isinstance(item, UserItem | TextItem)]


def idle(app: OutriderApp) -> bool:
    return not app.ui.controller.conversation.activity.busy


async def test_sessions_are_started_found_forked_cleared_and_written_out(home, workspace):
    write_script(home, ["One.", "Two."])
    async with application(home, workspace) as (app, pilot):
        await say(app, pilot, "first words")
        await until(lambda: "One." in shown_texts(app) and idle(app))
        first = app.ui.controller.session_id
        await say(app, pilot, "/fork")
        await until(lambda: app.ui.controller.session_id not in ("", first))
        assert "One." in shown_texts(app)
        await say(app, pilot, "/new")
        await until(lambda: not app.ui.controller.session_id)
        await say(app, pilot, f"/resume {first}")
        await until(lambda: app.ui.controller.session_id == first and "One." in shown_texts(app))
        await say(app, pilot, "/sessions words")
        await opened(app, PickerScreen)
        await pilot.press("escape")
        for name, suffix in (("/share", "html"), ("/export", "json")):
            await say(app, pilot, name)
            await until(lambda suffix=suffix: list(workspace.glob(f"outrider-*.{suffix}")))
        await say(app, pilot, "/clear")
        await until(lambda: shown_texts(app) == [])
        assert not any("internal error" in note for note in notes(app))


async def test_the_first_request_of_a_session_excludes_its_messages_from_garbage_collections(home, workspace):
    write_script(home, ["One.", "Two."])
    async with application(home, workspace) as (app, pilot):
        before = gc.get_freeze_count()
        await say(app, pilot, "first")
        await until(lambda: "One." in shown_texts(app) and idle(app))
        after_first = gc.get_freeze_count()
        assert after_first > before
        await say(app, pilot, "second")
        await until(lambda: "Two." in shown_texts(app) and idle(app))
        assert gc.get_freeze_count() <= after_first  # garbage that is frozen would never be freed


async def test_reports_are_pages_to_read(home, workspace):
    write_script(home, [[call("read", file_path="notes.txt")], "Read."])
    async with application(home, workspace) as (app, pilot):
        await say(app, pilot, "read it")
        await until(lambda: "Read." in shown_texts(app) and idle(app))
        for name in ("/help", "/cost", "/trace"):
            await say(app, pilot, name)
            await opened(app, PageScreen)
            await pilot.press("escape")
            await until(lambda: not isinstance(app.screen, PageScreen))
        for name in ("/processes", "/permissions", "/undo", "/redo", "/compact"):
            before = len(notes(app))
            await say(app, pilot, name)
            await until(lambda before=before: len(notes(app)) > before)
        assert not any("internal error" in note for note in notes(app)), notes(app)


async def test_a_session_is_replayed_run_again_and_compared(home, workspace):
    write_script(home, [[call("read", file_path="notes.txt")], "Read.", "Read again."])
    config = home / "config.toml"
    config.write_text(config.read_text() + "[recording]\nenabled = true\n")

    async def page(command: str) -> str:
        await say(app, pilot, command)
        await opened(app, PageScreen)
        await until(lambda: str(app.screen.query_one(Static).content))
        text = str(app.screen.query_one(Static).content)
        await pilot.press("escape")
        await until(lambda: not isinstance(app.screen, PageScreen))
        return text

    async with application(home, workspace) as (app, pilot):
        await say(app, pilot, "read it")
        await until(lambda: "Read." in shown_texts(app) and idle(app))
        assert "2 steps, 0 differences" in await page("/replay")
        first = app.ui.controller.session_id
        assert re.search(r"model +demo +other", await page("/what-if script/other 1"))
        sessions = await app.ui.controller.archive.list_sessions(10)
        copy = next(session.id for session in sessions if session.id != first)
        assert "after 1 shared steps" in await page(f"/compare {copy}")
        await say(app, pilot, "/compare nothing-like-this")
        await until(lambda: any("there is no session" in note for note in notes(app)))


async def test_model_agent_and_theme_are_chosen(home, workspace):
    write_script(home, ["Hello."])
    async with application(home, workspace) as (app, pilot):
        await say(app, pilot, "/model script/other")
        await until(lambda: app.ui.controller.model.model == "other")
        await say(app, pilot, "hello")
        await until(lambda: "Hello." in shown_texts(app) and idle(app))
        assert app.ui.controller.model.model == "other"
        stored = await app.ui.controller.engine.store.load(app.ui.controller.session_id)
        assert stored.messages[-1].model.model == "other"
        await say(app, pilot, "/model nowhere/x")
        await until(lambda: any("unknown model nowhere/x" in note for note in notes(app)))
        await say(app, pilot, "/agents nobody")
        await until(lambda: any("unknown agent nobody" in note for note in notes(app)))
        await say(app, pilot, "/theme")
        await until(lambda: app.theme == "outrider-light")
    async with application(home, workspace) as (app, pilot):
        assert app.theme == "outrider-light"
        await say(app, pilot, "/theme auto")
        await until(lambda: app.theme == "outrider-dark")


async def test_after_a_failure_the_next_steps_are_named_and_continue_works(home, workspace):
    write_script(home, [[{"error": "the model is on holiday"}], "Here again.", "And more."])
    async with application(home, workspace) as (app, pilot):
        await say(app, pilot, "hello")
        await until(lambda: any("Ctrl+O chooses another model · /continue tries again" in note for note in notes(app)))
        await say(app, pilot, "/continue")
        await until(lambda: "Here again." in shown_texts(app) and idle(app))
        await say(app, pilot, "/continue")  # the turn has ended, so the model is asked
        await until(lambda: "And more." in shown_texts(app) and idle(app))


async def test_a_fork_ends_before_the_chosen_input_and_offers_it_again(home, workspace):
    write_script(home, ["One.", "Two.", "Three."])
    async with application(home, workspace) as (app, pilot):
        for text, answer in (("first words", "One."), ("second words", "Two."), ("third words", "Three.")):
            await say(app, pilot, text)
            await until(lambda answer=answer: answer in shown_texts(app) and idle(app))
        first = app.ui.controller.session_id
        await say(app, pilot, "/fork another way")
        await opened(app, PickerScreen)
        await pilot.press(*"second", "enter")
        await until(
            lambda: app.ui.controller.session_id != first and app.ui.find_widget(Composer).text == "second words"
        )
        assert shown_texts(app) == ["first words", "One."]
        assert app.ui.controller.title == "another way"


async def test_a_process_in_the_background_shows_its_output_and_is_ended_after_a_confirmation(home, workspace):
    write_script(home, [[call("shell", command="echo listening; sleep 300", background=True)], "It runs."])
    async with application(home, workspace) as (app, pilot):
        await say(app, pilot, "start it")
        await until(lambda: "It runs." in shown_texts(app) and idle(app))
        assert [process.command for process in app.ui.controller.conversation.side.background_processes()] == [
            "echo listening; sleep 300"
        ]
        await say(app, pilot, "/processes")
        await opened(app, PickerScreen)
        await pilot.press("enter")
        await until(lambda: panel_text(app, "listening"))
        await answer(app, pilot, "e")
        await until(lambda: panel_text(app, "echo listening; sleep 300"))
        await answer(app, pilot, "y")
        await until(lambda: "the process was ended" in notes(app))


async def test_the_end_of_an_output_is_shown_as_often_as_wanted_and_the_model_reads_all_of_it(home, workspace):
    command = {"command": "sleep 1; seq -f 'row %g.' 1 200; sleep 300", "background": True}
    script: list[Any] = [[{"tool": "shell", "id": "call_1", "input": command}], "It runs."]
    write_script(home, [*script, [call("process", action="read", process_id="call_1")], "Read."])
    async with application(home, workspace) as (app, pilot):
        await say(app, pilot, "start it")
        await until(lambda: "It runs." in shown_texts(app) and idle(app))
        client, session_id = app.ui.controller.client, app.ui.controller.session_id
        async with asyncio.timeout(LIMIT):
            while "row 200." not in await client.read_process_output(session_id, "call_1"):
                await asyncio.sleep(0.05)
        await say(app, pilot, "/processes")
        await opened(app, PickerScreen)
        await pilot.press("enter")
        for _ in range(2):
            await until(lambda: panel_text(app, "row 1.") and panel_text(app, "row 200."))
            await until(lambda: shows_end(app))
            await answer(app, pilot, "u")
        await answer(app, pilot, "escape")
        await say(app, pilot, "read it")
        await until(lambda: "Read." in shown_texts(app) and idle(app))
        calls = [item.part for item in app.ui.controller.conversation.items if isinstance(item, ToolCallItem)]
        assert isinstance(state := calls[-1].state, ToolCompleted)
        assert "row 1.\n" in state.output
        assert "row 200.\n" in state.output


def shows_end(app: OutriderApp) -> bool:
    """Whether the open dialog is longer than the screen, and scrolled to its end."""
    found = app.ui.find_widget(panels.DialogQueue).query(VerticalScroll).results()
    return any(0 < scroll.max_scroll_y == scroll.scroll_y for scroll in found)


def panel_text(app: OutriderApp, text: str) -> bool:
    """Whether the open dialog contains the text."""
    panel = app.ui.find_widget(panels.DialogQueue).shown
    lines = panel.body_lines(80, DARK) if panel is not None and panel.is_mounted else []
    return any(text in line.plain for line in lines)


async def test_called_agents_are_listed_with_their_task_and_can_be_looked_into(home, workspace):
    task = call("task", description="Count the files", prompt="Count all files here.")
    write_script(home, [[task], [call("list", path=".")], "There is one file.", "It says: one."])
    async with application(home, workspace) as (app, pilot):
        await say(app, pilot, "delegate it")
        await until(lambda: "It says: one." in shown_texts(app) and idle(app))
        agent = next(iter(app.ui.controller.conversation.side.agents.values()))
        assert (agent.state, agent.task, "Count" in agent.message) == ("done", "Count the files", True)
        await say(app, pilot, "/subagents")
        await opened(app, PickerScreen)
        await pilot.press("enter")
        await opened(app, PageScreen)
        assert "There is one file." in page_text(app)


def notices(app: OutriderApp) -> list[str]:
    return [str(toast.render()) for toast in app.screen.query("Toast")]


def page_text(app: OutriderApp) -> str:
    screen = app.screen
    assert isinstance(screen, PageScreen)
    return str(screen.text)


async def test_answers_are_copied_as_markdown_and_as_code(home, workspace, monkeypatch):
    copied: list[str] = []
    write_script(home, ["Use **this**:\n\n```python\nif x:\n    y()\n```\n\nDone."])
    async with application(home, workspace) as (app, pilot):
        monkeypatch.setattr(app.ui, "copy_text", copied.append)
        await say(app, pilot, "/copy")
        await until(lambda: "there is no answer to copy yet" in notes(app))
        await say(app, pilot, "show me")
        await until(lambda: any("Done." in text for text in shown_texts(app)) and idle(app))
        for command in ("/copy", "/copy code", "/copy all"):
            count = len(copied)
            await say(app, pilot, command)
            await until(lambda count=count: len(copied) > count)
    assert copied[0] == "Use **this**:\n\n```python\nif x:\n    y()\n```\n\nDone."
    assert copied[1] == "if x:\n    y()"
    assert copied[2].startswith("> show me\n\nUse **this**")


async def test_the_conversation_is_searched_and_the_line_is_shown(home, workspace):
    write_script(home, ["\n\n".join(f"paragraph {number}" for number in range(200))])
    async with application(home, workspace) as (app, pilot):
        await say(app, pilot, "talk")
        await until(lambda: any("paragraph 199" in text for text in shown_texts(app)) and idle(app))
        await pilot.press("ctrl+f")
        await opened(app, PickerScreen)
        await pilot.press(*"paragraph 17", "enter")
        transcript = app.ui.find_widget(TranscriptWidget)
        await until(lambda: transcript.found_line is not None)
        assert transcript.plain_lines()[transcript.found_line] == "paragraph 179"
        await pilot.press("ctrl+end")
        await until(lambda: transcript.found_line is None)


async def test_earlier_inputs_are_searched_with_control_r(home, workspace):
    write_script(home, ["One.", "Two."])
    async with application(home, workspace) as (app, pilot):
        for text, answer in (("first words", "One."), ("second words", "Two.")):
            await say(app, pilot, text)
            await until(lambda answer=answer: answer in shown_texts(app) and idle(app))
        await pilot.press("ctrl+r")
        await opened(app, PickerScreen)
        await pilot.press(*"first", "enter")
        await until(lambda: app.ui.find_widget(Composer).text == "first words")


async def test_the_reasoning_effort_is_chosen_by_command_and_by_key(home: Path, workspace: Path):
    write_script(home, ["One."])
    async with application(home, workspace) as (app, pilot):
        assert app.ui.controller.effort == "medium"
        await say(app, pilot, "/effort high")
        await until(lambda: app.ui.controller.effort == "high")
        await say(app, pilot, "go")
        await until(lambda: "One." in shown_texts(app))
        assert app.ui.controller.engine.live[app.ui.controller.session_id].agent.reasoning_effort == "high"
        await pilot.press("ctrl+y")
        await opened(app, PickerScreen)
        await pilot.press("up", "enter")
        await until(lambda: app.ui.controller.effort == "medium")
        await say(app, pilot, "/effort huge")
        await until(lambda: any("unknown effort huge" in text for text in notes(app)))


async def test_a_command_of_a_file_sends_its_text_with_the_arguments(home: Path, workspace: Path):
    write_script(home, ["Fixed."])
    async with application(home, workspace) as (app, pilot):
        (home / "commands").mkdir()
        (home / "commands" / "fix.md").write_text("---\ndescription: Fix an issue\n---\nFix issue $1 now.")
        await say(app, pilot, "/fix 12")
        await until(lambda: "Fixed." in shown_texts(app))
        assert shown_texts(app)[0] == "Fix issue 12 now."
        await say(app, pilot, "/nonsense")
        await until(lambda: any("unknown command /nonsense" in note for note in notes(app)))


async def test_a_session_is_renamed_and_status_context_and_servers_are_shown(home: Path, workspace: Path):
    write_script(home, ["Hello."])
    async with application(home, workspace) as (app, pilot):
        await say(app, pilot, "/context")
        await until(lambda: "the context is empty" in notes(app))
        await say(app, pilot, "hi")
        await until(lambda: "Hello." in shown_texts(app) and idle(app))
        await say(app, pilot, "/rename A better title")
        await until(lambda: app.ui.controller.title == "A better title")
        for name, text in (("status", "script/demo"), ("context", "system prompt")):
            await say(app, pilot, f"/{name}")
            await opened(app, PageScreen)
            assert text in str(app.screen.query_one(Static).render())
            await pilot.press("escape")
        await say(app, pilot, "/mcp")
        await until(lambda: any("no MCP servers" in note for note in notes(app)))


async def test_uncommitted_changes_are_shown_without_running_what_the_repository_names(home: Path, workspace: Path):
    write_script(home, ["Hello."])
    for arguments in ("init -q", "config user.email a@b.c", "config user.name A", "add .", "commit -q -m first"):
        subprocess.run(["git", *arguments.split()], cwd=workspace, check=True)
    (workspace / "notes.txt").write_text("remember the bread\n")
    (workspace / "new.txt").write_text("new\n")
    subprocess.run(["git", "config", "diff.external", "touch hacked"], cwd=workspace, check=True)
    async with application(home, workspace) as (app, pilot):
        await say(app, pilot, "/diff")
        await opened(app, PageScreen)
        await until(lambda: "untracked: new.txt" in str(app.screen.query_one(Static).render()))
        shown = str(app.screen.query_one(Static).render())
        assert "remember the milk" in shown
        assert "remember the bread" in shown
    assert not (workspace / "hacked").exists()


async def test_instructions_are_edited_in_place(home: Path, workspace: Path):
    write_script(home, ["Hello."])
    async with application(home, workspace) as (app, pilot):
        await say(app, pilot, "/memory")
        await opened(app, PickerScreen)
        await pilot.press("enter")
        await opened(app, EditorScreen)
        await pilot.press(*"Use tabs")
        await pilot.press("ctrl+s")
        await until((home / "AGENTS.md").exists)
        assert (home / "AGENTS.md").read_text() == "Use tabs\n"


async def test_instructions_keep_their_tabs_and_what_cannot_be_shown_is_not_edited(home: Path, workspace: Path):
    write_script(home, ["Hello."])
    (home / "AGENTS.md").write_text("make:\n\tgo\n")
    async with application(home, workspace) as (app, pilot):
        await say(app, pilot, "/memory")
        await opened(app, PickerScreen)
        await pilot.press("enter")
        await opened(app, EditorScreen)
        await pilot.press(*"A ")
        await pilot.press("ctrl+s")
        await until(lambda: any("written" in text for text in notes(app)))
        assert (home / "AGENTS.md").read_text() == "A make:\n\tgo\n"
        for content in (b"caf\xe9\n", b"a\x1b[31mb\n"):
            app.ui.controller.conversation.items.clear()
            (home / "AGENTS.md").write_bytes(content)
            await say(app, pilot, "/memory")
            await opened(app, PickerScreen)
            await pilot.press("enter")
            await until(lambda: any("use another editor" in text for text in notes(app)))


async def test_choices_are_remembered_for_the_folder_except_for_background_mode(home: Path, workspace: Path, tmp_path):
    write_script(home, ["Hello."])
    async with application(home, workspace) as (app, pilot):
        for text in ("/mode plan", "/mode background", "/approval edits", "/effort high"):
            await say(app, pilot, text)
        await until(lambda: app.ui.controller.effort == "high")
    async with application(home, workspace) as (app, _):
        chosen = app.ui.controller
        assert (chosen.mode, chosen.approval, chosen.effort) == ("plan", "edits", "high")
    (tmp_path / "other").mkdir()
    async with application(home, tmp_path / "other") as (app, _):
        chosen = app.ui.controller
        assert (chosen.mode, chosen.approval, chosen.effort) == ("agent", "ask", "medium")


async def test_tab_takes_the_suggestions_of_the_start_screen_one_after_the_other(home: Path, workspace: Path):
    write_script(home, ["Hello."])
    async with application(home, workspace) as (app, pilot):
        composer = app.ui.find_widget(Composer)
        await until(lambda: bool(composer.suggestions))
        await pilot.press("tab")
        assert composer.text == "Explain how this project is structured"
        await pilot.press("tab", "enter")
        await until(lambda: "Hello." in shown_texts(app))
        assert shown_texts(app)[0] == "Run the tests and fix what fails"
        await until(lambda: not composer.suggestions)


async def test_the_help_describes_every_command(home, workspace):
    write_script(home, [])
    async with application(home, workspace) as (app, pilot):
        await say(app, pilot, "/help")
        await opened(app, PageScreen)
        shown = " ".join(str(app.screen.query_one(Static).render()).split())
        for command in COMMANDS:
            assert command.note.split()[-1] in shown, command
            assert command.argument in shown, command


async def test_a_message_sent_at_once_is_shown_however_long_the_hooks_take(home, workspace, monkeypatch):
    def read_slowly(_: object) -> tuple[str, ...]:
        time.sleep(0.5)
        return ()

    monkeypatch.setattr("outrider.tui.app.hook_notices", read_slowly)
    write_script(home, ["Done."])
    async with application(home, workspace) as (app, pilot):
        await say(app, pilot, "first words")
        await until(lambda: "first words" in shown_texts(app) and idle(app))


async def test_a_compaction_takes_instructions_and_is_undone(home, workspace):
    write_script(home, ["One. " * 200, "Two.", "A summary."])
    async with application(home, workspace) as (app, pilot):
        for text in ("first words", "second words"):
            await say(app, pilot, text)
            await until(lambda text=text: text in shown_texts(app) and idle(app))
        await say(app, pilot, "/compact focus on the API")
        await until(lambda: any("were summarised" in note for note in notes(app)))
        stored = await app.ui.controller.engine.open(app.ui.controller.session_id)
        (part,) = [part for message in stored.messages for part in message.get_parts_by_type(CompactionPart)]
        assert part.instructions == "focus on the API"
        await say(app, pilot, "/compact undo")
        await until(lambda: any("are used again" in note for note in notes(app)))


async def test_arguments_of_mcp_prompts_and_addresses_of_resources_are_completed(home, workspace):
    pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    write_script(home, ["Hello."])
    program = Path(__file__).parents[1] / "mcp_servers" / "sdk_server.py"
    with (home / "config.toml").open("a") as config:
        config.write(f'[mcp.friendly]\ncommand = "{sys.executable}"\nargs = ["{program}", "stdio"]\n')
    async with application(home, workspace) as (app, pilot):
        composer, listed = app.ui.find_widget(Composer), app.ui.find_widget(CompletionList)
        await until(lambda: composer.resources)

        async def typed(*keys: str, offers: str) -> None:
            await pilot.press(*keys)
            await until(lambda: offers in str(listed.content))

        await typed(*"/friendly:greet", "space", offers="name=")
        await typed(*"A", offers="'Ada Lovelace'")
        await pilot.press("down", "enter")  # selected, so it is inserted
        assert composer.text == "/friendly:greet Alan "
        await typed(offers="'kind to Alan'")
        await pilot.press("tab")
        assert composer.text == "/friendly:greet Alan 'kind to Alan' "
        composer.set_text("")
        await typed(*"@notes://{", offers="notes://{day}")
        await pilot.press("tab")
        assert composer.text == "@friendly:notes://"
        await typed(*"mo", offers="@friendly:notes://mo%2Fday")
        composer.set_text("")
        await typed(*"/friendly:greet", "space", *"A", offers="'Ada Lovelace'")
        await pilot.press("enter")  # sends what is typed
        await until(lambda: "/friendly:greet A" in shown_texts(app))


def write_command(home: Path, name: str, text: str) -> None:
    (home / "commands").mkdir(exist_ok=True)
    (home / "commands" / f"{name}.md").write_text(text)


async def test_the_output_of_commands_in_a_command_file_is_part_of_the_prompt(home, workspace):
    write_script(home, ["Seen."])
    write_command(home, "state", "Notes: !`cat notes.txt`\nRead @notes.txt with $1. Asked: $ARGUMENTS")
    async with application(home, workspace) as (app, pilot):
        await say(app, pilot, "/state care !`touch made`")
        await until(lambda: "Seen." in shown_texts(app) and idle(app))
        expected = "Notes: remember the milk\nRead @notes.txt with care. Asked: care !`touch made`"
        assert shown_texts(app) == [expected, "Seen."]
        messages = await app.ui.controller.load_transcript()
        (sent,) = [part for part in messages[0].parts if isinstance(part, TextPart) and not part.synthetic]
        assert [origin.kind for origin in sent.origins or ()] == ["workspace"], "the user has not written the output"
    assert not (workspace / "made").exists()


async def test_a_command_of_a_command_file_is_refused_or_fails_with_a_reason_and_nothing_is_sent(home, workspace):
    write_script(home, ["Never sent."])
    write_command(home, "limited", "---\nallowed-tools: Bash(git status:*)\n---\n!`cat notes.txt`")
    write_command(home, "failing", "!`cat missing.txt`")
    async with application(home, workspace) as (app, pilot):
        composer = app.ui.find_widget(Composer)
        for line, reason in (
            ("/limited now", "allowed-tools of the file does not include it (Bash(git status:*))"),
            ("/failing", "No such file"),
        ):
            await say(app, pilot, line)
            await until(lambda line=line: composer.text == line)
            notice = app.ui.controller.conversation.items[-1]
            assert isinstance(notice, NoticeItem)
            assert "was not sent" in notice.text
            assert reason in notice.text
            composer.set_text("")
        assert shown_texts(app) == []


async def test_a_command_of_a_command_file_needs_the_approval_that_the_agent_would_need(home, workspace):
    write_script(home, ["Seen."])
    write_command(home, "change", "Changed: !`sh -c 'echo new > notes.txt; echo done'`")
    async with application(home, workspace) as (app, pilot):
        queue = app.ui.find_widget(panels.DialogQueue)
        for key, sent in (("escape", False), ("n", False), ("y", True)):
            await say(app, pilot, "/change")
            await until(lambda: queue.shown is not None and queue.shown.has_focus_within)
            assert queue.shown is not None
            assert queue.shown.title == "Keep what this command changed?"
            assert (workspace / "notes.txt").read_text() == "remember the milk\n"
            await answer(app, pilot, key)
            if not sent:
                await until(lambda: app.ui.find_widget(Composer).text == "/change")
                assert (workspace / "notes.txt").read_text() == "remember the milk\n"
                app.ui.find_widget(Composer).set_text("")
        await until(lambda: "Seen." in shown_texts(app) and idle(app))
        assert shown_texts(app)[0].startswith("Changed: done")
    assert (workspace / "notes.txt").read_text() == "new\n"


async def test_a_switch_refuses_a_word_that_is_neither_on_nor_off(home, workspace):
    write_script(home, ["Hello."])
    async with application(home, workspace) as (app, pilot):
        for command in ("vim", "notify", "print"):
            before = app.ui.preferences.stored
            await say(app, pilot, f"/{command} maybe")
            await until(lambda: "write on or off, not maybe" in notes(app))
            assert app.ui.preferences.stored == before
            await say(app, pilot, f"/{command} on")
            await until(lambda: any(text.split(";")[0].endswith("on") for text in notes(app)))
            app.ui.controller.conversation.items.clear()


async def test_a_file_that_cannot_be_written_is_named_with_the_reason(home, workspace):
    write_script(home, ["Hello."])
    async with application(home, workspace) as (app, pilot):
        await say(app, pilot, "hello")
        await until(lambda: shown_texts(app) == ["hello", "Hello."] and idle(app))
        path = workspace / f"outrider-{app.ui.controller.session_id[-8:]}.html"
        path.mkdir()
        await say(app, pilot, "/share")
        await until(lambda: notes(app) == [f"{path}: Is a directory"])


async def test_hooks_that_are_ignored_are_named_on_the_start_screen(home, workspace):
    write_script(home, ["Hello."])
    (home / "hooks.json").write_text('{"hooks": {"PreToolUze": [{"hooks": [{"command": "true"}]}]}}')
    async with application(home, workspace) as (app, _):
        await until(lambda: "there is no hook event 'PreToolUze'" in " ".join(app.ui.find_widget(WelcomeView).notices))


async def test_the_reason_why_the_engine_could_not_be_opened_stays_on_the_screen(home, workspace):
    write_script(home, ["Hello."])
    (home / "hooks.json").write_text("{")
    environ = {"OUTRIDER_HOME": str(home), "HOME": str(home), "PATH": os.environ["PATH"]}
    async with AsyncExitStack() as stack:
        app = OutriderApp(StartOptions(lambda: read_settings(cwd=workspace, environ=environ)), engine_opener(stack))
        async with app.run_test(size=(100, 40), notifications=True) as pilot:
            welcome = app.ui.find_widget(WelcomeView)
            await until(lambda: "hooks.json: is not valid JSON" in " ".join(welcome.notices))
            await say(app, pilot, "hello")
            await until(lambda: app.ui.find_widget(Composer).text == "hello")


async def test_quitting_says_which_background_commands_will_end(home, workspace):
    write_script(home, [[call("shell", command="sleep 600", background=True)], "It runs."])
    async with application(home, workspace) as (app, pilot):
        assert app.describe_quit() == "The session is stored."
        await say(app, pilot, "start it")
        await until(lambda: shown_texts(app) == ["start it", "It runs."] and idle(app))
        assert app.describe_quit() == "The session is stored; 1 background command will end."
        await pilot.press("ctrl+c")
        await until(lambda: any("1 background command will end" in text for text in notices(app)))


async def test_an_exclamation_mark_alone_is_not_sent(home, workspace):
    write_script(home, ["Hello."])
    async with application(home, workspace) as (app, pilot):
        await say(app, pilot, " ! ")
        await until(lambda: any("Write a command" in text for text in notices(app)))
        await say(app, pilot, "!exit 3")
        await until(lambda: len(app.ui.controller.conversation.items) == 1)
        (item,) = app.ui.controller.conversation.items
        assert isinstance(item, CommandItem)
        await until(lambda: item.exit_status == "exit code 3")
        assert [line.plain.strip() for line in item_lines(item, 60, DARK)] == ["! exit 3", "exit code 3"]
        assert shown_texts(app) == []
