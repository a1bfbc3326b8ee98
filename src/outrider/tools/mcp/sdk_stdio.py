"""Stdio transport for the SDK, with limits that the SDK's own transport lacks."""

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
from outrider.processes.launch import ExitStatus, LaunchRequest, child_environment, exit_status_of
from outrider.processes.process import InputPipe, ProcessSpawner
from outrider.tools.mcp.config import ServerLimits, StdioServer
from outrider.tools.mcp.connection import ConnectionLifetime, McpHost, ServerFault

_MAX_SAMPLE = 200


class TokenBucket:
    """Rate limiter with a burst of one second; `spend` sleeps when the bucket is empty."""

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._available = per_second
        self._updated_at = asyncio.get_running_loop().time()

    async def spend(self, amount: float) -> None:
        now = asyncio.get_running_loop().time()
        self._available = min(self._rate, self._available + (now - self._updated_at) * self._rate) - amount
        self._updated_at = now
        if self._available < 0:
            await asyncio.sleep(-self._available / self._rate)


class LineBuffer:
    """Splits a byte stream into lines. An incomplete line is buffered up to the message limit."""

    def __init__(self, limits: ServerLimits) -> None:
        self._max_bytes = limits.message
        self._unfinished = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        end_of_line, newline, following = chunk.partition(b"\n")
        self._unfinished += end_of_line
        if len(self._unfinished) > self._max_bytes:
            raise ServerFault(f"it wrote a message of more than {self._max_bytes:,} bytes")
        if not newline:
            return []
        *lines, unfinished = following.split(b"\n")
        lines.insert(0, bytes(self._unfinished))
        self._unfinished = bytearray(unfinished)
        return lines


class GarbageCounter:
    """Counts invalid lines. Single log lines are tolerated; too many consecutive ones raise ServerFault."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._bytes = 0
        self._lines = 0
        self._sample = b""

    def reset(self) -> None:
        self._bytes = self._lines = 0

    def add(self, line: bytes) -> None:
        self._sample = self._sample or line.strip()[:_MAX_SAMPLE]
        self._bytes += len(line) + 1
        self._lines += 1
        if self._bytes > self._limits.garbage or self._lines > self._limits.garbage_lines:
            sample = self._sample.decode("utf-8", "replace")
            raise ServerFault(f"it writes to its standard output what is not MCP, for example {sample!r}")


class TailBuffer:
    """Stores the last bytes of a stream."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tail = bytearray()

    def add(self, chunk: bytes) -> None:
        self._tail += chunk
        del self._tail[: max(0, len(self._tail) - self._max_bytes)]

    @property
    def text(self) -> str:
        return self._tail.decode("utf-8", "replace").strip()


READ_SIZE = 1 << 18
LEFTOVER_GRACE = 0.1
EXIT_REPORT_WAIT = 1.0  # seconds to wait for the exit status after the last output


class SupportsClose(Protocol):
    def close(self) -> None: ...


_INSTALL_HINTS = {"npx": "; npx is a part of Node.js", "uvx": "; uvx is a part of uv"}


