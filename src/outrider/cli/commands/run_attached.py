"""A prompt for a session of a server: `outrider run --attach`."""

import asyncio
import os
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from outrider.cli.commands.run_output import RunInfo, RunTarget
from outrider.cli.main import version
from outrider.cli.setup import settings_of
from outrider.config.settings import Settings
from outrider.engine.approval_gate import NOBODY_THERE
from outrider.engine.archive import TurnEnd
from outrider.errors import ConfigurationError, OutriderError, ServerAwayError
from outrider.remote.client import Place, place_of
from outrider.remote.connect import RemoteBridge, attached
from outrider.remote.engine import RemoteArchive, RemoteEngine
from outrider.types.events import Event, LoopStartedEvent, SessionUpdatedEvent, ToolApprovalRequestedEvent
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.parts import ModelRef, PartBase

ABORT_SECONDS = 5.0
PAUSE = 0.5  # seconds between attempts to answer a server that went away
_SERVERS_OWN = ("allow", "ask", "deny", "max_turns", "max_cost", "max_time", "system")


@asynccontextmanager
async def opened(arguments: Namespace) -> AsyncGenerator[RunTarget, None]:
    check(arguments)
    place = place_of(arguments.attach, token=arguments.token, environ=os.environ)
    async with attached(place, version()) as engine:
        session_id = await _session(engine, arguments)
        live = engine.live[session_id]
        model = f"{live.agent.provider}/{live.agent.model}"
        session = live.session
        begun = RunInfo(session_id, session.agent, model, session.mode, session.workspace_directory)
        turn = OwnTurn(engine, session_id, refuses=not arguments.wait_for_approval)
        yield RunTarget(begun, turn.listeners.append, turn.prompt, turn.abort)


def check(arguments: Namespace) -> None:
    """What may run and what it may cost is the server's to say: to its users, not to whoever attaches."""
    given = [f"--{name.replace('_', '-')}" for name in _SERVERS_OWN if getattr(arguments, name, None)]
    if given:
        raise ConfigurationError(
            f"{', '.join(given)} cannot be said to a server that runs already: say it to `outrider serve`"
        )


async def _session(engine: RemoteEngine, arguments: Namespace) -> str:
    """The one that is named, the server's last one, or a new one in the server's folder."""
    found = await _found(engine, arguments)
    if found is None:
        named = {"mode": arguments.mode, "agent": arguments.agent, "workspace": arguments.cwd}
        session_id = await engine.create(**named)
    else:
        session_id = found
        await engine.open(session_id)
        if arguments.mode:
            await engine.set_mode(session_id, arguments.mode)
        if arguments.agent:
            await engine.set_agent(session_id, arguments.agent)
    if arguments.model:
        provider, _, model = arguments.model.partition("/")
        await engine.live[session_id].use_model(ModelRef(provider, model))
    return session_id


async def _found(engine: RemoteEngine, arguments: Namespace) -> str | None:
    archive = RemoteArchive(engine.client)
    if arguments.session:
        return (await archive.find(arguments.session)).id
    folder: Path | None = arguments.cwd
    return (await archive.newest(folder)).id if arguments.resume else None


class OwnTurn:
    """The turn of this prompt, among all that others do in the session. Nobody is there to ask, as in any run without a
    screen: with `refuses` a call that needs an approval is refused; else it waits for another front end's answer."""

    def __init__(self, engine: RemoteEngine, session_id: str, *, refuses: bool) -> None:
        self.listeners: list[Callable[[Event], None]] = []
        self._engine = engine
        self._session_id = session_id
        self._input_id = new_id()
        self._text = ""
        self._begun = False
        engine.bus.subscribe_all(self._hear)
        if refuses:
            engine.bus.subscribe(ToolApprovalRequestedEvent, self._refuse)

    async def prompt(self, parts: Sequence[PartBase]) -> TurnEnd:
        copies = [msgspec.structs.replace(part) for part in parts]  # a message makes its parts its own
        self._text = Message("user", copies).get_text_content()
        return await self._engine.prompt(self._session_id, parts, input_id=self._input_id)

    async def abort(self) -> None:
        with suppress(OutriderError, TimeoutError):
            async with asyncio.timeout(ABORT_SECONDS):
                await self._engine.abort(self._session_id)

    def _hear(self, event: Event) -> None:
        self._begun = self._begun or self._begins(event)
        if self._begun:
            for listener in self.listeners:
                listener(event)

    def _begins(self, event: Event) -> bool:
        """Its beginning is told at once, and kept a moment later: whichever is heard."""
        match event:
            case LoopStartedEvent(session_id=self._session_id):
                return event.user_message == self._text
            case SessionUpdatedEvent(session_id=self._session_id):
                return event.changes.get("taken") == self._input_id
            case _:
                return False

    async def _refuse(self, asked: ToolApprovalRequestedEvent) -> None:
        while self._begun:
            try:
                await self._engine.answer(asked.approval_id, allow=False, by="run", words=NOBODY_THERE)
            except ServerAwayError:
                await asyncio.sleep(PAUSE)
            else:
                return


_NOTICE = "Attached to {url}: sessions, files and commands are those of its machine, and its configuration counts."


def open_screen(arguments: Namespace, run_tui: Callable[..., int]) -> int:
    """What is wrong with the server is said before the screen changes."""
    check(arguments)
    place = place_of(arguments.attach, token=arguments.token, environ=os.environ)
    asyncio.run(_look(place))

    @asynccontextmanager
    async def attach(settings: Settings) -> AsyncGenerator[RemoteBridge, None]:
        async with attached(place, version(), patience=None) as engine:
            yield RemoteBridge(engine, settings, arguments.cwd)

    def settings() -> Settings:
        """Of this machine only what the screen needs: its folders, and where files that go along are."""
        notices = (_NOTICE.format(url=place.url),)
        return msgspec.structs.replace(settings_of(arguments), missing="", providers=(), notices=notices)

    chosen = {"session": arguments.session or "", "resume": arguments.resume}
    return run_tui(settings, **chosen, attach=attach, place=place.url)


async def _look(place: Place) -> None:
    async with attached(place, version()):
        pass
