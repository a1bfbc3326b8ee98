"""A conversation in a real terminal: prompts, output, approvals, denials, interruption and resume."""

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.e2e.tui.conftest import Open, call, write_script
from tests.e2e.tui.terminal import LIMIT


def test_an_answer_streams_in_and_the_calls_show_how_they_ended(home, open_terminal: Open):
    script = [
        [{"reasoning": "hm"}, "I look into the **notes**.", call("read", file_path="notes.txt")],
        "They say:\n\n- remember\n- the milk\n\n```python\nprint('milk')\n```\n",
    ]
    write_script(home, script, delay=0.005)
    terminal = open_terminal()
    terminal.wait_for("outrider", "agent", "script/demo")
    terminal.say("What do the notes say?")
    terminal.wait_for("▌ What do the notes say?", "I look into the notes.", "read", "notes.txt", "done")
    terminal.wait_for("• the milk", "print('milk')", "tokens")
    terminal.press("ctrl+d")
    assert terminal.wait() == 0


def test_a_change_is_shown_completely_runs_once_approved_and_can_be_undone(home, workspace: Path, open_terminal: Open):
    write_script(home, [[call("write", file_path="new.py", content="x = 1\ny = 2\n")], "Written."])
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.say("write it")
    terminal.wait_for("Allow write?", "new.py", "+ x = 1", "+ y = 2", "why", "rule", "write(/new.py)", "yes, once")
    assert not (workspace / "new.py").exists()
    terminal.answer("y")
    terminal.wait_for("Written.", "done · +2", without="Allow write?")
    assert (workspace / "new.py").read_text() == "x = 1\ny = 2\n"
    terminal.say("/undo")
    terminal.wait_for("Undo 1 file?", "new.py")
    terminal.answer("\x1b")
    terminal.wait_for("Written.", without="Undo 1 file?")
    assert (workspace / "new.py").exists(), "escape means no"
    terminal.say("/undo")
    terminal.wait_for("Undo 1 file?", "new.py")
    terminal.answer("y")
    terminal.wait_for("deleted: new.py")
    assert not (workspace / "new.py").exists()


