"""Draws the screen when something changes, and defines the screen operations that slash commands and the event listener
use."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import msgspec
from textual._compositor import Compositor
from textual._time import get_time
from textual.app import App
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from outrider.config.settings import Settings
from outrider.presentation.formats import format_count
from outrider.presentation.items import Notice, NoticeLevel
from outrider.tui.composer import Composer
from outrider.tui.desktop import copy_natively, notification_sequence, osc52_sequence, title_sequence
from outrider.tui.dialogs import AnswerKey, ChoicePanel, DialogQueue
from outrider.tui.driver import TerminalDriver
from outrider.tui.theme import FolderChoices, TerminalPreferences, ThemeChoice, find_palette, theme_name
from outrider.tui.widgets.modals import EditorScreen, PageScreen, PickerItem, PickerScreen, WidthRenderer
from outrider.tui.widgets.status import (
    ActivityLine,
    ComposerFrame,
    QueuedInputLines,
    SidePanel,
    StatusInfo,
    StatusLine,
    has_activity,
)
from outrider.tui.widgets.transcript import TranscriptWidget, WelcomeView

if TYPE_CHECKING:
    from outrider.tui.controller import SessionController

W = TypeVar("W", bound=Widget)

FRAME_SECONDS = 1 / 30  # the shortest time between two frames
SPINNER_SECONDS = 0.1  # between two frames during a turn
AWAY_SECONDS = 20.0  # without a key, after which the user is assumed to be away
SIDE_PANEL_SECONDS = 1.0  # between two frames while the side panel shows running times
SIDE_PANEL_MIN_COLUMNS = 96  # screen width from which the side panel fits beside the conversation


class MainScreen(Screen[None]):
    """The screen of the conversation. It paints a change at once; Textual waits for a sixtieth of a second, which is
    longer than everything else between a key and its echo. `ScreenRenderer` limits the number of frames."""

    _paint_timer: Timer | None = None

    def __init__(self) -> None:
        super().__init__(id="_default")
        self._compositor = LineCompositor()

    @property
    def _update_timer(self) -> Timer:
        if self._paint_timer is None:
            self._paint_timer = PaintTimer(self, self._on_timer_update)
            self._timers.add(self._paint_timer)
        return self._paint_timer


class PaintTimer(Timer):
    """Calls its callback once each time it is resumed, without a delay. After a frame, a timer with an interval would
    wait for the end of the interval, and the echo of a key would wait with it."""

    def __init__(self, screen: Screen[None], callback: Callable[[], None]) -> None:
        super().__init__(screen, 0, callback=callback, pause=True)
        self._start()

    async def _run(self) -> None:
        while True:
            await self._active.wait()  # pyright: ignore[reportUnknownMemberType]  Textual leaves its type open
            self.pause()
            await self._tick(next_timer=get_time(), count=0)


class LineCompositor(Compositor):
    """Renders only the part of the screen that has changed, and only widgets that are visible there. For each change
    Textual renders all lines of all widgets around it: for a key also the screen and the containers of the composer."""

    def _render_chops(self, crop: Region, is_rendered_line: Callable[[int], bool]) -> Sequence[Mapping[int, Strip]]:
        chops: list[dict[int, Strip | None]] = [dict.fromkeys(cuts[:-1]) for cuts in self.cuts]
        left, right = crop.column_span
        empty = {  # where the sections of each line start that no widget has filled; a section ends at the next cut
            y: [start for start, end in pairwise(self.cuts[y]) if start < right and end > left]
            for y in crop.line_range
            if is_rendered_line(y)
        }
        for widget, (region, clip) in self.visible_widgets.items():  # front to back
            visible = region.intersection(clip)
            start, end = visible.column_span
            lines = [
                y
                for y, starts in empty.items()
                if visible.y <= y < visible.bottom and any(start <= position < end for position in starts)
            ]
            if not lines:
                continue
            top = lines[0]
            strips = widget.render_lines(
                Region(visible.x - region.x, top - region.y, visible.width, lines[-1] - top + 1)
            )
            for y in lines:
                cuts = [cut for cut in self.cuts[y] if start <= cut <= end]
                sections = strips[y - top].divide([cut - start for cut in cuts[1:]])  # fewer, if the line is too short
                filled = {cut: section for cut, section in zip(cuts, sections, strict=False) if cut in empty[y]}
                chops[y].update(filled)
                empty[y] = [position for position in empty[y] if position not in filled]
        return cast("Sequence[Mapping[int, Strip]]", chops)


class ScreenRenderer:
    """Redraws the widgets after a change, at most once per FRAME_SECONDS. There is no timer while nothing changes."""

    def __init__(self, app: App[int]) -> None:
        self._app = app
        self._cost_before_turn: Decimal | None = Decimal(0)
        self._was_busy = False
        self._next_frame: asyncio.TimerHandle | None = None
        self._last_frame = 0.0
        self._shown_activity: tuple[object, ...] = ()
        self._activity_drawn = 0.0
        self.draw: Callable[[], None] = lambda: None  # set by the application
        self.dirty = True
        self.side_panel_choice: bool | None = None  # the user's choice; None: shown while it has content

    def request_frame(self) -> None:
        """Draws soon, because the model has changed."""
        self.dirty = True
        self._schedule(max(self._last_frame + FRAME_SECONDS - monotonic(), 0.0))

    def draw_frame(self, controller: "SessionController") -> None:
        """Draws what has changed; during a turn also the spinner, and the running times in the side panel."""
        self._last_frame = monotonic()
        activity = controller.conversation.activity
        if activity.busy and not self._was_busy:
            self._cost_before_turn = activity.cost
        if self.dirty:
            self._draw_conversation(controller)
        away = controller.connection_text
        # Not with every delta of an answer: the time and the number of tokens change all the time.
        activity_state = (activity.busy, activity.waits_for_person, activity.label, activity.retry_text, away)
        is_due = activity.busy and monotonic() - self._activity_drawn >= SPINNER_SECONDS
        if activity_state != self._shown_activity or is_due:
            self._shown_activity, self._activity_drawn = activity_state, monotonic()
            self._find_widget(ActivityLine).show_activity(activity, away, cost_before=self._cost_before_turn)
        self._draw_side_panel(controller)
        self.dirty = False
        self._was_busy = activity.busy
        if activity.busy:
            self._schedule(SPINNER_SECONDS)
        elif away or (self._find_widget(SidePanel).display and controller.conversation.side.is_running):
            self._schedule(SIDE_PANEL_SECONDS)

    def _schedule(self, delay: float) -> None:
        """Draws after `delay` seconds, or earlier if an earlier frame is already scheduled."""
        loop = asyncio.get_running_loop()
        if self._next_frame is not None:
            if self._next_frame.when() <= loop.time() + delay:
                return
            self._next_frame.cancel()
        self._next_frame = loop.call_later(delay, self._run_frame)

    def _run_frame(self) -> None:
        self._next_frame = None
        self._app.call_later(self.draw)  # in the context of the application

    def _draw_conversation(self, controller: "SessionController") -> None:
        items = controller.conversation.items
        transcript, welcome = self._find_widget(TranscriptWidget), self._find_widget(WelcomeView)
        has_content = bool(items or controller.session_id)
        transcript.display, welcome.display = has_content, not has_content
        transcript.palette = find_palette(self._app.theme)
        transcript.show_items(items)
        self._find_widget(QueuedInputLines).show_inputs(
            [(item.delivery, item.text) for item in controller.waiting_inputs]
        )
        self._find_widget(StatusLine).show_status(build_status(controller))
        self._find_widget(ComposerFrame).show_mode(controller.mode)

    def _draw_side_panel(self, controller: "SessionController") -> None:
        activity, panel = controller.conversation.side, self._find_widget(SidePanel)
        show = has_activity(activity) if self.side_panel_choice is None else self.side_panel_choice
        panel.display = show and self._app.size.width >= SIDE_PANEL_MIN_COLUMNS
        if panel.display:
            panel.show_activity(activity)

    def _find_widget(self, kind: type[W]) -> W:
        return self._app.screen_stack[0].query_one(kind)


def build_status(controller: "SessionController") -> StatusInfo:
    """Returns the values of the status line."""
    activity = controller.conversation.activity
    return StatusInfo(
        mode=controller.mode,
        approval=controller.approval if controller.mode == "agent" else "",
        model=str(controller.model),
        effort=controller.effort,
        agent=controller.agent,
        context=activity.context_tokens,
        context_limit=controller.context_limit,
        cost=activity.cost,
        answers=activity.answers,
        workspace=controller.workspace,
        home=controller.settings.home_folder,
    )


def first_status(settings: Settings, choices: FolderChoices) -> StatusInfo:
    """Returns the status line before the engine is open."""
    agent = settings.agents[0]
    mode = choices.mode or settings.mode
    return StatusInfo(
        mode=mode,
        approval=choices.approval or settings.approval if mode == "agent" else "",
        model=choices.model or str(agent.model_ref).strip("/"),
        effort=choices.effort or agent.reasoning_effort,
        agent=choices.agent or agent.name,
        workspace=settings.workspace,
        home=settings.home_folder,
    )


async def _ask_nothing() -> None:
    """Placeholder until the engine is open and an event listener exists."""


class TuiScreen:
    """Implements ScreenApi for the application. `open_controller` is None until the engine is open."""

    def __init__(self, app: App[int], renderer: ScreenRenderer, preferences: TerminalPreferences) -> None:
        self._app = app
        self._renderer = renderer
        self.preferences = preferences
        self._shown_title = ""
        self.open_controller: SessionController | None = None
        self.ask_pending: Callable[[], Awaitable[None]] = _ask_nothing

    @property
    def controller(self) -> "SessionController":
        assert self.open_controller is not None, "commands run only after the engine is open"
        return self.open_controller

    def find_widget(self, kind: type[W]) -> W:
        """Returns a widget of the base screen, even if a modal screen is open."""
        return self._app.screen_stack[0].query_one(kind)

    async def pick_item(self, title: str, items: Sequence[PickerItem], current: str = "") -> str | None:
        return await self._app.push_screen_wait(PickerScreen(title, items, current))

    def show_page(self, title: str, text: str | WidthRenderer) -> None:
        self._app.push_screen(PageScreen(title, text))

    def show_notice(self, text: str, level: NoticeLevel = "info", body: str = "") -> None:
        if self.open_controller is None:  # no conversation yet, or the engine could not be opened
            self.find_widget(WelcomeView).add_notices((text,))
            return
        self.open_controller.conversation.add_notice(Notice(level, "command", text, body))
        self.redraw()

    async def edit_text(self, title: str, text: str) -> str | None:
        return await self._app.push_screen_wait(EditorScreen(title, text))

    async def ask_choice(
        self, title: str, text: str, keys: Sequence[AnswerKey], *, at_end: bool = False
    ) -> tuple[str, str]:
        return await self.find_widget(DialogQueue).ask_and_wait(ChoicePanel(title, text, keys, at_end=at_end))

    async def ask_confirmation(self, title: str, text: str, yes: str) -> bool:
        keys = (AnswerKey("y", "yes", yes), AnswerKey("n", "no", "no"), AnswerKey("escape", "no", ""))
        answer, _ = await self.ask_choice(title, text, keys)
        return answer == "yes"

    async def session_shown(self) -> None:
        await self.find_widget(DialogQueue).leave_session()
        if self.controller.session_id:
            await self.ask_pending()
        else:
            self.find_widget(WelcomeView).show_earlier_count(await self.controller.count_earlier_sessions())
        self.redraw()

    def redraw(self) -> None:
        self._renderer.request_frame()

    def fill_composer(self, text: str) -> None:
        self.find_widget(Composer).set_text(text)

    def switch_theme(self, look: ThemeChoice | None) -> None:
        self.preferences.update(theme=look or ("light" if self.preferences.palette.dark else "dark"))
        self._app.theme = theme_name(self.preferences.palette)
        self.find_widget(WelcomeView).draw_welcome()
        self.redraw()

    def announce(self, text: str) -> None:
        """Rings the bell and sends a desktop notification, if the user is away."""
        driver = self._app._driver  # pyright: ignore[reportPrivateUsage]
        away = not self._app.app_focus or (isinstance(driver, TerminalDriver) and driver.idle_seconds > AWAY_SECONDS)
        if self.preferences.stored.notify and away:
            self._write_to_terminal(notification_sequence(text))

    def show_title(self, title: str) -> None:
        """Sets the title of the terminal's window."""
        if title != self._shown_title:
            self._shown_title = title
            self._write_to_terminal(title_sequence(title))

    def copy_text(self, text: str) -> None:
        """Copies with the terminal's sequence and with the desktop's clipboard program, and reports it."""
        self._write_to_terminal(osc52_sequence(text))
        self._app.run_worker(copy_natively(text), exit_on_error=False)
        lines = text.count("\n") + 1
        size = format_count(lines, "line") if lines > 1 else format_count(len(text), "character")
        self._app.notify(f"Copied {size}.", timeout=2)

    def find_in_transcript(self, line: int) -> None:
        self.find_widget(TranscriptWidget).show_line(line)

    def transcript_lines(self) -> list[str]:
        return self.find_widget(TranscriptWidget).plain_lines()

    def set_vim_keys(self, *, on: bool) -> None:
        self.preferences.update(vim=on)
        self.find_widget(Composer).use_vim_keys(on=on)

    def _write_to_terminal(self, sequence: str) -> None:
        driver = self._app._driver  # pyright: ignore[reportPrivateUsage]  Textual has no public way to write
        if driver is not None and sequence and not driver.is_headless:
            driver.write(sequence)

    def return_input(self, text: str) -> None:
        """Puts an input that was not delivered back into the composer, before any newer text."""
        composer = self.find_widget(Composer)
        composer.set_text("\n\n".join([text, *([composer.text] if composer.text.strip() else [])]))

    def quit_app(self) -> None:
        if self.open_controller is not None and (unsent := self.open_controller.take_unsent()):
            self.return_input("\n\n".join(unsent))
        self.find_widget(Composer).store_draft()
        self._app.exit(0)


