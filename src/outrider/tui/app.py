"""The application: a screen over one engine. `run_tui` is how it is started."""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from time import monotonic
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from outrider.config.settings import Settings
from outrider.errors import OutriderError
from outrider.tui import commands as choices
from outrider.tui import commands as sessions
from outrider.tui.commands import CHOICES, find
from outrider.tui.completion import Completions, FileNames
from outrider.tui.composer import Composer, History, tell_alt_enter_from_enter
from outrider.tui.controller import SessionController
from outrider.tui.dialogs import DialogQueue
from outrider.tui.event_listener import Listener
from outrider.tui.screen import FRAME, Drawing, TuiScreen
from outrider.tui.startup import Attach, OpenBridge, Start, ask_about_trust, engines, first_session, notices_of
from outrider.tui.theme import DARK, LIGHT, ThemePreference, name_of, theme
from outrider.tui.widgets.side_panel import SidePanel
from outrider.tui.widgets.status import ActivityLine, Frame, StatusLine, WaitingLines
from outrider.tui.widgets.transcript import Transcript
from outrider.tui.widgets.welcome import Welcome

_log = logging.getLogger("outrider.tui")

QUIT_WITHIN = 2.0  # seconds between the two Ctrl+C


def run_tui(
    settings: Callable[[], Settings],
    *,
    session: str = "",
    resume: bool = False,
    prompt: str = "",
    attach: Attach | None = None,
    place: str = "",
) -> int:
    """Open the application and return its exit code once it is left. `settings` reads the user's settings, and is
    asked again once a folder is trusted. `session` names a session to go on with, `resume` means this folder's last
    one, `prompt` is said at once. `attach` leads to the server at `place` instead of opening an engine here."""
    return asyncio.run(_run(Start(settings, session, resume, prompt, attach, place)))


async def _run(start: Start) -> int:
    tell_alt_enter_from_enter()
    async with AsyncExitStack() as stack:
        app = OutriderApp(start, engines(stack, start.attach))
        loop = asyncio.get_running_loop()
        for name in (signal.SIGHUP, signal.SIGTERM):  # a closed terminal: everything is stored, then it ends
            loop.add_signal_handler(name, app.scene.leave)
        code = await app.run_async() or app.return_code or 0  # what it broke off with, if it did
        there = f"--attach {start.place} " if start.place else ""
        if app.scene.opened is not None and (session_id := app.scene.opened.session_id):
            sys.stdout.write(f"Everything is stored. Go on with: outrider {there}--session {session_id[-8:]}\n")
        return code


