"""What happened since the user last spoke: it tells which calls lead on, and which go in circles."""

from itertools import takewhile

from outrider.types.parts import TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import Prompt


class Latest:
    """`calls` are the latest first. `asked` is the request, `known` that and all results since."""

    def __init__(self, prompt: Prompt) -> None:
        self.calls: list[ToolUsePart] = []
        self.asked = ""
        results: list[str] = []
        for message in reversed(prompt):
            self.calls += [part for part in reversed(message.content) if isinstance(part, ToolUsePart)]
            results += [part.content for part in message.content if isinstance(part, ToolResultPart)]
            texts = [part.text for part in message.content if isinstance(part, TextPart)]
            if message.role == "user" and texts:
                self.asked = "\n".join(texts)
                break
        self.known = "\n".join((self.asked, *results))

    def just_given(self, tool: str, parameter: str) -> list[str]:
        """What the tool was given in the calls that end the conversation, as long as no other was called."""
        calls = takewhile(lambda call: call.tool_name == tool, self.calls)
        return [str(call.tool_input.get(parameter)) for call in calls]
