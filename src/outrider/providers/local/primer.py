"""How tools are put to a small model: in few words, with the parameters that matter, and with names that exist."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from outrider.types.request import ToolSpec

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


class Primer(msgspec.Struct, frozen=True, kw_only=True):
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