class ScreenApi(Protocol):
    """The screen operations that slash commands and the event listener may use."""

    @property
    def controller(self) -> "SessionController": ...

    async def pick_item(self, title: str, items: Sequence[PickerItem], current: str = "") -> str | None:
        """Lets the user pick an item; returns its value, or None."""
        ...

    def show_page(self, title: str, text: str | WidthRenderer) -> None:
        """Shows a page: Markdown, or a function that renders lines for a width."""
        ...

    def show_notice(self, text: str, level: NoticeLevel = "info", body: str = "") -> None:
        """Adds a notice to the conversation; it is not stored in the session."""
        ...

    async def ask_confirmation(self, title: str, text: str, yes: str) -> bool: ...

    async def edit_text(self, title: str, text: str) -> str | None:
        """Lets the user edit a text; returns it, or None if cancelled."""
        ...

    async def ask_choice(
        self, title: str, text: str, keys: Sequence[AnswerKey], *, at_end: bool = False
    ) -> tuple[str, str]:
        """Asks a question in place of the composer; returns the answer and its free text. With `at_end`, the end of a
        long text is shown first."""
        ...

    async def session_shown(self) -> None:
        """Replaces the dialogs of the previous session with the pending ones of the session now shown."""
        ...

    def redraw(self) -> None: ...

    def fill_composer(self, text: str) -> None:
        """Puts text into the composer for editing."""
        ...

    def return_input(self, text: str) -> None:
        """Puts an input that was not sent back into the composer, before any newer text."""
        ...

    def switch_theme(self, look: ThemeChoice | None) -> None:
        """Switches to a theme; None toggles between dark and light."""
        ...

    def quit_app(self) -> None: ...

    @property
    def preferences(self) -> TerminalPreferences:
        """The stored choices of the user."""
        ...

    def copy_text(self, text: str) -> None:
        """Copies text to the clipboard, and shows a confirmation."""
        ...

    def announce(self, text: str) -> None:
        """Rings the bell and sends a desktop notification, if the user is away."""
        ...

    def transcript_lines(self) -> list[str]:
        """Returns the lines of the conversation as they are shown."""
        ...

    def find_in_transcript(self, line: int) -> None:
        """Scrolls to a line of the conversation and highlights it."""
        ...

    def set_vim_keys(self, *, on: bool) -> None:
        """Turns vi keys in the composer on or off, and stores the choice."""
        ...


CommandHandler = Callable[[ScreenApi, str], Coroutine[Any, Any, None]]


class SlashCommand(msgspec.Struct, frozen=True):
    """A slash command; `argument` describes its optional argument in the help."""

    name: str
    note: str
    run: CommandHandler
    argument: str = ""
