"""The composer: completion, history, pasted texts and attached files."""

from pathlib import Path

from outrider.engine.frontend import match_names
from outrider.tui.commands import command_choices, find_command
from outrider.tui.completion import complete_word, dropped_paths, find_attachments
from outrider.tui.composer import InputHistory, PasteBuffer

PNG = bytes.fromhex("89504e470d0a1a0a")
FILES = ["README.md", "src/cart.py", "src/long name.py", "tests/test_cart.py"]


def choices(line: str, *, first: bool = True) -> list[str]:
    found = complete_word(line, len(line), is_first_line=first, commands=command_choices(), files=FILES)
    return [choice.text for choice in found.choices] if found else []


def test_a_slash_completes_commands_at_the_beginning_only():
    assert choices("/mo") == ["/mode", "/model"]
    assert choices("say /mo") == []
    assert choices("/mo", first=False) == []


def test_an_at_sign_completes_files_anywhere():
    assert choices("look at @cart") == ["@src/cart.py", "@tests/test_cart.py"]
    assert choices("@long") == ['@"src/long name.py"']


def test_a_file_is_found_by_some_of_its_letters():
    assert match_names("tcpy", FILES, 8) == ["tests/test_cart.py"]


def test_commands_are_found_by_an_unambiguous_beginning():
    assert find_command("/compac")[0].name == "compact"
    assert find_command("/mode plan")[1] == "plan"
    assert find_command("/co") is None
    assert find_command("/nothing") is None


def test_history_survives_and_comes_back_with_what_was_being_written(tmp_path: Path):
    history = InputHistory(tmp_path, Path("/ws"))
    for text in ("one", "two\nlines", "two\nlines"):
        history.add(text)
    again = InputHistory(tmp_path, Path("/ws"))
    assert again.step_back("draft") == "two\nlines"
    assert again.step_back("") == "one"
    assert again.step_back("") is None
    assert again.step_forward() == "two\nlines"
    assert again.step_forward() == "draft"
    assert InputHistory(tmp_path, Path("/other")).step_back("") is None


def test_a_history_that_a_crash_cut_off_is_read_as_far_as_it_goes(tmp_path: Path):
    InputHistory(tmp_path, Path("/ws")).add("kept")
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes() + b'"cut o')
    assert InputHistory(tmp_path, Path("/ws")).step_back("") == "kept"


def test_a_history_that_cannot_be_preserved_is_one_for_this_time(tmp_path: Path):
    (tmp_path / "file").write_text("no folder")
    history = InputHistory(tmp_path / "file", Path("/ws"))
    history.add("said")
    assert history.step_back("") == "said"


def test_a_long_paste_is_a_mark_until_it_is_sent():
    pastes = PasteBuffer()
    text = "\n".join(f"line {number}" for number in range(50))
    mark = pastes.shorten_paste(text)
    assert mark == "[pasted #1: 50 lines]"
    assert pastes.expand_marks(f"see {mark}!") == f"see {text}!"
    assert pastes.shorten_paste("short") == "short"


def test_images_that_are_named_go_along_and_other_files_are_left_to_the_tools(tmp_path: Path):
    (tmp_path / "shot.png").write_bytes(PNG)
    (tmp_path / "notes.txt").write_text("x")
    files, complaints = find_attachments("see @shot.png, and @notes.txt and @missing.png", tmp_path)
    assert [file.filename for file in files] == ["shot.png"]
    assert files[0].url.startswith("data:image/png;base64,")
    assert complaints == []


def test_an_image_that_is_dropped_on_the_terminal_is_recognised(tmp_path: Path):
    image = tmp_path / "my shot.png"
    image.write_bytes(PNG)
    assert dropped_paths(f"'{image}'\n") == [image]
    assert dropped_paths(f"'{image}' {image.as_uri()}") == [image, image]
    assert dropped_paths("just words") == []
    assert dropped_paths("two\nlines") == []
