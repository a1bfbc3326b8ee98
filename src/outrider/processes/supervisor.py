"""Runs commands in the foreground and in the background, and kills every process when the supervisor closes."""

import asyncio
import contextlib
import logging
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from outrider.errors import ProcessError
from outrider.event_bus import EventBus
from outrider.processes.launch import (
    ExitStatus,
    LaunchRequest,
    LaunchWrapper,
    RequestedEnd,
    ResourceLimits,
    build_argv,
    child_environment,
    keep_launch_unchanged,
    no_cleanup,
)
from outrider.processes.output import (
    CapturedOutput,
    OutputFolder,
    OutputLimits,
    OutputSlice,
    OutputThrottle,
    ProcessOutputBuffer,
)
from outrider.types.events import Event, ProcessExitedEvent, ProcessOutputEvent, ProcessStartedEvent
from outrider.types.ids import now_ms

if TYPE_CHECKING:
    from outrider.processes.process import ProcessSpawner

OnOutput = Callable[[str], object]
Publish = Callable[[Event], None]

# Seconds. Longer than command_guard.KILL_TIMEOUT, after which a guard gives up on an unkillable process.
GUARD_TIMEOUT = 12.0

_log = logging.getLogger("outrider.processes")


class ProcessStatus(msgspec.Struct, frozen=True):
    """A snapshot of one process.

    - `id`: the id of the call that started it.
    - `command`: the command as text.
    - `session_id`: the session that started it.
    - `pid`: its process id, None before the start.
    - `started_at`: the time of the start, in milliseconds.
    - `backgrounded`: True if it runs, or ran, in the background.
    - `alive`: True while any descendant of the command runs, such as a daemon that it started.
    - `output_size`: bytes of output so far.
    - `ending`: how the command ended; None while it runs.
    """

    id: str
    command: str
    session_id: str
    pid: int | None
    started_at: int
    backgrounded: bool
    alive: bool
    output_size: int
    ending: ExitStatus | None = None


