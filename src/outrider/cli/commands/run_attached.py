"""`--attach`: runs a prompt, or the terminal application, in a session of a remote server."""

import asyncio
import os
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from outrider.cli.commands.run_output import CONTINUE_PROMPT, RunInfo, RunTarget
from outrider.cli.main import program_version
from outrider.cli.setup import settings_from_arguments
from outrider.config.settings import Settings
from outrider.engine.archive import TurnOutcome
from outrider.errors import ConfigurationError, OutriderError, ServerAwayError
from outrider.presentation.approvals import UNATTENDED_DENIAL, UNATTENDED_OUTCOME
from outrider.remote.client import ServerAddress, resolve_server
from outrider.remote.engine import RemoteArchive, RemoteBridge, RemoteEngine, connect_engine
from outrider.remote.followed_session import session_path
from outrider.types.events import Event, LoopStartedEvent, SessionUpdatedEvent, ToolApprovalRequestedEvent
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.parts import ModelRef, PartBase, TextPart
from outrider.types.request import ToolSpec

ABORT_SECONDS = 5.0
RETRY_SECONDS = 0.5  # seconds between attempts to reach a server that is away
_SERVER_OPTIONS = (
    "allow",
    "ask",
    "deny",
    "max_turns",
    "max_cost",
    "max_time",
    "retry_attempts",
    "retry_seconds",
    "system",
    "output_schema",
)


@asynccontextmanager
async def open_remote_target(arguments: Namespace) -> AsyncGenerator[RunTarget, None]:
    """Connects to the server of `--attach`, and opens a session there."""
    reject_server_options(arguments)
    address = resolve_server(arguments.attach, token=arguments.token, environ=os.environ)
    async with connect_engine(address, program_version()) as engine:
        session_id = await _open_session(engine, arguments)
        live = engine.live[session_id]
        model = str(live.agent.model_ref)
        session = live.session
        info = RunInfo(session_id, session.agent, model, session.mode, session.workspace_directory)
        if "stream" in arguments.output_format:
            specs = await engine.client.get(f"{session_path(session_id)}/tools", list[ToolSpec])
            info = msgspec.structs.replace(
                info, program_version=program_version(), tools=tuple(spec.name for spec in specs)
            )
        has_approver = arguments.wait_for_approval or arguments.input_format == "stream-json"
        turn = RemoteTurn(engine, session_id, deny_approvals=not has_approver)
        yield RunTarget(
            info,
            turn.listeners.append,
            prompt=turn.prompt,
            abort=turn.abort,
            steer=partial(engine.prompt, session_id, delivery="steer"),
            answer=engine.answer,
            answer_question=partial(_answer_question, engine),
            set_mode=partial(engine.set_mode, session_id),
            set_approval=partial(engine.set_approval, session_id),
        )


async def _answer_question(engine: RemoteEngine, question_id: str, answers: Sequence[str]) -> None:
    await engine.client.post(f"/api/questions/{question_id}", {"answers": list(answers)})


def reject_server_options(arguments: Namespace) -> None:
    """Raises ConfigurationError for permission, limit and system options: only the server's own command line sets
    them, so that a client cannot extend its rights."""
    options = [f"--{name.replace('_', '-')}" for name in _SERVER_OPTIONS if getattr(arguments, name, None)]
    if options:
        raise ConfigurationError(
            f"{', '.join(options)} cannot be used with --attach; pass it to `outrider serve` instead"
        )


async def _open_session(engine: RemoteEngine, arguments: Namespace) -> str:
    """Opens the requested or last session of the server, else creates one in the server's folder; returns its id."""
    existing = await _find_session(engine, arguments)
    if existing is None:
        session_id = await engine.create(
            mode=arguments.mode, agent=arguments.agent, workspace=arguments.cwd, approval=arguments.approval
        )
    else:
        session_id = existing
        await engine.open(session_id)
        if arguments.mode:
            await engine.set_mode(session_id, arguments.mode)
        if arguments.agent:
            await engine.set_agent(session_id, arguments.agent)
        if arguments.approval:
            await engine.set_approval(session_id, arguments.approval)
    if arguments.model:
        provider, _, model = arguments.model.partition("/")
        await engine.live[session_id].use_model(ModelRef(provider, model))
    return session_id


