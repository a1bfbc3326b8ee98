"""Commands that people run in a session themselves: their output as it comes, then how they ended."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

import msgspec

from outrider.engine.engine import Engine
from outrider.engine.frontend import (
    CallPreview,
    OutputSlice,
    ProcessStatus,
    ToolSpec,
    call_by_hand,
    denying_rule,
    end_process,
    look_at_call,
    output_of,
    run_by_hand,
    running,
    send_input,
    send_to_background,
    tools_of_session,
)
from outrider.engine.undo_history import Restored
from outrider.errors import OutriderError, ProcessError, ToolFailure
from outrider.server.event_stream import HEARTBEAT
from outrider.server.routes.sessions import ONE
from outrider.server.routing import Asked, Endpoint, Nothing, Number, Stream
from outrider.types.parts import ToolPart

WAITING = 1024 * 1024  # characters that a slow client may be behind; more than a command of a person is read for
MOMENT = 0.03  # seconds; what comes within is sent in one piece
SILENCE = 15.0  # seconds, after which a client hears that the command goes on
LEFT_OUT = "\n[some output was left out here]\n"

_encode = msgspec.json.encode


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line for the shell, run in the session's workspace. Nobody is asked, since whoever sends it wrote it; what the
    server's rules deny is denied to everybody."""

    command: Annotated[str, msgspec.Meta(min_length=1, max_length=100_000)]


async def run_command(asked: Asked[Nothing, Command]) -> Stream:
    session_id = asked.path["session_id"]
    await asked.engine.open(session_id)
    if asked.engine.live[session_id].toolbox is None:
        raise ProcessError("this server runs no commands")
    if rule := await denying_rule(asked.engine, session_id, asked.body.command):
        raise ToolFailure(f"a rule of the server denies this command: {rule}")
    return Stream(_framed(asked.engine, session_id, asked.body.command))


async def _framed(engine: Engine, session_id: str, command: str) -> AsyncGenerator[bytes, None]:
    """Whoever stops listening ends the command: it was theirs."""
    output = _Output()
    running = asyncio.create_task(run_by_hand(engine, session_id, command, output.put))
    running.add_done_callback(lambda _: output.end())
    try:
        yield HEARTBEAT
        while (text := await output.take()) is not None:
            yield b"event: output\ndata: %b\n\n" % _encode({"text": text}) if text else HEARTBEAT
        yield b"event: ended\ndata: %b\n\n" % _encode({"words": _ending(running)})
    finally:
        running.cancel()
        await asyncio.wait([running])


def _ending(running: asyncio.Task[str]) -> str:
    error = running.exception()
    if isinstance(error, OutriderError):
        return error.message
    return running.result()


class _Output:
    """What a command wrote and nobody has taken yet: bounded, and the oldest goes first."""

    def __init__(self) -> None:
        self._pieces: deque[str] = deque()
        self._size = 0
        self._over = False
        self._left_out = False
        self._news = asyncio.Event()

    def put(self, text: str) -> None:
        self._pieces.append(text[-WAITING:])
        self._size += len(self._pieces[-1])
        while self._size > WAITING:
            self._size -= len(self._pieces.popleft())
            self._left_out = True
        self._news.set()

    def end(self) -> None:
        self._over = True
        self._news.set()

    async def take(self) -> str | None:
        """All that has come; "" where nothing came for long, None at the end."""
        try:
            async with asyncio.timeout(SILENCE):
                await self._news.wait()
        except TimeoutError:
            return ""
        if not self._over:
            await asyncio.sleep(MOMENT)
        if not self._over:
            self._news.clear()
        return self._taken() or (None if self._over else "")

    def _taken(self) -> str:
        text = (LEFT_OUT if self._left_out else "") + "".join(self._pieces)
        self._pieces.clear()
        self._size, self._left_out = 0, False
        return text


BY_HAND = (
    Endpoint(method="POST", path=f"{ONE}/commands", name="run_command", summary="Run a command of one's own",
             answer=run_command, body=Command, gives="text/event-stream"),
)  # fmt: skip


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tool: str
    input: dict[str, Any] = {}


class Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Text for a process; `last` closes its input afterwards."""

    text: str
    last: bool = False


class OutputQuery(msgspec.Struct, frozen=True):
    """From byte `offset` on; without it, the end."""

    offset: Number | None = None


class Done(msgspec.Struct, frozen=True):
    """False where there was nothing to do any more."""

    done: bool


async def tools(asked: Asked[Nothing, Nothing]) -> list[ToolSpec]:
    return list(await tools_of_session(asked.engine, asked.path["session_id"]))


async def look(asked: Asked[Nothing, Call]) -> CallPreview:
    return await look_at_call(asked.engine, asked.path["session_id"], asked.body.tool, asked.body.input)


async def call(asked: Asked[Nothing, Call]) -> ToolPart:
    return await call_by_hand(asked.engine, asked.path["session_id"], asked.body.tool, asked.body.input)


async def list_processes(asked: Asked[Nothing, Nothing]) -> list[ProcessStatus]:
    await asked.engine.store.get(asked.path["session_id"])
    return running(asked.engine, asked.path["session_id"])


async def read_output(asked: Asked[OutputQuery, Nothing]) -> OutputSlice:
    return output_of(asked.engine, asked.path["session_id"], asked.path["process_id"], asked.query.offset)


async def write_input(asked: Asked[Nothing, Given]) -> None:
    given = asked.body
    await send_input(asked.engine, asked.path["session_id"], asked.path["process_id"], given.text, last=given.last)


async def background(asked: Asked[Nothing, Nothing]) -> Done:
    return Done(send_to_background(asked.engine, asked.path["session_id"], asked.path["process_id"]))


async def kill(asked: Asked[Nothing, Nothing]) -> Done:
    return Done(await end_process(asked.engine, asked.path["session_id"], asked.path["process_id"]))


PROCESS = f"{ONE}/processes/{{process_id}}"
WORK = (
    Endpoint(method="GET", path=f"{ONE}/tools", name="tools", summary="The tools that the session's agent has",
             answer=tools, gives=list[ToolSpec]),
    Endpoint(method="POST", path=f"{ONE}/calls/look", name="look_at_call", summary="What would run, and whether it may",
             answer=look, body=Call, gives=CallPreview),
    Endpoint(method="POST", path=f"{ONE}/calls", name="call", summary="Call a tool by hand",
             answer=call, body=Call, gives=ToolPart),
    Endpoint(method="GET", path=f"{ONE}/processes", name="list_processes", summary="Processes of the session",
             answer=list_processes, gives=list[ProcessStatus]),
    Endpoint(method="GET", path=f"{PROCESS}/output", name="read_output", summary="A piece of a process's output",
             answer=read_output, query=OutputQuery, gives=OutputSlice),
    Endpoint(method="POST", path=f"{PROCESS}/input", name="write_input", summary="Write to a process",
             answer=write_input, body=Given, status=204),
    Endpoint(method="POST", path=f"{PROCESS}/background", name="background", summary="Move a command to the background",
             answer=background, gives=Done),
    Endpoint(method="POST", path=f"{PROCESS}/kill", name="kill", summary="End a process and all it started",
             answer=kill, gives=Done),
)  # fmt: skip


class LookQuery(msgspec.Struct, frozen=True):
    """`to` is a message or a call: everything from there on; without it, the last turn."""

    direction: Literal["undo", "redo"] = "undo"
    to: str | None = None


class Restore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`doubtful` takes along files that perhaps no agent changed."""

    direction: Literal["undo", "redo"]
    to: str | None = None
    doubtful: bool = False


async def look_files(asked: Asked[LookQuery, Nothing]) -> Restored:
    changes = asked.engine.file_changes(asked.path["session_id"])
    return await changes.preview(asked.query.direction, to=asked.query.to)


async def restore(asked: Asked[Nothing, Restore]) -> Restored:
    changes, wanted = asked.engine.file_changes(asked.path["session_id"]), asked.body
    if wanted.direction == "undo":
        return await changes.undo(wanted.to, doubtful=wanted.doubtful)
    return await changes.redo(doubtful=wanted.doubtful)


FILES = (
    Endpoint(method="GET", path=f"{ONE}/files", name="look_at_files", summary="What an undo or redo would do",
             answer=look_files, query=LookQuery, gives=Restored),
    Endpoint(method="POST", path=f"{ONE}/files", name="restore_files", summary="Undo or redo changes of files",
             answer=restore, body=Restore, gives=Restored),
)  # fmt: skip
