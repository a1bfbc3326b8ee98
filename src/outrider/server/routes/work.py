"""What goes on in a session besides its turns: calls by hand, and processes."""

from typing import Any

import msgspec

from outrider.app.views.calls import Looked, ToolSpec, call_by_hand, look_at_call, tools_of_session
from outrider.app.views.commands import (
    OutputSlice,
    ProcessStatus,
    end_process,
    output_of,
    running,
    send_input,
    send_to_background,
)
from outrider.server.endpoint import Asked, Endpoint, Nothing, Number
from outrider.server.routes.sessions import ONE
from outrider.types.parts import ToolPart


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


async def look(asked: Asked[Nothing, Call]) -> Looked:
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
             answer=look, body=Call, gives=Looked),
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
