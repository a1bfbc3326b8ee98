"""A process with what its supervisor knows of it: whose it is, what was asked for, and who hears of it."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from outrider.processes.ending import Ending
from outrider.processes.launch import nothing_to_say
from outrider.processes.output import Output, OutputSlice, OutputText
from outrider.processes.pace import Pacer
from outrider.processes.process import Asked, Process
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