class CommandResult(msgspec.Struct, frozen=True):
    """The output of a command so far.

    - `process_id`: the id of the process.
    - `output`: the captured output.
    - `duration_ms`: how long the command has run, in milliseconds.
    - `ending`: how the command ended; None while it runs.
    - `note`: a note from the cleanup of the launch, for example about files that the sandbox removed.
    - `left_running`: command lines of processes that were killed when the command ended.
    """

    process_id: str
    output: CapturedOutput
    duration_ms: int
    ending: ExitStatus | None = None
    note: str = ""
    left_running: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None if the command was killed or still runs."""
        return self.ending.exit_code if self.ending else None

    @property
    def text(self) -> str:
        """Returns the output as one string, with a note where bytes are left out."""
        return str(self.output)


class SupervisedCommand:
    """One command in the process table; publishes its events and forwards its output.

    `released` is set when the foreground caller should stop waiting: the command is gone or in the background.
    """

    def __init__(
        self, process_id: str, session_id: str, command: str, output: ProcessOutputBuffer, publish: Publish | None
    ) -> None:
        self.id = process_id
        self.session_id = session_id
        self.command = command
        self.backgrounded = False
        self.foreground_only = False
        self.released = asyncio.Event()
        self.on_output: OnOutput | None = None
        self.cleanup: Callable[[], str] = no_cleanup
        self.note = ""
        from outrider.processes.process import GuardedProcess  # lazy: loaded with the first command

        self.process = GuardedProcess(output, self)
        self._publish = publish
        self._throttle = OutputThrottle(self._publish_output) if publish else None
        self._started_at = now_ms()
        self._started_monotonic = time.monotonic()
        self._ended_monotonic: float | None = None
        self._read_offset = 0

    @property
    def is_alive(self) -> bool:
        return not self.process.all_exited.is_set()

    @property
    def wants_text(self) -> bool:
        return self.on_output is not None or self._throttle is not None

    def move_to_background(self) -> None:
        """Releases the foreground caller. Child processes may outlive the command from now on."""
        self.backgrounded = self.process.may_leave_children = True
        self.on_output = None
        self.released.set()

    def move_to_foreground(self, on_output: OnOutput | None) -> None:
        """Makes a caller wait for the command again; if the command has ended, kills its children."""
        self.backgrounded = self.process.may_leave_children = False
        self.on_output = on_output
        if self.process.exited.is_set():
            self.process.terminate(0)
        if self.is_alive:
            self.released.clear()

    async def terminate(self, grace: float, cause: RequestedEnd) -> None:
        """Terminates the command and its descendants; returns when none is alive or the guard gives up."""
        self.process.terminate(grace, cause)
        try:
            async with asyncio.timeout(grace + GUARD_TIMEOUT):
                await self.process.all_exited.wait()
        except TimeoutError:
            self.process.abandon()

    def on_started(self, pid: int) -> None:
        self._publish_event(ProcessStartedEvent, command=self.command, pid=pid)

    def on_text(self, text: str) -> None:
        """Forwards text to the event throttle and to the output callback."""
        if self._throttle is not None:
            self._throttle.feed(text)
        if self.on_output is None:
            return
        try:
            self.on_output(text)
        except Exception:  # noqa: BLE001  an error in a listener must not affect the command
            _log.exception("the output listener of process %s failed and was removed", self.id)
            self.on_output = None

    def on_exited(self, ending: ExitStatus) -> None:
        self._ended_monotonic = time.monotonic()
        if self._throttle is not None:
            self._throttle.flush()
        self._publish_event(ProcessExitedEvent, exit_code=ending.exit_code, signal=ending.signal)

    def on_all_exited(self) -> None:
        """Runs the cleanup of the launch request, stores its note and releases the caller."""
        try:
            self.note = self.cleanup()
        except OSError as error:
            self.note = f"the cleanup after the command failed: {error}"
        finally:
            self.released.set()  # the caller must not wait forever

    def read(self, offset: int | None, max_bytes: int) -> OutputSlice:
        """Returns output from an offset in bytes; without one, from the end of the previous read."""
        start = self._read_offset if offset is None else offset
        output_slice = self.process.output.read(start, max_bytes, complete=self.process.exited.is_set())
        self._read_offset = output_slice.end
        return output_slice

    def peek(self, offset: int | None, max_bytes: int) -> OutputSlice:
        """Returns output from an offset in bytes; without one, the last bytes. The next `read` is not affected."""
        output = self.process.output
        start = max(output.size - max_bytes, 0) if offset is None else offset
        return output.read(start, max_bytes, complete=self.process.exited.is_set())

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

    def result(self) -> CommandResult:
        seconds = (self._ended_monotonic or time.monotonic()) - self._started_monotonic
        return CommandResult(
            self.id,
            self.process.output.text(),
            round(seconds * 1000),
            self.process.ending,
            self.note,
            tuple(self.process.left_running),
        )

    def _publish_output(self, text: str) -> None:
        self._publish_event(ProcessOutputEvent, output=text)

    def _publish_event(self, event: Callable[..., Event], **fields: Any) -> None:
        if self._publish is not None:
            self._publish(event(process_id=self.id, session_id=self.session_id, call_id=self.id, **fields))


class ProcessTable:
    """The commands of a supervisor by process id, with the last background commands that have ended."""

    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        self._commands: dict[str, SupervisedCommand] = {}

    def __iter__(self) -> Iterator[SupervisedCommand]:
        """Iterates over a copy, oldest first."""
        return iter(list(self._commands.values()))

    def find(self, process_id: str) -> SupervisedCommand | None:
        """Returns a command by process id, or None."""
        return self._commands.get(process_id)

    def get(self, process_id: str) -> SupervisedCommand:
        """Returns a command by process id. Raises ProcessError if there is none."""
        supervised = self.find(process_id)
        if supervised is None:
            ids = ", ".join(self._commands) or "none"
            raise ProcessError(f"there is no process {process_id!r}; known processes: {ids}")
        return supervised

    def free_id(self, preferred: str) -> str:
        """Returns `preferred`, or a numbered variant while a live process has that id: sessions can reuse a call id."""
        name, number = preferred, 1
        while (supervised := self.find(name)) is not None and supervised.is_alive:
            number += 1
            name = f"{preferred}-{number}"
        return name

    def add(self, command: SupervisedCommand) -> None:
        """Adds a command; it replaces an ended one with the same id."""
        replaced = self._commands.pop(command.id, None)
        if replaced is not None:
            replaced.process.output.close()
        self._commands[command.id] = command
        self._remove_oldest()

    def remove(self, supervised: SupervisedCommand) -> None:
        """Removes a command and closes its spill file."""
        if self._commands.get(supervised.id) is supervised:
            del self._commands[supervised.id]
        supervised.process.output.close()

    def remove_all(self) -> None:
        for supervised in self:
            self.remove(supervised)

    def _remove_oldest(self) -> None:
        """Removes ended commands, except the last `remembered` ones that ran in the background."""
        ended = [supervised for supervised in self if not supervised.is_alive]
        retained = [supervised for supervised in ended if supervised.backgrounded][-self._remembered :]
        for supervised in ended:
            if supervised not in retained:
                self.remove(supervised)


TERMINATE_GRACE = 5.0  # seconds between SIGTERM and SIGKILL
CLOSE_GRACE = 1.0
LEFTOVER_WAIT = 0.1  # seconds; a command without remaining children is gone by then
READ_BYTES = 32_000


class ProcessLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a supervisor.

    - `foreground`: how many commands run while their callers wait; further calls queue.
    - `background`: how many commands run in the background; further starts raise ProcessError.
    - `remembered`: how many background commands that have ended stay readable.
    """

    foreground: int = 64
    background: int = 64
    remembered: int = 64


