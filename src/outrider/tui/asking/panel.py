"""A question in place of the composer: what is asked, and one key for each answer."""

from collections.abc import Sequence
from time import monotonic

import msgspec
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static

from outrider.tui.rendering.lines import side_by_side
from outrider.tui.rendering.palette import Palette
from outrider.tui.widgets.look import palette_of

ARMED_AFTER = 0.4  # seconds without a key; whoever was typing when the question appeared has not answered it


class Key(msgspec.Struct, frozen=True):
    """`writes`: the answer comes with words of the user's own."""

    key: str
    answer: str
    label: str
    writes: str = ""


class Panel(Vertical, can_focus=True):
    """Posts `Answered` once. What it shows is given by `title`, `lines` and `keys`."""

    DEFAULT_CSS = """
    Panel {
        height: auto; max-height: 70vh; margin: 0 1; padding: 0 1; border: round $warning 70%; background: $background;
        border-title-color: $warning; border-title-style: bold;
    }
    Panel VerticalScroll { height: auto; max-height: 50vh; scrollbar-size-vertical: 1; background: $background; }
    Panel .keys { height: auto; margin-top: 1; }
    Panel Input, Panel Input:focus {
        display: none; border: none; height: 1; padding: 0 1; background: $panel; margin-top: 1;
    }
    Panel.-writing Input, Panel.-writing Input:focus { display: block; }
    """

    class Answered(Message):
        def __init__(self, panel: "Panel", answer: str, words: str = "") -> None:
            super().__init__()
            self.panel = panel
            self.answer = answer
            self.words = words

    def __init__(self) -> None:
        super().__init__()
        self._last_key = monotonic()
        self._writing: Key | None = None
        self._answered = False
        self._armed = False

    @property
    def title(self) -> str:
        raise NotImplementedError

    @property
    def keys(self) -> Sequence[Key]:
        raise NotImplementedError

    def lines(self, width: int, palette: Palette) -> list[Text]:
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield Static(classes="body", markup=False)
        yield Static(classes="keys", markup=False)
        yield Input(id="words")

    def on_mount(self) -> None:
        self.border_title = Content(self.title)
        self.focus()

    def on_resize(self) -> None:
        self.draw()

    def draw(self) -> None:
        palette = palette_of(self)
        width = max(self.size.width, 10)
        self.query_one(".body", Static).update(Text("\n").join(self.lines(width, palette)))
        self.query_one(".keys", Static).update(Text("\n").join(_key_lines(self.keys, width, palette)))

    def on_key(self, event: events.Key) -> None:
        if self._writing is not None:
            self._write(event)
            return
        scroll = self.query_one(VerticalScroll)
        match event.key:
            case "down" | "pagedown":
                scroll.scroll_page_down() if event.key == "pagedown" else scroll.scroll_down()
            case "up" | "pageup":
                scroll.scroll_page_up() if event.key == "pageup" else scroll.scroll_up()
            case _:
                found = next((key for key in self.keys if event.key == key.key), None)
                if not self._is_meant() or found is None:
                    return
                self.choose(found)
        event.stop()

    def _is_meant(self) -> bool:
        """Only a key after a pause is an answer; then every one is."""
        if self._armed:
            return True
        now = monotonic()
        self._armed, self._last_key = now - self._last_key >= ARMED_AFTER, now
        return self._armed

    def choose(self, key: Key) -> None:
        if not key.writes:
            self.answer(key.answer)
            return
        self._writing = key
        self.add_class("-writing")
        field = self.query_one(Input)
        field.placeholder = key.writes
        field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._writing is not None:
            self.answer(self._writing.answer, event.value.strip())

    def answer(self, answer: str, words: str = "") -> None:
        if not self._answered:
            self._answered = True
            self.post_message(self.Answered(self, answer, words))

    def _write(self, event: events.Key) -> None:
        """Keys that come before the field has the focus are meant for it too."""
        if event.key == "escape":
            event.stop()
            self._stop_writing()
        elif event.is_printable and event.character:
            event.stop()
            self.query_one(Input).insert_text_at_cursor(event.character)

    def _stop_writing(self) -> None:
        self._writing = None
        self.remove_class("-writing")
        self.focus()


def _key_lines(keys: Sequence[Key], width: int, palette: Palette) -> list[Text]:
    shown = [
        Text.assemble(
            (f" {_name(key.key)} ", palette.on("panel", "accent", bold=True)), (f" {key.label}", palette.style("text"))
        )
        for key in keys
        if key.label
    ]
    return side_by_side(shown, width)


def _name(key: str) -> str:
    return {"enter": "↵", "escape": "esc"}.get(key, key)
