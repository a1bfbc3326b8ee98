"""A conversation as a small model reads it: calls are the JSON objects that it writes itself, results plain text."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, assert_never

import msgspec

from outrider.providers.local.primer import SAY, Primer, Words
from outrider.providers.local.tool_text import written
from outrider.types.parts import FilePart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, Prompt

_REPEATED = 400  # characters of a request that stand again below each result

Meant = Callable[[str], Sequence[str]]
"""The files that a text may be about."""


class Transcript:
    """`words` is None where no tools are offered. A small model loses sight of what was asked when a result is long, so
    each result ends with the request again. `place` is said before everything else."""

    def __init__(self, words: Words | None, primer: Primer, meant: Meant, place: str = "") -> None:
        self._words = words
        self._primer = primer
        self._meant = meant
        self._place = place
        self._tools: dict[str, str] = {}
        self._asked: dict[int, str] = {}
        self._first = 0

    def messages(self, prompt: Prompt) -> bytes:
        """All messages, comma-separated. What was written for an earlier request is used again, so that files that come
        and go change nothing in what the model has read."""
        asked = ""
        for message in prompt:
            texts = [part.text for part in message.content if isinstance(part, TextPart)]
            asked = "\n".join(texts) if message.role == "user" and texts else asked
            self._asked[id(message)] = asked
            self._tools |= {part.tool_id: part.tool_name for part in message.content if isinstance(part, ToolUsePart)}
        self._first = id(prompt[0]) if len(prompt) else 0
        words = self._words
        form = f"local {words.tool} {words.answer}" if words else "local"
        return bytes(prompt.encoded(form, self._encode))

    def _encode(self, message: ModelMessage) -> bytes:
        said = self._answer(message) if message.role == "assistant" else "\n\n".join(self._user_texts(message))
        if self._place and id(message) == self._first:
            said = f"{self._place}\n\n{said}"
        return msgspec.json.encode({"role": message.role, "content": said})

    def _answer(self, message: ModelMessage) -> str:
        text = "\n\n".join(part.text for part in message.content if isinstance(part, TextPart) and part.text.strip())
        words = self._words or Words.for_tools(())
        calls = [_call(part, words) for part in message.content if isinstance(part, ToolUsePart)]
        if not calls:
            return written({words.tool: words.answer, "text": text}) if self._words else text
        first: dict[str, Any] = {SAY: text} if text else {}
        return "\n".join(written(call) for call in [first | calls[0], *calls[1:]])

    def _user_texts(self, message: ModelMessage) -> Iterator[str]:
        for part in message.content:
            match part:
                case TextPart(text=text):
                    yield text
                case ToolResultPart(tool_use_id=call_id, content=content, is_error=failed):
                    tool = self._tools.get(call_id, "the tool")
                    yield f"{tool} {'failed' if failed else 'gave'}:\n{self._primer.result(tool, content)}"
                case FilePart(mime=mime, filename=name):
                    yield f"(a file is attached that you cannot see: {name or 'without a name'}, {mime})"
                case ToolUsePart() | ReasoningPart():
                    pass
                case _:
                    assert_never(part)
        yield from self._reminder(message)

    def _reminder(self, message: ModelMessage) -> Iterator[str]:
        asked = self._asked.get(id(message), "")
        if not self._words or not asked:
            return
        if any(isinstance(part, TextPart) for part in message.content):
            names = self._meant(asked)
            if names:
                yield hint(names)
        else:
            yield reminder(asked)


def hint(names: Sequence[str]) -> str:
    """What stands below a request that seems to be about files."""
    return f"(These files exist, and must be read before they are changed: {', '.join(names)})"


def reminder(asked: str) -> str:
    """What stands below each result."""
    return f"The request was: {asked[:_REPEATED]}\nIf all of it is done, answer. Otherwise: what is the next step?"


def _call(use: ToolUsePart, words: Words) -> dict[str, Any]:
    return {words.tool: use.tool_name, **use.tool_input}
