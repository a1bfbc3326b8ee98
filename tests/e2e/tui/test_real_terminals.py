"""What real terminals send: carriage returns in pastes, mouse reports, keys before the screen is up, closed windows."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.tui.conftest import Open, call, environment, write_script
from tests.e2e.tui.terminal import LIMIT, Terminal, Tmux, Xterm

TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 3\n\tfoo()\nNameError: foo'


def stored_texts(home: Path) -> list[str]:
    """The texts of all stored user messages."""
    import asyncio

    from outrider.sessions.sqlite.store import SqliteStore

    async def read() -> list[str]:
        async with SqliteStore(home / "sessions.db") as store:
            page = await store.list(limit=5)
            sessions = [await store.load(found.id) for found in page.sessions]
        return [
            message.get_text_content() for session in sessions for message in session.messages if message.role == "user"
        ]

    return asyncio.run(read())


def history(home: Path) -> list[Any]:
    return [json.loads(row) for file in (home / "history").glob("*.jsonl") for row in file.read_text().splitlines()]


def test_a_paste_with_carriage_returns_has_its_lines_and_tabs(home, open_terminal: Open):
    write_script(home, ["Thanks.", "Thanks again.", "And this."])
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.paste(TRACEBACK.replace("\n", "\r"))
    terminal.wait_for("Traceback (most", '  File "x.py", line 3', "NameError: foo")
    assert "�" not in terminal.text()
    terminal.press("enter")
    terminal.wait_for("Thanks.")
    terminal.paste("\r".join(f"row\t{number}" for number in range(500)))
    terminal.wait_for("[pasted #1: 500 lines]")
    terminal.press("enter")
    terminal.wait_for("Thanks again.")
    terminal.paste("a\x1b]0;x\x07b\x00c\r\nd")
    terminal.wait_for("[pasted #1: 2 lines]")
    terminal.press("enter")
    terminal.wait_for("And this.")
    assert b"\x1b]0;x" not in terminal.raw  # neither shown nor executed as keys
    sent = [TRACEBACK, "\n".join(f"row\t{number}" for number in range(500)), "a\x1b]0;x\x07b\x00c\nd"]
    assert history(home) == sent
    assert stored_texts(home) == sent


def test_tmux_pastes_lines_and_tabs(home, open_tmux: Callable[..., Tmux]):
    write_script(home, ["Thanks."])
    terminal = open_tmux(size=(80, 24))
    terminal.wait_for("script/demo")
    terminal.paste(TRACEBACK)
    terminal.wait_for("Traceback (most", '  File "x.py", line 3', "NameError: foo")
    terminal.send("Enter")
    terminal.wait_for("Thanks.")
    assert stored_texts(home) == [TRACEBACK]


def test_xterm_pastes_lines_and_tabs(home, open_xterm: Callable[..., Xterm]):
    write_script(home, ["Thanks."])
    terminal = open_xterm()
    terminal.wait_for("script/demo")
    terminal.select_text(TRACEBACK)
    terminal.key("shift+Insert")
    terminal.wait_for("Traceback (most", '  File "x.py", line 3', "NameError: foo")
    terminal.key("Return")
    terminal.wait_for("Thanks.")
    assert stored_texts(home) == [TRACEBACK]


def test_typing_continues_after_a_click_and_a_drag_in_the_conversation(home, open_terminal: Open):
    write_script(home, ["Some words to click on."])
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.say("hello")
    terminal.wait_for("Some words to click on.")
    column, row = terminal.find("words")
    terminal.click(column, row)
    terminal.type("abc")
    terminal.wait_for("› abc")
    terminal.drag((column, row), (column + 8, row))
    terminal.type("def")
    terminal.wait_for("› abcdef")
    terminal.click(column, row + 3)
    terminal.type("ghi")
    terminal.wait_for("› abcdefghi")


def test_typing_continues_after_a_click_in_xterm(home, open_xterm: Callable[..., Xterm]):
    write_script(home, ["Some words to click on."])
    terminal = open_xterm()
    terminal.wait_for("script/demo")
    terminal.type("hello")
    terminal.key("Return")
    terminal.wait_for("Some words to click on.")
    terminal.click(10, 5)
    terminal.type("abc")
    terminal.wait_for("› abc")
    terminal.drag((4, 5), (20, 6))
    terminal.type("def")
    terminal.wait_for("› abcdef")


def test_keys_typed_before_the_screen_is_up_are_not_lost(home, open_terminal: Open):
    write_script(home, ["Hello to you."])
    terminal = open_terminal()
    terminal.type("good ")
    time.sleep(0.1)
    terminal.type("morning\r")
    terminal.wait_for("▌ good morning", "Hello to you.")


def test_keys_that_arrive_in_one_piece_are_handled_in_their_order(home, open_terminal: Open):
    """A slow connection sends several keys at once."""
    write_script(home, ["Thanks."])
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.type("ac\x1b[Db")
    terminal.wait_for("› abc")
    terminal.type("\x05d\x01\x0bnew\x03")  # Ctrl+C discards the text, also what arrived just before it
    terminal.wait_for("Ask a question", without="again to quit")
    terminal.type("\x1a")
    terminal.wait_for("› new")
    terminal.type(" text\x1b[D\x1b[D\x7fs\r")
    terminal.wait_for("▌ new tsxt", "Thanks.")


def ends(pid: int, limit: float = 20) -> bool:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("wait", [0.0, 0.1, 0.4])
def test_no_process_stays_when_the_window_is_closed_while_the_program_quits(home, open_terminal: Open, wait: float):
    write_script(home, ["A long story. " * 10_000], delay=0.01)
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.say("tell me")
    terminal.wait_for("A long story.")
    terminal.press("escape", "ctrl+c", "ctrl+c")
    time.sleep(wait)
    terminal.close_window()
    assert ends(terminal.process.pid)


def test_no_process_stays_when_a_shell_hangs_up_and_continues_it(home, open_terminal: Open):
    """A shell sends SIGHUP and SIGCONT to its jobs when its window is closed."""
    write_script(home, ["A long story. " * 10_000], delay=0.01)
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.say("tell me")
    terminal.wait_for("A long story.")
    import signal

    for name in (signal.SIGHUP, signal.SIGCONT, signal.SIGCONT):
        os.kill(terminal.process.pid, name)
        time.sleep(0.02)
    terminal.close_window()
    assert ends(terminal.process.pid)


def test_control_z_suspends_the_program_and_the_whole_screen_returns(home, workspace: Path):
    write_script(home, ["An answer."])
    environ = environment(home, PS1="$ ")
    shell = Terminal(["--norc", "-i"], cwd=workspace, environ=environ, program=("bash",))
    try:
        shell.type(f"{sys.executable} -m outrider\r")
        shell.wait_for("script/demo")
        shell.type("typed and undone")
        shell.wait_for("typed and undone")
        shell.type("\x1a")
        shell.wait_for("Ask a question", without="typed and undone")
        shell.say("hello")
        shell.wait_for("An answer.")
        shell.type("\x1a")
        shell.wait_for("Stopped")
        before = len(shell.raw)
        shell.type("fg\r")
        deadline = time.monotonic() + LIMIT
        missing = [b"An answer.", b"script/demo"]
        while (missing := [text for text in missing if text not in shell.raw[before:]]) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not missing
        shell.type("more")
        shell.wait_for("› more")
    finally:
        shell.close_window()
        shell.close()


def test_without_a_shell_control_z_stops_nothing(home, open_terminal: Open):
    write_script(home, ["An answer."])
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.type("\x1a")
    terminal.say("hello")
    terminal.wait_for("An answer.")


def test_closing_xterm_ends_the_program(home, open_xterm: Callable[..., Xterm]):
    write_script(home, ["A long story. " * 10_000], delay=0.01)
    terminal = open_xterm()
    terminal.wait_for("script/demo")
    children = Path(f"/proc/{terminal.process.pid}/task/{terminal.process.pid}/children").read_text().split()
    terminal.type("tell me")
    terminal.key("Return")
    terminal.wait_for("A long story.")
    terminal.close_window()
    assert children
    assert all(ends(int(pid)) for pid in children)


def test_control_c_interrupts_the_turn_and_quits_when_pressed_twice(home, open_terminal: Open):
    write_script(home, [[call("shell", command="sleep 600")], "unreached"])
    terminal = open_terminal("--allow", "shell")
    terminal.wait_for("script/demo")
    terminal.say("wait")
    terminal.wait_for("esc: interrupt")
    terminal.press("ctrl+c")
    terminal.wait_for("Press Ctrl+C again to quit", "canceled", without="esc: interrupt")
    assert terminal.process.poll() is None
    time.sleep(2.1)
    terminal.press("ctrl+c")
    terminal.wait_for("Press Ctrl+C again to quit")
    terminal.press("ctrl+c")
    assert terminal.wait(LIMIT) == 0


def test_escape_on_the_start_screen_changes_nothing(home, open_terminal: Open):
    write_script(home, ["Hello."])
    terminal = open_terminal()
    terminal.wait_for("script/demo", "◆ outrider")
    before = terminal.text()
    terminal.press("escape")
    time.sleep(0.5)
    assert terminal.text() == before


def test_queued_input_returns_to_the_composer_after_an_interrupt(home, open_terminal: Open):
    write_script(home, [[call("shell", command="sleep 600")], "unreached"])
    terminal = open_terminal("--allow", "shell")
    terminal.wait_for("script/demo")
    terminal.say("wait")
    terminal.wait_for("calling")
    terminal.say("first thought")
    terminal.wait_for("↳", "first thought")
    terminal.type("second thought")
    terminal.wait_for("› second thought")
    terminal.press("tab")
    terminal.wait_for("↳ after this  second thought")
    terminal.type("draft")
    terminal.wait_for("› draft")
    terminal.press("escape")
    terminal.wait_for("› first thought", "second thought", "draft", "canceled", without="↳")


FRAME_ENDS = {"╭": "╮", "│": "│", "╰": "╯"}


def assert_frames_are_whole(screen: str) -> None:
    """Checks that no row of a frame is cut off at the right or continues in the next one."""
    rows = [row.strip(" ▁▂▃▄▅▆▇█") for row in screen.split("\n")]  # without the scroll bar on the right
    broken = [row for row in rows if row[:1] in FRAME_ENDS and row[-1] != FRAME_ENDS[row[0]]]
    assert not broken, "\n".join(broken)
    assert any(row.startswith("╰") for row in rows), screen


SIZES = [(40, 15), (80, 16), (80, 24), (120, 40), (200, 50)]


@pytest.mark.parametrize("size", SIZES, ids=[f"{columns}x{rows}" for columns, rows in SIZES])
def test_an_approval_shows_keys_reason_and_rule_at_every_size(
    home, workspace: Path, open_tmux: Callable[..., Tmux], size: tuple[int, int]
):
    (workspace / "app.py").write_text("".join(f"line {number}\n" for number in range(60)))
    before, after = "line 5\nline 6\n", "".join(f"new {number}\n" for number in range(30))
    edit = call("edit", file_path="app.py", old_string=before, new_string=after)
    write_script(home, [[call("read", file_path="app.py")], [edit], "All done."])
    terminal = open_tmux(size=size)
    terminal.wait_for("script/demo", "›")
    terminal.type("change it")
    terminal.wait_for("change it")
    terminal.send("Enter")
    terminal.wait_for("Allow edit?", "why", "rule", "edit(/app.py)", "yes, once", "no, because", "← →", "app.py")
    assert_frames_are_whole(terminal.text())
    for _ in range(20):
        if "+ new 29" in terminal.text():
            break
        terminal.send("NPage")
        time.sleep(0.1)
    terminal.wait_for("+ new 29", "why", "edit(/app.py)", "yes, once", "← →")
    terminal.send("Home")
    terminal.wait_for("line 2", "yes, once")
    time.sleep(0.5)
    terminal.send("y")
    terminal.wait_for("All done.", "›", "script/demo")


@pytest.mark.parametrize("size", SIZES, ids=[f"{columns}x{rows}" for columns, rows in SIZES])
def test_start_screen_answer_and_picker_fit_at_every_size(home, open_tmux: Callable[..., Tmux], size: tuple[int, int]):
    write_script(home, ["A **short** answer with a list:\n\n- one\n- two\n\nThe end."])
    terminal = open_tmux(size=size)
    terminal.wait_for("◆ outrider" if size[1] > 15 else "›", "›", "script/demo")
    terminal.type("hello there")
    terminal.wait_for("› hello there")
    terminal.send("Enter")
    terminal.wait_for("▌ hello there", "• two", "The end.", "script/demo", "›")
    terminal.type("/mode")
    terminal.wait_for("› /mode")
    terminal.send("Enter")
    terminal.wait_for("type to filter", "chat")
    terminal.send("Escape")
    terminal.wait_for("The end.", without="type to filter")
    assert_frames_are_whole(terminal.text())


def test_the_plan_question_comes_after_a_plan_only(home, open_terminal: Open):
    write_script(home, ["Hello! What should I plan?", "## The plan\n\n1. paint it\n2. dry it"])
    terminal = open_terminal("--mode", "plan")
    terminal.wait_for("plan  script/demo")
    terminal.say("hello")
    terminal.wait_for("Hello! What should I plan?", without="esc: interrupt")
    time.sleep(0.5)
    assert "The plan is ready" not in terminal.text()
    terminal.say("plan it")
    terminal.wait_for("The plan is ready", "execute it")


def test_clear_starts_with_an_empty_context(home, open_terminal: Open):
    write_script(home, ["One.", "Two."])
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.say("the first message")
    terminal.wait_for("One.")
    terminal.say("/clear")
    terminal.wait_for("◆ outrider", without="One.")
    terminal.say("the second message")
    terminal.wait_for("Two.", without="the first message")
    assert sorted(stored_texts(home)) == ["the first message", "the second message"]


def test_permissions_lists_what_applies_here_and_all_that_a_grant_covers(home, tmp_path, open_terminal: Open):
    write_script(home, [[call("write", file_path="a.txt", content="x")], "Made.", "Hello."])
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.say("make it")
    terminal.wait_for("Allow write?")
    terminal.answer("s")
    terminal.wait_for("Made.")
    terminal.say("/permissions")
    terminal.wait_for("Stored approvals", "write a.txt", "session", "covers write(/a.txt)")
    terminal.press("escape")
    terminal.wait_for("Made.", without="Stored approvals")
    terminal.say("/new")
    terminal.wait_for("◆ outrider")
    terminal.say("hello")
    terminal.wait_for("Hello.")
    terminal.say("/permissions")
    terminal.wait_for("no stored approvals apply here", "1 more of other folders")


def test_an_unsent_draft_survives_a_killed_program(home, open_terminal: Open):
    write_script(home, ["Hello."])
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.paste("\r".join(f"row {number}" for number in range(40)))
    terminal.type("half a thought")
    terminal.wait_for("[pasted #1: 40 lines]half a thought")
    drafts = home / "drafts"
    deadline = time.monotonic() + LIMIT
    while not drafts.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    terminal.process.kill()
    terminal.wait()
    again = open_terminal()
    again.wait_for("[pasted #1: 40 lines]half a thought")
    again.press("enter")
    again.wait_for("▌ row 39half a thought", "Hello.")
    again.press("ctrl+d")
    again.wait()
    assert not list(drafts.iterdir())


def test_the_input_is_edited_in_the_users_editor(home, tmp_path: Path, open_terminal: Open):
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "IN THE EDITOR"; cat "$1"; sleep 1; printf "edited\\tand\\nlonger\\n" > "$1"\n')
    editor.chmod(0o755)
    write_script(home, ["Thanks."])
    terminal = open_terminal(VISUAL=str(editor))
    terminal.wait_for("script/demo")
    terminal.type("first words")
    terminal.wait_for("› first words")
    terminal.press("ctrl+x")
    terminal.wait_for("IN THE EDITOR", "first words")
    terminal.wait_for("› edited", "longer", "script/demo")
    terminal.type(" still")
    terminal.wait_for("longer still")
    terminal.press("enter")
    terminal.wait_for("Thanks.")
    assert stored_texts(home) == ["edited\tand\nlonger still"]


def test_the_editor_takes_no_keys_of_a_question(home, tmp_path: Path, open_terminal: Open):
    """While a question is shown it does not open, and if one is asked while it is open, it does not move the focus to
    the hidden input field: the keys of the question would be typed into it."""
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\ntouch opened\nsleep 1\n")
    editor.chmod(0o755)
    writes = [[call("write", path=f"{name}.txt", content="new")] for name in ("one", "two")]
    write_script(home, [writes[0], "Written.", writes[1], "Written again."])
    terminal = open_terminal(VISUAL=str(editor))
    terminal.wait_for("script/demo")
    terminal.say("write it")
    terminal.wait_for("Allow write?", "yes, once")
    terminal.press("ctrl+x")
    terminal.answer("y")
    terminal.wait_for("Written.", "Ask a question")
    opened = tmp_path / "workspace" / "opened"
    assert not opened.exists()
    terminal.type("again\r\x18")
    terminal.wait_for("two.txt", "Allow write?", "yes, once")
    terminal.answer("y")
    terminal.wait_for("Written again.")
    assert opened.exists()


def test_a_redirected_stderr_another_locale_and_old_sizes_do_not_change_the_screen(
    home, workspace: Path, tmp_path: Path
):
    write_script(home, ["Grüße."])
    errors = tmp_path / "errors"
    command = f'exec "$0" -m outrider "$@" 2>{errors}'
    given = {"PYTHONIOENCODING": "latin-1", "COLUMNS": "20", "LINES": "5"}
    environ = environment(home, **given)
    terminal = Terminal([], cwd=workspace, environ=environ, program=("sh", "-c", command, sys.executable))
    try:
        terminal.wait_for("script/demo", "╭", "›", "╰" + "─" * 90)
        terminal.say("hallo")
        terminal.wait_for("Grüße.")
        terminal.resize(60, 20)
        terminal.wait_for("╰" + "─" * 56 + "╯")
    finally:
        terminal.close()
    assert errors.read_bytes() == b""


def test_a_lost_end_of_a_paste_and_late_replies_leave_the_keyboard_usable(home, open_terminal: Open):
    write_script(home, ["Thanks."])
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.type("\x1b[200~from a lost connection")
    terminal.type("\x1b]11;rgb:ffff/ffff/ffff\x07")
    time.sleep(0.2)  # Ctrl+C arrives as a separate key, not as a part of the paste
    terminal.press("ctrl+c")
    terminal.wait_for("[pasted #1:")
    terminal.type("\x1b]11;rgb:ffff/ffff/ffff\x07\x1b[?64;1c and typed")
    terminal.wait_for("and typed", without="rgb")
    terminal.press("enter")
    terminal.wait_for("Thanks.")
    assert stored_texts(home) == ["from a lost connection\x1b]11;rgb:ffff/ffff/ffff\x07 and typed"]


def test_an_earlier_input_of_a_megabyte_is_recalled_as_a_mark(home, open_terminal: Open):
    write_script(home, ["Thanks.", "Thanks again."])
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    large = "\n".join(f"row {number}" for number in range(100_000))
    terminal.paste_slowly(large.replace("\n", "\r"))
    terminal.wait_for("[pasted #1: 100,000 lines]")
    terminal.press("enter")
    terminal.wait_for("Thanks.")
    terminal.press("up")
    terminal.wait_for("› [pasted #1: 100,000 lines]")
    terminal.type(" again")
    terminal.wait_for("lines] again")
    terminal.press("enter")
    terminal.wait_for("Thanks again.")
    assert stored_texts(home) == [large, f"{large} again"]


def test_with_vi_keys_escape_and_a_command_may_arrive_together(home, open_terminal: Open):
    write_script(home, ["Thanks."])
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.say("/vim")
    terminal.wait_for("vi keys are on")
    terminal.type("one two three")
    terminal.wait_for("› one two three")
    terminal.type("\x1bbcwTWO\x1b0iX ")
    terminal.wait_for("› X one two TWO")
    terminal.type("\x1b$a\x1b[D\x1b[D<\x1bA!")
    terminal.wait_for("› X one two T<WO!")


def test_an_input_that_cannot_be_stored_returns_to_the_composer(home, open_terminal: Open):
    write_script(home, ["Hello.", "Hello again."])
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.say("first")
    terminal.wait_for("Hello.")
    with contextlib.closing(sqlite3.connect(home / "sessions.db")) as connection:
        connection.execute("CREATE TRIGGER full BEFORE INSERT ON inbox BEGIN SELECT RAISE(ABORT, 'full'); END")
        connection.commit()
        terminal.say("second")
        terminal.wait_for("✗", "› second")
        connection.execute("DROP TRIGGER full")
        connection.commit()
    terminal.press("enter")
    terminal.wait_for("Hello again.")
    assert stored_texts(home) == ["first", "second"]


def test_a_selection_in_xterm_is_copied_to_the_clipboard(home, open_xterm: Callable[..., Xterm]):
    write_script(home, ["Look:\n\n```python\nif x:\n    run(y)\n```"])
    terminal = open_xterm()
    terminal.wait_for("script/demo")
    terminal.type("show me")
    terminal.key("Return")
    terminal.wait_for("if x:", "run(y)", without="esc: interrupt")
    rows = terminal.text().split("\n")
    top = next(number for number, row in enumerate(rows, 1) if "if x:" in row)
    terminal.drag((3, top), (30, top + 1))
    deadline = time.monotonic() + LIMIT
    while terminal.background(6, top + 1) == terminal.background(60, top + 1) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert terminal.background(6, top + 1) != terminal.background(60, top + 1)
    terminal.key("ctrl+c")
    terminal.wait_for("Copied 2 lines.")
    while not terminal.clipboard() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert terminal.clipboard() == "if x:\n    run(y)"


def test_an_image_of_the_clipboard_is_attached(home, open_xterm: Callable[..., Xterm], tmp_path: Path):
    image = tmp_path / "image.png"
    image.write_bytes(bytes.fromhex("89504e470d0a1a0a") + b"x" * 100)
    write_script(home, ["A fine picture."])
    terminal = open_xterm()
    terminal.wait_for("script/demo")
    terminal.copy_image(image)
    terminal.key("ctrl+v")
    terminal.wait_for('.png"')  # a long path is wrapped anywhere
    terminal.key("Return")
    terminal.wait_for("◫ clipboard-", "A fine picture.")


def test_the_bell_rings_and_the_title_changes_when_the_user_is_away(home, open_terminal: Open):
    write_script(home, ["One.", [call("write", file_path="a.txt", content="x")], "Two."])
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.say("first")
    terminal.wait_for("One.")
    assert b"\x1b]9;" not in terminal.raw  # the user looks at it
    terminal.say("second")
    terminal.type("\x1b[O")  # the terminal has lost the focus
    terminal.wait_for("Allow write?")
    terminal.wait_for_bytes(b"\x07\x1b]9;Outrider waits for your answer\x07\x1b]777;notify;outrider;")
    terminal.wait_for_bytes(b"\x1b]0;waiting")
    terminal.answer("y")
    terminal.type("\x1b[O")
    terminal.wait_for("Two.")
    terminal.wait_for_bytes(b"\x1b]9;Outrider has finished")


def test_a_running_command_is_moved_to_the_background(home, open_terminal: Open):
    write_script(home, [[call("shell", command="echo st''arted; sleep 300")], "It runs on."])
    terminal = open_terminal("--allow", "shell", size=(120, 40))
    terminal.wait_for("script/demo")
    terminal.say("start it")
    terminal.wait_for("started", "esc: interrupt")
    terminal.press("ctrl+b")
    terminal.wait_for("It runs on.", "Processes", "running")
    terminal.say("/processes")
    terminal.wait_for("Background processes", "sleep 300")
    terminal.press("enter")
    terminal.wait_for("started", "end the process")
    terminal.answer("e")
    terminal.wait_for("End this process?")
    terminal.answer("y")
    terminal.wait_for("the process was ended")


def test_the_conversation_is_printed_on_exit_if_the_user_wants_it(home, open_terminal: Open):
    write_script(home, ["A **bold** answer."])
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.say("/print on")
    terminal.wait_for("printing the conversation on exit is on")
    terminal.say("hello")
    terminal.wait_for("A bold answer.")
    terminal.press("ctrl+d")
    assert terminal.wait() == 0
    terminal.wait_for("▌ hello", "A bold answer.", "Continue with: outrider --session")


@pytest.mark.parametrize("size", SIZES, ids=[f"{columns}x{rows}" for columns, rows in SIZES])
def test_pages_and_commands_are_usable_at_every_size(
    home, workspace: Path, open_tmux: Callable[..., Tmux], size: tuple[int, int]
):
    for arguments in ("init -q", "config user.email a@b.c", "config user.name A", "add .", "commit -q -m first"):
        subprocess.run(["git", *arguments.split()], cwd=workspace, check=True)
    (workspace / "notes.txt").write_text("remember the bread\n")
    (home / "commands").mkdir()
    (home / "commands" / "fix.md").write_text("---\ndescription: Fix an issue\n---\nFix issue $1 now.")
    write_script(home, ["Hello.", "Fixed.", "Reviewed.", "Written."])
    terminal = open_tmux(size=size)
    terminal.wait_for("script/demo", "›")

    def say(text: str, *expected: str) -> None:
        terminal.type(text)
        terminal.wait_for(f"› {text}")
        terminal.send("Enter")
        terminal.wait_for(*expected)
        assert_frames_are_whole(terminal.text())

    say("hi there", "▌ hi there", "Hello.")
    pages = {
        "/status": ("Status", "version"),
        "/context": ("Context", "source"),
        "/diff": ("Uncommitted changes", "notes.txt"),
        "/memory": ("Instructions to edit", "your instructions"),
    }
    for command, expected in pages.items():
        say(command, *expected)
        terminal.send("Escape")
        terminal.wait_for("script/demo", "›", without=expected[0])
    say("/mcp", "no MCP servers")
    say("/rename Bread", "called: Bread")
    say("/fix 12", "Fix issue 12 now.", "Fixed.")
    say("/review", "change files.", "Reviewed.")
    say("/init", "still true.", "Written.")


@pytest.mark.parametrize("size", SIZES, ids=[f"{columns}x{rows}" for columns, rows in SIZES])
def test_a_long_page_is_read_to_its_end_with_the_keys(
    home, workspace: Path, open_tmux: Callable[..., Tmux], size: tuple[int, int]
):
    for arguments in ("init -q", "config user.email a@b.c", "config user.name A", "add .", "commit -q -m first"):
        subprocess.run(["git", *arguments.split()], cwd=workspace, check=True)
    (workspace / "notes.txt").write_text("".join(f"row {number}\n" for number in range(120)))
    write_script(home, ["Hello."])
    terminal = open_tmux(size=size)
    terminal.wait_for("script/demo", "›")
    terminal.type("/diff")
    terminal.wait_for("› /diff")
    terminal.send("Enter")
    terminal.wait_for("Uncommitted changes", "diff --git")
    for key in ("NPage", "Home", "End"):
        terminal.send(key)
    terminal.wait_for("+row 119", "esc: close")
    terminal.send("Home")
    terminal.wait_for("diff --git")
    terminal.send("q")
    terminal.wait_for("script/demo", without="Uncommitted")
