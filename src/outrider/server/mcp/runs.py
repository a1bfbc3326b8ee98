"""Runs that another agent orders: nobody is there to approve calls, and its order gives no more rights than ours."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import anyio

from outrider.app.archive.ends import TurnEnd
from outrider.app.config.settings import Settings
from outrider.app.engine import Engine
from outrider.errors import ConfigurationError, OutriderError
from outrider.server.mcp.transcript import valid
from outrider.types.events import Event, PartUpdatedEvent, ToolExecutionStartedEvent, TurnStartedEvent
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolError

Less = Literal["chat", "plan"]
Report = Callable[[float, str], Awaitable[None]]
BY = "mcp"


@dataclass(frozen=True)  # the SDK makes a schema of it
class RunReport:
    """`ended` is completed, or why the work stopped early; `refused` are calls that nobody could approve."""

    session_id: str
    output: str
    ended: str
    refused: list[str]


class Runs:
    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings

    async def run(self, prompt: str, session_id: str, mode: Less | None, report: Report) -> RunReport:
        """Raises OutriderError where the model or the session cannot be reached."""
        if not prompt.strip():
            raise ConfigurationError("the prompt is empty")
        session_id = await self._session(session_id, mode)
        watching = _Watching(session_id, report)
        stop = self._engine.bus.subscribe_all(watching.hear)
        try:
            end = await self._turn(session_id, prompt)
            await self._engine.bus.settled()
        finally:
            stop()
        if end.error is not None:
            raise end.error
        return RunReport(session_id=session_id, output=valid(end.output), ended=end.reason, refused=watching.refused)

    async def _session(self, session_id: str, mode: Less | None) -> str:
        """One that goes on does so in the folder of this server, and with no more rights than a new one has."""
        wanted = mode or self._settings.mode
        if not session_id:
            return await self._engine.create(mode=wanted, workspace=self._settings.workspace)
        stored = await self._engine.store.get(session_id)
        if stored.workspace_directory != str(self._settings.workspace):
            raise OutriderError(f"session {session_id} works in another folder: {stored.workspace_directory}")
        await self._engine.open(session_id)
        await self._engine.set_mode(session_id, wanted)
        return session_id

    async def _turn(self, session_id: str, prompt: str) -> TurnEnd:
        try:
            return await self._engine.prompt(session_id, prompt, sender=BY)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await self._engine.abort(session_id)
            raise


class _Watching:
    """Tells what a run is doing, and keeps what it was not allowed to do."""

    def __init__(self, session_id: str, report: Report) -> None:
        self._session_id = session_id
        self._report = report
        self._steps = 0
        self.refused: list[str] = []

    async def hear(self, event: Event) -> None:
        if event.session_id != self._session_id:
            return
        match event:
            case TurnStartedEvent():
                await self._tell("thinking")
            case ToolExecutionStartedEvent():
                await self._tell(event.tool_name)
            case PartUpdatedEvent(part=ToolPart(tool=tool, state=ToolError(reason="denied", error=error))):
                self.refused.append(f"{tool}: {error}")
            case _:
                pass

    async def _tell(self, doing: str) -> None:
        self._steps += 1
        await self._report(self._steps, doing)
