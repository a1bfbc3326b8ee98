"""The doorman: the only way out of a sandbox whose network is a list of hosts, and it asks for names.

A confined command has a network of its own with nothing in it but a listening socket, which the warden hands out to the
doorman. To programs inside it is a proxy; they learn of it by the usual variables. Names are resolved out here,
and what was judged is what is reached. It judges the name that is asked for: which site answers behind a shared
address, and what is said there, it cannot see.
"""

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from outrider.processes.sandbox.guests import Guest, Rules
from outrider.processes.sandbox.policy import Hosts

SANDBOXES = 256
GUESTS = 256
AGAIN = 0.1  # seconds


@contextlib.asynccontextmanager
async def open_door(hosts: Sequence[str]) -> AsyncGenerator[Hosts]:
    """A network for policies, for as long as commands run under them.

    A host is a name, or `*.name` for all below it, with `:port` or without, which means 80 and 443."""
    with tempfile.TemporaryDirectory(prefix="outrider-door-") as folder, socket.socket(socket.AF_UNIX) as door:
        path = Path(folder, "door")
        door.bind(str(path))
        door.listen(SANDBOXES)
        door.settimeout(0)
        # No group: it would wrap what the caller raises.
        serving = asyncio.create_task(_receive_sandboxes(door, Rules(hosts)))
        try:
            yield Hosts(path)
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving


async def _receive_sandboxes(door: socket.socket, rules: Rules) -> None:
    room = asyncio.Semaphore(SANDBOXES)
    async with asyncio.TaskGroup() as tasks:
        while True:
            await room.acquire()
            line = await _accept(door)
            if line is None:  # too many open files: it passes
                room.release()
                await asyncio.sleep(AGAIN)
                continue
            tasks.create_task(_serve_sandbox(line, rules)).add_done_callback(lambda _: room.release())


async def _serve_sandbox(line: socket.socket, rules: Rules) -> None:
    """Until the warden, and so the line to it, ends. What else the command sends here leads nowhere new."""
    with line, contextlib.suppress(OSError, ValueError):
        await _readable(line)
        _, descriptors, _, _ = socket.recv_fds(line, 1, 1)
        if not descriptors:
            return
        with socket.socket(fileno=descriptors[0]) as entrance:
            entrance.settimeout(0)
            line.send(b"+")
            async with asyncio.TaskGroup() as tasks:
                welcoming = tasks.create_task(_welcome(entrance, rules))
                await _readable(line)
                welcoming.cancel()


async def _welcome(entrance: socket.socket, rules: Rules) -> None:
    room = asyncio.Semaphore(GUESTS)
    async with asyncio.TaskGroup() as tasks:
        while True:
            await room.acquire()
            connection = await _accept(entrance)
            if connection is None:
                return
            tasks.create_task(Guest(rules).serve(connection)).add_done_callback(lambda _: room.release())


async def _accept(listening: socket.socket) -> socket.socket | None:
    try:
        return (await asyncio.get_running_loop().sock_accept(listening))[0]
    except OSError:
        return None


async def _readable(line: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(line, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(line)
