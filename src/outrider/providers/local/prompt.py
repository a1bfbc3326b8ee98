"""How tools are put to a small model: in few words, with the parameters that matter, and with names that exist."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol, assert_never

import msgspec

from outrider.providers.local.prefix_cache import Beginning
from outrider.types.parts import FilePart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, Prompt, Request, ToolSpec

ANSWER, TOOL, SAY = "answer", "tool", "say"
_OTHER_NAMES = {ANSWER: "reply", TOOL: "use_tool"}  # where an offered tool has taken the word
_LONGEST = 160  # characters of a description


class CompactTool(msgspec.Struct, frozen=True, kw_only=True):
    """`keep` are the parameters that are offered, in order. `existing` names the one that must be a file that is there,
    `subject` the one that says what a call is about, where calls about the same in a row lead nowhere. `shown` turns
    a result into what is easier for a small model."""

    description: str
    keep: tuple[str, ...]
    existing: str = ""
    subject: str = ""
    shown: Callable[[str], str] | None = None


class CompactToolPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of tools by their names; others are offered by their schema. `examples` are shown for
    the tools that are offered. With `says` a call may begin with words to the user."""

    tools: Mapping[str, CompactTool] = {}
    examples: tuple[tuple[str, dict[str, Any]], ...] = ()
    longest_result: int = 6_000  # characters
    longest_system: int = 6_000
    says: bool = False

    def description(self, spec: ToolSpec) -> str:
        known = self.tools.get(spec.name)
        return known.description if known else _first_sentence(spec.description)

    def parameters(self, spec: ToolSpec) -> dict[str, Any]:
        """The properties that are offered, by name. Without further knowledge: what is required, then the rest."""
        properties = properties_of(spec)
        known = self.tools.get(spec.name)
        if known is not None:
            return {name: properties[name] for name in known.keep if name in properties}
        required = required_of(spec)
        return {name: properties[name] for name in sorted(properties, key=lambda name: name not in required)}

    def existing(self, spec: ToolSpec) -> str:
        known = self.tools.get(spec.name)
        return known.existing if known else ""

    def result(self, tool: str, content: str) -> str:
        known = self.tools.get(tool)
        shown = known.shown(content) if known and known.shown else content
        return clipped(shown, self.longest_result)


class Words(msgspec.Struct, frozen=True):
    """The two words of the protocol that no offered tool may have taken."""

    answer: str
    tool: str

    @classmethod
    def for_tools(cls, tools: tuple[ToolSpec, ...]) -> "Words":
        parameters = {name for spec in tools for name in properties_of(spec)}
        answer_taken = any(spec.name == ANSWER for spec in tools)
        return cls(_OTHER_NAMES[ANSWER] if answer_taken else ANSWER, _OTHER_NAMES[TOOL] if TOOL in parameters else TOOL)


def properties_of(spec: ToolSpec) -> dict[str, Any]:
    return spec.parameters.get("properties") or {}


def required_of(spec: ToolSpec) -> set[str]:
    return set(spec.parameters.get("required") or ())


def clipped(text: str, longest: int) -> str:
    """Head and tail of a long text: the end of an output often says how it went."""
    if len(text) <= longest:
        return text
    head, tail = longest * 3 // 4, longest // 4
    return f"{text[:head]}\n[{len(text) - head - tail} characters left out]\n{text[-tail:]}"


def _first_sentence(text: str) -> str:
    sentence = text.strip().partition("\n")[0].partition(". ")[0].strip()
    return sentence if len(sentence) <= _LONGEST else f"{sentence[:_LONGEST]}…"


def beginning_of(system: str, tools: tuple[ToolSpec, ...], primer: CompactToolPrompt) -> Beginning | None:
    """What all sessions of an agent share, and then the rest of its system text, which tells of the place.

    Examples are turns of a conversation: a small model follows those better than any description."""
    instructions, gap, place = clipped(system.strip(), primer.longest_system).partition("\n\n")
    if not tools:
        whole = system.strip()
        return Beginning((("system", whole),)) if whole else None
    words = Words.for_tools(tools)
    told = "\n\n".join(filter(None, (instructions, _tools(tools, primer, words))))
    return Beginning((("system", told), *_examples(tools, primer, words)), place + gap)


def _tools(tools: tuple[ToolSpec, ...], primer: CompactToolPrompt, words: Words) -> str:
    lines = [_line(spec, primer, words) for spec in tools]
    lines.append(f"{written({words.tool: words.answer, 'text': '…'})} says something to the user and ends your work")
    return _protocol().format(tools="\n".join(lines), answer=words.answer)


def _line(spec: ToolSpec, primer: CompactToolPrompt, words: Words) -> str:
    shape = {name: "…" for name in primer.parameters(spec)}
    return f"{written({words.tool: spec.name, **shape})} {primer.description(spec)}"


def _examples(tools: tuple[ToolSpec, ...], primer: CompactToolPrompt, words: Words) -> Iterator[tuple[str, str]]:
    offered = {spec.name for spec in tools} | {words.answer}
    for said, call in primer.examples:
        if call[TOOL] in offered:
            arguments = {name: value for name, value in call.items() if name != TOOL}
            yield from (("user", said), ("assistant", written({words.tool: call[TOOL], **arguments})))


def written(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


@cache
def _protocol() -> str:
    return Path(__file__).with_name("compact.md").read_text(encoding="utf-8").strip()


_REPEATED = 400  # characters of a request that stand again below each result

Meant = Callable[[str], Sequence[str]]
"""The files that a text may be about."""


class Transcript:
    """`words` is None where no tools are offered. A small model loses sight of what was asked when a result is long, so
    each result ends with the request again. `place` is said before everything else."""

    def __init__(self, words: Words | None, primer: CompactToolPrompt, meant: Meant, place: str = "") -> None:
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
            said = f"{self._place}{said}"
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


class FileNames(Protocol):
    def existing(self, request: Request) -> Sequence[str]:
        """All it may name; empty where there are too many to choose from."""
        ...

    def meant(self, request: Request, text: str) -> Sequence[str]:
        """The few that a text may be about."""
        ...


class NoNames:
    def existing(self, request: Request) -> Sequence[str]:
        return ()

    def meant(self, request: Request, text: str) -> Sequence[str]:
        return ()
