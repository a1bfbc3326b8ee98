"""What runs beside the conversation: agents that were called, processes in the background, and what is to be done."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    Event,
    ProcessExitedEvent,
    ProcessStartedEvent,
    StateChangedEvent,
    ToolApprovalRequestedEvent,
    ToolExecutionStartedEvent,
)
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolCompleted

AgentState = Literal["working", "asking", "done", "failed"]
MOST = 12  # of each kind that has ended


class ChildAgent(msgspec.Struct):
    call_id: str
    name: str
    message: str
    session_id: str
    since: float
    state: AgentState = "working"
    doing: str = "starting"
    seconds: float = 0.0


class ChildProcess(msgspec.Struct):
    id: str
    command: str
    since: float
    backgrounded: bool = False
    ended: str = ""


class Todo(msgspec.Struct, frozen=True):
    content: str
    status: str = "pending"


class Beside:
    """Fed with every event that concerns the session or a session that it opened."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.agents: dict[str, ChildAgent] = {}  # by the id of their sessions
        self.processes: dict[str, ChildProcess] = {}
        self.todos: tuple[Todo, ...] = ()

    def knows(self, session_id: str) -> bool:
        return session_id in self.agents

    def hear(self, event: Event) -> None:
        match event:
            case AgentCalledEvent():
                self.agents[event.child_session_id] = ChildAgent(
                    event.call_id, event.callee, event.message, event.child_session_id, self._clock()
                )
                _forget(self.agents, lambda agent: agent.state in {"done", "failed"})
            case AgentReturnedEvent() if event.child_session_id in self.agents:
                agent = self.agents[event.child_session_id]
                agent.state = "done" if event.success else "failed"
                agent.doing, agent.seconds = "", self._clock() - agent.since
            case ProcessStartedEvent():
                self.processes[event.process_id] = ChildProcess(event.process_id, event.command, self._clock())
                _forget(self.processes, lambda process: bool(process.ended))
            case ProcessExitedEvent() if event.process_id in self.processes:
                code = event.exit_code
                self.processes[event.process_id].ended = event.signal or ("exited" if code == 0 else f"exit {code}")
            case _:
                self._hear_child(event)

    def see(self, part: ToolPart) -> None:
        """A todo list that a call has left, and commands that it left running."""
        state = part.state
        if not isinstance(state, ToolCompleted):
            return
        if isinstance(todos := state.metadata.get("todos"), list | tuple):
            self.todos = msgspec.convert(todos, tuple[Todo, ...], strict=False)
        process = self.processes.get(str(state.metadata.get("process_id", "")))
        if process is not None:
            process.backgrounded = bool(state.metadata.get("running"))

    def running(self) -> list[ChildProcess]:
        """Commands that nobody waits for; those in the foreground are seen in the conversation."""
        return [process for process in self.processes.values() if process.backgrounded]

    def _hear_child(self, event: Event) -> None:
        agent = self.agents.get(event.session_id)
        if agent is None or agent.state in {"done", "failed"}:
            return
        match event:
            case ToolExecutionStartedEvent():
                agent.state, agent.doing = "working", event.tool_name
            case ToolApprovalRequestedEvent():
                agent.state, agent.doing = "asking", event.tool_name
            case StateChangedEvent(new_state="calling_model"):
                agent.state, agent.doing = "working", "thinking"
            case _:
                pass


def _forget(known: dict[str, Any], ended: Callable[[Any], bool]) -> None:
    over = [key for key, value in known.items() if ended(value)]
    for key in over[: max(len(over) - MOST, 0)]:
        del known[key]
