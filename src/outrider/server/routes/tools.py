"""Endpoints for shell commands of users, tool calls and processes."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import msgspec

from outrider.engine.engine import Engine
from outrider.engine.frontend import (
    CallPreview,
    OutputSlice,
    ProcessStatus,
    ToolSpec,
    UserCommandEnd,
    denying_rule,
    end_process,
    list_processes,
    preview_call,
    read_process_output,
    run_manual_call,
    run_user_command,
    send_input,
    send_to_background,
    session_tool_specs,
)
from outrider.errors import OutriderError, ProcessError, ToolFailure
from outrider.server.endpoint import ApiEndpoint, NonNegativeInt, NoPayload, RouteRequest, SseResponse
from outrider.server.event_stream import HEARTBEAT
from outrider.server.routes.sessions import SESSION_PATH
from outrider.server.users import AccessDeniedError
from outrider.types.parts import ToolPart

MAX_BUFFERED_CHARS = 1024 * 1024  # characters that are buffered for a slow client
BATCH_SECONDS = 0.03  # output is collected for this long and sent in one event
KEEPALIVE_SECONDS = 15.0  # seconds of silence before a keepalive comment is sent
TRUNCATION_NOTE = "\n[some output was left out here]\n"

_encode = msgspec.json.encode


class CommandRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shell command line, run in the session's workspace. It needs no approval, because a user wrote it; deny rules
    of the server apply."""

    command: Annotated[str, msgspec.Meta(min_length=1, max_length=100_000)]


async def run_command(request: RouteRequest[NoPayload, CommandRequest]) -> SseResponse:
    session_id = request.path["session_id"]
    await request.engine.open(session_id)
    if request.engine.live[session_id].session_tools is None:
        raise ProcessError("commands are disabled on this server")
    if rule := await denying_rule(request.engine, session_id, request.body.command):
        raise ToolFailure(f"a deny rule of the server matches this command: {rule}")
    return SseResponse(_stream_command(request.engine, session_id, request.body.command), (session_id,))


async def _stream_command(engine: Engine, session_id: str, command: str) -> AsyncGenerator[bytes, None]:
    """Streams the output. When the client disconnects, the command is cancelled."""
    output = _OutputBuffer()
    command_task = asyncio.create_task(run_user_command(engine, session_id, command, output.append_text))
    command_task.add_done_callback(lambda _: output.close())
    try:
        yield HEARTBEAT
        while (text := await output.next_text()) is not None:
            yield b"event: output\ndata: %b\n\n" % _encode({"text": text}) if text else HEARTBEAT
        yield b"event: ended\ndata: %b\n\n" % _encode(_command_end(command_task))
    finally:
        command_task.cancel()
        await asyncio.wait([command_task])


def _command_end(command_task: asyncio.Task[UserCommandEnd]) -> UserCommandEnd:
    error = command_task.exception()
    return UserCommandEnd(error.message) if isinstance(error, OutriderError) else command_task.result()


class _OutputBuffer:
    """Output that was not sent yet; at the limit the oldest text is dropped."""

    def __init__(self) -> None:
        self._chunks: deque[str] = deque()
        self._size = 0
        self._closed = False
        self._truncated = False
        self._changed = asyncio.Event()

    def append_text(self, text: str) -> None:
        self._chunks.append(text[-MAX_BUFFERED_CHARS:])
        self._size += len(self._chunks[-1])
        while self._size > MAX_BUFFERED_CHARS:
            self._size -= len(self._chunks.popleft())
            self._truncated = True
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    async def next_text(self) -> str | None:
        """Returns all buffered text; "" after KEEPALIVE_SECONDS without output, None at the end."""
        try:
            async with asyncio.timeout(KEEPALIVE_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            return ""
        if not self._closed:
            await asyncio.sleep(BATCH_SECONDS)
        if not self._closed:
            self._changed.clear()
        return self._drain_text() or (None if self._closed else "")

    def _drain_text(self) -> str:
        text = (TRUNCATION_NOTE if self._truncated else "") + "".join(self._chunks)
        self._chunks.clear()
        self._size, self._truncated = 0, False
        return text


COMMAND_ROUTES = (
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/commands", name="run_command",
                summary="Run a shell command of the user", starts_work=True, handler=run_command, body=CommandRequest,
                response_type="text/event-stream"),
)  # fmt: skip


class ToolCallRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tool: str
    input: dict[str, Any] = {}


class ProcessInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Text for the stdin of a process; `last` closes stdin afterwards."""

    text: str
    last: bool = False


class OutputQuery(msgspec.Struct, frozen=True):
    """Reads from byte `offset`; without it, the end of the output."""

    offset: NonNegativeInt | None = None


class ActionResult(msgspec.Struct, frozen=True):
    """`done` is False if there was nothing to do."""

    done: bool


async def list_tools(request: RouteRequest[NoPayload, NoPayload]) -> list[ToolSpec]:
    if not await request.may_open():
        raise AccessDeniedError("this session is not open, and only a user with write access can open it")
    return list(await session_tool_specs(request.engine, request.path["session_id"]))


async def preview_tool_call(request: RouteRequest[NoPayload, ToolCallRequest]) -> CallPreview:
    return await preview_call(request.engine, request.path["session_id"], request.body.tool, request.body.input)


async def call_tool(request: RouteRequest[NoPayload, ToolCallRequest]) -> ToolPart:
    return await run_manual_call(request.engine, request.path["session_id"], request.body.tool, request.body.input)


async def get_processes(request: RouteRequest[NoPayload, NoPayload]) -> list[ProcessStatus]:
    await request.engine.store.get(request.path["session_id"])
    return list_processes(request.engine, request.path["session_id"])


async def read_output(request: RouteRequest[OutputQuery, NoPayload]) -> OutputSlice:
    return read_process_output(
        request.engine, request.path["session_id"], request.path["process_id"], request.query.offset
    )


async def write_input(request: RouteRequest[NoPayload, ProcessInput]) -> None:
    body = request.body
    await send_input(request.engine, request.path["session_id"], request.path["process_id"], body.text, last=body.last)


async def move_to_background(request: RouteRequest[NoPayload, NoPayload]) -> ActionResult:
    return ActionResult(send_to_background(request.engine, request.path["session_id"], request.path["process_id"]))


async def kill_process(request: RouteRequest[NoPayload, NoPayload]) -> ActionResult:
    return ActionResult(await end_process(request.engine, request.path["session_id"], request.path["process_id"]))


PROCESS_PATH = f"{SESSION_PATH}/processes/{{process_id}}"
TOOL_ROUTES = (
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/tools", name="tools",
                summary="List the tools of the session's agent", handler=list_tools, response_type=list[ToolSpec]),
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/calls/look", name="look_at_call",
                summary="Preview a call and its permission decision", handler=preview_tool_call, body=ToolCallRequest,
                response_type=CallPreview),
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/calls", name="call", summary="Call a tool manually",
                starts_work=True, handler=call_tool, body=ToolCallRequest, response_type=ToolPart),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/processes", name="list_processes",
                summary="List the session's processes", handler=get_processes, response_type=list[ProcessStatus]),
    ApiEndpoint(method="GET", path=f"{PROCESS_PATH}/output", name="read_output", summary="Read output of a process",
                handler=read_output, query=OutputQuery, response_type=OutputSlice),
    ApiEndpoint(method="POST", path=f"{PROCESS_PATH}/input", name="write_input",
                summary="Write to the stdin of a process", handler=write_input, body=ProcessInput, status=204),
    ApiEndpoint(method="POST", path=f"{PROCESS_PATH}/background", name="background",
                summary="Move a running command to the background", handler=move_to_background,
                response_type=ActionResult),
    ApiEndpoint(method="POST", path=f"{PROCESS_PATH}/kill", name="kill", summary="Kill a process and its children",
                handler=kill_process, response_type=ActionResult),
)  # fmt: skip
