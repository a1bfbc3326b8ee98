"""The terminal application: composes the widgets, binds keys, and connects them to one engine client."""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from textual import constants, events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import Static

from outrider.config.providers import has_hidden_colors
from outrider.config.settings import Settings
from outrider.errors import OutriderError, ServerAwayError
from outrider.presentation.formats import away_text, clean_line, format_count
from outrider.tui.completion import CompletionChoice, CompletionList, WorkspaceFileNames
from outrider.tui.composer import Composer, DraftFile, InputHistory, register_alt_enter
from outrider.tui.desktop import edit_in_editor, editor_command, paste_image, paste_text
from outrider.tui.dialogs import DialogPanel, DialogQueue
from outrider.tui.driver import TerminalDriver
from outrider.tui.screen import MainScreen, ScreenRenderer, TuiScreen, first_status
from outrider.tui.startup import (
    AttachClient,
    ModelSetup,
    OpenClient,
    StartOptions,
    ask_about_trust,
    engine_opener,
    find_first_session,
    hook_notices,
    load_engine_modules,
    startup_notices,
    uses_embedded_model,
)
from outrider.tui.theme import DARK, LIGHT, FolderChoices, FolderMemory, TerminalPreferences, build_theme, theme_name
from outrider.tui.widgets.modals import PickerItem
from outrider.tui.widgets.status import ActivityLine, ComposerFrame, QueuedInputLines, SidePanel, StatusLine
from outrider.tui.widgets.transcript import TranscriptWidget, WelcomeView

if TYPE_CHECKING:
    from outrider.engine.session_client import SessionClient

_log = logging.getLogger("outrider.tui")

CONNECT_SECONDS = 3  # between two attempts to open the engine of a server
QUIT_CONFIRM_SECONDS = 2.0  # seconds between the two Ctrl+C


def run_tui(
    settings: Callable[[], Settings],
    *,
    session: str = "",
    resume: bool = False,
    prompt: str = "",
    attach: AttachClient | None = None,
    server_url: str = "",
    given: frozenset[str] = frozenset(),
) -> int:
    """Runs the terminal application until the user quits, and returns its exit code.

    The caller has checked that stdin and stdout are a terminal, and shows the alternate screen.

    - `settings`: reads the user's settings; called again after the user trusts the folder.
    - `session`: the id of a session to continue.
    - `resume`: continues this folder's last session.
    - `prompt`: sent immediately.
    - `attach`: connects to a server instead of opening an engine in this process.
    - `server_url`: the address of that server.
    - `given`: the names of what the command line or the environment chose. The choices that are remembered for this
      folder do not replace these.
    """
    TerminalDriver.is_screen_prepared = True
    return asyncio.run(_run_app(StartOptions(settings, session, resume, prompt, attach, server_url, given)))


async def _run_app(options: StartOptions) -> int:
    """Runs the application; closes the engine and prints how to continue the session when it ends."""
    register_alt_enter()
    async with AsyncExitStack() as stack:
        app = OutriderApp(options, engine_opener(stack, options.attach))
        loop = asyncio.get_running_loop()
        for name in (signal.SIGHUP, signal.SIGTERM):  # also sent when the terminal closes
            loop.add_signal_handler(name, app.ui.quit_app)
        code = await app.run_async() or app.return_code or 0  # return_code is set if the app crashed
        if app.ui.open_controller is not None:
            await app.ui.open_controller.close()
        if app.ui.open_controller is not None and app.ui.preferences.stored.print_on_exit:
            from outrider.tui.rendering.items import print_items

            print_items(app.ui.controller.conversation.items, app.ui.preferences.palette)
        attach_option = f"--attach {options.server_url} " if options.server_url else ""
        if app.ui.open_controller is not None and (session_id := app.ui.open_controller.session_id):
            sys.stdout.write(
                f"The session is stored. Continue with: outrider {attach_option}--session {session_id[-8:]}\n"
            )
        return code


