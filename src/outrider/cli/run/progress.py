"""What a person in front of a terminal sees of the work while it goes on."""

from typing import Any, cast

from outrider.cli.console import Console
from outrider.cli.tables import cut
from outrider.types.events import (
    AgentCalledEvent,
    ContextCompactionEvent,
    Event,
    PartUpdatedEvent,
    RetryScheduledEvent,
    ToolApprovalRequestedEvent,
)
from outrider.types.parts import ReasoningPart, ToolPart
from outrider.types.tool_state import ToolError, ToolRunning

_TELLING = ("command", "file_path", "path", "pattern", "url", "message", "description")


class Progress:
    """One line for each call, and one more where it did not go well."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        self._console = console
        self._verbose = verbose
        self._begun: set[str] = set()

    def hear(self, event: Event) -> None:
        match event:
            case PartUpdatedEvent(part=ToolPart() as call):
                self._call(call)
            case PartUpdatedEvent(part=ReasoningPart() as part) if self._verbose and part.time and part.time.end:
                self._say(f"(thought: {part.text})")
            case AgentCalledEvent():
                self._say(f"▸ {event.agent_name} asks {event.callee}: {event.message}")
            case RetryScheduledEvent():
                self._say(f"▸ trying again in {event.delay_ms / 1000:.0f} s: {event.error}", "yellow")
            case ToolApprovalRequestedEvent() if event.server:
                self._say(f"▸ {event.tool_name} waits for somebody's answer {event.description}", "yellow")
            case ContextCompactionEvent():
                self._say(f"▸ summed up: {event.tokens_before:,} → {event.tokens_after:,} tokens")
            case _:
                pass

    def _call(self, call: ToolPart) -> None:
        match call.state:
            case ToolRunning() if call.id not in self._begun:
                self._begun.add(call.id)
                self._say(f"▸ {call.tool} {telling(call.state.input)}")
            case ToolError():
                self._say(f"  ✗ {call.tool} {call.state.reason}: {call.state.error}", "red")
            case _:
                pass

    def _say(self, text: str, style: str = "dim") -> None:
        self._console.say(cut(text, self._console.width), style)


def telling(given: dict[str, Any]) -> str:
    """Of an input what a person looks for first."""
    found = next((given[name] for name in _TELLING if isinstance(given.get(name), str)), None)
    return found if found is not None else ", ".join(_told(name, value) for name, value in given.items())


def _told(name: str, value: Any) -> str:
    """A list by how much it holds: `3 todos`."""
    return f"{len(cast('list[Any]', value))} {name}" if isinstance(value, list) else f"{name}={value!r}"
