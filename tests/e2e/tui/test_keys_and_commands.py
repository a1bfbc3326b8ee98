"""Keys, slash commands, files, shell commands of the user, questions, plans and trust, in the real program."""

import re
from pathlib import Path

from outrider.models.local_models import DEFAULT_WEIGHTS
from tests.e2e.tui.conftest import Open, call, write_script


def test_modes_are_switched_by_a_key_and_commands_complete(home, open_terminal: Open):
    write_script(home, ["Hello."])
    terminal = open_terminal()
    terminal.wait_for("agent  ask  script/demo")
    terminal.press("shift+tab")
    terminal.wait_for("plan  script/demo")
    terminal.type("/mod")
    terminal.wait_for("/mode", "/model", "choose the model")
    terminal.press("enter")
    terminal.wait_for("Mode", "reads files, changes nothing")
    terminal.type("without asking")
    terminal.press("enter")
    terminal.wait_for("background  script/demo", without="type to filter")
    terminal.say("/help")
    terminal.wait_for("Keys", "Shift+Tab", "esc: close")
    terminal.press("escape")
    terminal.wait_for("script/demo", without="esc: close")
    terminal.say("/nonsense")
    terminal.wait_for("unknown command /nonsense")
    terminal.say("/quit")
    assert terminal.wait() == 0


def test_many_lines_files_and_commands_of_ones_own_go_along(home, workspace: Path, open_terminal: Open):
    (workspace / "shot.png").write_bytes(bytes.fromhex("89504e470d0a1a0a"))
    write_script(home, ["Thanks.", "Thanks again.", "A fine picture.", "I see."])
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.type("first")
    terminal.press("ctrl+j")
    terminal.type("second")
    terminal.press("alt+enter")
    terminal.type("third")
    terminal.wait_for("third")
    terminal.press("enter")
    terminal.wait_for("▌ first", "▌ second", "▌ third", "Thanks.")
    terminal.paste("\n".join(f"row {number}" for number in range(40)))
    terminal.wait_for("[pasted #1: 40 lines]")
    terminal.press("enter")
    terminal.wait_for("Thanks again.", "▌ row 39")
    terminal.type("look at @sho")
    terminal.wait_for("@shot.png")
    terminal.press("tab")
    terminal.wait_for("look at @shot.png ")
    terminal.press("enter")
    terminal.wait_for("◫ shot.png", "A fine picture.")
    terminal.say("!echo by hand; exit 3")
    terminal.wait_for("! echo by hand; exit 3", "by hand", "3")
    terminal.say("!echo long; sleep 600")
    terminal.wait_for("esc cancels", "long")
    terminal.press("escape")
    terminal.wait_for("interrupted", without="esc cancels")
    terminal.say("what was that?")
    terminal.wait_for("I see.")
    terminal.press("up")
    terminal.wait_for("› what was that?")


def test_a_question_is_answered_in_place_and_a_plan_is_refused_then_accepted(
    home, workspace: Path, open_terminal: Open
):
    question = call("question", question="Which colour?", options=["red", "blue"])
    work = [call("write", file_path="made.txt", content="x")]
    write_script(home, [[question], "1. paint it blue", "1. paint it green", work, "Done as planned."])
    terminal = open_terminal("--mode", "plan", "--allow", "write")
    terminal.wait_for("plan  script/demo")
    terminal.say("plan it")
    terminal.wait_for("A question", "Which colour?", "2", "blue")
    terminal.answer("2")
    terminal.wait_for("The user answered: blue", "The plan is ready", "execute it", "paint it blue")
    terminal.answer("n")
    terminal.wait_for("what should change?")
    terminal.type("green, please")
    terminal.wait_for("green, please")
    terminal.press("enter")
    terminal.wait_for("paint it green", "The plan is ready")
    terminal.answer("y")
    terminal.wait_for("the plan was accepted", "Done as planned.", "agent  ask  script/demo")
    assert (workspace / "made.txt").exists()


def test_a_folder_with_instructions_is_asked_about_before_they_count(home, workspace: Path, open_terminal: Open):
    (workspace / "AGENTS.md").write_text("Always say moo.\n")
    write_script(home, ["Hello."])
    terminal = open_terminal()
    terminal.wait_for("Do you trust this folder?", "AGENTS.md", "Always say moo.", "not trusted")
    terminal.answer("t")
    terminal.wait_for("script/demo", without="Do you trust")
    terminal.wait_for("ctrl+o model", without="not trusted")
    terminal.say("/quit")
    terminal.wait()
    again = open_terminal()
    again.wait_for("script/demo", without="Do you trust")


