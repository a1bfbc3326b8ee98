"""The hooks of a run at work for one seat: what they say counts, what they do wrong hurts nobody."""

import inspect
import logging
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from outrider.agents.hooks import HookedCall, HookedStop
from outrider.agents.run_context import AgentContext, RunContext
from outrider.agents.turn_state import TurnEnd
from outrider.tools.tool import Tool
from outrider.types.events import ErrorEvent
from outrider.types.messages import Message
from outrider.types.parts import TextPart, ToolPart
from outrider.types.tool_state import ToolPending
from outrider.types.validate import is_object

_log = logging.getLogger("outrider.hooks")


class HookRunner:
    def __init__(self, seat: AgentContext, crew: RunContext) -> None:
        self._seat = seat
        self._hooks = crew.hooks
        self._told = _first_of_turn(seat.session.messages)

    async def before(self, call: ToolPart) -> dict[str, Any] | str:
        """The input with which the call may run, or why it may not."""
        hook = self._hooks.before_call
        if hook is None:
            return call.state.input
        said, failure = await self._ask("before_call", hook, self._seen(call))
        if failure:
            return f"This call was refused: {failure}. It was not run."
        if said is None:
            return call.state.input
        if isinstance(said, str):
            return f"This call was refused: {said}"
        if is_object(said):
            return said
        return f"This call was refused: the hook before_call gave a {type(said).__name__}. It was not run."

    async def after(self, call: ToolPart, output: str, *, is_error: bool) -> str:
        """What the model will read as the call's result."""
        hook = self._hooks.after_call
        if hook is None:
            return output
        said, _ = await self._ask("after_call", hook, self._seen(call, output, is_error=is_error))
        return said if isinstance(said, str) else output

    async def messages(self) -> None:
        """Tell of the messages that came since the last time."""
        hook, messages = self._hooks.on_message, self._seat.session.messages
        if hook is not None:
            for message in messages[self._told :]:
                await self._ask("on_message", hook, message)
        self._told = len(messages)

    async def sends_on(self, end: TurnEnd) -> bool:
        """Whether an agent that is done is to go on; the reason is then the last message of its session."""
        words = await self.stopped(end)
        if not isinstance(words, str) or not words.strip():
            return False
        self._seat.finished = None
        await self._seat.journal.add_message(Message("user", [TextPart(words, synthetic=True)]))
        return True

    async def stopped(self, end: TurnEnd) -> Any:
        if self._hooks.on_stop is None:
            return None
        seat = self._seat
        stop = HookedStop(agent=seat.agent.name, session_id=seat.session.id, reason=end.reason, output=end.output)
        said, _ = await self._ask("on_stop", self._hooks.on_stop, stop)
        return said

    async def _ask(self, name: str, hook: Callable[[Any], Any], value: Any) -> tuple[Any, str]:
        """What the hook said, or why it failed."""
        try:
            said = hook(value)
            return (await said if inspect.isawaitable(said) else said), ""
        except Exception as error:  # noqa: BLE001  a hook is the user's own code and may raise anything
            failure = f"the hook {name} failed ({type(error).__name__}: {error})"
            _log.exception("the hook %s failed", name)
            self._seat.tell(ErrorEvent, error_type="HookFailed", message=failure)
            return None, failure

    def _seen(self, call: ToolPart, output: str = "", *, is_error: bool = False) -> HookedCall:
        return HookedCall(
            tool=call.tool,
            input=deepcopy(call.state.input),
            call_id=call.call_id,
            agent=self._seat.agent.name,
            session_id=self._seat.session.id,
            output=output,
            is_error=is_error,
        )


def _first_of_turn(messages: list[Message]) -> int:
    """Where the input begins that the turn is about to work on."""
    start = len(messages)
    while start and messages[start - 1].role == "user":
        start -= 1
    return start


async def prepare(call: ToolPart, tool: Tool, hooked: HookRunner, clock: Callable[[], int]) -> ToolPart:
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
