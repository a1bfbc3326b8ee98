"""The SDK's transport over a program's standard input and output, with bounds that the SDK's own does not have."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Protocol

import anyio
import mcp_types as wire
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from outrider.errors import ProcessError
from outrider.processes.launch import Launch, child_environment
from outrider.processes.process import Ending, InputPipe, ending_of
from outrider.processes.spawner import Spawner
from outrider.tools.mcp.config import Limits, StdioServer
from outrider.tools.mcp.connection import Host, Life, ServerFault

_SHOWN = 200


class Pace:
    """So much per second, and a second's worth at once; who spends more waits."""

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._left = per_second
        self._at = asyncio.get_running_loop().time()

    async def spend(self, amount: float) -> None:
        now = asyncio.get_running_loop().time()
        self._left = min(self._rate, self._left + (now - self._at) * self._rate) - amount
        self._at = now
        if self._left < 0:
            await asyncio.sleep(-self._left / self._rate)


class Lines:
    """Whole lines of what is fed; an unfinished one is kept, up to the size of a message."""

    def __init__(self, limits: Limits) -> None:
        self._most = limits.message
        self._unfinished = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        first, newline, rest = chunk.partition(b"\n")
        self._unfinished += first
        if len(self._unfinished) > self._most:
            raise ServerFault(f"it wrote a message of more than {self._most:,} bytes")
        if not newline:
            return []
        *lines, unfinished = rest.split(b"\n")
        lines.insert(0, bytes(self._unfinished))
        self._unfinished = bytearray(unfinished)
        return lines


class Garbage:
    """Counts what is not a message. A banner or a stray log line is borne; nothing but such lines is not."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._bytes = 0
        self._lines = 0
        self._sample = b""

    def forgive(self) -> None:
        self._bytes = self._lines = 0

    def add(self, line: bytes) -> None:
        self._sample = self._sample or line.strip()[:_SHOWN]
        self._bytes += len(line) + 1
        self._lines += 1
        if self._bytes > self._limits.garbage or self._lines > self._limits.garbage_lines:
            sample = self._sample.decode("utf-8", "replace")
            raise ServerFault(f"it writes to its standard output what is not MCP, for example {sample!r}")


class Tail:
    """The end of a text that grows without limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = bytearray()

    def add(self, chunk: bytes) -> None:
        self._kept += chunk
        del self._kept[: max(0, len(self._kept) - self._most)]

    @property
    def text(self) -> str:
        return self._kept.decode("utf-8", "replace").strip()


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


WAITING = 64  # messages that may wait for a server to read; then whoever sends waits too

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]


@asynccontextmanager
async def stdio_transport(
    config: StdioServer, host: Host, spawner: Spawner, life: Life
) -> AsyncGenerator[tuple[Incoming, Outgoing], None]:
    child, stdout, stderr = await start_child(config, host, spawner)
    arriving, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, leaving = anyio.create_memory_object_stream[SessionMessage](WAITING)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child.watch)
            tasks.start_soon(child.keep_log, stderr, Pace(host.limits.bytes_per_second))
            tasks.start_soon(_receive, child, stdout, arriving, host.limits, life)
            tasks.start_soon(_send, child, leaving)
            try:
                yield incoming, outgoing
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await child.close(host.limits.shutdown)
        for stream in (arriving, incoming, outgoing, leaving):
            stream.close()


async def _receive(
    child: Child,
    stdout: asyncio.StreamReader,
    arriving: MemoryObjectSendStream[SessionMessage | Exception],
    limits: Limits,
    life: Life,
) -> None:
    """Why it ends is told before the session sees the end, so that open calls can say it."""
    async with arriving:
        try:
            await _deliver(stdout, arriving, limits)
            life.end(await child.last_words(), has_died=True)
        except ServerFault as fault:
            life.end(fault.message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            life.end("the connection was closed")


async def _deliver(
    stdout: asyncio.StreamReader, arriving: MemoryObjectSendStream[SessionMessage | Exception], limits: Limits
) -> None:
    lines, garbage = Lines(limits), Garbage(limits)
    bytes_pace, message_pace = Pace(limits.bytes_per_second), Pace(limits.messages_per_second)
    while chunk := await stdout.read(BUFFER):
        await bytes_pace.spend(len(chunk))
        for line in lines.feed(chunk):
            try:
                message = wire.jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                garbage.add(line)
                continue
            garbage.forgive()
            await message_pace.spend(1)
            await arriving.send(SessionMessage(message))


async def _send(child: Child, leaving: MemoryObjectReceiveStream[SessionMessage]) -> None:
    async with leaving:
        async for item in leaving:
            try:
                await child.stdin.write(item.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n")
            except ProcessError:  # it no longer reads; its output tells the rest
                return
