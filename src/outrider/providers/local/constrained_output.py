"""The JSON schema that an answer must follow: a flat union of the offered tools, so that every call parses."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, Literal, assert_never, cast

import msgspec

from outrider.providers.local.prompt import SAY, CompactToolPrompt, FileNames, Words, required_of
from outrider.types.deltas import Delta, InputDelta, PartEnd, PartStart, TextDelta
from outrider.types.ids import new_id
from outrider.types.parts import TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import OutputSchema, Prompt, Request, ToolChoice, ToolSpec

_STRING = re.compile(r'(?:[^"\\]|\\(?:u[0-9a-fA-F]{4}|[^u]))*')
_HALF_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")
_SAID = re.compile(rf'\s*\{{\s*"{SAY}"\s*:\s*"')
_VALUE = re.compile(r'"(text|value)"\s*:\s*(?=("?))')

Mode = Literal["head", "said", "text", "value", "input", "plain", "over"]


class AnswerReader:
    """`words` is None for an answer that is not an object of the protocol, and so all text."""

    def __init__(self, words: Words | None) -> None:
        self._answer = words.answer if words else ""
        self._head = re.compile(rf'\s*[{{,]\s*"{words.tool if words else ""}"\s*:\s*"((?:[^"\\]|\\.)*)"\s*([,}}])\s*')
        self._mode: Mode = "head" if words else "plain"
        self._waiting = ""
        self._index = -1
        self._is_open = False
        self.called = False

    def feed(self, text: str) -> Iterator[Delta]:
        self._waiting += text
        mode = None
        while self._waiting and mode != self._mode:
            mode = self._mode
            match mode:
                case "head":
                    yield from self._begin()
                case "said" | "text":
                    yield from self._text()
                case "value":
                    yield from self._raw(TextDelta, held=1)
                case "input":
                    yield from self._raw(InputDelta)
                case "plain":
                    yield from self._plain()
                case "over":
                    self._waiting = ""

    def end(self, *, whole: bool) -> Iterator[Delta]:
        """A call that was cut off is not ended: what it lacks nobody knows."""
        if self._mode == "head" and self._waiting and self._index < 0:
            yield from self._plain()
        if self._is_open and (whole or not self.called):
            yield from self._close()

    def _begin(self) -> Iterator[Delta]:
        if found := _SAID.match(self._waiting):
            yield from self._open("said", self._waiting[found.end() :])
        elif found := self._head.match(self._waiting):
            name, rest = json.loads(f'"{found[1]}"'), self._waiting[found.end() :]
            if name != self._answer:
                self.called = True
                yield from self._open("input", "{" + rest if found[2] == "," else "{}", name)
            elif value := _VALUE.match(rest):
                yield from self._value(value[1], value[2], rest[value.end() :])

    def _value(self, name: str, quote: str, rest: str) -> Iterator[Delta]:
        if name == "value" and rest:
            yield from self._open("value", rest)
        elif name == "text" and quote:
            yield from self._open("text", rest[1:])

    def _open(self, mode: Mode, waiting: str, tool: str = "") -> Iterator[Delta]:
        self._mode, self._waiting, self._is_open = mode, waiting, True
        self._index += 1
        yield PartStart(self._index, "tool", f"call_{new_id()}", tool) if tool else PartStart(self._index, "text")

    def _close(self, then: Mode = "over") -> Iterator[Delta]:
        self._mode, self._is_open = then, False
        yield PartEnd(self._index)

    def _text(self) -> Iterator[Delta]:
        """What is whole of the string; half an escape, or half a pair of surrogates, waits for the rest."""
        found = _STRING.match(self._waiting)
        raw = found[0] if found else ""
        ended = self._waiting[len(raw) :].startswith('"')
        if not ended and (half := _HALF_PAIR.search(raw)):
            raw = raw[: half.start()]
        self._waiting = self._waiting[len(raw) + ended :]
        if raw:
            text: str = json.loads(f'"{raw}"', strict=False)
            yield TextDelta(self._index, text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
        if ended:
            yield from self._close("head" if self._mode == "said" else "over")

    def _raw(self, delta: type[TextDelta] | type[InputDelta], held: int = 0) -> Iterator[Delta]:
        """As it is; the last brace of the object around a value is held back."""
        given = self._waiting[: len(self._waiting) - held]
        self._waiting = self._waiting[len(given) :]
        if given:
            yield delta(self._index, given)

    def _plain(self) -> Iterator[Delta]:
        if not self._is_open:
            yield from self._open("plain", self._waiting)
        yield TextDelta(self._index, self._waiting)
        self._waiting = ""


class RecentCalls:
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


_IN_A_ROW = 2  # calls about the same thing


class Offer(msgspec.Struct, frozen=True):
    """A tool, and the names from which its parameter for an existing file is chosen; () where it may be anything."""

    tool: ToolSpec
    paths: Sequence[str] = ()


def offers(request: Request, primer: CompactToolPrompt, names: FileNames) -> list[Offer]:
    """A caller who insists on a call gets any; a model that is free to choose, those that lead on."""
    choice, paths = request.settings.tool_choice, names.existing(request)
    match choice.mode:
        case "none":
            return []
        case "required":
            return [Offer(tool, paths) for tool in request.tools]
        case "tool":
            return [Offer(tool, paths) for tool in request.tools if tool.name == choice.tool]
        case "auto":
            latest = RecentCalls(request.prompt)
            likely = names.meant(request, latest.known) if latest.calls else ()
            found = (_leading_on(tool, primer, latest, paths, likely) for tool in request.tools)
            return [offer for offer in found if offer is not None]
        case _:
            assert_never(choice.mode)


def _leading_on(
    tool: ToolSpec, primer: CompactToolPrompt, latest: RecentCalls, paths: Sequence[str], likely: Sequence[str]
) -> Offer | None:
    known = primer.tools.get(tool.name)
    given = latest.just_given(tool.name, known.subject) if known and known.subject else []
    if known and given and paths and known.subject == known.existing:
        left = [path for path in paths if path not in given and (path in likely or path in latest.asked)]
        return Offer(tool, left) if left else None
    goes_in_circles = len(given) >= _IN_A_ROW and len(set(given[:_IN_A_ROW])) == 1
    return None if goes_in_circles else Offer(tool, paths)


# The exact separators that prompts are written with: what was generated is what is sent again, byte for byte.
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Whatever else a schema says cannot be enforced while decoding; the tool's own check reads it.
_ENFORCED = (
    "type", "enum", "const", "required", "additionalProperties",
    "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength",
)  # fmt: skip


class CallSchema:
    """Schemas for one set of tools."""

    def __init__(self, tools: tuple[ToolSpec, ...], primer: CompactToolPrompt) -> None:
        self._primer = primer
        self.words = Words.for_tools(tools)

    def for_answer(self, offered: Sequence[Offer], choice: ToolChoice, output: OutputSchema | None) -> dict[str, Any]:
        definitions: dict[str, Any] = {}
        branches = [self._call(offer.tool, offer.paths, definitions) for offer in offered]
        if choice.mode in ("auto", "none"):
            branches.append(self._answer(output, definitions))
        schema: dict[str, Any] = {"x-guidance": _COMPACT, "anyOf": branches}
        return schema | {"$defs": definitions} if definitions else schema

    def _call(self, spec: ToolSpec, paths: Sequence[str], definitions: dict[str, Any]) -> dict[str, Any]:
        definitions |= _definitions(spec.parameters, spec.name)
        offered = {name: enforced(part, spec.name) for name, part in self._primer.parameters(spec).items()}
        if paths and (existing := self._primer.existing(spec)) in offered:
            offered[existing] = {"enum": list(paths)}
        required = [name for name in offered if name in required_of(spec)]
        return self._object(spec.name, offered, required)

    def _answer(self, output: OutputSchema | None, definitions: dict[str, Any]) -> dict[str, Any]:
        if output is None:
            return self._object(self.words.answer, {"text": {"type": "string"}}, ["text"])
        definitions |= _definitions(output.schema, "output")
        return self._object(self.words.answer, {"value": enforced(output.schema, "output")}, ["value"])

    def _object(self, name: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
        word = self.words.tool
        return {
            "type": "object",
            "properties": {**self._words_first(name), word: {"const": name}, **properties},
            "required": [word, *required],
            "additionalProperties": False,
        }

    def _words_first(self, name: str) -> dict[str, Any]:
        return {SAY: {"type": "string"}} if self._primer.says and name != self.words.answer else {}


def grammar(schema: dict[str, Any]) -> str:
    """For llguidance, which keeps to the separators; given as a plain schema, it would be put into a grammar that lets
    the model write as much white space as it likes."""
    return f"%llguidance {{}}\nstart: %json {msgspec.json.encode(schema).decode()}"


def output_schema(output: OutputSchema) -> dict[str, Any]:
    """For an answer that is nothing but the value."""
    definitions = _definitions(output.schema, "output")
    schema = {"x-guidance": _COMPACT, **enforced(output.schema, "output")}
    return schema | {"$defs": definitions} if definitions else schema


def enforced(schema: Any, owner: str) -> dict[str, Any]:
    """What can be held to of a schema while the answer is written. References are to the union's own definitions."""
    if not isinstance(schema, dict):
        return {}
    given = cast("dict[str, Any]", schema)
    if isinstance(reference := given.get("$ref"), str):
        return {"$ref": f"#/$defs/{owner}.{reference.rpartition('/')[2]}"}
    kept = {name: given[name] for name in _ENFORCED if name in given}
    if isinstance(kept.get("additionalProperties"), dict):
        kept["additionalProperties"] = enforced(kept["additionalProperties"], owner)
    if isinstance(choices := given.get("anyOf") or given.get("oneOf"), list):
        kept["anyOf"] = [enforced(choice, owner) for choice in cast("list[Any]", choices)]
    if isinstance(properties := given.get("properties"), dict):
        named = cast("dict[str, Any]", properties)
        kept["properties"] = {name: enforced(part, owner) for name, part in named.items()}
        kept.setdefault("additionalProperties", False)
    if "items" in given:
        kept["items"] = enforced(given["items"], owner)
    return kept


def _definitions(schema: dict[str, Any], owner: str) -> dict[str, Any]:
    found: dict[str, Any] = {**(schema.get("definitions") or {}), **(schema.get("$defs") or {})}
    return {f"{owner}.{name}": enforced(definition, owner) for name, definition in found.items()}
