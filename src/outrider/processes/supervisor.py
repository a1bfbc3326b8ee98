"""The owner of every process: runs commands, keeps those in the background, and leaves none alive when it closes."""

import asyncio
import contextlib
import logging
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from outrider.errors import ProcessError
from outrider.event_bus import EventBus
from outrider.processes.launch import (
    Launch,
    ResourceLimits,
    Wrap,
    argv_of,
    child_environment,
    nothing_to_say,
    unwrapped,
)
from outrider.processes.output import Output, OutputFolder, OutputLimits, OutputSlice, OutputText, Pacer
from outrider.processes.process import Asked, Ending, Process
from outrider.processes.spawner import Spawner
from outrider.types.events import Event, ProcessExitedEvent, ProcessOutputEvent, ProcessStartedEvent
from outrider.types.ids import now_ms

OnOutput = Callable[[str], object]
Publish = Callable[[Event], None]

UNKILLABLE = 12.0  # seconds; by then a keeper has given up on what the kernel does not let end

_log = logging.getLogger("outrider.processes")


class ProcessStatus(msgspec.Struct, frozen=True):
    """`ending` is None while the command runs; `alive` tells whether anything of it is, such as a daemon."""

    id: str
    command: str
    session_id: str
    pid: int | None
    started_at: int
    backgrounded: bool
    alive: bool
    output_size: int
    ending: Ending | None = None


class Outcome(msgspec.Struct, frozen=True):
    """What a command gave so far; `ending` is None while it goes on."""

    process_id: str
    output: OutputText
    duration_ms: int
    ending: Ending | None = None
    note: str = ""  # what whoever reads the output must know besides

    @property
    def exit_code(self) -> int | None:
        return self.ending.exit_code if self.ending else None

    @property
    def text(self) -> str:
        return str(self.output)


class Supervised:
    """`released` is set when the caller that waits for the command should wait no more."""

    def __init__(self, process_id: str, session_id: str, command: str, output: Output, publish: Publish | None) -> None:
        self.id = process_id
        self.session_id = session_id
        self.command = command
        self.backgrounded = False
        self.released = asyncio.Event()
        self.on_output: OnOutput | None = None
        self.afterwards: Callable[[], str] = nothing_to_say
        self.note = ""
        self.process = Process(output, self)
        self._publish = publish
        self._pacer = Pacer(self._publish_output) if publish else None
        self._started_at = now_ms()
        self._begin = time.monotonic()
        self._end: float | None = None
        self._read_to = 0

    @property
    def is_alive(self) -> bool:
        return not self.process.gone.is_set()

    @property
    def wants_text(self) -> bool:
        return self.on_output is not None or self._pacer is not None

    def to_background(self) -> None:
        """Its caller need not wait, and what it leaves behind may live."""
        self.backgrounded = self.process.may_leave = True
        self.on_output = None
        self.released.set()

    def to_foreground(self, on_output: OnOutput | None) -> None:
        self.backgrounded = self.process.may_leave = False
        self.on_output = on_output
        if self.process.exited.is_set():
            self.process.end(0)
        if self.is_alive:
            self.released.clear()

    async def end(self, grace: float, because: Asked) -> None:
        """Returns when nothing of it is alive."""
        self.process.end(grace, because)
        try:
            async with asyncio.timeout(grace + UNKILLABLE):
                await self.process.gone.wait()
        except TimeoutError:
            self.process.abandon()

    def started(self, pid: int) -> None:
        self._tell(ProcessStartedEvent, command=self.command, pid=pid)

    def wrote(self, text: str) -> None:
        if self._pacer is not None:
            self._pacer.feed(text)
        if self.on_output is None:
            return
        try:
            self.on_output(text)
        except Exception:  # noqa: BLE001  what a listener does wrong stays with the listener
            _log.exception("a listener failed on the output of %s", self.id)
            self.on_output = None

    def exited(self, ending: Ending) -> None:
        self._end = time.monotonic()
        if self._pacer is not None:
            self._pacer.flush()
        self._tell(ProcessExitedEvent, exit_code=ending.exit_code, signal=ending.signal)

    def gone(self) -> None:
        try:
            self.note = self.afterwards()
        except OSError as error:
            self.note = f"what it left behind could not be looked at: {error}"
        self.released.set()

    def read(self, offset: int | None, most: int) -> OutputSlice:
        """From a place on, or from where the last reading ended."""
        place = self._read_to if offset is None else offset
        piece = self.process.output.read(place, most, complete=self.process.exited.is_set())
        self._read_to = piece.end
        return piece

    def status(self) -> ProcessStatus:
        return ProcessStatus(
            id=self.id,
            command=self.command,
            session_id=self.session_id,
            pid=self.process.pid,
            started_at=self._started_at,
            backgrounded=self.backgrounded,
            alive=self.is_alive,
            output_size=self.process.output.size,
            ending=self.process.ending,
        )

    def outcome(self) -> Outcome:
        seconds = (self._end or time.monotonic()) - self._begin
        return Outcome(self.id, self.process.output.text(), round(seconds * 1000), self.process.ending, self.note)

    def _publish_output(self, text: str) -> None:
        self._tell(ProcessOutputEvent, output=text)

    def _tell(self, event: Callable[..., Event], **fields: Any) -> None:
        if self._publish is not None:
            self._publish(event(process_id=self.id, session_id=self.session_id, call_id=self.id, **fields))


class ProcessTable:
    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        self._known: dict[str, Supervised] = {}

    def __iter__(self) -> Iterator[Supervised]:
        """Oldest first."""
        return iter(list(self._known.values()))

    def find(self, process_id: str) -> Supervised | None:
        return self._known.get(process_id)

    def get(self, process_id: str) -> Supervised:
        found = self.find(process_id)
        if found is None:
            known = ", ".join(self._known) or "none"
            raise ProcessError(f"there is no process {process_id!r}; known are: {known}")
        return found

    def free_id(self, wanted: str) -> str:
        """Calls of different sessions may have one id; a process that is alive keeps its own."""
        name, number = wanted, 1
        while (found := self.find(name)) is not None and found.is_alive:
            number += 1
            name = f"{wanted}-{number}"
        return name

    def add(self, process: Supervised) -> None:
        before = self._known.pop(process.id, None)
        if before is not None:
            before.process.output.close()
        self._known[process.id] = process
        self._forget_oldest()

    def forget(self, process: Supervised) -> None:
        if self._known.get(process.id) is process:
            del self._known[process.id]
        process.process.output.close()

    def forget_all(self) -> None:
        for process in self:
            self.forget(process)

    def _forget_oldest(self) -> None:
        """Of what has ended, only processes in the background can still be asked for."""
        ended = [process for process in self if not process.is_alive]
        kept = [process for process in ended if process.backgrounded][-self._remembered :]
        for process in ended:
            if process not in kept:
                self.forget(process)


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
        self._known = ProcessTable(self._limits.remembered)
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
