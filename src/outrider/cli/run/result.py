"""What came of a run: gathered while it goes on, told when it has ended, and the exit code that says it."""

from decimal import Decimal
from typing import Any

import msgspec

from outrider.app.approvals.gate import NOBODY_THERE
from outrider.app.archive.ends import TurnEnd
from outrider.cli import exits
from outrider.cli.dispatch import code_of
from outrider.types.events import Event, LLMResponseEvent, PartUpdatedEvent
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolError
from outrider.types.usage import Tokens, Usage

VERSION = 1  # of everything that `json` and `stream-json` print


class Refused(msgspec.Struct, frozen=True):
    """A call that did not run. `reason` is denied (by a rule or mode, or for want of approval) or rejected."""

    call_id: str
    tool: str
    input: dict[str, Any]
    reason: str
    error: str
    session_id: str

    @property
    def for_want_of_approval(self) -> bool:
        """Also where a front end had to say it for a server, which took it for the word of a user."""
        return self.error.endswith(NOBODY_THERE)


class Begun(msgspec.Struct, frozen=True):
    """What was known when the work began."""

    session_id: str
    agent: str
    model: str
    mode: str
    cwd: str


class Tally:
    """Hears the whole run, every agent in it."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.answers = 0
        self.refused: list[Refused] = []

    def hear(self, event: Event) -> None:
        match event:
            case LLMResponseEvent():
                cost = None if event.cost is None else Decimal(event.cost)
                self.usage = self.usage.plus(event.tokens, cost)
                self.answers += 1
            case PartUpdatedEvent(part=ToolPart(state=ToolError(reason="denied" | "rejected") as state) as call):
                refused = (call.call_id, call.tool, state.input, state.reason, state.error, event.session_id)
                self.refused.append(Refused(*refused))
            case _:
                pass


class Result(msgspec.Struct, frozen=True):
    """One turn and its end."""

    begun: Begun
    end: TurnEnd
    tally: Tally
    duration_ms: int
    interrupted: int = exits.INTERRUPTED

    @property
    def exit_code(self) -> int:
        match self.end.reason:
            case "completed":
                refused = any(call.for_want_of_approval for call in self.tally.refused)
                return exits.NOT_APPROVED if refused else exits.DONE
            case "limit" | "length":
                return exits.LIMIT
            case "aborted":
                return self.interrupted
            case "error" if self.end.error is not None:
                return code_of(self.end.error)
            case _:
                return exits.FAILED

    def to_dict(self) -> dict[str, Any]:
        end, usage, tokens = self.end, self.tally.usage, self.tally.usage.tokens
        error = None if end.error is None else {"type": type(end.error).__name__, "message": str(end.error)}
        return {
            "type": "result",
            "version": VERSION,
            "output": end.output,
            "termination_reason": end.reason,
            "exit_code": self.exit_code,
            "error": error,
            **msgspec.structs.asdict(self.begun),
            "turns": self.tally.answers,
            "duration_ms": self.duration_ms,
            "usage": usage_dict(tokens),
            "cost": None if usage.total_cost is None else float(usage.total_cost),
            "refused_calls": [msgspec.to_builtins(call) for call in self.tally.refused],
        }


def usage_dict(tokens: Tokens) -> dict[str, int]:
    return {
        "input_tokens": tokens.input,
        "output_tokens": tokens.output,
        "reasoning_tokens": tokens.reasoning,
        "cache_read_tokens": tokens.cache.read,
        "cache_write_tokens": tokens.cache.write,
    }
