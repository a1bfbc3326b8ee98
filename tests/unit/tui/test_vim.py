"""Vi keys in the composer."""

import pytest
from textual.app import App, ComposeResult
from textual.widgets import TextArea

from outrider.tui.vim import VimKeys


class Stage(App[None]):
    def compose(self) -> ComposeResult:
        yield TextArea()


TEXT = "one two-three four\n  second line\nlast"

CASES = [
    ("x", (0, 0), "ne two-three four\n  second line\nlast", (0, 0)),
    ("3x", (0, 0), " two-three four\n  second line\nlast", (0, 0)),
    ("dw", (0, 0), "two-three four\n  second line\nlast", (0, 0)),
    ("d2w", (0, 0), "-three four\n  second line\nlast", (0, 0)),
    ("de", (0, 4), "one -three four\n  second line\nlast", (0, 4)),
    ("cwTWO", (0, 4), "one TWO-three four\n  second line\nlast", (0, 7)),
    ("diw", (0, 9), "one two- four\n  second line\nlast", (0, 8)),
    ("D", (0, 3), "one\n  second line\nlast", (0, 3)),
    ("dd", (0, 5), "  second line\nlast", (0, 2)),
    ("2dd", (0, 5), "last", (0, 0)),
    ("Gdd", (0, 0), "one two-three four\n  second line", (1, 2)),
    ("ccnew", (1, 4), "one two-three four\nnew\nlast", (1, 3)),
    ("yyjp", (0, 0), "one two-three four\n  second line\none two-three four\nlast", (2, 0)),
    ("ywP", (0, 0), "one one two-three four\n  second line\nlast", (0, 4)),
    ("otext", (0, 3), "one two-three four\ntext\n  second line\nlast", (1, 4)),
    ("GOtext", (0, 0), "one two-three four\n  second line\ntext\nlast", (2, 4)),
    ("Goend", (0, 0), "one two-three four\n  second line\nlast\nend", (3, 3)),
    ("A!", (0, 0), "one two-three four!\n  second line\nlast", (0, 19)),
    ("jI# ", (0, 0), "one two-three four\n  # second line\nlast", (1, 4)),
    ("rX", (0, 4), "one Xwo-three four\n  second line\nlast", (0, 4)),
    ("~", (0, 0), "One two-three four\n  second line\nlast", (0, 1)),
    ("J", (0, 0), "one two-three four second line\nlast", (0, 18)),
    ("dft", (0, 0), "wo-three four\n  second line\nlast", (0, 0)),
    ("dtt", (0, 0), "two-three four\n  second line\nlast", (0, 0)),
    ("d$", (0, 4), "one \n  second line\nlast", (0, 4)),
    ("xu", (0, 0), TEXT, None),
    ("wwwx", (0, 0), "one two-hree four\n  second line\nlast", (0, 8)),
    ("bx", (0, 5), "one wo-three four\n  second line\nlast", (0, 4)),
    ("ggx", (2, 2), "ne two-three four\n  second line\nlast", (0, 0)),
    ("dz", (0, 0), TEXT, (0, 0)),
]


@pytest.mark.parametrize(("keys", "start", "text", "cursor"), CASES, ids=[case[0] for case in CASES])
async def test_a_command_changes_the_text_as_in_vi(keys, start, text, cursor):
    app = Stage()
    async with app.run_test():
        area = app.query_one(TextArea)
        area.text = TEXT
        vim = VimKeys(area)
        assert not vim.handle_key("a", "a")  # in insert mode the text area inserts it
        vim.handle_key("escape", None)
        area.move_cursor(start)
        for key in keys:
            if not vim.handle_key(key, key):
                area.insert(key)
        assert area.text == text
        assert cursor is None or area.cursor_location == cursor


async def test_other_keys_are_left_to_the_composer():
    app = Stage()
    async with app.run_test():
        vim = VimKeys(app.query_one(TextArea))
        vim.handle_key("escape", None)
        assert vim.mode == "normal"
        assert not vim.handle_key("enter", "\r")
        assert not vim.handle_key("up", None)
        assert not vim.handle_key("escape", None)  # a second one interrupts the turn
        assert vim.handle_key("i", "i")
        assert vim.mode == "insert"
