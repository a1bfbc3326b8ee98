"""Dialogs in place of the composer (approvals, model questions, choices), each answered by one key; and their queue."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static

from outrider.presentation.formats import clean_line, clean_text, escape_line, format_count, reveal_text
from outrider.presentation.tool_calls import input_text
from outrider.tui.rendering.markdown import markdown_lines
from outrider.tui.rendering.text import indent_lines, side_by_side, text_line, truncate_line, wrap_text
from outrider.tui.rendering.tool_calls import diff_lines, effect_lines
from outrider.tui.theme import Palette
from outrider.tui.widgets.modals import TextField
from outrider.tui.widgets.status import widget_palette

if TYPE_CHECKING:  # the engine is loaded after the first screen is shown
    from outrider.engine.questions import AskedQuestion
    from outrider.presentation.approvals import ApprovalView

COLLECT_SECONDS = 0.1
SMALL_ROWS = 20  # terminals with fewer rows show a dialog over almost the whole height
NARROW_COLUMNS = 60
ARMED_AFTER = (
    0.4  # seconds without a key press before keys are accepted: a user who is typing must not answer by accident
)


class AnswerKey(msgspec.Struct, frozen=True):
    """A key of a dialog and the answer that it gives.

    - `key`: the key as Textual names it.
    - `answer`: the answer that the key gives.
    - `label`: the description of the key; empty for a key that is not shown.
    - `placeholder`: if set, the key opens an input field with this placeholder; its text is sent with the answer.
    - `short`: the description in a narrow terminal.
    """

    key: str
    answer: str
    label: str
    placeholder: str = ""
    short: str = ""


_WRITING_KEYS = (AnswerKey("enter", "", "send"), AnswerKey("escape", "", "back to the answers", short="back"))


class DialogPanel(Vertical, can_focus=True):
    """Base class of dialogs. Subclasses define `title`, `body_lines` and `keys`. A dialog posts `Answered` exactly
    once. It accepts keys after a pause of `armed_after` seconds."""

    DEFAULT_CSS = """
    DialogPanel {
        height: auto; max-height: 70vh; margin: 0 1; padding: 0 1; border: round $warning 70%; background: $background;
        border-title-color: $warning; border-title-style: bold; border-subtitle-color: $quiet;
    }
    DialogPanel VerticalScroll {
        height: auto; max-height: 50vh; scrollbar-size: 0 1; scrollbar-gutter: stable; background: $background;
    }
    DialogPanel .keys { height: auto; margin-top: 1; }
    DialogPanel.-small .keys { margin-top: 0; }
    DialogPanel Input, DialogPanel Input:focus {
        display: none; border: none; height: 1; padding: 0 1; background: $panel; margin-top: 1;
    }
    DialogPanel.-small Input, DialogPanel.-small Input:focus { margin-top: 0; }
    DialogPanel.-writing Input, DialogPanel.-writing Input:focus { display: block; }
    """

    class Answered(Message):
        def __init__(self, panel: "DialogPanel", answer: str, comment: str = "") -> None:
            super().__init__()
            self.panel = panel
            self.answer = answer
            self.comment = comment

    def __init__(self, *, armed_after: float = ARMED_AFTER) -> None:
        super().__init__()
        self.armed_after = armed_after
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

    def pinned_lines(self, width: int, palette: Palette, *, small: bool = False) -> list[Text]:
        """Returns lines that stay visible above the keys while the body is scrolled."""
        return []

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield Static(classes="body", markup=False)
        yield Static(classes="keys", markup=False)
        yield TextField(id="words")

    def on_mount(self) -> None:
        self.border_title = Content(self.title)
        self.focus()
        self.call_after_refresh(self.draw_panel)  # the first resize event may arrive before the panel is mounted

    def on_resize(self) -> None:
        self.draw_panel()

    def draw_panel(self) -> None:
        """Draws the panel. Keys and pinned lines stay visible in a small terminal: only the body scrolls."""
        if not self.query(".keys"):
            return  # not composed yet, or being removed
        palette = widget_palette(self)
        width, height = max(self.size.width, 10), self.screen.size.height
        small = height < SMALL_ROWS
        self.set_class(small, "-small")
        answers = self.keys if self._writing is None else _WRITING_KEYS
        keys = [*self.pinned_lines(width, palette, small=small), *_key_lines(answers, width, palette)]
        body = self.body_lines(width - 1, palette)
        while body and not body[-1].plain.strip():
            body.pop()
        self.query_one(".body", Static).update(Text("\n").join(body))
        self.query_one(".keys", Static).update(Text("\n").join(keys))
        rows = sum(max(-(-line.cell_len // width), 1) for line in keys)
        used = 2 + rows + (not small) + (1 + (not small) if self._writing else 0)
        # In a small terminal only the activity line, the status line and the last row of the conversation remain.
        room = height - 3 if small else height * 7 // 10
        body_rows = max(room - used, 2) if small else max(min(height // 2, room - used), 1)
        self.query_one(VerticalScroll).styles.max_height = body_rows
        for widget in (self, self.parent):
            if isinstance(widget, Vertical):
                widget.styles.max_height = room if small else None
        self.call_after_refresh(self._after_layout)

    def _after_layout(self) -> None:
        """Runs after the layout of what `draw_panel` has drawn."""
        self._show_hidden_rows()

    def _show_hidden_rows(self) -> None:
        """Shows how many rows of the body are below the visible ones."""
        if not self.query(VerticalScroll):
            return  # the panel is being removed
        scroll = self.query_one(VerticalScroll)
        below = round(scroll.max_scroll_y - scroll.scroll_y)
        self.border_subtitle = Content(f"pgdn: {format_count(below, 'more line')}") if below > 0 else ""

    def on_key(self, event: events.Key) -> None:
        if self._writing is not None:
            self._type_into_input(event)
            return
        scroll = self.query_one(VerticalScroll)
        match event.key:
            case "down" | "up":
                step = 1 if event.key == "down" else -1
                if not self.move_selection(step):
                    scroll.scroll_relative(y=step, animate=False, immediate=True)
                self._show_hidden_rows()
            case "home" | "end":
                scroll.scroll_to(y=0 if event.key == "home" else scroll.max_scroll_y, animate=False, immediate=True)
                self._show_hidden_rows()
            case _:
                answer_key = next((key for key in self.keys if event.key == key.key), None)
                if answer_key is None:
                    self._expect_pause(event)
                    return
                if not self._is_deliberate():
                    return
                self.choose_key(answer_key)
        event.stop()

    def move_selection(self, step: int) -> bool:
        """Selects the next or the previous answer. Returns False in a dialog without a list of answers."""
        return False

    def scroll_page(self, direction: int) -> None:
        scroll = self.query_one(VerticalScroll)
        scroll.scroll_relative(y=direction * max(scroll.size.height - 1, 1), animate=False, immediate=True)
        self._show_hidden_rows()

    def _is_deliberate(self) -> bool:
        """Returns whether a key press is accepted as an answer: the first one must follow a pause."""
        if self._armed:
            return True
        now = monotonic()
        self._armed, self._last_key = now - self._last_key >= self.armed_after, now
        return self._armed

    def _expect_pause(self, event: events.Key) -> None:
        """Requires another pause after a character that is not an answer: the user is typing a text, so the next
        characters are not answers either."""
        if event.is_printable:
            self._armed, self._last_key = False, monotonic()

    def choose_key(self, key: AnswerKey) -> None:
        if not key.placeholder:
            self.submit_answer(key.answer)
            return
        self._writing = key
        self.add_class("-writing")
        self.draw_panel()
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
        """Forwards keys that arrive before the input field has the focus."""
        if event.key == "escape":
            event.stop()
            self._stop_writing()
        elif event.is_printable and event.character:
            event.stop()
            self.query_one(Input).insert_text_at_cursor(event.character)

    def _stop_writing(self) -> None:
        self._writing = None
        self.remove_class("-writing")
        self.draw_panel()
        self.focus()


def _key_lines(keys: Sequence[AnswerKey], width: int, palette: Palette) -> list[Text]:
    narrow = width < NARROW_COLUMNS
    labels = [
        Text.assemble(
            (f" {_key_name(key.key)} ", palette.style_on("panel", "accent", bold=True)),
            (f" {(narrow and key.short) or key.label}", palette.style("text")),
        )
        for key in keys
        if key.label
    ]
    return side_by_side(labels, width, gap=2 if narrow else 3)


def _key_name(key: str) -> str:
    return {"enter": "↵", "escape": "esc", "right": "← →", "down": "↑ ↓"}.get(key, key)


_LABEL_WIDTH = 6
_MAX_PINNED = 3  # lines


YES_TO_ALL = "yes-to-all"
NO_TO_ALL = "no-to-all"


class ApprovalPanel(DialogPanel):
    """Shows exactly what a call would do, why it needs approval, and which rule a longer approval would store. Further
    questions that wait are shown below it; those of the same kind can be answered together."""

    def __init__(self, request: "ApprovalView", *, armed_after: float = ARMED_AFTER) -> None:
        super().__init__(armed_after=armed_after)
        self.request = request
        self.waiting: tuple[ApprovalView, ...] = ()
        self._width = 0
        self._grown = 0.0  # when `joint` last grew

    @property
    def joint(self) -> list["ApprovalView"]:
        """The questions that one answer can cover: the shown one and those of its kind, at least two."""
        same_kind = [view for view in self.waiting if view.kind and view.kind == self.request.kind]
        return [self.request, *same_kind] if same_kind else []

    def show_waiting(self, waiting: Sequence["ApprovalView"]) -> None:
        """Shows the other open questions in the order of their calls."""
        count = len(self.joint)
        self.waiting = tuple(sorted(waiting, key=lambda view: view.position))
        if len(self.joint) > count:
            self._grown = monotonic()
        if self.query(".body"):
            self.border_title = Content(self.title)
            self.draw_panel()

    @property
    def title(self) -> str:
        count = f" (1 of {len(self.waiting) + 1})" if self.waiting else ""
        return clean_line(self.request.heading, 100) + count

    @property
    def keys(self) -> Sequence[AnswerKey]:
        return [
            AnswerKey(choice.key, choice.id, clean_line(choice.label, 120), choice.prompt)
            for choice in self.request.choices
        ] + [*self._group_keys, *self._width_keys]

    @property
    def _group_keys(self) -> list[AnswerKey]:
        if not self.joint:
            return []
        from outrider.presentation.approvals import COUNT  # lazy: the first screen shows no question

        return [
            AnswerKey(
                choice.key,
                YES_TO_ALL if choice.kind == "allow" else NO_TO_ALL,
                choice.label.replace(COUNT, str(len(self.joint)), 1),
            )
            for choice in self.request.group_choices
        ]

    @property
    def _width_keys(self) -> list[AnswerKey]:
        return (
            [AnswerKey("left", "", ""), AnswerKey("right", "", "narrower or wider rule", short="rule")]
            if self._has_widths
            else []
        )

    @property
    def _has_widths(self) -> bool:
        return len(self.request.widths) > 1

    @property
    def width_id(self) -> str:
        """The id of the width that a lasting answer covers."""
        widths = self.request.widths
        return widths[self._width].id if widths else ""

    def choose_key(self, key: AnswerKey) -> None:
        if key.answer in (YES_TO_ALL, NO_TO_ALL) and monotonic() - self._grown < self.armed_after:
            return  # the user has not seen all that the answer would cover
        if key.key not in ("left", "right"):
            super().choose_key(key)
            return
        step = 1 if key.key == "right" else -1
        self._width = min(max(self._width + step, 0), len(self.request.widths) - 1)
        self.draw_panel()

    def body_lines(self, width: int, palette: Palette) -> list[Text]:
        lines = request_lines(self.request, width, palette)
        for label, content in (("why", self.request.reason), ("rule", self._rule_text)):
            section = _labelled_lines(label, content, width, palette)
            # What does not fit above the keys is complete here.
            if len(section) > _MAX_PINNED or (len(section) > 1 and self.screen.size.height < SMALL_ROWS):
                lines += section
        joint_views = [view for view in self.waiting if view in self.joint]
        for view in joint_views:
            head = text_line(escape_line(f"── {view.title}", 300), palette.style("accent", bold=True))
            lines += [text_line(), *wrap_text(head, width), *request_lines(view, width, palette)]
        other_views = [view for view in self.waiting if view not in joint_views]
        if other_views:
            lines += [text_line(), text_line("also waiting:", palette.style("warn"))]
        for view in other_views:
            lines += wrap_text(text_line(clean_line(f"· {view.title}", 300), palette.style("text")), width)
        return lines

    def pinned_lines(self, width: int, palette: Palette, *, small: bool = False) -> list[Text]:
        """Returns the reason and the rule that a lasting answer would store; a long text is cut."""
        lines: list[Text] = []
        for label, content in (("why", self.request.reason), ("rule", self._short_rule if small else self._rule_text)):
            section = _labelled_lines(label, content, width, palette)
            rows = 1 if small else _MAX_PINNED
            cut = [] if len(section) <= rows else [truncate_line(Text.assemble(section[rows - 1], " …", end=""), width)]
            lines += [*section[: rows - 1], *cut] if cut else section
        return lines

    @property
    def _short_rule(self) -> str:
        widths = self.request.widths
        return f"{self._width + 1}/{len(widths)} {widths[self._width].rule_text}" if widths else self.request.rule_text

    @property
    def _rule_text(self) -> str:
        """What a lasting answer would store: the chosen width with its rules and its history."""
        widths = self.request.widths
        if not widths:
            return self.request.rule_text
        chosen = widths[self._width]
        position = f"{self._width + 1}/{len(widths)} " if self._has_widths else ""
        history = f" · {chosen.history}" if chosen.history else ""
        return f"{position}{chosen.label}: {chosen.rule_text}{history}"


MAX_SHOWN_CHARS = 20_000  # more than any reason, effect or fact has: the user approves it, so it is shown completely


def _labelled_lines(label: str, content: str, width: int, palette: Palette) -> list[Text]:
    if not content:
        return []
    text = text_line(escape_line(content, MAX_SHOWN_CHARS), palette.style("quiet"))
    return indent_lines(
        wrap_text(text, width - _LABEL_WIDTH), text_line(f"{label:<{_LABEL_WIDTH}}", palette.style("warn"))
    )


def request_lines(request: "ApprovalView", width: int, palette: Palette) -> list[Text]:
    """Returns what one question is about: effects, then what runs or is written, then what a command changed."""
    arguments = dict(request.arguments)
    path = arguments.pop("file_path", None)
    head = (
        [*wrap_text(text_line(reveal_text(str(path)), palette.style("text", bold=True)), width), text_line()]
        if path
        else []
    )
    return [
        *head,
        *_effect_lines(request, width, palette),
        *_call_lines(request, arguments, width, palette),
        text_line(),
        *_outcome_lines(request, width, palette),
    ]


def _call_lines(request: "ApprovalView", arguments: dict[str, Any], width: int, palette: Palette) -> list[Text]:
    """Returns what runs or is written: the true diff with its context if it is known, and the arguments that no diff
    shows."""
    if not request.preview or not request.changes:
        return effect_lines(request.tool, arguments, width, palette)
    arguments_text = reveal_text(input_text(request.tool, arguments))
    style = palette.style("text")
    lines = [row for line in arguments_text.split("\n") for row in wrap_text(text_line(line, style), width)]
    return [*(lines if arguments_text else ()), *diff_lines(request.changes, width, palette)]


def _effect_lines(request: "ApprovalView", width: int, palette: Palette) -> list[Text]:
    """Returns what the commands do, above the command text: a long text may hide the one that matters."""
    lines: list[Text] = []
    for effect in request.effects:
        text = text_line(escape_line(effect.text, MAX_SHOWN_CHARS), palette.style("warn" if effect.risky else "text"))
        mark = text_line("! " if effect.risky else "· ", palette.style("warn" if effect.risky else "quiet"))
        lines += indent_lines(wrap_text(text, width - 2), mark)
    return [*lines, text_line()] if lines else []


def _outcome_lines(request: "ApprovalView", width: int, palette: Palette) -> list[Text]:
    """Returns what the call would send and what the session has read, and what a command changed: one line per file,
    then the diffs."""
    marked_facts = request.marked_facts
    if not marked_facts and request.outcome is None:
        return []
    facts: list[Text] = []
    for fact in marked_facts:
        colour = "warn" if fact.risky else "text"
        facts += wrap_text(text_line(escape_line(fact.text, MAX_SHOWN_CHARS), palette.style(colour)), width)
    if request.outcome is None:
        return [*facts, text_line()]
    return [*facts, text_line(), *diff_lines(request.changes, width, palette), text_line()]


_WRITE_KEY = AnswerKey("w", "", "write an answer", "your answer")
_DIGITS = "123456789"


class QuestionPanel(DialogPanel):
    """A question of the model. Options are selected by number or with the arrow keys, several if the question allows
    it; a free text answer is always possible."""

    def __init__(self, request: "AskedQuestion", *, armed_after: float = ARMED_AFTER) -> None:
        super().__init__(armed_after=armed_after)
        self.request = request
        self.chosen: list[str] = []
        self._selected: int | None = None  # the option that the arrow keys have reached
        self._selected_row = 0

    @property
    def title(self) -> str:
        return "A question"

    @property
    def keys(self) -> Sequence[AnswerKey]:
        options, multiple = self.request.options, self.request.multiple
        keys = [AnswerKey(digit, option, "") for digit, option in zip(_DIGITS, options, strict=False)]
        if self._selected is not None:
            option = options[self._selected]
            keys.append(AnswerKey("space", option, "select") if multiple else AnswerKey("enter", option, "answer"))
        elif options:
            keys.append(AnswerKey("down", "", "choose"))
        if multiple:
            keys.append(AnswerKey("enter", "", "done"))
        return (*keys, _WRITE_KEY, AnswerKey("x", "", "no answer"))

    def body_lines(self, width: int, palette: Palette) -> list[Text]:
        lines = markdown_lines(self.request.text, width, palette)
        if self.request.options:
            lines.append(text_line())
        for number, option in enumerate(self.request.options, 1):
            mark = "●" if option in self.chosen else "○" if self.request.multiple else " "
            is_selected = number - 1 == self._selected
            label = text_line(f"{'›' if is_selected else number} {mark} ", palette.style("accent", bold=True))
            style = palette.style("accent" if is_selected else "text", bold=is_selected)
            if is_selected:
                self._selected_row = len(lines)
            lines += indent_lines(wrap_text(text_line(clean_text(option), style), width - 4), label)
        return lines

    def move_selection(self, step: int) -> bool:
        count = len(self.request.options)
        if not count:
            return False
        previous = self._selected if self._selected is not None else -1 if step > 0 else 0
        self._selected = (previous + step) % count
        self.draw_panel()
        self._scroll_to_selected()
        return True

    def _after_layout(self) -> None:
        self._scroll_to_selected()  # again: a key may arrive before the size of the body is known
        super()._after_layout()

    def _scroll_to_selected(self) -> None:
        if self._selected is not None and self.query(VerticalScroll):
            scroll = self.query_one(VerticalScroll)
            scroll.scroll_to(y=self._selected_row - scroll.size.height // 2, animate=False, immediate=True)

    def choose_key(self, key: AnswerKey) -> None:
        if self.request.multiple and key.key in (*_DIGITS, "space"):
            (self.chosen.remove if key.answer in self.chosen else self.chosen.append)(key.answer)
            self.draw_panel()
            return
        super().choose_key(key)

    def collect_answers(self, answer: str, comment: str) -> tuple[str, ...]:
        """Returns the selected options and the free text."""
        return tuple(text for text in (*self.chosen, answer, comment) if text)


class ChoicePanel(DialogPanel):
    """A question of the application: a Markdown text and one key per answer. With `at_end`, the end of a long text is
    shown first."""

    def __init__(self, title: str, text: str, keys: Sequence[AnswerKey], *, at_end: bool = False) -> None:
        super().__init__()
        self._at_end = at_end
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

    def _after_layout(self) -> None:
        if self._at_end and self.query(VerticalScroll) and self.query_one(VerticalScroll).max_scroll_y:
            self._at_end = False
            self.query_one(VerticalScroll).scroll_end(animate=False, immediate=True)
        super()._after_layout()


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

    @property
    def shown(self) -> DialogPanel | None:
        return next(iter(self.query(DialogPanel)), None)

    def asks_about(self, question_id: str) -> bool:
        return any(_question_id(panel) == question_id for panel, _ in self._panels)

    async def add_panel(self, panel: DialogPanel, on_answer: AnswerHandler) -> None:
        self._panels.append((panel, on_answer))
        if isinstance(panel, ApprovalPanel) and not self.children:
            # The calls of one answer ask within a moment of each other: they are shown in the order of the calls.
            self.set_timer(COLLECT_SECONDS, self._show_collected)
        else:
            await self._show_next()

    async def _show_collected(self) -> None:
        if not self.children:
            self._panels.sort(key=lambda entry: _position(entry[0]))
        await self._show_next()

    async def ask_and_wait(self, panel: DialogPanel) -> tuple[str, str]:
        """Shows a dialog and waits for its answer; if the caller is cancelled, the dialog is removed."""
        future: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()

        async def set_answer(answer: str, comment: str) -> None:
            if not future.done():
                future.set_result((answer, comment))

        await self.add_panel(panel, set_answer)
        try:
            return await future
        finally:
            await self.drop_panels(lambda waiting: waiting is panel)

    async def drop_panels(self, matches: Callable[[DialogPanel], bool]) -> None:
        """Removes the dialogs that `matches` selects, without an answer."""
        removed = [panel for panel, _ in self._panels if matches(panel)]
        self._panels = [(panel, on_answer) for panel, on_answer in self._panels if panel not in removed]
        for panel in removed:
            if panel.is_attached:
                await panel.remove()
        if removed:
            await self._show_next()

    async def leave_session(self) -> None:
        """Removes the dialogs of the session when another one is shown.

        Approvals are asked again when the session is shown again. Questions of the model stay. Waiters of a choice
        receive an empty answer.
        """
        choices = [(panel, on_answer) for panel, on_answer in self._panels if isinstance(panel, ChoicePanel)]
        await self.drop_panels(lambda panel: isinstance(panel, ApprovalPanel | ChoicePanel))
        for _, on_answer in choices:
            await on_answer("", "")

    async def drop_approvals(self, approval_id: str | None = None) -> None:
        """Removes an approval that another front end answered, or all approvals."""
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
        first = self._panels[0][0] if self._panels else None
        if isinstance(first, ApprovalPanel):
            panels = [panel for panel, _ in self._panels[1:]]
            first.show_waiting([panel.request for panel in panels if isinstance(panel, ApprovalPanel)])
        self.post_message(self.Changed(open=bool(self._panels)))


def _position(panel: DialogPanel) -> int:
    return panel.request.position if isinstance(panel, ApprovalPanel) else -1


def _question_id(panel: DialogPanel) -> str:
    return panel.request.id if isinstance(panel, ApprovalPanel | QuestionPanel) else ""
