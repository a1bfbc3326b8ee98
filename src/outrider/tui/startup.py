"""Start-up of the application: asks for trust, opens or attaches to an engine, and finds the first session.

Trust comes first, because configuration files of the workspace take effect only if the user trusts the folder.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING

import msgspec

from outrider.config.settings import Settings
from outrider.project.trust import TrustItem, WorkspaceTrust, find_project
from outrider.tui.dialogs import AnswerKey, ChoicePanel, DialogQueue

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

OpenClient = Callable[[Settings], Awaitable["SessionClient"]]
AttachClient = Callable[[Settings], AbstractAsyncContextManager["SessionClient"]]


class StartOptions(msgspec.Struct, frozen=True):
    """Start options. `settings` reads the settings again on every call, since trusting a folder changes them. `attach`
    connects to the server at `server_url`. `given` names the choices that the command line or the environment made."""

    settings: Callable[[], Settings]
    session: str = ""
    resume: bool = False
    prompt: str = ""
    attach: AttachClient | None = None
    server_url: str = ""
    given: frozenset[str] = frozenset()


def engine_opener(stack: AsyncExitStack, attach: AttachClient | None = None) -> OpenClient:
    """Return a function that opens the standard engine or connects to a server; the stack closes it."""

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
    """Ask whether to trust the workspace's configuration files; returns the answer, or "" if nothing is pending."""
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
    """Build the trust dialog, which shows every file that would take effect."""
    shown = "\n\n".join(_describe_item(item) for item in items)
    text = (
        f"`{trust.project.root}` contains files that instruct the agent or start programs. "
        f"They take effect only if you trust them.\n\n{shown}"
    )
    return ChoicePanel("Do you trust this folder?", text, _TRUST_KEYS)


def _describe_item(item: TrustItem) -> str:
    content = item.content if len(item.content) <= MAX_SHOWN_CHARS else f"{item.content[:MAX_SHOWN_CHARS]}\n…"
    fence = "`" * max(3, _longest_run(content) + 1)
    runs = " (starts a program)" if item.executable else ""
    return f"**{item.kind}** {item.name}{runs}\n\n{fence}\n{content}\n{fence}"


def _longest_run(text: str) -> int:
    """Return the length of the longest run of backticks; a Markdown fence must be longer."""
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest


_ENGINE_MODULES = (
    "outrider.tui.controller",
    "outrider.engine.factory",
    "outrider.engine.session_client",
    "outrider.tui.event_listener",
    "outrider.tui.commands",
)


def load_engine_modules() -> None:
    """Import what a session needs, in a thread while the first screen is shown."""
    for name in _ENGINE_MODULES:
        import_module(name)


def startup_notices(settings: Settings) -> tuple[str, ...]:
    """Return the notices for the welcome screen, including one about the embedded model if it is in use."""
    kinds = {provider.name: provider.kind for provider in settings.providers}
    embedded = kinds.get(settings.agents[0].provider) == "local"
    return (*settings.notices, EMBEDDED_MODEL_NOTICE) if embedded else settings.notices


async def find_first_session(controller: "SessionController", options: StartOptions) -> str:
    """Return the id of the session to open first, or "" for a new one."""
    if options.session:
        return (await controller.archive.find_session(options.session)).id
    if not options.resume:
        return ""
    found = await controller.archive.list_sessions(1, workspace=controller.client.folder)
    return found[0].id if found else ""