class OutriderApp(App[int]):
    """The Textual application. User actions call the SessionController; the widgets draw its TranscriptView."""

    CSS_PATH = "screen.tcss"
    TITLE = "outrider"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "interrupt", priority=False),
        Binding("ctrl+c", "copy_or_leave", priority=True),
        Binding("ctrl+d", "leave_if_empty", priority=True),
        Binding("shift+tab", "next_mode", priority=True),
        Binding("ctrl+t", "next_approval", priority=True),
        Binding("ctrl+o", "run_command('model')", priority=True),
        Binding("ctrl+g", "run_command('agents')", priority=True),
        Binding("ctrl+y", "run_command('effort')", priority=True),
        Binding("ctrl+b", "background_or_side", priority=True),
        Binding("ctrl+r", "search_history", priority=True),
        Binding("ctrl+x", "open_editor", priority=True),
        Binding("ctrl+f,f3", "run_command('find')", priority=True),
        Binding("f1", "run_command('help')", priority=True),
        Binding("f2", "toggle_folded", priority=True),
        Binding("f4", "toggle_side", priority=True),
        Binding("pageup", "scroll(-1)", priority=True),
        Binding("pagedown", "scroll(1)", priority=True),
        Binding("ctrl+end", "scroll_to_end", priority=True),
    ]

    def __init__(self, options: StartOptions, open_client: OpenClient) -> None:
        if constants.COLOR_SYSTEM == "auto" and has_hidden_colors():
            constants.COLOR_SYSTEM = "256"  # pyright: ignore[reportConstantRedefinition, reportAttributeAccessIssue]
        super().__init__(driver_class=TerminalDriver)
        for palette in (DARK, LIGHT):
            self.register_theme(build_theme(palette))
        self._options = options
        self._open_client = open_client
        self._settings = options.settings()
        preferences = TerminalPreferences(self._settings.data_folder / "terminal.json")
        self.theme = theme_name(preferences.palette)
        memory_folder = self._settings.data_folder / "folders"
        self._memory = None if options.attach else FolderMemory(memory_folder, self._settings.workspace, options.given)
        self._renderer = ScreenRenderer(self)
        self._renderer.draw = self._draw_frame
        self.ui = TuiScreen(self, self._renderer, preferences)
        self._expanded = False
        self._last_quit_request = 0.0
        self._opening_failed = False
        self._was_away = False  # the server of `--attach`
        self._early_actions: list[Callable[[], None]] = []  # inputs and keys before the engine was open

    def get_default_screen(self) -> Screen[None]:
        return MainScreen()

    def compose(self) -> ComposeResult:
        completions = CompletionList()
        history = InputHistory(self._settings.data_folder / "history", self._settings.workspace)
        with Horizontal(id="middle"):
            with Vertical(id="conversation"):
                yield WelcomeView(
                    startup_notices(self._settings),
                    self._settings.missing,
                    embedded=uses_embedded_model(self._settings),
                )
                yield TranscriptWidget()
            yield SidePanel()
        yield QueuedInputLines()
        yield ActivityLine()
        yield DialogQueue()
        with ComposerFrame():
            yield Static("›", id="prompt", markup=False)
            draft = DraftFile(self._settings.data_folder / "drafts", self._settings.workspace)
            yield Composer(completions, history, (), draft)
        yield completions
        yield StatusLine()

    def on_mount(self) -> None:
        composer = self.ui.find_widget(Composer)
        composer.use_vim_keys(on=self.ui.preferences.stored.vim)
        composer.focus()
        self._show_first_status()
        self.ui.find_widget(ComposerFrame).show_mode(self._settings.mode)
        # After the first screen: loading the engine would delay it.
        self.call_after_refresh(self.start_work, self._open_first_session())

    def _show_first_status(self) -> None:
        choices = self._memory.choices if self._memory else FolderChoices()
        self.ui.find_widget(StatusLine).show_status(first_status(self._settings, choices))

    def on_descendant_focus(self) -> None:
        if isinstance(self._driver, TerminalDriver):
            self._driver.release_input()

    def on_key(self, event: events.Key) -> None:
        """Gives a key to the composer that no widget has handled, e.g. after a click removed the focus."""
        composer = self.ui.find_widget(Composer)
        if self.focused is None and len(self.screen_stack) == 1 and composer.visible:
            composer.focus()
            composer.post_message(events.Key(event.key, event.character))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disables the conversation's key bindings while a modal screen is open."""
        return len(self.screen_stack) == 1 or action in {"copy_or_leave", "dismiss"} or None

    def start_work(self, work: Coroutine[Any, Any, None]) -> None:
        self.run_worker(self._report_errors(work), exit_on_error=False)

    async def _report_errors(self, work: Coroutine[Any, Any, None]) -> None:
        """Awaits `work` and shows its errors as notices in the conversation."""
        try:
            await work
        except OutriderError as error:
            self.ui.show_notice(clean_line(error.message or type(error).__name__, 2000), "error")
        except OSError as error:  # e.g. a full disk or a read-only folder
            file_name = f"{error.filename}: " if error.filename else ""
            self.ui.show_notice(clean_line(f"{file_name}{error.strerror or error}", 2000), "error")
        except Exception as error:  # noqa: BLE001  an internal error must not close the app
            _log.exception("a TUI command failed")
            self.ui.show_notice(f"internal error: {type(error).__name__}: {error}", "error")
        self.ui.redraw()

    async def _open_first_session(self) -> None:
        try:
            await self._open_engine()
        except Exception:
            self._opening_failed = self.ui.open_controller is None
            raise

    async def _open_engine(self) -> None:
        """Asks for trust, opens the engine client, starts the event listener, and shows the first session."""
        if self._settings.missing:
            if not await ModelSetup(self, self.ui.find_widget(DialogQueue), self._settings).run():
                self.ui.quit_app()
                return
            self._read_settings_again()
        answer = "" if self._options.attach else await ask_about_trust(self._settings, self.ui.find_widget(DialogQueue))
        if answer == "quit":
            self.ui.quit_app()
            return
        if answer == "trust":
            self._read_settings_again()
        await asyncio.to_thread(load_engine_modules)
        from outrider.tui.commands import command_choices, open_session
        from outrider.tui.controller import SessionController
        from outrider.tui.event_listener import ScreenEventListener

        client = await self._connect()
        if not self._options.attach:
            self.ui.find_widget(WelcomeView).add_notices(await asyncio.to_thread(hook_notices, self._settings))
        # No await from here until the listener is attached: a prompt is sent as soon as there is a controller, and its
        # events would be lost.
        controller = SessionController(client, self._memory)
        self.ui.open_controller = controller
        if controller.client.connection is not None:
            controller.client.connection.on_change = self._show_connection
        listener = ScreenEventListener(self.ui, self.ui.find_widget(DialogQueue), self.start_work)
        self.ui.ask_pending = listener.ask_pending
        self.run_worker(listener.run(), group="listener")
        composer = self.ui.find_widget(Composer)
        composer.commands = command_choices()
        composer.update_completions()
        self.start_work(self._load_custom_commands())
        composer.files = WorkspaceFileNames(
            controller.workspace, self.start_work, composer.update_completions
        ).known_names
        session_id = await find_first_session(controller, self._options)
        if session_id:
            await open_session(self.ui, session_id)
        else:
            self.ui.find_widget(WelcomeView).show_earlier_count(await controller.count_earlier_sessions())
        self.ui.redraw()
        if self._options.prompt:
            self.start_work(self._send_prompt(self._options.prompt, queue=False))
        early_actions, self._early_actions = self._early_actions, []
        for act in early_actions:
            act()

    def _read_settings_again(self) -> None:
        """Reads the settings after the user has chosen a model or trusted the folder, and shows what has changed."""
        self._settings = self._options.settings()
        self.ui.find_widget(WelcomeView).show_ready(
            startup_notices(self._settings), embedded=uses_embedded_model(self._settings)
        )
        self._show_first_status()

    async def _connect(self) -> "SessionClient":
        """Opens the engine; tries again while the server of `--attach` cannot be reached."""
        while True:
            try:
                return await self._open_client(self._settings)
            except ServerAwayError:
                if not self._options.attach:
                    raise
            self._was_away = True
            for seconds in range(CONNECT_SECONDS, 0, -1):
                self.ui.find_widget(ActivityLine).show_away(away_text(seconds))
                await asyncio.sleep(1)
            self._was_away = False
            self.ui.find_widget(ActivityLine).show_away("")

    def _show_connection(self) -> None:
        """Draws the countdown to the next attempt to reach the server, or shows that it answers again."""
        is_away = bool(self.ui.controller.connection_text)
        if self._was_away and not is_away and self.is_running:
            self.ui.show_notice("the server answers again", "success")
        self._was_away = is_away
        self.ui.redraw()

    def _when_open(self, act: Callable[[], None]) -> None:
        """Calls `act`, which needs the engine, now or as soon as the engine is open."""
        if self.ui.open_controller is not None:
            act()
        elif not self._opening_failed:
            self._early_actions.append(act)

    def _draw_frame(self) -> None:
        if self.ui.open_controller is not None and self.is_running:
            self._renderer.draw_frame(self.ui.controller)
            composer, controller = self.ui.find_widget(Composer), self.ui.controller
            welcome = self.ui.find_widget(WelcomeView)
            composer.suggestions = welcome.suggestions if welcome.display else ()
            activity = controller.conversation.activity
            state = "waiting · " if activity.waits_for_person else "working · " if activity.busy else ""
            self.ui.show_title(f"{state}{controller.title or controller.workspace.name} · outrider")
            composer.busy, composer.has_queued_input = (
                controller.conversation.activity.busy,
                bool(controller.waiting_inputs),
            )

    def on_composer_submitted(self, event: Composer.Submitted) -> None:
        if self.ui.open_controller is None and (self._settings.missing or self._opening_failed or self._was_away):
            explanation = "The engine could not be opened; the reason is shown above. Correct it, and start again."
            explanation = "The server cannot be reached yet." if self._was_away else explanation
            self.notify("No model is configured yet." if self._settings.missing else explanation)
            self.ui.find_widget(Composer).set_text(event.text)
        else:
            self._when_open(lambda: self._submit(event))

    def _submit(self, event: Composer.Submitted) -> None:
        text = event.text
        if text.startswith("/"):
            self.action_run_command(text)
        elif text == "!":
            self.notify("Write a command after the exclamation mark.")
        elif text.startswith("!"):
            self.start_work(self.ui.controller.run_command(text[1:].strip(), self.ui.redraw))
        else:
            self.start_work(self._send_prompt(text, queue=event.queue))

    def on_composer_image_requested(self) -> None:
        self.start_work(self._paste_clipboard())

    async def _paste_clipboard(self) -> None:
        """Inserts the image of the clipboard as an attachment, or else its text."""
        composer = self.ui.find_widget(Composer)
        image = await paste_image(self._settings.data_folder / "clipboard")
        text = f"'{image}'" if image is not None else await paste_text()
        if text:
            composer.insert_paste(text)
        else:
            self.notify(
                "The clipboard is empty, or no program to read it is installed (xclip, wl-clipboard, pngpaste)."
            )

    def on_composer_withdraw_requested(self) -> None:
        self.start_work(self._withdraw_input())

    async def _withdraw_input(self) -> None:
        text = await self.ui.controller.withdraw_last_input()
        if text is not None:
            self.ui.find_widget(Composer).set_text(text)

    async def _send_prompt(self, text: str, *, queue: bool) -> None:
        self.ui.find_widget(TranscriptWidget).scroll_end(animate=False)
        await self.ui.controller.send_prompt(
            text, queue=queue, changed=self.ui.redraw, undelivered=self.ui.return_input
        )

    def on_dialog_queue_changed(self, event: DialogQueue.Changed) -> None:
        self.ui.find_widget(ComposerFrame).display = not event.open
        if self.ui.open_controller is not None:
            self.ui.controller.conversation.activity.waits_for_person = event.open
        if event.open:
            self.ui.announce("Outrider waits for your answer")
        else:
            self.ui.find_widget(Composer).focus()
        self.ui.redraw()

    def on_transcript_widget_older_requested(self) -> None:
        if self.ui.open_controller is not None:
            self.start_work(self._load_older())

    async def _load_older(self) -> None:
        await self.ui.controller.load_older()

    def on_resize(self) -> None:
        self.ui.redraw()
        for panel in self.query(DialogPanel):
            self.call_after_refresh(panel.draw_panel)  # a panel that was limited by the height may grow

    async def _load_custom_commands(self) -> None:
        """Reads the commands that the user and the project define in files."""
        from outrider.tui.commands import command_choices
        from outrider.tui.workspace_commands import load_custom_commands, load_server_offers

        controller, composer = self.ui.controller, self.ui.find_widget(Composer)
        if not self._options.attach:
            controller.custom_commands = await asyncio.to_thread(load_custom_commands, self._settings)
            composer.commands = command_choices(controller.custom_commands)
        async for commands, resources in load_server_offers(controller.client):
            file_commands = [command for command in controller.custom_commands if command not in commands]
            controller.custom_commands = (*file_commands, *commands)
            composer.commands = command_choices(controller.custom_commands)
            composer.resources = resources

    def on_composer_values_requested(self, event: Composer.ValuesRequested) -> None:
        self._when_open(lambda: self.start_work(self._complete_values(event.head)))

    async def _complete_values(self, head: str) -> None:
        try:
            completions = await self.ui.controller.client.complete_input(head)
        except OutriderError:  # such as a server of an earlier version
            return
        choices = tuple(
            CompletionChoice(choice.text, choice.note, is_open=choice.is_open) for choice in completions.choices
        )
        self.ui.find_widget(Composer).show_values(head, completions.start, choices)

    def action_run_command(self, text: str) -> None:
        self._when_open(lambda: self.start_work(self._run_command(text)))

    async def _run_command(self, text: str) -> None:
        from outrider.tui.commands import find_command

        if (match := find_command(text, self.ui.controller.custom_commands)) is None:
            await self._load_custom_commands()  # its file may be new
            match = find_command(text, self.ui.controller.custom_commands)
        if match is None:
            self.ui.show_notice(f"unknown command {text.split(maxsplit=1)[0]}; /help lists all commands", "warning")
        else:
            command, argument = match
            await command.run(self.ui, argument)

    def action_interrupt(self) -> None:
        if self.screen.get_selected_text():
            self.screen.clear_selection()
        elif self.ui.open_controller is not None and self.ui.controller.is_working:
            self.start_work(self._interrupt_turn())

    async def _interrupt_turn(self) -> None:
        """Cancels the turn; inputs that wait for it return to the composer."""
        withdrawn = await self.ui.controller.interrupt_turn()
        if withdrawn:
            self.ui.return_input("\n\n".join(withdrawn))

    def action_next_mode(self) -> None:
        from outrider.tui.commands import next_mode

        self._when_open(lambda: self.start_work(self.ui.controller.set_mode(next_mode(self.ui.controller.mode))))

    def action_next_approval(self) -> None:
        from outrider.tui.commands import next_approval

        self._when_open(
            lambda: self.start_work(self.ui.controller.set_approval(next_approval(self.ui.controller.approval)))
        )

    def action_search_history(self) -> None:
        composer = self.ui.find_widget(Composer)
        if composer.vim is not None and composer.vim.mode == "normal":
            composer.vim.handle_key("ctrl+r", None)
        else:
            self.start_work(self._search_history())

    async def _search_history(self) -> None:
        """Lets the user pick an earlier input; it replaces the text of the composer."""
        composer = self.ui.find_widget(Composer)
        inputs = composer.input_history.newest_first
        items = [PickerItem(str(number), text) for number, text in enumerate(inputs)]
        chosen = await self.ui.pick_item("Earlier inputs", items)
        if chosen is not None:
            composer.set_text(inputs[int(chosen)])

    def on_driver_signal_resume(self) -> None:
        """Draws the whole screen, which is empty after the process was stopped and continued."""
        self._draw_everything()

    def _draw_everything(self) -> None:
        self.refresh(layout=True)
        self.screen.refresh()

    def action_open_editor(self) -> None:
        if not self.ui.find_widget(DialogQueue).is_open:  # its keys would reach the composer
            self._after_typed_keys(lambda: self.start_work(self._open_editor()))

    async def _open_editor(self) -> None:
        """Edits the text of the composer in the user's editor, which takes over the terminal."""
        composer = self.ui.find_widget(Composer)
        with self.suspend():
            edited = await edit_in_editor(composer.expanded_text())
        self._draw_everything()
        if edited is None:
            self.notify(
                f"The editor failed: {' '.join(editor_command())}. Set VISUAL to another one.", severity="error"
            )
        else:
            composer.set_text(edited)
        if not self.ui.find_widget(DialogQueue).is_open:  # a question may have come meanwhile
            composer.focus()

    def action_background_or_side(self) -> None:
        """Moves the running command to the background; without one, shows or hides the side panel."""
        if self.ui.open_controller is None or not self.ui.controller.conversation.side.running_commands():
            self.action_toggle_side()
        else:
            self.start_work(self._send_to_background())

    async def _send_to_background(self) -> None:
        if not await self.ui.controller.send_to_background():
            self.ui.show_notice("the command cannot continue in the background", "warning")

    def action_toggle_side(self) -> None:
        self._renderer.side_panel_choice = not self.ui.find_widget(SidePanel).display
        self.ui.redraw()

    def action_toggle_folded(self) -> None:
        self._expanded = not self._expanded
        self.ui.find_widget(TranscriptWidget).expand_all(expand=self._expanded)
        self.ui.redraw()

    def action_scroll(self, direction: int) -> None:
        if (panel := self.ui.find_widget(DialogQueue).shown) is not None:
            panel.scroll_page(direction)
            return
        transcript = self.ui.find_widget(TranscriptWidget)
        transcript.scroll_relative(y=direction * max(transcript.size.height - 3, 1), animate=False)

    def action_scroll_to_end(self) -> None:
        self.ui.find_widget(TranscriptWidget).scroll_end(animate=False)

    def action_copy_or_leave(self) -> None:
        self._after_typed_keys(self._copy_or_leave)

    def _after_typed_keys(self, act: Callable[[], None]) -> None:
        """Calls `act` after the composer has handled the keys that were typed before."""
        self.ui.find_widget(Composer).call_later(act)

    def _copy_or_leave(self) -> None:
        """Copies the selection. Without one, interrupts the turn, or else clears the composer; pressed twice, quits."""
        composer = self.ui.find_widget(Composer)
        is_second_press = monotonic() - self._last_quit_request < QUIT_CONFIRM_SECONDS
        if selected := self.screen.get_selected_text() or composer.selected_text:
            self.ui.copy_text(selected)
            self.screen.clear_selection()
        elif is_second_press:
            self.ui.quit_app()
        elif self.ui.open_controller is not None and self.ui.controller.is_working:
            self._last_quit_request = monotonic()
            self.start_work(self._interrupt_turn())
            self.notify("Interrupted. Press Ctrl+C again to quit.", timeout=QUIT_CONFIRM_SECONDS)
        elif composer.text:
            composer.discard_text()
        else:
            self._last_quit_request = monotonic()
            self.notify(f"Press Ctrl+C again to quit. {self.describe_quit()}", timeout=QUIT_CONFIRM_SECONDS)

    def describe_quit(self) -> str:
        """Returns what is preserved and what is not when the user quits."""
        controller = self.ui.open_controller
        if controller is None or controller.client.is_remote:
            return "The session is stored."
        running = [process for process in controller.conversation.side.background_processes() if not process.exit_text]
        lost = f"; {format_count(len(running), 'background command')} will end" if running else ""
        return f"The session is stored{lost}."

    def action_leave_if_empty(self) -> None:
        self._after_typed_keys(self._leave_if_empty)

    def _leave_if_empty(self) -> None:
        if not self.ui.find_widget(Composer).text:
            self.ui.quit_app()