def test_an_undone_commit_is_shown_as_one_and_not_as_files_of_git(home, workspace: Path, open_terminal: Open):
    write_script(home, [[call("shell", command="git add -A && git commit -qm 'Add the notes'")], "Committed."])
    identity = ["-c", "user.name=n", "-c", "user.email=n@example.org"]
    for arguments in (["init", "-q"], [*identity, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", "-C", str(workspace), *arguments], check=True)
    for key, value in (("user.name", "n"), ("user.email", "n@example.org")):
        subprocess.run(["git", "-C", str(workspace), "config", key, value], check=True)
    terminal = open_terminal(size=(80, 24))
    terminal.wait_for("script/demo")
    terminal.say("commit it")
    terminal.wait_for("Keep what this command changed?", "drop them")
    terminal.answer("y")
    terminal.wait_for("Committed.", without="Keep what")
    terminal.say("/undo")
    terminal.wait_for("Undo what git recorded?", "commit: Add the notes", without="objects")
    terminal.answer("y")
    terminal.wait_for(": .git (")
    log = subprocess.check_output(["git", "-C", str(workspace), "log", "--format=%s"], text=True)
    assert log == "first\n"


def test_a_refusal_reaches_the_model_and_an_answer_for_longer_is_not_asked_for_again(
    home, workspace: Path, open_terminal: Open
):
    refused = [call("write", file_path="refused.txt", content="x")]
    session, always = (
        [call("write", file_path="made.txt", content="x")],
        [call("write", file_path="more.txt", content="x")],
    )
    write_script(home, [refused, "Then not.", session, session, "Twice.", always, always, "For ever."])
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.say("make it")
    terminal.wait_for("Allow write?", "refused.txt")
    terminal.answer("r")
    terminal.wait_for("why not?")
    terminal.type("use another name")
    terminal.wait_for("use another name")
    terminal.press("enter")
    terminal.wait_for("canceled", "rejected", "use another name", "Then not.")
    assert not (workspace / "refused.txt").exists()
    terminal.say("go")
    terminal.wait_for("Allow write?", "made.txt")
    terminal.answer("s")
    terminal.wait_for("Twice.")
    assert (workspace / "made.txt").exists()
    terminal.say("go on")
    terminal.wait_for("Allow write?", "more.txt")
    terminal.answer("a")
    terminal.wait_for("For ever.")
    terminal.say("/permissions")
    terminal.wait_for("Stored approvals", "write more.txt", "always")


def test_a_rule_is_widened_in_the_panel_and_covers_what_it_shows(home, workspace: Path, open_terminal: Open):
    calls = [[call("write", file_path=f"src/pkg/{name}.py", content="x = 1\n")] for name in ("a", "b", "c")]
    write_script(home, [*calls, "All made."])
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.say("make them")
    terminal.wait_for("Allow write?", "1/4 exactly these files: write(/src/pkg/a.py)", "narrower or wider rule")
    time.sleep(0.5)
    terminal.press("right", "right")
    terminal.wait_for("3/4 all edits under src/: may write /src/**")
    terminal.press("left")
    terminal.wait_for("2/4 all edits under src/pkg/: may write /src/pkg/**")
    terminal.answer("s")
    terminal.wait_for("All made.")
    assert sorted(path.name for path in (workspace / "src/pkg").iterdir()) == ["a.py", "b.py", "c.py"]


def test_an_edit_of_many_files_is_one_panel_and_one_answer(home, workspace: Path, open_terminal: Open):
    names = [f"file{number:02}.txt" for number in range(15)]
    for name in names:
        (workspace / name).write_text("first\nold line\nlast\n")
    edits = [call("edit", file_path=name, old_string="old", new_string="new") for name in names]
    write_script(home, [[*edits, call("web_fetch", url="http://127.0.0.1:9/")], "All edited."])
    terminal = open_terminal(size=(100, 60))
    terminal.wait_for("script/demo")
    terminal.say("edit them")
    terminal.wait_for("Allow edit?", "(1 of 16)", "- old line", "+ new line", "first", "yes to all 15 edits")
    terminal.answer("Y")
    terminal.wait_for("Allow web_fetch?", without="Allow edit?")
    terminal.answer("n")
    terminal.wait_for("All edited.")
    assert {(workspace / name).read_text() for name in names} == {"first\nnew line\nlast\n"}


def test_escape_interrupts_a_command_whose_output_is_seen_live(home, workspace: Path, open_terminal: Open):
    command = "echo $$ > pid; for i in 1 2 3; do echo tick $i; done; sleep 600"
    write_script(home, [[call("shell", command=command)]])
    terminal = open_terminal("--allow", "shell")
    terminal.wait_for("script/demo")
    terminal.say("wait")
    terminal.wait_for("calling", "tick 3", "working", "esc: interrupt")
    pid = int((workspace / "pid").read_text())
    terminal.press("escape")
    terminal.wait_for("canceled", without="esc: interrupt")
    deadline = time.monotonic() + LIMIT
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_input_during_a_turn_is_queued_and_can_be_withdrawn(home, open_terminal: Open):
    write_script(home, [[call("shell", command="sleep 600")], "unreached"])
    terminal = open_terminal("--allow", "shell")
    terminal.wait_for("script/demo")
    terminal.say("wait")
    terminal.wait_for("calling")
    terminal.type("and then this")
    terminal.wait_for("and then this")
    terminal.press("tab")
    terminal.wait_for("↳ after this  and then this")
    terminal.press("up")
    terminal.wait_for("› and then this", without="↳")


def test_at_forty_columns_everything_still_has_its_place(home, open_terminal: Open):
    text = "A sentence that is much longer than forty columns and so has to go on below. " * 2
    write_script(
        home, [text + "\n\n```\n" + "x" * 90 + "\n```\n\nThe end.", [call("write", file_path="a.txt", content="x")]]
    )
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.say("talk")
    terminal.wait_for("The end.")
    terminal.resize(40, 24)
    terminal.wait_for("and so has to go on below.", "The end.", "agent", "›")  # not the old lines, cut at the new width
    deadline = time.monotonic() + LIMIT
    while "x" * 90 not in "".join(terminal.text().split()) and time.monotonic() < deadline:
        terminal.wait_for_change()  # the old lines are cut off until they are drawn again
    assert " ".join(terminal.text().split()).count("so has to go on below.") == 2, "nothing is cut off"
    assert "".join(terminal.text().split()).count("x" * 90) == 1
    terminal.say("more")
    terminal.wait_for("Allow write?", "yes, once", "a.txt")
    terminal.answer("n")
    terminal.wait_for("canceled")


def test_a_killed_program_loses_nothing_and_continues_with_continue(home, workspace: Path, open_terminal: Open):
    first = [call("shell", command="echo half; sleep 600", description="take long")]
    write_script(home, ["I remember the **blue** door.", first], delay=0.002)
    terminal = open_terminal("--allow", "shell")
    terminal.wait_for("script/demo")
    terminal.say("remember it")
    terminal.wait_for("blue door")
    terminal.say("now work")
    terminal.wait_for("calling", "half")
    os.kill(terminal.process.pid, signal.SIGKILL)
    terminal.wait()
    write_script(home, ["I go on where I was."])
    again = open_terminal("--continue")
    again.wait_for(
        "▌ remember it", "blue door", "▌ now work", "errored", "interrupted", "the last turn was interrupted"
    )
    again.say("/continue")
    again.wait_for("I go on where I was.")


def test_a_closed_window_ends_the_program_with_everything_stored(home, open_terminal: Open):
    write_script(home, ["A long story. " * 10_000], delay=0.01)
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.say("tell me")
    terminal.wait_for("A long story.")
    terminal.hang_up()
    assert terminal.wait() == 0
    write_script(home, ["unused"])
    again = open_terminal("--continue")
    again.wait_for("A long story.", "interrupted")


def test_a_session_that_is_open_in_another_process_is_taken_over_only_on_request(home, open_terminal: Open):
    write_script(home, ["I am the first."])
    first = open_terminal()
    first.wait_for("script/demo")
    first.say("hello")
    first.wait_for("I am the first.")
    second = open_terminal("--continue")
    second.wait_for("I am the first.", "This session is open in another process", "take it over")
    second.answer("y")
    second.wait_for("I am the first.", "script/demo", without="open in another process")
    second.say("again")
    second.wait_for("▌ again", "I am the first.")
    first.say("are you there?")
    first.wait_for("another process took session", "/resume")