def test_control_sequences_of_the_model_and_of_tools_never_reach_the_terminal(
    home, workspace: Path, open_terminal: Open
):
    evil = "\x1b]0;STOLEN\x07\x1b[2J\x1b[31mred\x1b]52;c;ZXZpbA==\x07 [bold]markup[/bold]"
    (workspace / "evil.txt").write_text(evil)
    (workspace / "evil\x1b]0;STOLEN\x07.md").write_text("x")
    script = [
        [evil, {"reasoning": evil}, call("shell", command="cat evil.txt", description=evil)],
        f"# {evil}\n\n`{evil}`",
    ]
    write_script(home, script)
    terminal = open_terminal("--allow", "shell")
    terminal.wait_for("script/demo")
    terminal.say("be evil")
    terminal.wait_for("done", "[bold]markup[/bold]")
    terminal.press("f2")
    terminal.wait_for("▾")
    terminal.type("look at @evil")
    terminal.wait_for("@evil.txt")
    for sequence in (b"STOLEN", b"\x1b]52", b"ZXZpbA"):
        assert sequence not in bytes(terminal.raw)


def test_no_colour_is_used_where_the_user_wants_none(home, open_terminal: Open):
    write_script(home, ["**Plain** `words`."])
    terminal = open_terminal(NO_COLOR="1")
    terminal.wait_for("script/demo")
    terminal.say("hello")
    terminal.wait_for("Plain words.")
    colours = {
        tuple(match.split(b";")[2:])
        for match in re.findall(rb"\x1b\[[\d;]*?((?:38|48);2;\d+;\d+;\d+)", bytes(terminal.raw))
    }
    assert all(len(set(colour)) == 1 for colour in colours), colours  # greys only


def test_what_the_application_cannot_do_without_is_reported_before_the_screen_changes(
    home, tmp_path, open_terminal: Open
):
    write_script(home, ["never said"])
    (tmp_path / "file").write_text("")
    for environ, text in (
        ({"TERM": "dumb"}, "cannot show the application (TERM=dumb)"),
        ({"TERM": ""}, "TERM is not set"),
        ({"OUTRIDER_HOME": str(tmp_path / "file"), "OPENAI_BASE_URL": "http://127.0.0.1:9"}, "cannot be used"),
    ):
        terminal = open_terminal(size=(300, 10), **environ)
        terminal.wait_for(text)
        assert terminal.wait() == 2
        assert b"\x1b" not in terminal.raw


def test_a_prompt_on_the_command_line_is_sent_at_once_and_a_word_may_be_a_mistake(home, open_terminal: Open):
    write_script(home, ["The answer."])
    terminal = open_terminal("what is this?", "--mode", "plan")
    terminal.wait_for("what is this?", "The answer.", "plan")
    mistaken = open_terminal("sesions")
    mistaken.wait()
    assert "Did you mean `outrider sessions`?" in mistaken.text()


def test_without_a_model_the_application_asks_for_a_key_or_offers_the_embedded_model(home: Path, open_terminal: Open):
    nowhere = {"HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    terminal = open_terminal(**nowhere)
    terminal.wait_for("Choose a model", "key of Anthropic", "embedded model, no key")
    terminal.answer("a")
    terminal.wait_for("API key of anthropic")
    terminal.paste("sk-ant-secret-key")
    terminal.press("enter")
    terminal.wait_for("anthropic/claude", "Explain how this project")
    assert b"sk-ant-secret-key" not in terminal.raw
    assert (home / "keys.json").stat().st_mode & 0o777 == 0o600

    (home / "keys.json").unlink()
    (home / "models").mkdir()
    with (home / "models" / "1.5b.gguf").open("wb") as weights:
        weights.truncate(DEFAULT_WEIGHTS.bytes)
    terminal = open_terminal()
    terminal.wait_for("Choose a model", "already downloaded")
    terminal.answer("l")
    terminal.wait_for("local/1.5b", "This is the embedded model", without="Choose a model")


def test_without_a_model_one_can_quit(home: Path, open_terminal: Open):
    terminal = open_terminal()
    terminal.wait_for("Choose a model")
    terminal.answer("q")
    assert terminal.wait() == 0
