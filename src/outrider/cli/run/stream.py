"""The events of `stream-json`: few, plain and stable, whatever becomes of the ones inside."""

from collections.abc import Iterator
from typing import Any

from outrider.cli.run.result import usage_dict
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    BudgetExceededEvent,
    ContextCompactionEvent,
    ErrorEvent,
    Event,
    LLMResponseEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    RetryScheduledEvent,
    ToolOutputEvent,
)
from outrider.types.parts import TextPart, ToolPart, tool_result
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending

Line = dict[str, Any]


class Lines:
    """Part updates do not name their agent, and come more than once, so both are remembered."""

    def __init__(self) -> None:
        self._agents: dict[str, str] = {}
        self._called: set[str] = set()
        self._said: set[str] = set()

    def of(self, event: Event) -> Iterator[Line]:
        if event.agent_name:
            self._agents[event.session_id] = event.agent_name
        for kind, fields in self._made_of(event):
            agent = self._agents.get(event.session_id, "")
            yield {"type": kind, "session_id": event.session_id, "agent": agent, "time": event.timestamp, **fields}

    def _made_of(self, event: Event) -> Iterator[tuple[str, Line]]:
        match event:
            case PartDeltaEvent():
                self._said.add(event.part_id)
                yield event.field, {"text": event.delta}
            case PartUpdatedEvent(part=ToolPart() as call):
                yield from self._call(call)
            case PartUpdatedEvent(part=TextPart() as part) if self._is_whole(part):
                self._said.add(part.id)
                yield "text", {"text": part.text}
            case _:
                yield from _told(event)

    def _call(self, call: ToolPart) -> Iterator[tuple[str, Line]]:
        named: Line = {"call_id": call.call_id, "tool": call.tool}
        state = call.state
        if call.id not in self._called and not (isinstance(state, ToolPending) and state.phase == "streaming"):
            self._called.add(call.id)
            yield "tool_call", {**named, "input": state.input}
        result = tool_result(call)
        if result is not None and isinstance(state, ToolCompleted | ToolError):
            reason = state.reason if isinstance(state, ToolError) else None
            took = state.time.end - state.time.start
            ended = {"output": result.content, "is_error": result.is_error, "reason": reason, "duration_ms": took}
            yield "tool_result", {**named, **ended}

    def _is_whole(self, part: TextPart) -> bool:
        return part.id not in self._said and not part.synthetic and part.time is not None and part.time.end is not None


def _told(event: Event) -> Iterator[tuple[str, Line]]:
    match event:
        case ToolOutputEvent():
            yield "tool_output", {"call_id": event.call_id, "tool": event.tool_name, "text": event.output}
        case LLMResponseEvent():
            cost = None if event.cost is None else float(event.cost)
            model = f"{event.provider}/{event.model}"
            yield (
                "step",
                {"model": model, "stop_reason": event.stop_reason, "usage": usage_dict(event.tokens), "cost": cost},
            )
        case AgentCalledEvent():
            yield "agent_call", {"call_id": event.call_id, "callee": event.callee, "message": event.message}
        case AgentReturnedEvent():
            came = {"output": event.output, "is_error": not event.success}
            yield "agent_return", {"call_id": event.call_id, "callee": event.callee, **came}
        case RetryScheduledEvent():
            yield "retry", {"attempt": event.attempt, "delay_ms": event.delay_ms, "error": event.error}
        case ContextCompactionEvent():
            yield "compaction", {"tokens_before": event.tokens_before, "tokens_after": event.tokens_after}
        case BudgetExceededEvent():
            yield "limit", {"limit": event.limit, "maximum": event.maximum}
        case ErrorEvent():
            yield "error", {"error_type": event.error_type, "message": event.message}
        case _:
            pass
