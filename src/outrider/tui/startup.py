"""Start-up of the application: asks for a model and for trust, opens an engine, and finds the first session.

Trust comes first, because configuration files of the workspace take effect only if the user trusts the folder.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING

import msgspec
from textual.app import App

from outrider.config.settings import Settings, remember_model
from outrider.errors import OutriderError, WeightsError
from outrider.presentation.formats import format_bytes
from outrider.project.trust import TrustItem, WorkspaceTrust, find_project
from outrider.tui.dialogs import AnswerKey, ChoicePanel, DialogQueue
from outrider.tui.widgets.modals import ProgressScreen, SecretScreen

if TYPE_CHECKING:  # the engine is loaded after the first screen is shown
    from outrider.engine.session_client import SessionClient
    from outrider.tui.controller import SessionController

MAX_SHOWN_CHARS = 1200
EMBEDDED_MODEL_NOTICE = (
    "This is the embedded model. It runs on your machine and needs no key, but it is small: use it for questions about "
    "files, commands and short changes, not for large tasks. For a stronger model, set ANTHROPIC_API_KEY, "
    "OPENAI_API_KEY or GEMINI_API_KEY, or OPENAI_BASE_URL for a custom server."
)
_TRUST_KEYS = (
    AnswerKey("t", "trust", "trust this folder"),
    AnswerKey("n", "no", "continue without these files"),
    AnswerKey("q", "quit", "quit"),
)

_SETUP_KEYS = (
    AnswerKey("a", "anthropic", "key of Anthropic"),
    AnswerKey("o", "openai", "key of OpenAI"),
    AnswerKey("g", "google", "key of Google"),
    AnswerKey("l", "local", "embedded model, no key"),
    AnswerKey("q", "quit", "quit"),
)

OpenClient = Callable[[Settings], Awaitable["SessionClient"]]
AttachClient = Callable[[Settings], AbstractAsyncContextManager["SessionClient"]]


class StartOptions(msgspec.Struct, frozen=True):
    """How the application starts.

    - `settings`: reads the settings again on every call, because trusting a folder changes them.
    - `session`: the id of a session to continue.
    - `resume`: continues this folder's last session.
    - `prompt`: sent immediately.
    - `attach`: connects to the server at `server_url` instead of opening an engine in this process.
    - `server_url`: the address of that server.
    - `given`: the names of the choices that the command line or the environment made.
    """

    settings: Callable[[], Settings]
    session: str = ""
    resume: bool = False
    prompt: str = ""
    attach: AttachClient | None = None
    server_url: str = ""
    given: frozenset[str] = frozenset()


def engine_opener(stack: AsyncExitStack, attach: AttachClient | None = None) -> OpenClient:
    """Returns a function that opens the standard engine or connects to a server; the stack closes it."""

    async def open_client(settings: Settings) -> "SessionClient":
        if attach is not None:
            return await stack.enter_async_context(attach(settings))
        from outrider.engine.factory import standard_engine
        from outrider.engine.frontend import QuestionQueue
        from outrider.engine.session_client import LocalSessionClient

        questions = QuestionQueue(providers=settings.providers)
        engine = standard_engine(
            settings, workspace=settings.workspace, attended=True, bus=questions.bus, ask=questions.ask
        )
        return LocalSessionClient(await stack.enter_async_context(engine), settings, questions)

    return open_client


async def ask_about_trust(settings: Settings, dialogs: DialogQueue) -> str:
    """Asks whether to trust the workspace's configuration files; returns the answer, or "" if nothing is pending."""
    trust = WorkspaceTrust(find_project(settings.workspace, settings.home_folder), settings.folders.trust_file)
    items = trust.unapproved_items() if trust.trusted else trust.list_items()
    if trust.trusted:
        trust.remember_files()  # the welcome screen has shown which have changed
    if not items:
        return ""
    answer, _ = await dialogs.ask_and_wait(trust_panel(trust, items))
    if answer == "trust":
        trust.trust(items)
    return answer


def trust_panel(trust: WorkspaceTrust, items: tuple[TrustItem, ...]) -> ChoicePanel:
    """Builds the trust dialog, which shows every file that would take effect."""
    descriptions = "\n\n".join(_describe_item(item) for item in items)
    text = (
        f"`{trust.project.root}` contains files that instruct the agent or start programs. "
        f"They take effect only if you trust them.\n\n{descriptions}"
    )
    return ChoicePanel("Do you trust this folder?", text, _TRUST_KEYS)


def _describe_item(item: TrustItem) -> str:
    content = item.content if len(item.content) <= MAX_SHOWN_CHARS else f"{item.content[:MAX_SHOWN_CHARS]}\n…"
    fence = "`" * max(3, _longest_run(content) + 1)
    runs = " (starts a program)" if item.executable else ""
    return f"**{item.kind}** {item.name}{runs}\n\n{fence}\n{content}\n{fence}"


def _longest_run(text: str) -> int:
    """Returns the length of the longest run of backticks; a Markdown fence must be longer."""
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest


class ModelSetup:
    """Helps a user without a model: asks for a key of a vendor, or downloads the embedded model."""

    def __init__(self, app: App[int], dialogs: DialogQueue, settings: Settings) -> None:
        self._app = app
        self._dialogs = dialogs
        self._settings = settings

    async def run(self) -> bool:
        """Asks until there is a model; returns False if the user quits."""
        while True:
            panel = ChoicePanel("Choose a model", await asyncio.to_thread(self._describe), _SETUP_KEYS)
            answer, _ = await self._dialogs.ask_and_wait(panel)
            if answer == "quit":
                return False
            if await (self._download_weights() if answer == "local" else self._ask_key(answer)):
                return True

    def _describe(self) -> str:
        from outrider.models.local_models import list_weights, missing_model_message

        weights = next(weights for weights in list_weights(self._settings.data_folder) if weights.default)
        size = format_bytes(weights.bytes)
        state = "already downloaded" if weights.path else f"a download of {size}, once"
        alternative = missing_model_message(self._settings.missing).partition("Or use a model that")[2]
        server = f"\n\nOr leave, and start with a model that{alternative}" if alternative else ""
        return (
            "No model can be reached yet. With a **key of a vendor** you use their strongest models. It is checked, "
            "then stored in the keyring of your system or in a file that only you can read.\n\nThe **embedded model** "
            f"needs no key and runs on this machine ({state}). It is small: good for questions about files and short "
            f"changes.{server}"
        )

    async def _ask_key(self, provider: str) -> bool:
        """Asks for a key, checks it and stores it; returns whether it is stored."""
        from outrider.config.providers import BUILT_IN_PROVIDERS
        from outrider.config.stored_keys import KeyStore
        from outrider.models.live_models import check_key
        from outrider.types.agents import Provider

        key = await self._app.push_screen_wait(SecretScreen(f"API key of {provider}"))
        if key is None:
            return False
        self._app.notify("The key is being checked…", timeout=3)
        problem = await check_key(Provider(provider, BUILT_IN_PROVIDERS[provider], key))
        if problem.refused:
            self._app.notify(f"{provider} refused the key: {problem.text}", severity="error", timeout=15, markup=False)
            return False
        storage = await asyncio.to_thread(KeyStore(self._settings.folders.keys_file).store, provider, key)
        if problem.text:
            unchecked = f"The key is stored ({storage}), but it could not be checked: {problem.text}."
            self._app.notify(unchecked, severity="warning", timeout=15, markup=False)
        else:
            self._app.notify(f"The key is checked and stored ({storage}).", markup=False)
        return True

    async def _download_weights(self) -> bool:
        """Downloads the embedded model with a progress bar; returns whether it is complete."""
        from outrider.models.local_download import DownloadProgress, progress_text, pull_weights

        screen = ProgressScreen("Downloading the embedded model")
        await self._app.push_screen(screen)

        def report(progress: DownloadProgress) -> None:
            if screen.stopped:
                raise WeightsError("the download was stopped; the next one continues it")
            share = progress.done / progress.total if progress.total else 1.0
            self._app.call_from_thread(screen.show_progress, share, progress_text(progress))

        try:
            await asyncio.to_thread(pull_weights, "", self._settings.data_folder, report)
        except OutriderError as error:
            self._app.notify(error.message, severity="error", timeout=15, markup=False)
            return False
        finally:
            await screen.dismiss(None)
        remember_model(self._settings.data_folder, "local")
        return True


_ENGINE_MODULES = (
    "outrider.tui.controller",
    "outrider.engine.factory",
    "outrider.engine.session_client",
    "outrider.tui.event_listener",
    "outrider.tui.commands",
)


def load_engine_modules() -> None:
    """Imports what a session needs, in a thread while the first screen is shown."""
    for name in _ENGINE_MODULES:
        import_module(name)


def startup_notices(settings: Settings) -> tuple[str, ...]:
    """Returns the notices for the welcome screen, including one about the embedded model if it is in use."""
    return (*settings.notices, EMBEDDED_MODEL_NOTICE) if uses_embedded_model(settings) else settings.notices


def hook_notices(settings: Settings) -> tuple[str, ...]:
    """Returns the notices about hooks that are ignored, e.g. because of a misspelled event."""
    from outrider.engine.factory import find_hooks

    hooks = find_hooks(settings, settings.workspace)
    return hooks.notices if hooks is not None else ()


def uses_embedded_model(settings: Settings) -> bool:
    kinds = {provider.name: provider.kind for provider in settings.providers}
    return kinds.get(settings.agents[0].provider) == "local"


async def find_first_session(controller: "SessionController", options: StartOptions) -> str:
    """Returns the id of the session to open first, or "" for a new one."""
    if options.session:
        return (await controller.archive.find_session(options.session)).id
    if not options.resume:
        return ""
    sessions = await controller.archive.list_sessions(1, workspace=controller.client.folder)
    return sessions[0].id if sessions else ""
