"""Calls the hooks of a run at the right moments of a turn and applies their return values."""

import inspect
import logging
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import msgspec

from outrider.agents.hooks import HookedCall, HookedStop
from outrider.agents.run_context import AgentContext
from outrider.agents.turn_state import TurnEnd
from outrider.tools.tool import Tool
from outrider.types.events import ErrorEvent
from outrider.types.messages import Message
from outrider.types.parts import TextPart, ToolPart
from outrider.types.tool_state import DISPLAY, ToolPending
from outrider.types.validate import is_object

_log = logging.getLogger("outrider.hooks")


class HookRunner:
    """Calls the hooks of a run for one agent. An exception in a hook never ends the turn."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._hooks = context.run.hooks
        self._reported = _turn_start(context.session.messages)

    async def run_before_call(self, call: ToolPart) -> dict[str, Any] | str:
        """Return the input with which the call may run, or a string with the reason for its denial."""
        hook = self._hooks.before_call
        if hook is None:
            return call.state.input
        returned, failure = await self._call_hook("before_call", hook, self._describe_call(call))
        if failure:
            return f"This call was refused: {failure}. It was not run."
        if returned is None:
            return call.state.input
        if isinstance(returned, str):
            return f"This call was refused: {returned}"
        if is_object(returned):
            return returned
        return f"This call was refused: the hook before_call gave a {type(returned).__name__}. It was not run."

    async def run_after_call(self, call: ToolPart, output: str, *, is_error: bool) -> str:
        """Return the result text that the model reads: the output, or the hook's replacement for it."""
        hook = self._hooks.after_call
        if hook is None:
            return output
        returned, _ = await self._call_hook("after_call", hook, self._describe_call(call, output, is_error=is_error))
        return returned if isinstance(returned, str) else output

    async def report_messages(self) -> None:
        """Call `on_message` for each message that was added since the last call of this method."""
        hook, messages = self._hooks.on_message, self._context.session.messages
        if hook is not None:
            for message in messages[self._reported :]:
                await self._call_hook("on_message", hook, message)
        self._reported = len(messages)

    async def continues_after_stop(self, end: TurnEnd) -> bool:
        """Return whether the `on_stop` hook returned text; if so, add it as user message, so that the agent
        continues."""
        text = await self.run_on_stop(end)
        if not isinstance(text, str) or not text.strip():
            return False
        self._context.finish_output = None
        await self._context.journal.add_message(Message("user", [TextPart(text, synthetic=True)]))
        return True

    async def run_on_stop(self, end: TurnEnd) -> Any:
        if self._hooks.on_stop is None:
            return None
        context = self._context
        stop = HookedStop(agent=context.agent.name, session_id=context.session.id, reason=end.reason, output=end.output)
        returned, _ = await self._call_hook("on_stop", self._hooks.on_stop, stop)
        return returned

    async def _call_hook(self, name: str, hook: Callable[[Any], Any], value: Any) -> tuple[Any, str]:
        """Return the value of the hook and "", or None and a description of the exception."""
        try:
            returned = hook(value)
            return (await returned if inspect.isawaitable(returned) else returned), ""
        except Exception as error:  # noqa: BLE001  a hook is the user's own code and may raise anything
            failure = f"the hook {name} failed ({type(error).__name__}: {error})"
            _log.exception("the hook %s failed", name)
            self._context.emit_event(ErrorEvent, error_type="HookFailed", message=failure)
            return None, failure

    def _describe_call(self, call: ToolPart, output: str = "", *, is_error: bool = False) -> HookedCall:
        return HookedCall(
            tool=call.tool,
            input=deepcopy(call.state.input),
            call_id=call.call_id,
            agent=self._context.agent.name,
            session_id=self._context.session.id,
            output=output,
            is_error=is_error,
        )


def _turn_start(messages: list[Message]) -> int:
    """Return the index of the first user message of the current turn."""
    start = len(messages)
    while start and messages[start - 1].role == "user":
        start -= 1
    return start


async def prepare_call(call: ToolPart, tool: Tool, hooks: HookRunner, clock: Callable[[], int]) -> ToolPart:
    """Validate the input of a call and run the `before_call` hook. Returns the call with the input that is then
    checked, shown and run, or an ended call if it may not run.

    A call that awaited its approval across a restart is returned unchanged, because it was prepared before the restart.
    """
    pending = call.state
    if not isinstance(pending, ToolPending) or pending.phase == "awaiting_approval":
        return call
    call = _prepare_input(_mark_display(call, tool), pending, tool, clock)
    if not isinstance(call.state, ToolPending):
        return call
    new_input = await hooks.run_before_call(call)
    if isinstance(new_input, str):
        return call.with_state(call.state.fail(new_input, clock(), reason="denied"))
    return call if new_input == call.state.input else _prepare_input(call, call.state.ready(new_input), tool, clock)


def _mark_display(call: ToolPart, tool: Tool) -> ToolPart:
    """Store how the call is shown in the part: front ends, also remote and later ones, do not have the tool."""
    if tool.stored_display is None:
        return call
    return msgspec.structs.replace(call, metadata={**call.metadata, DISPLAY: tool.stored_display})


def _prepare_input(call: ToolPart, pending: ToolPending, tool: Tool, clock: Callable[[], int]) -> ToolPart:
    try:
        prepared = tool.prepare(pending.input)
    except Exception as error:  # noqa: BLE001  user code may raise anything; the model reads the error and can retry
        message = f"{type(error).__name__}: {error}"
        return call.with_state(pending.fail(message, clock(), reason="invalid_input"))
    return call if prepared == call.state.input else call.update_state(pending.ready(prepared))
