"""A call before it is decided on: its tool prepares the input, a hook may change it or refuse."""

from collections.abc import Callable

from outrider.agents.hooking.hooked import Hooked
from outrider.tools.tool import Tool
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolPending


async def prepare(call: ToolPart, tool: Tool, hooked: Hooked, clock: Callable[[], int]) -> ToolPart:
    """The call with the input that is decided on, shown and run; it comes back ended if it may not run at all.

    One that waits for an answer since before a restart is asked about as it stands: it was prepared then."""
    pending = call.state
    if not isinstance(pending, ToolPending) or pending.phase == "awaiting_approval":
        return call
    call = _prepared(call, pending, tool, clock)
    if not isinstance(call.state, ToolPending):
        return call
    said = await hooked.before(call)
    if isinstance(said, str):
        return call.with_state(call.state.fail(said, clock(), reason="denied"))
    return call if said == call.state.input else _prepared(call, call.state.ready(said), tool, clock)


def _prepared(call: ToolPart, pending: ToolPending, tool: Tool, clock: Callable[[], int]) -> ToolPart:
    try:
        prepared = tool.prepare(pending.input)
    except Exception as error:  # noqa: BLE001  a tool's own code, and the model should know
        words = f"{type(error).__name__}: {error}"
        return call.with_state(pending.fail(words, clock(), reason="invalid_input"))
    return call if prepared == call.state.input else call.update_state(pending.ready(prepared))
