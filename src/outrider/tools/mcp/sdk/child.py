"""A server's program as a process: its three streams, and its end with all that it started."""

import asyncio
import contextlib
import os
from typing import Protocol

from outrider.errors import ProcessError
from outrider.processes.ending import Ending, ending_of
from outrider.processes.environment import child_environment
from outrider.processes.guards.spawner import Spawner
from outrider.processes.launch import Launch
from outrider.processes.pipes import InputPipe
from outrider.tools.mcp.config import StdioServer
from outrider.tools.mcp.faults import ServerFault
from outrider.tools.mcp.link import Host
from outrider.tools.mcp.sdk.framing import Pace, Tail

BUFFER = 1 << 18
LEFTOVER_GRACE = 0.1
LAST_WORDS = 1.0  # seconds that the news of an end may take after the last output


class SupportsClose(Protocol):
    def close(self) -> None: ...


class Child:
    """Made by `start_child`. Whatever happens, `close` or letting go of the object's line ends every descendant."""

    def __init__(self, line: tuple[asyncio.StreamReader, asyncio.StreamWriter], stdin: InputPipe, log: int) -> None:
        self.stdin = stdin
        self.log = Tail(log)
        self.ending: Ending | None = None
        self._ended = asyncio.Event()
        self._news, self._words = line
        self._pipes: list[asyncio.BaseTransport] = []

    async def open(self, pipe: int) -> asyncio.StreamReader:
        """Read from a pipe no faster than its reader does, so that a flood waits at its source."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=BUFFER)
        file = os.fdopen(pipe, "rb", 0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
        self._pipes.append(transport)
        return reader

    async def started(self) -> None:
        first = (await self._next_word()).decode("utf-8", "replace").strip()
        if not first.startswith("started "):
            raise ServerFault(f"its program cannot be started: {first.removeprefix('failed ') or 'too many processes'}")

    async def keep_log(self, stream: asyncio.StreamReader, pace: Pace) -> None:
        while chunk := await stream.read(BUFFER):
            self.log.add(chunk)
            await pace.spend(len(chunk))

    async def watch(self) -> None:
        """Until nothing of it is alive. What the program leaves behind at its end is ended too."""
        while line := await self._next_word():
            word, *rest = line.decode("utf-8", "replace").split()
            if word == "exited":
                self.ending = ending_of(int(rest[0]), out_of_memory=rest[1] == "1", because=None)
                self._ended.set()
                self._end(LEFTOVER_GRACE)
        self._ended.set()

    async def _next_word(self) -> bytes:
        """From the keeper; nothing when it has ended, also if it did so before it heard our last word."""
        try:
            return await self._news.readline()
        except ConnectionError:
            return b""

    async def last_words(self) -> str:
        """How it ended and what it said last, for people."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await self._ended.wait()
        how = f"its process ended ({self.ending.words})" if self.ending else "it closed its standard output"
        return f"{how}; its last words: {self.log.text}" if self.log.text else how

    async def close(self, grace: float) -> None:
        """Its input ends first, which should be enough; then it is asked to end, then made to. `watch` must have
        been stopped. Its output ends too, since one that is stuck in a flood would never look at its input; its
        errors do not, since it may have something to say while it puts things in order."""
        try:
            self.stdin.close()
            self._pipes[0].close()
            if not await self._is_gone(grace):
                self._end(grace)
                await self._is_gone(grace + LAST_WORDS)
        finally:
            self.let_go()

    def let_go(self) -> None:
        self.stdin.close()
        self._words.close()
        for pipe in self._pipes:
            pipe.close()

    async def _is_gone(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.watch()
                return True
        return False

    def _end(self, grace: float) -> None:
        self._words.write(f"kill {grace:.3f}\n".encode())


def launch_of(config: StdioServer, host: Host) -> Launch:
    """With an environment of its own: what programs need, what the configuration gives, no keys of the engine."""
    environment = child_environment(host.environment, config.env)
    folder = host.workspace / (config.cwd or "")
    return Launch((config.command, *config.args), environment, folder.absolute())


async def start_child(
    config: StdioServer, host: Host, spawner: Spawner
) -> tuple[Child, asyncio.StreamReader, asyncio.StreamReader]:
    """The child, its output and its errors."""
    stdin, ends = InputPipe(silent=False), list[int]()
    try:
        ends += os.pipe()
        ends += os.pipe()
        output, their_output, errors, their_errors = ends
        line = await spawner.spawn(launch_of(config, host), stdin.theirs.fileno(), their_output, their_errors)
    except BaseException as error:
        _close(stdin, *ends)
        if isinstance(error, ProcessError):
            raise ServerFault(error.message) from error
        raise
    _close(stdin.theirs, their_output, their_errors)
    child = Child(await asyncio.open_connection(sock=line), stdin, host.limits.log)
    try:
        streams = await child.open(output), await child.open(errors)
        await child.started()
    except BaseException:
        child.let_go()
        raise
    return child, *streams


def _close(*ends: SupportsClose | int) -> None:
    for end in ends:
        if isinstance(end, int):
            os.close(end)
        else:
            end.close()
