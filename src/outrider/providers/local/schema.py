"""The JSON schema that an answer must follow: a flat union of the offered tools, so that every call parses."""

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from outrider.providers.local.offers import Offer
from outrider.providers.local.primer import SAY, Primer, Words, required_of
from outrider.types.request import OutputSchema, ToolChoice, ToolSpec

# The exact separators that prompts are written with: what was generated is what is sent again, byte for byte.
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Whatever else a schema says cannot be enforced while decoding; the tool's own check reads it.
_ENFORCED = (
    "type", "enum", "const", "required", "additionalProperties",
    "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength",
)  # fmt: skip


class CallSchema:
    """Schemas for one set of tools."""

    def __init__(self, tools: tuple[ToolSpec, ...], primer: Primer) -> None:
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
