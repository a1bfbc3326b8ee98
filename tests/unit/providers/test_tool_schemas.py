"""Parameters of any shape become an object that every API takes, and those that are one stay as they are."""

from typing import Any

import pytest

from outrider.providers.anthropic.client import AnthropicWire
from outrider.providers.google.client import GoogleWire
from outrider.providers.openai.chat_client import ChatWire
from outrider.providers.openai.responses_client import ResponsesWire
from outrider.providers.provider import WireFormat
from outrider.providers.request_body import object_schema, tool_parameters
from outrider.types.agents import Provider
from outrider.types.parts import TextPart
from outrider.types.request import ModelMessage, Prompt, Request, ToolSpec
from tests.fixtures.cases import for_each

TEXT, NUMBER = {"type": "string"}, {"type": "number"}
A = {"type": "object", "properties": {"kind": {"const": "a"}, "path": TEXT}, "required": ["kind", "path"]}
B = {"type": "object", "properties": {"kind": {"const": "b"}, "size": NUMBER}, "required": ["kind"]}
EITHER = {"kind": {"anyOf": [{"const": "a"}, {"const": "b"}]}, "path": TEXT, "size": NUMBER}


@for_each(
    ("given", "expected"),
    [
        (A, A),
        ({"type": "object", "properties": {"type": TEXT, "items": NUMBER}}, None),
        ({"type": "object", "properties": {"x": {"type": "string", "default": {"type": "array"}}}}, None),
        ({}, {"type": "object"}),
        ({"type": "string"}, {"type": "object"}),
        ({"properties": {"x": {"type": "array"}}},
         {"properties": {"x": {"type": "array", "items": {}}}, "type": "object"}),
        ({"anyOf": [A, B]}, {"type": "object", "properties": EITHER, "required": ["kind"]}),
        ({"oneOf": [A, B, True]}, {"type": "object", "properties": EITHER, "required": ["kind"]}),
        ({"allOf": [A, B]}, {"type": "object", "properties": EITHER, "required": ["kind", "path"]}),
        ({"anyOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": A}},
         {"$defs": {"A": A}, "properties": A["properties"], "required": ["kind", "path"], "type": "object"}),
        ({"$ref": "#/$defs/A", "$defs": {"A": A}}, {"$defs": {"A": A}, **A}),
        ({"$ref": "#/$defs/gone"}, {"type": "object", "properties": {}}),
    ],
)  # fmt: skip
def test_the_root_is_an_object_and_lists_say_what_they_hold(given: dict[str, Any], expected: dict[str, Any] | None):
    assert object_schema(given) == (given if expected is None else expected)


@pytest.mark.parametrize("given", [{"anyOf": 5}, {"allOf": [A], "properties": ["x"]}])
def test_what_is_no_schema_stays_as_it_is(given: dict[str, Any]):
    assert tool_parameters(ToolSpec("odd", "", given)) is given


WIRES: list[WireFormat] = [
    AnthropicWire(Provider("p", "anthropic", "k")),
    GoogleWire(Provider("p", "google", "k")),
    ChatWire(Provider("p", "openai", "k")),
    ResponsesWire(Provider("p", "openai-responses", "k")),
]


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: type(wire).__name__)
def test_every_wire_offers_tools_like_this(wire: WireFormat):
    tool = ToolSpec("read", "Read.", {"anyOf": [A]})
    body = wire.build_request(Request("m", Prompt([ModelMessage("user", (TextPart("Hi"),))]), tools=(tool,))).body
    assert b'"anyOf"' not in body
    assert b'"type":"object"' in body


@pytest.mark.parametrize("wire", WIRES[2:], ids=lambda wire: type(wire).__name__)
def test_openai_is_reported_that_there_are_no_parameters(wire: WireFormat):
    tool = ToolSpec("now", "The time.", {"type": "object"})
    body = wire.build_request(Request("m", Prompt([ModelMessage("user", (TextPart("Hi"),))]), tools=(tool,))).body
    assert b'"parameters":{"type":"object","properties":{}}' in body