class ServerProcess:
    """A server's child process, created by `start_server_process`. Closing the control connection kills all its
    descendants."""

    def __init__(self, line: tuple[asyncio.StreamReader, asyncio.StreamWriter], stdin: InputPipe, log: int) -> None:
        self.stdin = stdin
        self.log = TailBuffer(log)
        self.ending: ExitStatus | None = None
        self._ended = asyncio.Event()
        self._control_reader, self._control_writer = line
        self._pipes: list[asyncio.BaseTransport] = []

    async def open_pipe(self, pipe: int) -> asyncio.StreamReader:
        """Opens a pipe for reading with a bounded buffer, so that a fast writer blocks."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=READ_SIZE)
        file = os.fdopen(pipe, "rb", 0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
        self._pipes.append(transport)
        return reader

    async def wait_started(self, config: StdioServer) -> None:
        message = (await self._read_control_line()).decode("utf-8", "replace").strip()
        if not message.startswith("started "):
            step, _, problem = message.removeprefix("failed ").partition(" ")
            subject = {"program": config.command, "workdir": f"the folder {config.cwd}"}.get(step, step)
            hint = _INSTALL_HINTS.get(config.command, "") if step == "program" else ""
            raise ServerFault(f"its program cannot be started: {subject}: {problem or 'too many processes'}{hint}")

    async def collect_log(self, stream: asyncio.StreamReader, pace: TokenBucket) -> None:
        while chunk := await stream.read(READ_SIZE):
            self.log.add(chunk)
            await pace.spend(len(chunk))

    async def watch(self) -> None:
        """Reads control messages until all descendants have ended. When the main process exits, the remaining ones are
        killed."""
        while line := await self._read_control_line():
            word, *values = line.decode("utf-8", "replace").split()
            if word == "exited":
                self.ending = exit_status_of(int(values[0]), out_of_memory=values[1] == "1", requested=None)
                self._ended.set()
                self._request_kill(LEFTOVER_GRACE)
        self._ended.set()

    async def _read_control_line(self) -> bytes:
        """Reads a line from the spawner process; returns empty bytes if the connection is closed or reset."""
        try:
            return await self._control_reader.readline()
        except ConnectionError:
            return b""

    async def describe_end(self) -> str:
        """Returns the exit status and the end of stderr as an error message."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_REPORT_WAIT):
                await self._ended.wait()
        how = f"its process ended ({self.ending.description})" if self.ending else "it closed its standard output"
        return f"{how}; its last error output: {self.log.text}" if self.log.text else how

    async def close(self, grace: float) -> None:
        """Closes stdin, then sends SIGTERM and SIGKILL if the process does not exit. `watch` must be cancelled before.

        Stdout is closed as well, because a process that blocks on a full pipe would never read the end of stdin. Stderr
        stays open for messages during shutdown.
        """
        try:
            self.stdin.close()
            self._pipes[0].close()
            if not await self._wait_ended(grace):
                self._request_kill(grace)
                await self._wait_ended(grace + EXIT_REPORT_WAIT)
        finally:
            self.release()

    def release(self) -> None:
        self.stdin.close()
        self._control_writer.close()
        for pipe in self._pipes:
            pipe.close()

    async def _wait_ended(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.watch()
                return True
        return False

    def _request_kill(self, grace: float) -> None:
        self._control_writer.write(f"kill {grace:.3f}\n".encode())


def build_launch(config: StdioServer, host: McpHost) -> LaunchRequest:
    """Returns the launch parameters. The environment contains only basic variables and configured ones, no API keys of
    the engine."""
    environment = child_environment(host.environment, config.env)
    folder = host.workspace / (config.cwd or "")
    return LaunchRequest((config.command, *config.args), environment, folder.absolute())


async def start_server_process(
    config: StdioServer, host: McpHost, spawner: ProcessSpawner
) -> tuple[ServerProcess, asyncio.StreamReader, asyncio.StreamReader]:
    """Starts the process and returns it with its stdout and stderr. Raises ServerFault if it cannot be started."""
    stdin, ends = InputPipe(empty=False), list[int]()
    try:
        ends += os.pipe()
        ends += os.pipe()
        output, their_output, errors, their_errors = ends
        line = await spawner.spawn(build_launch(config, host), stdin.child_end.fileno(), their_output, their_errors)
    except BaseException as error:
        _close_all(stdin, *ends)
        if isinstance(error, ProcessError):
            raise ServerFault(error.message) from error
        raise
    _close_all(stdin.child_end, their_output, their_errors)
    child = ServerProcess(await asyncio.open_connection(sock=line), stdin, host.limits.log)
    try:
        streams = await child.open_pipe(output), await child.open_pipe(errors)
        await child.wait_started(config)
    except BaseException:
        child.release()
        raise
    return child, *streams


def _close_all(*ends: SupportsClose | int) -> None:
    for end in ends:
        if isinstance(end, int):
            os.close(end)
        else:
            end.close()


MAX_QUEUED_MESSAGES = 64  # queued messages to a server; then the sender waits

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]


@asynccontextmanager
async def stdio_transport(
    config: StdioServer, host: McpHost, spawner: ProcessSpawner, life: ConnectionLifetime
) -> AsyncGenerator[tuple[Incoming, Outgoing], None]:
    child, stdout, stderr = await start_server_process(config, host, spawner)
    arriving, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, leaving = anyio.create_memory_object_stream[SessionMessage](MAX_QUEUED_MESSAGES)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child.watch)
            tasks.start_soon(child.collect_log, stderr, TokenBucket(host.limits.bytes_per_second))
            tasks.start_soon(_receive_messages, child, stdout, arriving, host.limits, life)
            tasks.start_soon(_send_messages, child, leaving)
            try:
                yield incoming, outgoing
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await child.close(host.limits.shutdown)
        for stream in (arriving, incoming, outgoing, leaving):
            stream.close()


async def _receive_messages(
    child: ServerProcess,
    stdout: asyncio.StreamReader,
    arriving: MemoryObjectSendStream[SessionMessage | Exception],
    limits: ServerLimits,
    life: ConnectionLifetime,
) -> None:
    """Delivers messages from stdout. Sets the end reason before the session is closed, so that open calls can report
    it."""
    async with arriving:
        try:
            await _deliver_lines(stdout, arriving, limits)
            life.end(await child.describe_end(), has_died=True)
        except ServerFault as fault:
            life.end(fault.message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            life.end("the connection was closed")


async def _deliver_lines(
    stdout: asyncio.StreamReader, arriving: MemoryObjectSendStream[SessionMessage | Exception], limits: ServerLimits
) -> None:
    lines, garbage = LineBuffer(limits), GarbageCounter(limits)
    bytes_pace, message_pace = TokenBucket(limits.bytes_per_second), TokenBucket(limits.messages_per_second)
    while chunk := await stdout.read(READ_SIZE):
        await bytes_pace.spend(len(chunk))
        for line in lines.feed(chunk):
            try:
                message = wire.jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                garbage.add(line)
                continue
            garbage.reset()
            await message_pace.spend(1)
            await arriving.send(SessionMessage(message))


async def _send_messages(child: ServerProcess, leaving: MemoryObjectReceiveStream[SessionMessage]) -> None:
    async with leaving:
        async for item in leaving:
            try:
                await child.stdin.write(item.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n")
            except ProcessError:  # stdin is closed; the end of stdout reports the reason
                return
