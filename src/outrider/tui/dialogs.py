"""A question in place of the composer: what is asked, and one key for each answer."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any

import msgspec
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static

from outrider.engine.frontend import AskedQuestion
from outrider.tui.rendering.markdown import markdown
from outrider.tui.rendering.text import clean, clean_line, indented, line, side_by_side, wrapped
from outrider.tui.rendering.tool_calls import effect
from outrider.tui.theme import Palette
from outrider.tui.widgets.status import palette_of

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


_LABEL = 6
_ONCE = Key("y", "once", "yes, once")
_LASTING = (Key("s", "session", "this session"), Key("p", "project", "this folder"), Key("a", "always", "always"))
_NO = (Key("n", "no", "no"), Key("r", "no", "no, because…", "why not? The model reads this"))
_ONLY_ONCE = "none could name exactly this, so it can be allowed once"
_BY_CONTENT = "none; a yes for longer holds as long as the files that steer it stay as they are"


class ApprovalView(msgspec.Struct, frozen=True):
    """A question about one exact call. `offers` are the rules that a yes for longer would keep; without `can_last` it
    can only be allowed once. `agent` is named if it is not the one that is talked with."""

    id: str
    tool: str
    given: dict[str, Any]
    reason: str
    offers: tuple[str, ...] = ()
    can_last: bool = False
    agent: str = ""


class ApprovalPanel(Panel):
    def __init__(self, asked: ApprovalView) -> None:
        super().__init__()
        self.asked = asked

    @property
    def title(self) -> str:
        who = f" for {clean_line(self.asked.agent, 30)}" if self.asked.agent else ""
        return f"Allow {clean_line(self.asked.tool, 40)}{who}?"

    @property
    def keys(self) -> Sequence[Key]:
        return (_ONCE, *(_LASTING if self.asked.can_last else ()), *_NO)

    def lines(self, width: int, palette: Palette) -> list[Text]:
        given = dict(self.asked.given)
        path = given.pop("file_path", None)
        head = [*wrapped(line(clean(str(path)), palette.style("text", bold=True)), width), line()] if path else []
        return [*head, *effect(self.asked.tool, given, width, palette), line(), *self._why(width, palette)]

    def _why(self, width: int, palette: Palette) -> list[Text]:
        rules = ", ".join(self.asked.offers) or (_BY_CONTENT if self.asked.can_last else _ONLY_ONCE)
        found: list[Text] = []
        for label, words in (("why", self.asked.reason), ("rule", rules)):
            text = line(clean_line(words, 2500), palette.style("quiet"))
            found += indented(wrapped(text, width - _LABEL), line(f"{label:<{_LABEL}}", palette.style("warn")))
        return found


_OWN = Key("w", "", "write an answer", "your answer")
_DIGITS = "123456789"


class QuestionPanel(Panel):
    """Options by their number; several may be chosen where the question says so. Words of one's own always count."""

    def __init__(self, asked: AskedQuestion) -> None:
        super().__init__()
        self.asked = asked
        self.chosen: list[str] = []

    @property
    def title(self) -> str:
        return "A question"

    @property
    def keys(self) -> Sequence[Key]:
        numbers = [Key(digit, option, "") for digit, option in zip(_DIGITS, self.asked.options, strict=False)]
        done = (Key("enter", "", "done"),) if self.asked.multiple else ()
        return (*numbers, *done, _OWN, Key("x", "", "no answer"))

    def lines(self, width: int, palette: Palette) -> list[Text]:
        lines = markdown(self.asked.text, width, palette)
        if self.asked.options:
            lines.append(line())
        for number, option in enumerate(self.asked.options, 1):
            mark = "●" if option in self.chosen else "○" if self.asked.multiple else " "
            label = line(f"{number} {mark} ", palette.style("accent", bold=True))
            lines += indented(wrapped(line(clean(option), palette.style("text")), width - 4), label)
        return lines

    def choose(self, key: Key) -> None:
        if self.asked.multiple and key.key in _DIGITS:
            (self.chosen.remove if key.answer in self.chosen else self.chosen.append)(key.answer)
            self.draw()
            return
        super().choose(key)

    def answers(self, answer: str, words: str) -> tuple[str, ...]:
        """What was chosen, and what was written besides."""
        return tuple(found for found in (*self.chosen, answer, words) if found)


