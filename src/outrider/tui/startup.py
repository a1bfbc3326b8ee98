"""From the settings to an open engine; trust is asked for first, since a workspace's own files count only with it."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import msgspec

from outrider.config.settings import Settings
from outrider.engine.factory import standard_engine
from outrider.engine.frontend import OpenQuestions
from outrider.engine.session_client import LocalBridge, SessionClient
from outrider.project.trust import TrustItem, WorkspaceTrust, find_project
from outrider.tui.controller import SessionController
from outrider.tui.dialogs import ChoicePanel, DialogQueue, Key

MOST_SHOWN = 1200
EMBEDDED = (
    "This is the embedded model: it runs on your machine and needs no key. It is small: good for questions about "
    "files, commands and short changes, not for large work. A stronger one: set ANTHROPIC_API_KEY, OPENAI_API_KEY or "
    "GEMINI_API_KEY, or OPENAI_BASE_URL for a server of your own."
)
_KEYS = (
    Key("t", "trust", "trust this folder"),
    Key("n", "no", "go on without these files"),
    Key("q", "quit", "quit"),
)

OpenBridge = Callable[[Settings], Awaitable[SessionClient]]
Attach = Callable[[Settings], AbstractAsyncContextManager[SessionClient]]


class Start(msgspec.Struct, frozen=True):
    """What the application begins with. `settings` reads them anew: once a folder is trusted they are others. `attach`
    leads to a server, whose sessions are then shown; `place` is its address."""

    settings: Callable[[], Settings]
    session: str = ""
    resume: bool = False
    prompt: str = ""
    attach: Attach | None = None
    place: str = ""


def engines(stack: AsyncExitStack, attach: Attach | None = None) -> OpenBridge:
    """Opens the standard engine, or leads to a server's; both are closed with the stack."""

    async def open_bridge(settings: Settings) -> SessionClient:
        if attach is not None:
            return await stack.enter_async_context(attach(settings))
        questions = OpenQuestions(providers=settings.providers)
        engine = standard_engine(
            settings, workspace=settings.workspace, attended=True, bus=questions.bus, ask=questions.ask
        )
        return LocalBridge(await stack.enter_async_context(engine), settings, questions)

    return open_bridge


async def ask_about_trust(settings: Settings, asking: DialogQueue) -> str:
    """What was said about a workspace whose files would count; "" where nothing had to be asked."""
    trust = WorkspaceTrust(find_project(settings.workspace, settings.home), settings.folders.trust)
    items = trust.waiting() if trust.trusted else trust.items()
    if not items:
        return ""
    answer, _ = await asking.ask(trust_panel(trust, items))
    if answer == "trust":
        trust.trust(items)
    return answer


def trust_panel(trust: WorkspaceTrust, items: tuple[TrustItem, ...]) -> ChoicePanel:
    """Everything that would count is shown before it does."""
    shown = "\n\n".join(_described(item) for item in items)
    text = (
        f"`{trust.project.root}` brings files that would instruct the agent or start programs. "
        f"They count only if you trust them.\n\n{shown}"
    )
    return ChoicePanel("Do you trust this folder?", text, _KEYS)


def _described(item: TrustItem) -> str:
    content = item.content if len(item.content) <= MOST_SHOWN else f"{item.content[:MOST_SHOWN]}\n…"
    fence = "`" * max(3, _longest_run(content) + 1)
    runs = " (starts a program)" if item.executable else ""
    return f"**{item.kind}** {item.name}{runs}\n\n{fence}\n{content}\n{fence}"


def _longest_run(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest


def notices_of(settings: Settings) -> tuple[str, ...]:
    """What the user should know at the beginning; of the embedded model, what it is good for."""
    kinds = {provider.name: provider.kind for provider in settings.providers}
    embedded = kinds.get(settings.agents[0].provider) == "local"
    return (*settings.notices, EMBEDDED) if embedded else settings.notices


async def first_session(helm: SessionController, start: Start) -> str:
    """The session to begin with; "" for a new one."""
    if start.session:
        return (await helm.archive.find(start.session)).id
    if not start.resume:
        return ""
    found = await helm.archive.sessions(1, workspace=helm.bridge.folder)
    return found[0].id if found else ""
