"""Publishes the events of an invented run, prints their tree and writes them as an HTML timeline."""

import sys
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from outrider.event_bus import EventBus
from outrider.tracing.event_log import EventLog
from outrider.tracing.trace import Trace
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    RetryScheduledEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
    ToolExecutionCompletedEvent,
    ToolExecutionStartedEvent,
)

START = 1_767_225_600_000
PRICES = {"large-1": Decimal("0.000003"), "small-1": Decimal("0.0000004"), "home-model": None}


@dataclass
class Actor:
    """Publishes the events of a working agent at the times (in milliseconds) that the script gives."""

    bus: EventBus
    name: str
    model: str
    called_by: str = ""
    steps: int = 0
    started: dict[str, int] = field(default_factory=dict[str, int])

    def where(self, call_id: str = "") -> dict[str, Any]:
        return {
            "session_id": f"session-{self.name}",
            "agent_name": self.name,
            "call_id": call_id,
            "parent_call_id": self.called_by,
        }

    def starts(self, at: int, message: str) -> None:
        self.bus.publish(LoopStartedEvent(timestamp=START + at, user_message=message, **self.where()))

    def thinks(self, at: int, took: int, tokens: tuple[int, int], stop: str = "tool_use") -> None:
        self.steps += 1
        where, (prompt, output) = self.where(f"{self.name}-step-{self.steps}"), tokens
        price = PRICES[self.model]
        self.bus.publish(LLMRequestEvent(timestamp=START + at, message_count=2 * self.steps, model=self.model, **where))
        self.bus.publish(
            LLMResponseEvent(
                timestamp=START + at + took,
                stop_reason=stop,
                has_tool_use=stop == "tool_use",
                input_tokens=prompt // 4,
                cache_read_tokens=prompt - prompt // 4,
                output_tokens=output,
                duration_ms=took,
                first_token_ms=took // 5,
                cost=None if price is None else str(price * (prompt + 5 * output)),
                model=self.model,
                **where,
            )
        )

    def starts_tool(self, call: str, at: int, tool: str, given: dict[str, str]) -> None:
        where, self.started[call] = self.where(call), at
        self.bus.publish(ToolExecutionStartedEvent(timestamp=START + at, tool_name=tool, tool_input=given, **where))

    def ends(self, call: str, at: int, tool: str, output: str, reason: str = "") -> None:
        self.bus.publish(
            ToolExecutionCompletedEvent(
                timestamp=START + at,
                tool_name=tool,
                success=not reason,
                reason=reason,
                duration_ms=at - self.started[call],
                output_preview=output,
                **self.where(call),
            )
        )

    def calls(self, other: "Actor", at: int, message: str) -> None:
        child = f"session-{other.name}"
        self.bus.publish(
            AgentCalledEvent(
                timestamp=START + at,
                callee=other.name,
                message=message,
                child_session_id=child,
                **self.where(other.called_by),
            )
        )
        other.starts(at, message)

    def returns(self, to: "Actor", at: int, output: str, *, reason: str = "completed") -> None:
        self.finishes(at, output, reason)
        self.bus.publish(
            AgentReturnedEvent(
                timestamp=START + at, callee=self.name, output=output, success=reason == "completed",
                child_session_id=f"session-{self.name}", **to.where(self.called_by),
            )
        )  # fmt: skip

    def finishes(self, at: int, output: str, reason: str = "completed") -> None:
        self.bus.publish(
            LoopCompletedEvent(
                timestamp=START + at,
                termination_reason=reason,
                total_turns=self.steps,
                output=output,
                **self.where(),
            )
        )


def play(bus: EventBus) -> None:
    """A writer calls two agents at once and waits for an approval; its linter is still running at the end."""
    writer = Actor(bus, "writer", "large-1")
    researcher = Actor(bus, "researcher", "small-1", called_by="call-research")
    reviewer = Actor(bus, "reviewer", "home-model", called_by="call-review")

    writer.starts(0, "Write a short guide to the night sky of the north.")
    writer.thinks(20, 2_400, (3_200, 180))
    writer.starts_tool("read-1", 2_430, "read_file", {"path": "notes/sky.md"})
    writer.ends("read-1", 2_450, "read_file", "# Notes\nThe Plough points to the pole star.")
    writer.calls(researcher, 2_500, "Which stars can be seen in January?")
    writer.calls(reviewer, 2_520, "Which mistakes do guides like this make?")
    research(researcher, writer)
    review(reviewer, writer)
    writer.thinks(12_100, 3_900, (9_800, 1_150))
    approval = writer.where("write-1")
    bus.publish(ToolApprovalRequestedEvent(timestamp=START + 16_020, tool_name="write_file", **approval))
    bus.publish(ToolApprovalResultEvent(timestamp=START + 19_300, tool_name="write_file", approved=True, **approval))
    writer.starts_tool("write-1", 19_310, "write_file", {"path": "guide.md", "content": "# The night sky"})
    writer.ends("write-1", 19_330, "write_file", "wrote 4,211 characters")
    writer.starts_tool("lint-1", 19_400, "shell", {"command": "lint guide.md --watch"})
    writer.thinks(19_420, 1_600, (11_400, 90), "end_turn")
    writer.finishes(21_050, "The guide is in guide.md.")


def research(researcher: Actor, writer: Actor) -> None:
    researcher.thinks(2_520, 900, (1_400, 60))
    for number, (took, page) in enumerate([(1_900, "orion"), (2_700, "taurus"), (650, "gemini")]):
        researcher.starts_tool(f"get-{number}", 3_450 + number, "fetch", {"url": f"https://stars.example/{page}"})
        reason = "timeout" if page == "taurus" else ""
        researcher.ends(f"get-{number}", 3_450 + took, "fetch", reason and "no answer in 2.7 s", reason)
    researcher.thinks(6_200, 2_300, (5_100, 420), "end_turn")
    researcher.returns(writer, 8_550, "Orion, Taurus and Gemini.")


def review(reviewer: Actor, writer: Actor) -> None:
    where = reviewer.where()
    retry = RetryScheduledEvent(timestamp=START + 2_900, attempt=1, delay_ms=2_000, error="overloaded", **where)
    reviewer.bus.publish(retry)
    reviewer.thinks(2_540, 6_800, (900, 310))
    reviewer.thinks(9_360, 2_650, (1_600, 800), "length")
    reviewer.returns(writer, 12_050, "They forget light pollution.", reason="max_turns")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd()
    bus, log = EventBus(), EventLog()
    log.attach(bus)
    play(bus)
    trace = Trace(log)
    trace.print_tree()
    target = folder / "trace.html"
    target.write_text(trace.to_html(), encoding="utf-8")
    print(f"\nwritten to {target}; open it in a browser")


if __name__ == "__main__":
    main()
