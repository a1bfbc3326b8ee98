"""The gate that a run's calls pass: a tool's own policy, and somebody to ask where it says ask."""

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from outrider.agents.crew import Seat, Verdict
from outrider.bus import EventBus
from outrider.tools.tool import Tool
from outrider.types.events import ToolApprovalRequestedEvent, ToolApprovalResultEvent
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolPending

NOBODY_THERE = (
    "This call needs an approval, and nobody is there to give it. It was not run. Go on without it or say so."
)
POLICY_DENIES = "This tool does not allow this call. It was not run."


class ApprovalRequest(msgspec.Struct, frozen=True):
    """A question about one exact call: what is shown here is what would run."""

    tool: str
    input: dict[str, Any]
    call_id: str
    agent: str
    session_id: str
    description: str = ""


Approve = Callable[[ApprovalRequest], Any]
"""Plain or async; True or False, or a string: a no with this word to the model."""


class PolicyGate:
    """Passing one's own function to a run is consent: it runs unasked unless its policy says otherwise."""

    def __init__(self, bus: EventBus, approve: Approve | None) -> None:
        self._bus = bus
        self._approve = approve

    async def admit(self, call: ToolPart, tool: Tool, seat: Seat) -> Verdict:
        match tool.policy_for(call.state.input):
            case "allow":
                return Verdict(True)  # noqa: FBT003
            case "deny":
                return Verdict(False, "denied", POLICY_DENIES)  # noqa: FBT003
            case "ask":
                return await self._ask(call, tool, seat)

    async def _ask(self, call: ToolPart, tool: Tool, seat: Seat) -> Verdict:
        if self._approve is None:
            return Verdict(False, "denied", NOBODY_THERE)  # noqa: FBT003
        if isinstance(call.state, ToolPending):
            message = next(message for message in reversed(seat.session.messages) if message.find_call(call.call_id))
            await seat.journal.put_part(call.update_state(call.state.await_approval()), message)
        request = ApprovalRequest(
            call.tool, call.state.input, call.call_id, seat.agent.name, seat.session.id, tool.description
        )
        self._bus.publish(
            seat.labelled(
                ToolApprovalRequestedEvent,
                call_id=call.call_id,
                tool_name=call.tool,
                description=tool.description,
                tool_input=call.state.input,
            )
        )
        answer = self._approve(request)
        answer = await answer if inspect.isawaitable(answer) else answer
        approved = answer is True
        self._bus.publish(
            seat.labelled(ToolApprovalResultEvent, call_id=call.call_id, tool_name=call.tool, approved=approved)
        )
        words = f"The user said no: {answer}" if isinstance(answer, str) else "The user said no."
        return Verdict(approved, "" if approved else "rejected", "" if approved else words)
