"""Calls to servers as an agent makes them."""

import asyncio

from outrider.tools.context import ToolContext
from outrider.tools.runner import Runner
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolCompleted, ToolPending


def server_of(servers):
    (server,) = servers.servers.values()
    return server


async def run(servers, tool, *, report=lambda progress: None, timeout=None, **arguments):
    """One call through the runner, as an agent makes it; its end."""

    async def record(part):
        """Nobody keeps it."""

    tools = {one.definition.name: one for one in servers.tools()}
    if timeout is not None:
        tools[tool].options = tools[tool].options.__class__(timeout=timeout)
    call = ToolPart(call_id="c", tool=tool, state=ToolPending(input=arguments))
    return (await Runner(tools, record).run(call, ToolContext(report=report))).state


async def said(servers, tool, **arguments):
    state = await run(servers, tool, **arguments)
    assert isinstance(state, ToolCompleted), state
    return state.output


async def until(condition, seconds=5.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
