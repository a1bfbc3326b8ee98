"""Schemas of every kind of type in the form of each API: the rules of the vendors hold, and nothing is lost."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import annotated_types
import pydantic
import pytest

from outrider.errors import InvalidRequestError, ServerError
from outrider.providers.schema_dialects import SchemaLowering, lower_schema
from outrider.testing.model_rules import anthropic_problems, google_problems, strict_problems
from outrider.tools.schema import schema_for_type
from outrider.types.request import ModelSettings, OutputSchema, Prompt, Request, ToolSpec
from tests.fixtures.cases import for_each
from tests.unit.tools.test_types import ACCEPTED, Circle, Company, Node, Person, Point, Square, Tree

RULES = {"openai": strict_problems, "anthropic": anthropic_problems, "google": google_problems}


@dataclass
class Order:
    """An order of a customer."""

    number: Annotated[int, annotated_types.Interval(gt=0, le=99)]
    code: Annotated[str, annotated_types.Len(2, 4), "what to order"]
    lines: Annotated[list[Point], annotated_types.Len(2, 5)]
    shape: Circle | Square
    pair: tuple[int, str]
    size: Literal["s", "m"] = "m"
    note: str | None = None
    tags: list[str] = field(default_factory=list)
    site: Annotated[str, pydantic.Field(json_schema_extra={"format": "idn-email"})] = ""


def wrapped(hint: Any) -> dict[str, Any]:
    schema = schema_for_type(hint)
    if schema.get("type") == "object":
        return schema
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    outer = {"type": "object", "properties": {"value": inner}, "required": ["value"]}
    return outer | ({"$defs": schema["$defs"]} if "$defs" in schema else {})


@pytest.mark.parametrize("dialect", RULES)
@for_each("hint", [*(one for one, _, _ in ACCEPTED), Order, list[Order], Order | Person])
def test_a_lowered_schema_follows_the_rules_of_its_api(hint: Any, dialect: Any):
    lowered = lower_schema(wrapped(type(None) if hint is None else hint), dialect)
    assert lowered is None or list(RULES[dialect]("answer", lowered)) == []


@for_each("hint", [Order, list[Order], Order | Person, Company, Circle | Square, Point | None])
@pytest.mark.parametrize("dialect", RULES)
def test_ordinary_types_have_a_schema_in_every_api(hint: Any, dialect: Any):
    assert lower_schema(wrapped(hint), dialect) is not None


@pytest.mark.parametrize(
    ("hint", "dialects"),
    [
        (dict[str, int], {"google"}),
        (Any, set()),
        (list, set()),
        (Tree, {"openai", "google"}),
        (Node, {"openai", "google"}),
    ],
    ids=("mapping", "any", "list", "tree", "node"),
)
def test_what_an_api_cannot_enforce_has_no_schema_there(hint: Any, dialects: set[str]):
    assert {one for one in RULES if lower_schema(wrapped(hint), one)} == dialects  # pyright: ignore


def test_rejected_keywords_move_into_the_description():
    schema = wrapped(Order)
    openai, anthropic, google = (lower_schema(schema, one) for one in ("openai", "anthropic", "google"))
    assert openai and anthropic and google
    assert openai["properties"]["number"] == {"type": "integer", "exclusiveMinimum": 0, "maximum": 99}
    assert anthropic["properties"]["number"] == {"description": "exclusiveMinimum: 0, maximum: 99", "type": "integer"}
    assert google["properties"]["number"] == {"type": "integer", "minimum": 1, "maximum": 99}
    for one in (openai, anthropic, google):
        assert one["properties"]["code"] == {
            "description": "what to order (minLength: 2, maxLength: 4)",
            "type": "string",
        }
        assert one["description"] == "An order of a customer."
    assert anthropic["properties"]["lines"]["description"] == "maxItems: 5, minItems: 2"
    assert openai["properties"]["size"] == {
        "description": 'default: "m"',
        "anyOf": [{"type": "string", "enum": ["s", "m"]}, {"type": "null"}],
    }
    assert openai["required"] == list(openai["properties"])
    assert anthropic["required"] == ["number", "code", "lines", "shape", "pair"]


OUTPUT = OutputSchema(wrapped(Order), "Order")
STRICT = ToolSpec("order", "Orders.", wrapped(Order), strict=True)
PLAIN = ToolSpec("plain", "Plain.", {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}})


def make_request(**fields: Any) -> Request:
    return Request("m", Prompt(), system="Be brief.", **fields)


@pytest.mark.parametrize("dialect", RULES)
def test_a_rejected_schema_is_described_as_text_for_that_model_only(dialect: Any):
    lowering = SchemaLowering(dialect)
    request = make_request(settings=ModelSettings(output=OUTPUT))
    assert lowering.lower_request(request).settings.output is not None
    assert not lowering.learn_from_error(request, ServerError("schema"))
    assert not lowering.learn_from_error(request, InvalidRequestError("the temperature is too high"))
    assert lowering.learn_from_error(request, InvalidRequestError("output_config.format.schema: 'x' is not supported"))
    lowered = lowering.lower_request(request)
    assert lowered.settings.output is None
    assert lowered.system is not None and lowered.system.startswith("Be brief.\n\nAnswer with one JSON object")
    assert '"number"' in lowered.system
    assert not lowering.learn_from_error(request, InvalidRequestError("schema"))
    other = Request("another", Prompt(), settings=ModelSettings(output=OUTPUT))
    assert lowering.lower_request(other).settings.output is not None


def test_a_schema_that_an_api_does_not_have_is_described_as_text():
    request = make_request(settings=ModelSettings(output=OutputSchema(wrapped(Tree), "Tree")))
    lowered = SchemaLowering("anthropic").lower_request(request)
    assert lowered.settings.output is None
    assert "#/$defs/Tree" in str(lowered.system)


@pytest.mark.parametrize("dialect", RULES)
def test_rejected_tools_are_sent_with_common_keywords_only(dialect: Any):
    lowering = SchemaLowering(dialect)
    request = make_request(tools=(STRICT, PLAIN))
    first = lowering.lower_request(request)
    assert first.tools[1] is PLAIN
    assert list(RULES[dialect]("tool", first.tools[0].parameters)) == []
    assert lowering.lower_request(request).tools[0] is first.tools[0]
    assert lowering.learn_from_error(request, InvalidRequestError("tools.0.custom.input_schema: 'minimum' is bad"))
    loose = lowering.lower_request(request).tools
    assert [tool.strict for tool in loose] == [False, False]
    assert loose[1].parameters == {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert not lowering.learn_from_error(request, InvalidRequestError("tools.0.custom.input_schema: still bad"))


def test_a_request_without_schemas_is_not_copied():
    request = make_request(tools=(PLAIN,))
    assert SchemaLowering("openai").lower_request(request) is request