async def _find_session(engine: RemoteEngine, arguments: Namespace) -> str | None:
    """Returns the id of the requested or last session, or None for a new one."""
    archive = RemoteArchive(engine.client)
    if arguments.session:
        return (await archive.find_session(arguments.session)).id
    folder: Path | None = arguments.cwd
    return (await archive.find_newest(folder)).id if arguments.resume else None


class RemoteTurn:
    """The turn of this prompt in a session that other clients may use at the same time.

    Listeners receive events only from the start of this turn on. With `deny_approvals`, a call that needs approval is
    denied, as in any headless run; otherwise it waits for the answer of another front end.
    """

    def __init__(self, engine: RemoteEngine, session_id: str, *, deny_approvals: bool) -> None:
        self.listeners: list[Callable[[Event], None]] = []
        self._engine = engine
        self._session_id = session_id
        self._input_id = ""
        self._text = ""
        self._started = False
        engine.bus.subscribe_all(self._forward_event)
        if deny_approvals:
            engine.bus.subscribe(ToolApprovalRequestedEvent, self._deny_approval)

    async def prompt(self, parts: Sequence[PartBase]) -> TurnOutcome:
        parts, self._input_id = parts or [TextPart(CONTINUE_PROMPT)], new_id()
        copies = [msgspec.structs.replace(part) for part in parts]  # Message takes ownership of its parts
        self._text = Message("user", copies).get_text_content()
        return await self._engine.prompt(self._session_id, parts, input_id=self._input_id)

    async def abort(self) -> None:
        with suppress(OutriderError, TimeoutError):
            async with asyncio.timeout(ABORT_SECONDS):
                await self._engine.abort(self._session_id)

    def _forward_event(self, event: Event) -> None:
        self._started = self._started or self._is_turn_start(event)
        if self._started:
            for listener in self.listeners:
                listener(event)

    def _is_turn_start(self, event: Event) -> bool:
        """Returns whether the event starts this turn. Both the live event and the stored one are accepted, because a
        reconnect may miss the live one."""
        match event:
            case LoopStartedEvent(session_id=self._session_id):
                return event.user_message == self._text
            case SessionUpdatedEvent(session_id=self._session_id):
                return event.changes.get("taken") == self._input_id
            case _:
                return False

    async def _deny_approval(self, request: ToolApprovalRequestedEvent) -> None:
        """Denies an approval request; retries while the server cannot be reached."""
        while self._started:
            try:
                reason = UNATTENDED_OUTCOME if request.outcome and request.outcome.files else UNATTENDED_DENIAL
                await self._engine.answer(request.approval_id, allow=False, by="run", words=reason)
            except ServerAwayError:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return


_NOTICE = "Attached to {url}: sessions, files, commands and configuration are those of the server's machine."


def run_attached_tui(arguments: Namespace, run_tui: Callable[..., int]) -> int:
    """Runs the terminal application against a server. Checks the connection first, so that errors are printed before
    the screen changes."""
    reject_server_options(arguments)
    address = resolve_server(arguments.attach, token=arguments.token, environ=os.environ)
    asyncio.run(_check_connection(address))

    @asynccontextmanager
    async def attach_bridge(settings: Settings) -> AsyncGenerator[RemoteBridge, None]:
        async with connect_engine(address, program_version(), reconnect_seconds=None) as engine:
            yield RemoteBridge(engine, settings, arguments.cwd)

    def local_settings() -> Settings:
        """Returns this machine's settings without providers: the application needs only its folders."""
        notices = (_NOTICE.format(url=address.url),)
        return msgspec.structs.replace(settings_from_arguments(arguments), missing="", providers=(), notices=notices)

    start_options = {"session": arguments.session or "", "resume": arguments.resume, "prompt": arguments.prompt}
    return run_tui(local_settings, **start_options, attach=attach_bridge, server_url=address.url)


async def _check_connection(address: ServerAddress) -> None:
    """Connects once to report errors early."""
    async with connect_engine(address, program_version()):
        pass