class OutriderApp(App[int]):
    """Everything that people do goes to the helm; everything that they see comes from the conversation."""

    CSS_PATH = "screen.tcss"
    TITLE = "outrider"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "interrupt", priority=False),
        Binding("ctrl+c", "copy_or_leave", priority=True),
        Binding("ctrl+d", "leave_if_empty", priority=True),
        Binding("shift+tab", "next_mode", priority=True),
        Binding("ctrl+o", "run_command('model')", priority=True),
        Binding("ctrl+g", "run_command('agents')", priority=True),
        Binding("ctrl+b", "side", priority=True),
        Binding("ctrl+r", "unfold", priority=True),
        Binding("f1", "run_command('help')", priority=True),
        Binding("pageup", "scroll(-1)", priority=True),
        Binding("pagedown", "scroll(1)", priority=True),
        Binding("ctrl+end", "scroll_to_end", priority=True),
    ]

    def __init__(self, start: Start, open_bridge: OpenBridge) -> None:
        super().__init__()
        for palette in (DARK, LIGHT):
            self.register_theme(theme(palette))
        self._start = start
        self._open_bridge = open_bridge
        self._settings = start.settings()
        looks = ThemePreference(self._settings.data / "terminal.json")
        self.theme = name_of(looks.palette)
        self._drawing = Drawing(self)
        self.scene = TuiScreen(self, self._drawing, looks)
        self._unfolded = False
        self._asked_to_quit = 0.0

    def compose(self) -> ComposeResult:
        completions = Completions()
        history = History(self._settings.data / "history", self._settings.workspace)
        with Horizontal(id="middle"):
            with Vertical(id="conversation"):
                yield Welcome(notices_of(self._settings), self._settings.missing)
                yield Transcript()
            yield SidePanel()
        yield WaitingLines()
        yield ActivityLine()
        yield DialogQueue()
        with Frame():
            yield Static("›", id="prompt", markup=False)
            yield Composer(completions, history, CHOICES)
        yield completions
        yield StatusLine()

    def on_mount(self) -> None:
        self.scene.one(Composer).focus()
        self.set_interval(FRAME, self._draw)
        self.work_on(self._begin())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of the conversation mean nothing while a page or a list lies over it."""
        return len(self.screen_stack) == 1 or action in {"copy_or_leave", "dismiss"} or None

    def work_on(self, work: Coroutine[Any, Any, None]) -> None:
        self.run_worker(self._guarded(work), exit_on_error=False)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """What the engine refuses is said in the conversation."""
        try:
            await work
        except OutriderError as error:
            self.scene.tell(sessions.words_of(error), "bad")
        except Exception as error:  # noqa: BLE001  a fault of ours does not take the conversation away
            _log.exception("a command of the screen failed")
            self.scene.tell(f"something went wrong here: {type(error).__name__}: {error}", "bad")
        self.scene.redraw()

    async def _begin(self) -> None:
        if self._settings.missing:
            return
        answer = "" if self._start.attach else await ask_about_trust(self._settings, self.scene.one(DialogQueue))
        if answer == "quit":
            self.scene.leave()
            return
        if answer == "trust":
            self._settings = self._start.settings()
        helm = self.scene.opened = SessionController(await self._open_bridge(self._settings))
        listener = Listener(self.scene, self.scene.one(DialogQueue), self.work_on)
        self.scene.ask_open = listener.ask_open
        self.run_worker(listener.run(), group="listener")
        composer = self.scene.one(Composer)
        composer.files = FileNames(helm.workspace, self.work_on, composer.look_again).names
        session_id = await first_session(helm, self._start)
        if session_id:
            await sessions.open_session(self.scene, session_id)
        else:
            self.scene.one(Welcome).tell_earlier(await helm.earlier())
        if self._start.prompt:
            self.work_on(self._say(self._start.prompt, queue=False))

    def _draw(self) -> None:
        if self.scene.opened is not None and self.is_running:
            self._drawing.draw(self.scene.helm)
            composer, helm = self.scene.one(Composer), self.scene.helm
            composer.busy, composer.waits = helm.conversation.activity.busy, bool(helm.waiting)

    async def on_composer_sent(self, event: Composer.Sent) -> None:
        if self.scene.opened is None:
            closed = "The engine is not open yet. If it cannot be opened, what is wrong is said above."
            self.notify("No model can be reached yet." if self._settings.missing else closed)
            self.scene.one(Composer).set(event.text)
            return
        text = event.text
        if text.startswith("/"):
            self.action_run_command(text)
        elif text.startswith("!") and text[1:].strip():
            self.work_on(self.scene.helm.run_command(text[1:].strip(), self.scene.redraw))
        else:
            self.work_on(self._say(text, queue=event.queue))

    def on_composer_taken_back(self) -> None:
        self.work_on(self._take_back())

    async def _take_back(self) -> None:
        text = await self.scene.helm.take_back()
        if text is not None:
            self.scene.one(Composer).set(text)

    async def _say(self, text: str, *, queue: bool) -> None:
        self.scene.one(Transcript).scroll_end(animate=False)
        await self.scene.helm.say(text, queue=queue, changed=self.scene.redraw)

    def on_asking_changed(self, event: DialogQueue.Changed) -> None:
        self.scene.one(Frame).display = not event.open
        if self.scene.opened is not None:
            self.scene.helm.conversation.activity.asking = event.open
        if not event.open:
            self.scene.one(Composer).focus()
        self.scene.redraw()

    def on_transcript_older_wanted(self) -> None:
        if self.scene.opened is not None:
            self.work_on(self._older())

    async def _older(self) -> None:
        await self.scene.helm.older()

    def on_resize(self) -> None:
        self.scene.redraw()

    def action_run_command(self, text: str) -> None:
        found = find(text)
        if found is None:
            self.scene.tell(f"no command is called {text.split(maxsplit=1)[0]}; /help lists them", "warn")
        elif self.scene.opened is not None:
            self.work_on(found[0].run(self.scene, found[1]))

    def action_interrupt(self) -> None:
        if self.scene.opened is not None:
            self.work_on(self.scene.helm.interrupt())

    def action_next_mode(self) -> None:
        if self.scene.opened is not None:
            self.work_on(self.scene.helm.set_mode(choices.next_mode(self.scene.helm.mode)))

    def action_side(self) -> None:
        self._drawing.side = not self.scene.one(SidePanel).display
        self.scene.redraw()

    def action_unfold(self) -> None:
        self._unfolded = not self._unfolded
        self.scene.one(Transcript).unfold_all(unfold=self._unfolded)
        self.scene.redraw()

    def action_scroll(self, direction: int) -> None:
        transcript = self.scene.one(Transcript)
        transcript.scroll_relative(y=direction * max(transcript.size.height - 3, 1), animate=False)

    def action_scroll_to_end(self) -> None:
        self.scene.one(Transcript).scroll_end(animate=False)

    def action_copy_or_leave(self) -> None:
        """Copies what is selected; else empties the field; else leaves, if it is meant twice."""
        composer = self.scene.one(Composer)
        if selected := self.screen.get_selected_text() or composer.selected_text:
            self.copy_to_clipboard(selected)
            self.screen.clear_selection()
        elif composer.text:
            composer.clear()
        elif monotonic() - self._asked_to_quit < QUIT_WITHIN:
            self.scene.leave()
        else:
            self._asked_to_quit = monotonic()
            self.notify("Ctrl+C again quits. Everything is stored.", timeout=QUIT_WITHIN)

    def action_leave_if_empty(self) -> None:
        if not self.scene.one(Composer).text:
            self.scene.leave()
