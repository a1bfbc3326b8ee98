"""What stands in for tools and for the user when a session runs again: results and answers come from the record."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from outrider.agents.crew import Seat, Verdict
from outrider.errors import ToolFailure
from outrider.sessions.records import fingerprint
from outrider.tools.context import ToolContext
from outrider.tools.tool import Tool, ToolResult
from outrider.types.messages import Message
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError

_UNKNOWN = "This call is not in the record, so there is no result for it. It was not run."
_YES, _NO = True, False


class PastCalls:
    """The calls of a record by tool and input; of several alike, the one with the same id, else the earliest."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self._calls: dict[str, list[ToolPart]] = defaultdict(list)
        for message in messages:
            for call in message.get_parts_by_type(ToolPart):
                self._calls[fingerprint(call.tool, call.state.input)].append(call)

    def find(self, tool: str, arguments: dict[str, Any], call_id: str) -> ToolPart | None:
        alike = self._calls.get(fingerprint(tool, arguments), [])
        return next((call for call in alike if call.call_id == call_id), alike[0] if alike else None)

    def take(self, tool: str, arguments: dict[str, Any], call_id: str) -> ToolPart | None:
        """Each call ends once."""
        found = self.find(tool, arguments, call_id)
        if found is not None:
            self._calls[fingerprint(tool, arguments)].remove(found)
        return found


class RecordedTool(Tool):
    """A tool that is offered as it is and never runs: its calls end as they once did."""

    def __init__(self, tool: Tool, /, *, past: PastCalls) -> None:  # pyright: ignore[reportInconsistentConstructor]
        super().__init__(tool.function, name=tool.name, description=tool.description)
        self.options = tool.options
        self._parameters = tool.spec().parameters
        self._past = past

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> str | ToolResult:
        past = self._past.take(self.name, arguments, context.call_id)
        match past.state if past else None:
            case ToolCompleted() as done:
                metadata = {name: value for name, value in done.metadata.items() if name != "truncated"}
                return ToolResult(done.output, done.attachments, done.title, metadata)
            case ToolError() as failed:
                failure = ToolFailure(failed.error)
                failure.reason = failed.reason  # pyright: ignore[reportAttributeAccessIssue]  as it was
                raise failure
            case _:
                raise ToolFailure(_UNKNOWN)


class RecordedGate:
    """Lets through what was let through, and refuses what was refused, in the same words."""

    def __init__(self, past: PastCalls) -> None:
        self._past = past

    async def admit(self, call: ToolPart, tool: Tool, seat: Seat) -> Verdict:
        past = self._past.find(call.tool, call.state.input, call.call_id)
        match past.state if past else None:
            case ToolError(reason="denied" | "rejected" as reason, error=words):
                self._past.take(call.tool, call.state.input, call.call_id)
                return Verdict(_NO, reason, words)
            case _:
                return Verdict(_YES)


def recorded_tools(tools: Mapping[str, Tool], past: PastCalls) -> dict[str, Tool]:
    return {name: RecordedTool(tool, past=past) for name, tool in tools.items()}