class ChoicePanel(Panel):
    """A question of the program: a text in Markdown and a key for each answer."""

    def __init__(self, title: str, text: str, keys: Sequence[Key]) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._keys = keys

    @property
    def title(self) -> str:
        return clean_line(self._title, 60)

    @property
    def keys(self) -> Sequence[Key]:
        return self._keys

    def lines(self, width: int, palette: Palette) -> list[Text]:
        return markdown(self._text, width, palette)


Taken = Callable[[str, str], Awaitable[None]]
"""What is done with an answer and its words."""


class DialogQueue(Vertical):
    DEFAULT_CSS = "Asking { height: auto; max-height: 75vh; display: none; }"

    class Changed(Message):
        """A question came or went; `open` says whether one is shown."""

        def __init__(self, *, open: bool) -> None:
            super().__init__()
            self.open = open

    def __init__(self) -> None:
        super().__init__(id="asking")
        self._waiting: list[tuple[Panel, Taken]] = []

    @property
    def open(self) -> bool:
        return bool(self._waiting)

    def asks_about(self, question_id: str) -> bool:
        return any(_id_of(panel) == question_id for panel, _ in self._waiting)

    async def put(self, panel: Panel, taken: Taken) -> None:
        self._waiting.append((panel, taken))
        await self._show()

    async def ask(self, panel: Panel) -> tuple[str, str]:
        """Put a question and wait for its answer; it goes away when nobody waits any more."""
        answered: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()

        async def taken(answer: str, words: str) -> None:
            if not answered.done():
                answered.set_result((answer, words))

        await self.put(panel, taken)
        try:
            return await answered
        finally:
            await self.drop(lambda waiting: waiting is panel)

    async def drop(self, which: Callable[[Panel], bool]) -> None:
        """Questions that need no answer any more."""
        gone = [panel for panel, _ in self._waiting if which(panel)]
        self._waiting = [(panel, taken) for panel, taken in self._waiting if panel not in gone]
        for panel in gone:
            if panel.is_attached:
                await panel.remove()
        if gone:
            await self._show()

    async def leave(self) -> None:
        """Another session is looked at: its own questions come. Those about calls are asked again on the way back, what
        a model asked stays, and whoever waits for a choice hears that there was none."""
        choices = [(panel, taken) for panel, taken in self._waiting if isinstance(panel, ChoicePanel)]
        await self.drop(lambda panel: isinstance(panel, ApprovalPanel | ChoicePanel))
        for _, taken in choices:
            await taken("", "")

    async def drop_approvals(self, approval_id: str | None = None) -> None:
        """One that was answered elsewhere, or all of them."""
        await self.drop(lambda panel: isinstance(panel, ApprovalPanel) and approval_id in (None, panel.asked.id))

    async def drop_question(self, question_id: str) -> None:
        await self.drop(lambda panel: isinstance(panel, QuestionPanel) and panel.asked.id == question_id)

    async def drop_questions_of(self, session_id: str) -> None:
        await self.drop(lambda panel: isinstance(panel, QuestionPanel) and panel.asked.session_id == session_id)

    async def on_panel_answered(self, event: Panel.Answered) -> None:
        event.stop()
        taken = next((taken for panel, taken in self._waiting if panel is event.panel), None)
        await self.drop(lambda panel: panel is event.panel)
        if taken is not None:
            await taken(event.answer, event.words)

    async def _show(self) -> None:
        self.display = bool(self._waiting)
        if self._waiting and not self.children:
            await self.mount(self._waiting[0][0])
        self.post_message(self.Changed(open=bool(self._waiting)))


def _id_of(panel: Panel) -> str:
    return panel.asked.id if isinstance(panel, ApprovalPanel | QuestionPanel) else ""
