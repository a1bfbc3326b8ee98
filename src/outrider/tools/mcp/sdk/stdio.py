"""The SDK's transport over a program's standard input and output, with bounds that the SDK's own does not have."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import mcp_types as wire
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from outrider.errors import ProcessError
from outrider.processes.guards.spawner import Spawner
from outrider.tools.mcp.config import Limits, StdioServer
from outrider.tools.mcp.faults import ServerFault
from outrider.tools.mcp.link import Host, Life
from outrider.tools.mcp.sdk.child import BUFFER, Child, start_child
from outrider.tools.mcp.sdk.framing import Garbage, Lines, Pace

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
