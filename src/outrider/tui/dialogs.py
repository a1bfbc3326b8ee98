"""Dialogs in place of the composer (approvals, model questions, choices), each answered by one key; and their queue."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic

import msgspec
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static

from outrider.engine.frontend import AskedQuestion
from outrider.presentation.approvals import ApprovalChoice, ApprovalView
from outrider.presentation.formats import clean_line, clean_text
from outrider.tui.rendering.markdown import markdown_lines
from outrider.tui.rendering.text import indent_lines, side_by_side, text_line, wrap_text
from outrider.tui.rendering.tool_calls import diff_lines, effect_lines
from outrider.tui.theme import Palette
from outrider.tui.widgets.status import widget_palette

ARMED_AFTER = (
    0.4  # seconds without a key press before keys are accepted: a user who is typing must not answer by accident
)


class AnswerKey(msgspec.Struct, frozen=True):
    """A key and the answer it gives. With `placeholder`, it opens an input field for a text that is sent with it."""

    key: str
    answer: str
    label: str
    placeholder: str = ""


class DialogPanel(Vertical, can_focus=True):
    """Base class of dialogs. Subclasses define `title`, `body_lines` and `keys`; it posts `Answered` exactly once."""

    DEFAULT_CSS = """
    DialogPanel {
        height: auto; max-height: 70vh; margin: 0 1; padding: 0 1; border: round $warning 70%; background: $background;
        border-title-color: $warning; border-title-style: bold;
    }
    DialogPanel VerticalScroll { height: auto; max-height: 50vh; scrollbar-size-vertical: 1; background: $background; }
    DialogPanel .keys { height: auto; margin-top: 1; }
    DialogPanel Input, DialogPanel Input:focus {
        display: none; border: none; height: 1; padding: 0 1; background: $panel; margin-top: 1;
    }
    DialogPanel.-writing Input, DialogPanel.-writing Input:focus { display: block; }
    """

    class Answered(Message):
        def __init__(self, panel: "DialogPanel", answer: str, comment: str = "") -> None:
            super().__init__()
            self.panel = panel
            self.answer = answer
            self.comment = comment

    def __init__(self) -> None:
        super().__init__()
        self._last_key = monotonic()
        self._writing: AnswerKey | None = None
        self._answered = False
        self._armed = False

    @property
    def title(self) -> str:
        raise NotImplementedError

    @property
    def keys(self) -> Sequence[AnswerKey]:
        raise NotImplementedError

    def body_lines(self, width: int, palette: Palette) -> list[Text]:
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
        self.draw_panel()

    def draw_panel(self) -> None:
        palette = widget_palette(self)
        width = max(self.size.width, 10)
        self.query_one(".body", Static).update(Text("\n").join(self.body_lines(width, palette)))
        self.query_one(".keys", Static).update(Text("\n").join(_key_lines(self.keys, width, palette)))

    def on_key(self, event: events.Key) -> None:
        if self._writing is not None:
            self._type_into_input(event)
            return
        scroll = self.query_one(VerticalScroll)
        match event.key:
            case "down" | "pagedown":
                scroll.scroll_page_down() if event.key == "pagedown" else scroll.scroll_down()
            case "up" | "pageup":
                scroll.scroll_page_up() if event.key == "pageup" else scroll.scroll_up()
            case _:
                found = next((key for key in self.keys if event.key == key.key), None)
                if not self._is_deliberate() or found is None:
                    return
                self.choose_key(found)
        event.stop()

    def _is_deliberate(self) -> bool:
        """Whether a key press counts as an answer: the first one must follow a pause of ARMED_AFTER seconds."""
        if self._armed:
            return True
        now = monotonic()
        self._armed, self._last_key = now - self._last_key >= ARMED_AFTER, now
        return self._armed

    def choose_key(self, key: AnswerKey) -> None:
        if not key.placeholder:
            self.submit_answer(key.answer)
            return
        self._writing = key
        self.add_class("-writing")
        field = self.query_one(Input)
        field.placeholder = key.placeholder
        field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._writing is not None:
            self.submit_answer(self._writing.answer, event.value.strip())

    def submit_answer(self, answer: str, comment: str = "") -> None:
        if not self._answered:
            self._answered = True
            self.post_message(self.Answered(self, answer, comment))

    def _type_into_input(self, event: events.Key) -> None:
        """Forward keys that arrive before the input field has the focus."""
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


def _key_lines(keys: Sequence[AnswerKey], width: int, palette: Palette) -> list[Text]:
    shown = [
        Text.assemble(
            (f" {_key_name(key.key)} ", palette.style_on("panel", "accent", bold=True)),
            (f" {key.label}", palette.style("text")),
        )
        for key in keys
        if key.label
    ]
    return side_by_side(shown, width)


def _key_name(key: str) -> str:
    return {"enter": "↵", "escape": "esc"}.get(key, key)


_LABEL_WIDTH = 6
_REASON_PLACEHOLDER = "why not? The model reads this"


def _placeholder(choice: ApprovalChoice) -> str:
    if choice.picks_files:
        return "files to keep, by name or pattern: src/*.py README.md"
    return _REASON_PLACEHOLDER if choice.needs_reason else ""


class ApprovalPanel(DialogPanel):
    """Shows exactly what a call would do, why it needs approval, and which rule a longer approval would store."""

    def __init__(self, request: ApprovalView) -> None:
        super().__init__()
        self.request = request

    @property
    def title(self) -> str:
        return clean_line(self.request.heading, 100)

    @property
    def keys(self) -> Sequence[AnswerKey]:
        return [
            AnswerKey(choice.key, choice.id, clean_line(choice.label, 120), _placeholder(choice))
            for choice in self.request.choices
        ]

    def body_lines(self, width: int, palette: Palette) -> list[Text]:
        arguments = dict(self.request.arguments)
        path = arguments.pop("file_path", None)
        head = (
            [*wrap_text(text_line(clean_text(str(path)), palette.style("text", bold=True)), width), text_line()]
            if path
            else []
        )
        return [
            *head,
            *effect_lines(self.request.tool, arguments, width, palette),
            text_line(),
            *self._outcome_lines(width, palette),
            *self._reason_lines(width, palette),
        ]

    def _outcome_lines(self, width: int, palette: Palette) -> list[Text]:
        """Return what the call would send and what the session has read, and what a command changed: one line per
        file, then the diffs."""
        if not self.request.facts and self.request.outcome is None:
            return []
        risky = ("PROTECTED", "blocked:", "sends:", "cannot be undone", "changed by another program")
        facts = [
            piece
            for fact in self.request.facts
            for piece in wrap_text(
                text_line(
                    clean_line(fact, 500), palette.style("warn" if any(word in fact for word in risky) else "text")
                ),
                width,
            )
        ]
        if self.request.outcome is None:
            return [*facts, text_line()]
        return [*facts, text_line(), *diff_lines(self.request.changes, width, palette), text_line()]

    def _reason_lines(self, width: int, palette: Palette) -> list[Text]:
        found: list[Text] = []
        for label, content in (("why", self.request.reason), ("rule", self.request.rule_text)):
            if not content:
                continue
            text = text_line(clean_line(content, 2500), palette.style("quiet"))
            found += indent_lines(
                wrap_text(text, width - _LABEL_WIDTH), text_line(f"{label:<{_LABEL_WIDTH}}", palette.style("warn"))
            )
        return found


_WRITE_KEY = AnswerKey("w", "", "write an answer", "your answer")
_DIGITS = "123456789"


class QuestionPanel(DialogPanel):
    """A question of the model. Options are selected by number, several if the question allows it; a free text answer is
    always possible."""

    def __init__(self, request: AskedQuestion) -> None:
        super().__init__()
        self.request = request
        self.chosen: list[str] = []

    @property
    def title(self) -> str:
        return "A question"

    @property
    def keys(self) -> Sequence[AnswerKey]:
        numbers = [AnswerKey(digit, option, "") for digit, option in zip(_DIGITS, self.request.options, strict=False)]
        done = (AnswerKey("enter", "", "done"),) if self.request.multiple else ()
        return (*numbers, *done, _WRITE_KEY, AnswerKey("x", "", "no answer"))

    def body_lines(self, width: int, palette: Palette) -> list[Text]:
        lines = markdown_lines(self.request.text, width, palette)
        if self.request.options:
            lines.append(text_line())
        for number, option in enumerate(self.request.options, 1):
            mark = "●" if option in self.chosen else "○" if self.request.multiple else " "
            label = text_line(f"{number} {mark} ", palette.style("accent", bold=True))
            lines += indent_lines(wrap_text(text_line(clean_text(option), palette.style("text")), width - 4), label)
        return lines

    def choose_key(self, key: AnswerKey) -> None:
        if self.request.multiple and key.key in _DIGITS:
            (self.chosen.remove if key.answer in self.chosen else self.chosen.append)(key.answer)
            self.draw_panel()
            return
        super().choose_key(key)

    def collect_answers(self, answer: str, comment: str) -> tuple[str, ...]:
        """Return the selected options and the free text."""
        return tuple(found for found in (*self.chosen, answer, comment) if found)


class ChoicePanel(DialogPanel):
    """A question of the application: a Markdown text and one key per answer."""

    def __init__(self, title: str, text: str, keys: Sequence[AnswerKey]) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._keys = keys

    @property
    def title(self) -> str:
        return clean_line(self._title, 60)

    @property
    def keys(self) -> Sequence[AnswerKey]:
        return self._keys

    def body_lines(self, width: int, palette: Palette) -> list[Text]:
        return markdown_lines(self._text, width, palette)


AnswerHandler = Callable[[str, str], Awaitable[None]]
"""Receives the answer and its free text."""


class DialogQueue(Vertical):
    """Shows one dialog at a time in place of the composer; the others wait in order."""

    DEFAULT_CSS = "DialogQueue { height: auto; max-height: 75vh; display: none; }"

    class Changed(Message):
        """A dialog was added or removed; `open` is whether one is shown."""

        def __init__(self, *, open: bool) -> None:
            super().__init__()
            self.open = open

    def __init__(self) -> None:
        super().__init__(id="asking")
        self._panels: list[tuple[DialogPanel, AnswerHandler]] = []

    @property
    def is_open(self) -> bool:
        return bool(self._panels)

    def asks_about(self, question_id: str) -> bool:
        return any(_question_id(panel) == question_id for panel, _ in self._panels)

    async def add_panel(self, panel: DialogPanel, on_answer: AnswerHandler) -> None:
        self._panels.append((panel, on_answer))
        await self._show_next()

    async def ask_and_wait(self, panel: DialogPanel) -> tuple[str, str]:
        """Show a dialog and wait for its answer; if the caller is cancelled, the dialog is removed."""
        answered: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()

        async def set_answer(answer: str, comment: str) -> None:
            if not answered.done():
                answered.set_result((answer, comment))

        await self.add_panel(panel, set_answer)
        try:
            return await answered
        finally:
            await self.drop_panels(lambda waiting: waiting is panel)

    async def drop_panels(self, matches: Callable[[DialogPanel], bool]) -> None:
        """Remove the dialogs that `matches` selects, without an answer."""
        removed = [panel for panel, _ in self._panels if matches(panel)]
        self._panels = [(panel, on_answer) for panel, on_answer in self._panels if panel not in removed]
        for panel in removed:
            if panel.is_attached:
                await panel.remove()
        if removed:
            await self._show_next()

    async def leave_session(self) -> None:
        """Remove the dialogs of the session when another one is shown.

        Approvals are asked again when the session is shown again. Questions of the model stay. Waiters of a choice
        receive an empty answer.
        """
        choices = [(panel, on_answer) for panel, on_answer in self._panels if isinstance(panel, ChoicePanel)]
        await self.drop_panels(lambda panel: isinstance(panel, ApprovalPanel | ChoicePanel))
        for _, on_answer in choices:
            await on_answer("", "")

    async def drop_approvals(self, approval_id: str | None = None) -> None:
        """Remove an approval that another front end answered, or all approvals."""
        await self.drop_panels(
            lambda panel: isinstance(panel, ApprovalPanel) and approval_id in (None, panel.request.id)
        )

    async def drop_question(self, question_id: str) -> None:
        await self.drop_panels(lambda panel: isinstance(panel, QuestionPanel) and panel.request.id == question_id)

    async def drop_questions_of(self, session_id: str) -> None:
        await self.drop_panels(
            lambda panel: isinstance(panel, QuestionPanel) and panel.request.session_id == session_id
        )

    async def on_dialog_panel_answered(self, event: DialogPanel.Answered) -> None:
        event.stop()
        on_answer = next((on_answer for panel, on_answer in self._panels if panel is event.panel), None)
        await self.drop_panels(lambda panel: panel is event.panel)
        if on_answer is not None:
            await on_answer(event.answer, event.comment)

    async def _show_next(self) -> None:
        self.display = bool(self._panels)
        if self._panels and not self.children:
            await self.mount(self._panels[0][0])
        self.post_message(self.Changed(open=bool(self._panels)))


def _question_id(panel: DialogPanel) -> str:
    return panel.request.id if isinstance(panel, ApprovalPanel | QuestionPanel) else ""
