"""A run as a stream of few, plain events: what was said, called and answered, by whom."""

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    ErrorEvent,
    Event,
    LoopCompletedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
)
from outrider.types.parts import ToolPart, tool_result
from outrider.types.tool_state import ToolPending

StreamKind = Literal["token", "reasoning", "tool_call", "tool_result", "agent_call", "agent_return", "finish", "error"]
_DELEGATES = ("call_agent", "finish")


class StreamEvent(msgspec.Struct, frozen=True):
    """`data` by type: token and reasoning {text}; tool_call {call_id, tool, input}; tool_result {call_id, tool,
    output, is_error}; agent_call {call_id, agent_name, message}; agent_return {call_id, agent_name, output};
    finish {output}; error {type, message}."""

    type: StreamKind
    agent_name: str
    data: dict[str, Any]


class Translator:
    """Bus events into stream events. Part updates do not name their agent, so sessions are remembered."""

    def __init__(self) -> None:
        self._agents: dict[str, str] = {}
        self._shown: set[str] = set()
        self._failed: dict[str, ErrorEvent] = {}

    def translate(self, event: Event) -> Iterator[StreamEvent]:
        if event.agent_name:
            self._agents[event.session_id] = event.agent_name
        agent = self._agents.get(event.session_id, "")
        match event:
            case PartDeltaEvent():
                yield StreamEvent("reasoning" if event.field == "reasoning" else "token", agent, {"text": event.delta})
            case PartUpdatedEvent(part=ToolPart() as part) if part.tool not in _DELEGATES:
                yield from self._call(part, agent)
            case AgentCalledEvent():
                data = {"call_id": event.call_id, "agent_name": event.callee, "message": event.message}
                yield StreamEvent("agent_call", agent, data)
            case AgentReturnedEvent():
                data = {"call_id": event.call_id, "agent_name": event.callee, "output": event.output}
                yield StreamEvent("agent_return", agent, data)
            case ErrorEvent():
                self._failed[event.session_id] = event
            case LoopCompletedEvent():
                yield self._end(event, agent)
            case _:
                pass

    def _call(self, part: ToolPart, agent: str) -> Iterator[StreamEvent]:
        if part.id not in self._shown and not (isinstance(part.state, ToolPending) and part.state.phase == "streaming"):
            self._shown.add(part.id)
            data = {"call_id": part.call_id, "tool": part.tool, "input": part.state.input}
            yield StreamEvent("tool_call", agent, data)
        result = tool_result(part)
        if result is not None:
            said = {"output": result.content, "is_error": result.is_error}
            yield StreamEvent("tool_result", agent, {"call_id": part.call_id, "tool": part.tool, **said})

    def _end(self, event: LoopCompletedEvent, agent: str) -> StreamEvent:
        error = self._failed.get(event.session_id)
        if error is not None and event.termination_reason == "error":
            return StreamEvent("error", agent, {"type": error.error_type, "message": error.message})
        return StreamEvent("finish", agent, {"output": event.output})
