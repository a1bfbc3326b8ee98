"""The owner of every process: runs commands, keeps those in the background, and leaves none alive when it closes."""

import asyncio
import contextlib
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

import msgspec

from outrider.bus import EventBus
from outrider.errors import ProcessError
from outrider.processes.environment import child_environment
from outrider.processes.guards.spawner import Spawner
from outrider.processes.launch import Launch, ResourceLimits, Wrap, argv_of, unwrapped
from outrider.processes.output import Output, OutputFolder, OutputLimits, OutputSlice
from outrider.processes.roster import Roster
from outrider.processes.supervised import OnOutput, Outcome, ProcessStatus, Supervised

GRACE = 5.0  # seconds between asking a process to end and making it
GRACE_AT_CLOSE = 1.0
LEFTOVERS = 0.1  # seconds; a command that leaves nothing alive is gone by then
READ = 32_000


class ProcessLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many commands run at once while their callers wait (more wait their turn), how many in the background, and
    how many that have ended are remembered."""

    foreground: int = 64
    background: int = 64
    remembered: int = 64


class TimeLimit(msgspec.Struct, frozen=True):
    """Seconds, and what happens then: a command is killed, or goes on in the background if there is room."""

    seconds: float | None
    then: Literal["kill", "background"] = "kill"


class Supervisor:
    """One per engine, bound to one event loop. Processes are known by the id of the call that started them.

    Output that is too much for memory goes to files under `folder`. Every launch goes through `wrap`. Commands get
    `environment` as it is; without it, what `child_environment` lets through of the engine's own.
    """

    def __init__(
        self,
        *,
        folder: Path | OutputFolder | None = None,
        bus: EventBus | None = None,
        environment: Mapping[str, str] | None = None,
        wrap: Wrap = unwrapped,
        limits: ProcessLimits | None = None,
        resources: ResourceLimits | None = None,
        output: OutputLimits | None = None,
    ) -> None:
        made = isinstance(folder, OutputFolder)
        self._folder = folder if made else OutputFolder(folder, output or OutputLimits())
        self._publish = bus.publish if bus is not None else None
        self._environment = child_environment(os.environ) if environment is None else environment
        self._wrap = wrap
        self._limits = limits or ProcessLimits()
        self._resources = resources or ResourceLimits()
        self._spawner = Spawner()
        self._known = Roster(self._limits.remembered)
        self._turns = asyncio.Semaphore(self._limits.foreground)
        self._closed = False

    async def run_command(
        self,
        call_id: str,
        command: str | Sequence[str],
        on_output: OnOutput | None = None,
        *,
        workdir: Path | None = None,
        limit: float | TimeLimit | None = None,
        session_id: str = "",
    ) -> Outcome:
        """Run to the end, to the time limit (at which it is killed, unless told else) or into the background.

        Cancelling kills it too, without waiting for its end."""
        async with self._turns:
            found = await self._start(call_id, command, workdir, session_id, on_output)
            return await self._attend(found, limit)

    async def start_command(
        self, call_id: str, command: str | Sequence[str], *, workdir: Path | None = None, session_id: str = ""
    ) -> ProcessStatus:
        """Start in the background. Such a process can be given input."""
        self._check_room()
        found = await self._start(call_id, command, workdir, session_id, in_background=True)
        return found.status()

    def mark_as_backgrounded(self, call_id: str) -> bool:
        """Its caller gets what there is so far, and the command goes on; False if no such command runs."""
        found = self._known.find(call_id)
        if found is None or found.process.exited.is_set():
            return False
        if not found.backgrounded:
            self._check_room()
            found.to_background()
        return True

    async def bring_to_foreground(
        self, call_id: str, on_output: OnOutput | None = None, *, limit: float | TimeLimit | None = None
    ) -> Outcome:
        """Wait for a command in the background as if it had been started now."""
        found = self._known.get(call_id)
        async with self._turns:
            found.to_foreground(on_output)
            return await self._attend(found, limit)

    def is_backgrounded(self, call_id: str) -> bool:
        found = self._known.find(call_id)
        return found is not None and found.backgrounded

    def get_running_ids(self) -> list[str]:
        """Of every process that is alive, in the foreground and in the background."""
        return [found.id for found in self._known if found.is_alive]

    def get_backgrounded_ids(self) -> list[str]:
        return [found.id for found in self._known if found.is_alive and found.backgrounded]

    def list_processes(self, session_id: str | None = None) -> list[ProcessStatus]:
        """Oldest first; with those in the background that have ended, as far as they are remembered."""
        shown = [found for found in self._known if found.is_alive or found.backgrounded]
        return [found.status() for found in shown if session_id in (None, found.session_id)]

    def status(self, call_id: str) -> ProcessStatus:
        return self._known.get(call_id).status()

    def read(self, call_id: str, offset: int | None = None, most: int = READ) -> OutputSlice:
        """Output from a place (in bytes) on; without one, what was written since the last reading."""
        return self._known.get(call_id).read(offset, most)

    async def write(self, call_id: str, text: str, *, limit: float = 10.0, last: bool = False) -> None:
        """Give a process input; after the `last` it reads the end of its input."""
        process = self._known.get(call_id).process
        try:
            async with asyncio.timeout(limit):
                await process.write(text)
        except TimeoutError:
            raise ProcessError(f"the process did not read its input within {limit:g} s") from None
        if last:
            process.close_input()

    async def wait(self, call_id: str, limit: float | None = None) -> Outcome:
        """Wait for the end, at most so many seconds."""
        process = (found := self._known.get(call_id)).process
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await process.exited.wait()
            async with asyncio.timeout(LEFTOVERS):
                await process.gone.wait()
        return found.outcome()

    async def kill_process(self, call_id: str, grace: float = GRACE) -> bool:
        """Ask it and all that it started to end, make them after `grace` seconds; False if nothing was alive."""
        found = self._known.find(call_id)
        if found is None or not found.is_alive:
            return False
        await found.end(grace, "killed")
        return True

    async def close(self) -> None:
        """Nothing that was ever started here is alive afterwards."""
        self._closed = True
        alive = [found for found in self._known if found.is_alive]
        for found in alive:
            found.process.end(GRACE_AT_CLOSE, "killed")
        for found in alive:
            await found.end(GRACE_AT_CLOSE, "killed")
        self._known.forget_all()
        await self._spawner.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _start(
        self,
        call_id: str,
        command: str | Sequence[str],
        workdir: Path | None,
        session_id: str,
        on_output: OnOutput | None = None,
        *,
        in_background: bool = False,
    ) -> Supervised:
        if self._closed:
            raise ProcessError("no command can be started: the supervisor is closed")
        place = Path.cwd() / (workdir or "")
        launch = Launch(argv_of(command), self._environment, place, self._resources, session_id=session_id)
        launch = self._wrap(launch)
        text = command if isinstance(command, str) else shlex.join(command)
        name = self._known.free_id(call_id)
        found = Supervised(name, session_id, text, Output(self._folder, name), self._publish)
        found.on_output, found.afterwards = on_output, launch.afterwards
        if in_background:
            found.to_background()
        self._known.add(found)
        try:
            await found.process.start(self._spawner, launch, takes_input=in_background)
        except BaseException:
            self._known.forget(found)
            raise
        return found

    async def _attend(self, found: Supervised, limit: float | TimeLimit | None) -> Outcome:
        """Wait for a foreground command; whatever ends the waiting, nothing of it goes on unless in the background."""
        bound = limit if isinstance(limit, TimeLimit) else TimeLimit(limit)
        try:
            async with asyncio.timeout(bound.seconds):
                await found.released.wait()
        except TimeoutError:
            if bound.then == "background" and self._has_room():
                found.to_background()
            else:
                await found.end(GRACE, "timeout")
        except asyncio.CancelledError:
            found.process.end(GRACE, "killed")
            raise
        outcome = found.outcome()
        if not found.backgrounded:
            self._known.forget(found)
        return outcome

    def _has_room(self) -> bool:
        return len(self.get_backgrounded_ids()) < self._limits.background

    def _check_room(self) -> None:
        if not self._has_room():
            most = self._limits.background
            raise ProcessError(f"there are {most} processes in the background already; kill one, or wait for its end")
