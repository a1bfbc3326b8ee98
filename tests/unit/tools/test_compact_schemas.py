"""Compact schemas accept the same values."""

from typing import Annotated, Any, Literal

import msgspec

from outrider import Tool
from outrider.tools.schema import compact_schema


class Step(msgspec.Struct):
    title: str
    done: bool = False


class Tree(msgspec.Struct):
    name: str
    children: "list[Tree]" = []


@Tool
def plan(
    title: str,
    steps: Annotated[list[Step] | None, "all of them"] = None,
    kind: Literal["short", "long"] = "short",
    limit: int | str | None = None,
    default: bool = False,
) -> str:
    """Make a plan."""
    return f"{title} {steps} {kind} {limit} {default}"


def test_what_goes_without_saying_is_not_reported():
    parameters = plan.spec().parameters
    assert parameters == {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "steps": {
                "description": "all of them",
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"title": {"type": "string"}, "done": {"type": "boolean"}},
                    "required": ["title"],
                },
            },
            "kind": {"type": "string", "enum": ["short", "long"], "default": "short"},
            "limit": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "default": {"type": "boolean"},
        },
        "required": ["title"],
    }


async def test_null_is_still_accepted_from_models_that_write_it():
    assert await plan.execute(title="x", steps=None, limit=None) == "x None short None False"


def test_a_type_that_holds_itself_stays_a_definition():
    @Tool
    def grow(tree: Tree) -> str:
        return tree.name

    parameters = grow.spec().parameters
    assert parameters["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
    assert parameters["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}


def test_a_null_that_must_be_given_and_an_object_that_takes_more_stay():
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"name": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
        "required": ["name"],
        "additionalProperties": True,
    }
    assert compact_schema(schema) == schema


def test_a_schema_that_is_held_to_strictly_or_was_given_stays_as_it_is():
    @Tool(strict=True)
    def exact(word: str) -> str:
        return word

    given = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    assert exact.spec().parameters["additionalProperties"] is False
    assert Tool.from_schema("foreign", "", given, lambda: "x").spec().parameters == given


async def test_what_is_unsaid_is_understood_all_the_same():
    @Tool(unsaid=("shout",))
    def say(word: str, shout: bool = False) -> str:
        return word.upper() if shout else word

    assert say.spec().parameters["properties"] == {"word": {"type": "string"}}
    assert "shout" in say.to_schema()["parameters"]["properties"]
    assert await say.execute(word="hey", shout=True) == "HEY"
