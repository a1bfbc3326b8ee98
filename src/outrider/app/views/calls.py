"""Calls that somebody makes by hand: looked at before they run, and run as if an agent had made them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from outrider.agents.calls import Calls
from outrider.agents.crew import Seat
from outrider.agents.seating import take_seat
from outrider.app.approvals.gate import AskingGate
from outrider.app.engine import Engine
from outrider.app.live import LiveSession
from outrider.errors import ToolFailure
from outrider.permissions.decision import Decision
from outrider.sessions.session import Session
from outrider.tools.tool import Tool
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.parts import TextPart, ToolPart
from outrider.types.request import ToolSpec
from outrider.types.tool_state import ToolPending

__all__ = ["Decision", "Looked", "ToolSpec", "call_by_hand", "denying_rule", "look_at_call", "tools_of_session"]


class Looked(msgspec.Struct, frozen=True):
    """The input as it would run, and what the rules say to it."""

    input: dict[str, Any]
    decision: Decision


async def tools_of_session(engine: Engine, session_id: str) -> Sequence[ToolSpec]:
    """The tools that the session's agent has in its mode."""
    return (await _seat(engine, session_id))[0].specs


async def look_at_call(engine: Engine, session_id: str, tool: str, given: dict[str, Any]) -> Looked:
    """Nothing runs, and nobody is asked."""
    seat, _ = await _seat(engine, session_id)
    found = _find(seat, tool)
    prepared = found.prepare(given)
    gate = seat.crew.gate
    assert isinstance(gate, AskingGate)
    return Looked(prepared, gate.decide(_call(tool, prepared), found, seat))


async def call_by_hand(engine: Engine, session_id: str, tool: str, given: dict[str, Any]) -> ToolPart:
    """Runs in a session of its own below the one that is named, so that a turn under way there is not disturbed. Rules
    and approvals hold as for an agent; the ended call comes back, and its `session_id` says where it is kept."""
    seat, live = await _seat(engine, session_id)
    _find(seat, tool)
    parent = live.journal.session
    child = Session(
        title=f"{tool} by hand",
        workspace_directory=parent.workspace_directory,
        mode=parent.mode,
        agent=parent.agent,
        parent_id=parent.id,
    )
    async with await seat.crew.open_journal(child) as journal:
        own = take_seat(seat.agent, journal, seat.crew)
        await journal.add_message(Message("user", [TextPart(f"{tool}, called by hand", synthetic=True)]))
        message = Message("assistant", [_call(tool, given)], agent=seat.agent.name)
        await journal.add_message(message)
        (ended,) = await Calls(own, seat.crew).run(message)
    return ended


async def denying_rule(engine: Engine, session_id: str, command: str) -> str | None:
    """The rule that denies a command also to people who would run it themselves; None if there is none."""
    from outrider.permissions.policy import decide  # with the first command: a shell's grammar takes long to load

    seat, _ = await _seat(engine, session_id)
    deny = (*engine.staff.rules.deny, *seat.deny)
    found = decide("shell", {"command": command}, mode="agent", deny=deny, workspace=seat.workspace)
    return found.rule if found.effect == "deny" else None


async def _seat(engine: Engine, session_id: str) -> tuple[Seat, LiveSession]:
    await engine.open(session_id)
    live = engine.live[session_id]
    return live.visitor(), live


def _find(seat: Seat, tool: str) -> Tool:
    if tool not in seat.tools:
        raise ToolFailure(f"there is no tool {tool!r} here; there are {', '.join(sorted(seat.tools)) or 'none'}")
    return seat.tools[tool]


def _call(tool: str, given: dict[str, Any]) -> ToolPart:
    return ToolPart(call_id=new_id(), tool=tool, state=ToolPending(given, phase="ready"))
