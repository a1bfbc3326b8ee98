"""Calls MCP tools as an agent does."""

import asyncio

import msgspec

from outrider.tools.runner import ToolRunner
from outrider.tools.tool import ToolContext
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolCompleted, ToolPending


def server_of(servers):
    (server,) = servers.servers.values()
    return server


async def run(servers, tool, *, report=lambda progress: None, timeout=None, **arguments):
    """A call of the tool that has this name at its server; its end."""
    tools = {one.definition.name: one for one in servers.tools()}
    if timeout is not None:
        tools[tool].options = msgspec.structs.replace(tools[tool].options, timeout=timeout)
    return await run_one(tools, tool, report, **arguments)


async def run_one(tools, tool, report=lambda progress: None, **arguments):
    """Through the runner, as an agent does it."""

    async def record(part):
        """Stores nothing."""

    call = ToolPart(call_id="c", tool=tool, state=ToolPending(input=arguments))
    return (await ToolRunner(tools, record).run(call, ToolContext(report=report))).state


async def output_of(servers, tool, **arguments):
    state = await run(servers, tool, **arguments)
    assert isinstance(state, ToolCompleted), state
    return state.output


async def until(condition, seconds=30.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