class TimeLimit(msgspec.Struct, frozen=True):
    """A time limit in seconds. At the limit a command is killed, or moved to the background if a slot is free."""

    seconds: float | None
    then: Literal["kill", "background"] = "kill"


class ProcessSupervisor:
    """Owns all processes of an engine. Bound to one event loop; a process id is the id of the call that started it.

    - `folder`: where output that exceeds the memory limit is written to files.
    - `bus`: the event bus on which the events of processes are published.
    - `environment`: the environment of commands; the default is the engine's own one, filtered by `child_environment`.
    - `wrap`: replaces every launch request, for example with one that starts a sandbox.
    - `limits`: how many commands run at the same time.
    - `resources`: limits of the kernel for each process of a command.
    - `output`: limits for captured output.
    """

    def __init__(
        self,
        *,
        folder: Path | OutputFolder | None = None,
        bus: EventBus | None = None,
        environment: Mapping[str, str] | None = None,
        wrap: LaunchWrapper = keep_launch_unchanged,
        limits: ProcessLimits | None = None,
        resources: ResourceLimits | None = None,
        output: OutputLimits | None = None,
    ) -> None:
        is_open_folder = isinstance(folder, OutputFolder)
        self._folder = folder if is_open_folder else OutputFolder(folder, output or OutputLimits())
        self._publish = bus.publish if bus is not None else None
        self._environment = child_environment(os.environ) if environment is None else environment
        self._wrap_launch = wrap
        self._limits = limits or ProcessLimits()
        self._resources = resources or ResourceLimits()
        self._spawner: ProcessSpawner | None = None
        self._table = ProcessTable(self._limits.remembered)
        self._foreground_slots = asyncio.Semaphore(self._limits.foreground)
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
        wrap: LaunchWrapper | None = None,
    ) -> CommandResult:
        """Runs a command and waits until it ends, reaches its time limit or moves to the background.

        Cancelling the call kills the command without waiting for its end. `wrap` replaces the supervisor's own wrapper.
        """
        async with self._foreground_slots:
            supervised = await self._start_process(call_id, command, workdir, session_id, on_output, wrap=wrap)
            return await self._wait_in_foreground(supervised, limit)

    async def start_command(
        self,
        call_id: str,
        command: str | Sequence[str],
        *,
        workdir: Path | None = None,
        session_id: str = "",
        wrap: LaunchWrapper | None = None,
    ) -> ProcessStatus:
        """Starts a command in the background; `write` can send it input. `wrap` replaces the supervisor's own
        wrapper."""
        self._check_room()
        supervised = await self._start_process(call_id, command, workdir, session_id, in_background=True, wrap=wrap)
        return supervised.status()

    def mark_as_backgrounded(self, call_id: str) -> bool:
        """Moves a running command to the background; its caller gets the output so far.

        Returns False if no such command runs, or if it cannot run in the background.
        """
        supervised = self._table.find(call_id)
        if supervised is None or supervised.process.exited.is_set() or supervised.foreground_only:
            return False
        if not supervised.backgrounded:
            self._check_room()
            supervised.move_to_background()
        return True

    async def bring_to_foreground(
        self, call_id: str, on_output: OnOutput | None = None, *, limit: float | TimeLimit | None = None
    ) -> CommandResult:
        """Moves a background command to the foreground and waits until it ends, reaches its time limit or moves
        back."""
        supervised = self._table.get(call_id)
        async with self._foreground_slots:
            supervised.move_to_foreground(on_output)
            return await self._wait_in_foreground(supervised, limit)

    def is_backgrounded(self, call_id: str) -> bool:
        """Returns whether a process runs, or ran, in the background; False for an unknown id."""
        supervised = self._table.find(call_id)
        return supervised is not None and supervised.backgrounded

    def get_running_ids(self) -> list[str]:
        """Returns the ids of all live processes, in the foreground and in the background."""
        return [supervised.id for supervised in self._table if supervised.is_alive]

    def get_backgrounded_ids(self) -> list[str]:
        """Returns the ids of live processes in the background."""
        return [supervised.id for supervised in self._table if supervised.is_alive and supervised.backgrounded]

    def list_processes(self, session_id: str | None = None) -> list[ProcessStatus]:
        """Returns live processes and remembered background processes that have ended, oldest first."""
        listed = [supervised for supervised in self._table if supervised.is_alive or supervised.backgrounded]
        return [supervised.status() for supervised in listed if session_id in (None, supervised.session_id)]

    def status(self, call_id: str) -> ProcessStatus:
        """Returns the status of a process. Raises ProcessError if the id is unknown."""
        return self._table.get(call_id).status()

    def read(self, call_id: str, offset: int | None = None, max_bytes: int = READ_BYTES) -> OutputSlice:
        """Returns output from an offset in bytes; without one, the output since the previous read."""
        return self._table.get(call_id).read(offset, max_bytes)

    def peek(self, call_id: str, offset: int | None = None, max_bytes: int = READ_BYTES) -> OutputSlice:
        """Returns output from an offset in bytes; without one, the last bytes. Front ends use it, so that the next
        `read` of the model continues where the previous one ended."""
        return self._table.get(call_id).peek(offset, max_bytes)

    async def write(self, call_id: str, text: str, *, limit: float = 10.0, last: bool = False) -> None:
        """Writes to the standard input of a process; `last` closes it afterwards."""
        process = self._table.get(call_id).process
        try:
            async with asyncio.timeout(limit):
                await process.write(text)
        except TimeoutError:
            raise ProcessError(f"process {call_id!r} did not read its input within {limit:g} s") from None
        if last:
            process.close_input()

    async def wait(self, call_id: str, limit: float | None = None) -> CommandResult:
        """Waits until the command ends, at most `limit` seconds."""
        supervised = self._table.get(call_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await supervised.process.exited.wait()
            async with asyncio.timeout(LEFTOVER_WAIT):
                await supervised.process.all_exited.wait()
        return supervised.result()

    async def kill_process(self, call_id: str, grace: float = TERMINATE_GRACE) -> bool:
        """Sends SIGTERM to the command and its descendants, and SIGKILL after `grace` seconds.

        Returns False if none was alive.
        """
        supervised = self._table.find(call_id)
        if supervised is None or not supervised.is_alive:
            return False
        await supervised.terminate(grace, "killed")
        return True

    async def close(self) -> None:
        """Terminates all commands and their descendants, and stops the engine guard."""
        self._closed = True
        alive = [supervised for supervised in self._table if supervised.is_alive]
        for supervised in alive:
            supervised.process.terminate(CLOSE_GRACE, "killed")
        for supervised in alive:
            await supervised.terminate(CLOSE_GRACE, "killed")
        self._table.remove_all()
        if self._spawner is not None:
            await self._spawner.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _start_process(
        self,
        call_id: str,
        command: str | Sequence[str],
        workdir: Path | None,
        session_id: str,
        on_output: OnOutput | None = None,
        *,
        in_background: bool = False,
        wrap: LaunchWrapper | None = None,
    ) -> SupervisedCommand:
        """Wraps the launch request, adds the command to the table and starts it. Raises ProcessError."""
        if self._closed:
            raise ProcessError("the command cannot be started: the engine's process supervisor is closed")
        folder = Path.cwd() / (workdir or "")
        launch = LaunchRequest(build_argv(command), self._environment, folder, self._resources, session_id=session_id)
        launch = (wrap or self._wrap_launch)(launch)
        text = command if isinstance(command, str) else shlex.join(command)
        name = self._table.free_id(call_id)
        supervised = SupervisedCommand(name, session_id, text, ProcessOutputBuffer(self._folder, name), self._publish)
        supervised.on_output, supervised.cleanup = on_output, launch.cleanup
        supervised.foreground_only = launch.foreground_only
        if in_background:
            supervised.move_to_background()
        self._table.add(supervised)
        if self._spawner is None:
            from outrider.processes.process import ProcessSpawner

            self._spawner = ProcessSpawner()
        try:
            await supervised.process.start(self._spawner, launch, takes_input=in_background)
        except BaseException:
            self._table.remove(supervised)
            raise
        return supervised

    async def _wait_in_foreground(
        self, supervised: SupervisedCommand, limit: float | TimeLimit | None
    ) -> CommandResult:
        """Waits for a foreground command. However the wait ends, only a command in the background continues to run."""
        time_limit = limit if isinstance(limit, TimeLimit) else TimeLimit(limit)
        try:
            async with asyncio.timeout(time_limit.seconds):
                await supervised.released.wait()
        except TimeoutError:
            if time_limit.then == "background" and self._has_room() and not supervised.foreground_only:
                supervised.move_to_background()
            else:
                await supervised.terminate(TERMINATE_GRACE, "timeout")
        except asyncio.CancelledError:
            supervised.process.terminate(TERMINATE_GRACE, "killed")
            raise
        result = supervised.result()
        if not supervised.backgrounded:
            self._table.remove(supervised)
        return result

    def _has_room(self) -> bool:
        return len(self.get_backgrounded_ids()) < self._limits.background

    def _check_room(self) -> None:
        """Raises ProcessError if no further command can run in the background."""
        if not self._has_room():
            max_background = self._limits.background
            raise ProcessError(
                f"{max_background} processes run in the background already; kill one or wait until one ends"
            )
