"""Every kind of type as a tool parameter and as an output: its schema, the values it accepts and those it rejects."""

import datetime
import decimal
import ipaddress
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Required,
    TypedDict,
    TypeVar,
)

import annotated_types
import msgspec
import pydantic
import pytest
from typing_extensions import Doc, TypeAliasType

from outrider import Tool, ToolFailure
from outrider.tools.schema import schema_for_type
from outrider.tools.type_adapters import ValueMismatch
from outrider.tools.type_hints import UnsupportedTypeError, compile_type
from tests.fixtures.cases import for_each

T = TypeVar("T")
UserId = NewType("UserId", int)


class Colour(Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


class Level(IntEnum):
    HIGH = 3
    LOW = 1


class Corner(Enum):
    LEFT = (0, 0)
    RIGHT = (1, 0)


@dataclass
class Point:
    """A place.

    Attributes:
        x: to the right
    """

    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list)


@dataclass
class Circle:
    kind: Literal["circle"]
    radius: float


@dataclass
class Square:
    kind: Literal["square"]
    side: float


@dataclass
class Tree:
    label: str
    children: "list[Tree]" = field(default_factory=list)


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class IntBox(Box[int]):
    size: int = 1


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Partial(TypedDict, total=False):
    title: Required[str]
    year: int


class Pair(NamedTuple):
    first: str
    second: int = 2


class Cat(msgspec.Struct, tag="cat"):
    name: str


class Dog(msgspec.Struct, tag="dog", rename="camel"):
    full_name: str
    age: Annotated[int, msgspec.Meta(ge=0)] = 0


class Node(pydantic.BaseModel):
    value: int
    next: "Node | None" = None


class Person(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(5, ge=0, description="in years")


class Company(pydantic.BaseModel):
    name: str
    staff: list[Person] = []


class Slug(str):
    pass


Json = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | None")
Even = Annotated[int, annotated_types.Predicate(lambda number: number % 2 == 0)]

ACCEPTED: list[tuple[Any, Any, Any]] = [
    (str, "a", "a"),
    (int, 3, 3),
    (int, "3", 3),
    (float, 3, 3.0),
    (bool, "true", True),
    (None, None, None),
    (bytes, "aGk=", b"hi"),
    (datetime.datetime, "2026-01-02T03:04:05Z", datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)),
    (datetime.date, "2026-01-02", datetime.date(2026, 1, 2)),
    (datetime.timedelta, "PT5S", datetime.timedelta(seconds=5)),
    (decimal.Decimal, "1.50", decimal.Decimal("1.50")),
    (uuid.UUID, "12345678123456781234567812345678", uuid.UUID("12345678123456781234567812345678")),
    (Path, "a/b", Path("a/b")),
    (ipaddress.IPv4Address, "10.0.0.1", ipaddress.IPv4Address("10.0.0.1")),
    (UserId, 7, 7),
    (Slug, "x-y", Slug("x-y")),
    (Any, {"a": [1]}, {"a": [1]}),
    (object, 1, 1),
    (list[int], [1, "2"], [1, 2]),
    (list, [1, "a"], [1, "a"]),
    (set[str], ["a", "a"], {"a"}),
    (frozenset[int], [1], frozenset({1})),
    (tuple[int, ...], [1, 2], (1, 2)),
    (tuple[int, str], [1, "a"], (1, "a")),
    (tuple[()], [], ()),
    (deque[int], [1], deque([1])),
    (Sequence[int], [1], [1]),
    (Iterable[str], ["a"], ["a"]),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (dict[int, str], {"1": "a"}, {1: "a"}),
    (dict[Colour, int], {"red": 1}, {Colour.RED: 1}),
    (Mapping[str, Point], {"p": {"x": 1}}, {"p": Point(1)}),
    (Colour, "green", Colour.GREEN),
    (Level, 3, Level.HIGH),
    (Level, "1", Level.LOW),
    (Corner, "RIGHT", Corner.RIGHT),
    (Literal["b", "a"], "a", "a"),
    (Literal["b", 1, None], 1, 1),
    (Literal[Colour.RED, "x"], "red", Colour.RED),
    (Point, {"x": 1, "y": "2"}, Point(1, 2)),
    (Point, {"x": 1, "y": None}, Point(1, 0)),
    (Optional[Point], None, None),  # noqa: UP045
    (Circle | Square, {"kind": "square", "side": 2}, Square("square", 2.0)),
    (Point | Pair, {"first": "a"}, Pair("a")),
    (Point | Person, {"name": "Ada"}, Person(name="Ada")),
    (Movie | Point, {"title": "a", "year": 1}, {"title": "a", "year": 1}),
    (str | Person, "Ada", "Ada"),
    (str | int, 3, 3),
    (int | str, "3", "3"),
    (int | list[int], ["3"], [3]),
    (Tree, {"label": "a", "children": [{"label": "b"}]}, Tree("a", [Tree("b")])),
    (Box[int], {"content": "1"}, Box(1)),
    (Box[Point], {"content": {"x": 1}}, Box(Point(1))),
    (IntBox, {"content": 1}, IntBox(1)),
    (Movie, {"title": "a"}, {"title": "a"}),
    (Partial, {"title": "a"}, {"title": "a"}),
    (Pair, {"first": "a"}, Pair("a")),
    (Pair, ["a", 3], Pair("a", 3)),
    (Cat | Dog, {"type": "dog", "fullName": "Rex"}, Dog("Rex")),
    (Cat, {"name": "Tom"}, Cat("Tom")),
    (Node, {"value": 1, "next": {"value": 2}}, Node(value=1, next=Node(value=2))),
    (Person, {"name": "Ada", "age": None}, Person(name="Ada")),
    (list[Company], [{"name": "X", "staff": [{"name": "Ada"}]}], [Company(name="X", staff=[Person(name="Ada")])]),
    (Json, {"a": [1, "b", None]}, {"a": [1, "b", None]}),
    (Even, 4, 4),
    (Annotated[int, annotated_types.Interval(ge=1, lt=9)], 8, 8),
    (Annotated[int | None, annotated_types.Ge(3)], None, None),
    (Annotated[str, pydantic.StringConstraints(to_upper=True)], "a", "A"),
    (Annotated[Circle | Square, pydantic.Field(discriminator="kind")], {"kind": "circle", "radius": 1}, ...),
    (Annotated[int, pydantic.AfterValidator(lambda number: number + 1)], 1, 2),
]


@pytest.mark.parametrize(("hint", "given", "value"), ACCEPTED, ids=lambda one: str(one)[:40])
async def test_a_value_is_converted_to_its_type(hint: Any, given: Any, value: Any):
    expected = Circle("circle", 1.0) if value is ... else value
    converted = compile_type(hint).convert(given)
    assert converted == expected
    assert type(converted) is type(expected)
    seen: list[Any] = []

    def take(value):
        seen.append(value)

    take.__annotations__["value"] = hint
    await Tool(take).execute(value=given)
    assert seen == [expected]


REJECTED: list[tuple[Any, Any, str]] = [
    (int, "x", "Expected `int`, got `str`"),
    (bool, 3, "Expected `bool`, got `int`"),
    (list[int], [1, "x", None], r"Expected `int`, got `str` at `\[1\]`; Expected `int`, got `null` at `\[2\]`"),
    (dict[str, int], {"a": "x"}, "at `a`"),
    (tuple[int, str], [1], "length 2, got 1"),
    (Colour, "pink", "Invalid enum value 'pink'"),
    (Literal["a", "b"], 3, "Expected `str`, got `int`"),
    (Literal[1, 2], True, "Expected `int`, got `bool`"),
    (Point, {"y": 1}, "missing required field `x`"),
    (Point, [1], "Expected `object`, got `array`"),
    (Circle | Square, {"kind": "star"}, "Invalid value 'star'; it is one of 'circle', 'square' at `kind`"),
    (Circle | Square, {"kind": "circle", "radius": "big"}, "Expected `float`, got `str` at `radius`"),
    (Point | Movie, {"title": 3}, "the object is none of Point, Movie; as Movie: Expected `str`, got `int` at `title`"),
    (int | list[int], {"a": 1}, r"Expected `int \| array`, got `object`"),
    (Colour | None, "pink", "Invalid enum value 'pink'"),
    (Tree, {"label": "a", "children": [{"label": 3}]}, r"at `children\[0\].label`"),
    (Box[int], {"content": "x"}, "at `content`"),
    (Dog, {"type": "cat", "fullName": "a"}, "Invalid value 'cat' at `type`"),
    (Dog, {"fullName": "a", "age": -1}, "Expected `int` >= 0 at `age`"),
    (Person, {"name": "Ada", "age": -1}, "age: Input should be greater than or equal to 0"),
    (Even, 3, "is true"),
    (Path, 3, "Expected `str`, got `int`"),
    (ipaddress.IPv4Address, "nowhere", "is not a valid IPv4Address"),
    (Annotated[int, annotated_types.Ge(3)], 1, "Expected `int` >= 3"),
    (Annotated[int, annotated_types.Gt(3)], 3, "Expected `int` > 3"),
    (Annotated[int, annotated_types.Lt(3)], 3, "Expected `int` < 3"),
    (Annotated[int, annotated_types.MultipleOf(3)], 4, "multiple of 3"),
    (Annotated[int | None, annotated_types.Ge(3)], 1, ">= 3"),
    (Annotated[list[int], annotated_types.Len(1, 2)], [], "of length >= 1"),
    (Annotated[str, annotated_types.MaxLen(2)], "abc", "of length <= 2"),
    (Annotated[str, msgspec.Meta(pattern="^a")], "b", "matching regex '\\^a'"),
    (Annotated[int, pydantic.Field(ge=3)], 1, "greater than or equal to 3"),
    (Annotated[decimal.Decimal, annotated_types.Ge(3)], "1", ">= 3"),
]


@pytest.mark.parametrize(("hint", "given", "message"), REJECTED, ids=lambda one: str(one)[:40])
async def test_a_value_of_another_type_is_rejected_with_its_place(hint: Any, given: Any, message: str):
    with pytest.raises(ValueMismatch, match=message):
        compile_type(hint).convert(given)
    ran: list[Any] = []

    def take(value):
        ran.append(value)

    take.__annotations__["value"] = hint
    with pytest.raises(ToolFailure, match="Invalid arguments for take: `value`: "):
        await Tool(take).execute(value=given)
    assert ran == []


SCHEMAS: list[tuple[Any, dict[str, Any]]] = [
    (Literal["b", "a"], {"type": "string", "enum": ["b", "a"]}),
    (Literal[2, 1], {"type": "integer", "enum": [2, 1]}),
    (
        Literal["a", 1, None],
        {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "integer", "enum": [1]}, {"type": "null"}]},
    ),
    (Colour, {"type": "string", "enum": ["red", "green", "blue"]}),
    (Level, {"type": "integer", "enum": [3, 1]}),
    (Corner, {"type": "string", "enum": ["LEFT", "RIGHT"]}),
    (Annotated[int, annotated_types.Interval(ge=1, lt=9)], {"type": "integer", "minimum": 1, "exclusiveMaximum": 9}),
    (Annotated[str, annotated_types.Len(1, 5)], {"type": "string", "minLength": 1, "maxLength": 5}),
    (Annotated[list[int], annotated_types.MinLen(1)], {"type": "array", "items": {"type": "integer"}, "minItems": 1}),
    (Annotated[int | None, annotated_types.Ge(3)], {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "null"}]}),
    (
        Annotated[int, pydantic.Field(ge=3, description="how many")],
        {"type": "integer", "minimum": 3, "description": "how many"},
    ),
    (
        tuple[int, str],
        {"type": "array", "minItems": 2, "maxItems": 2, "prefixItems": [{"type": "integer"}, {"type": "string"}]},
    ),
    (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
    (ipaddress.IPv4Address, {"type": "string", "format": "ipv4"}),
    (
        Point,
        {
            "description": "A place.",
            "type": "object",
            "properties": {
                "x": {"description": "to the right", "type": "integer"},
                "y": {"type": "integer", "default": 0},
                "tags": {"type": "array", "items": {"type": "string"}, "default": []},
            },
            "required": ["x"],
        },
    ),
    (
        Tree,
        {
            "type": "object",
            "properties": {
                "label": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}, "default": []},
            },
            "required": ["label"],
            "$defs": {
                "Tree": {
                    "type": "object",
                    "properties": {
                        "label": {"type": "string"},
                        "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}, "default": []},
                    },
                    "required": ["label"],
                }
            },
        },
    ),
]


@pytest.mark.parametrize(("hint", "schema"), SCHEMAS, ids=lambda one: str(one)[:40])
def test_a_type_has_its_schema(hint: Any, schema: dict[str, Any]):
    assert schema_for_type(hint) == schema


@for_each("hint", [hint for hint, _, _ in ACCEPTED])
def test_every_reference_of_a_schema_resolves(hint: Any):
    schema = schema_for_type(list[hint] if hint is not None else type(None))
    text = msgspec.json.encode(schema).decode()
    for part in text.split('"$ref":"#/$defs/')[1:]:
        assert part.partition('"')[0] in schema["$defs"]


def test_two_classes_of_one_name_have_two_definitions():
    def make(kind: Any) -> Any:
        @dataclass
        class Same:
            value: kind

        return Same

    first, second = make(int), make(str)
    schema = schema_for_type(tuple[first, second])
    assert [one["$ref"] for one in schema["prefixItems"]] == ["#/$defs/Same", "#/$defs/Same_2"]
    model = pydantic.create_model("Same", other=(int, ...))
    holder = pydantic.create_model("Holder", same=(model, ...))
    schema = schema_for_type(tuple[first, holder])
    assert schema["$defs"]["Same"]["properties"].keys() == {"value"}
    assert schema["$defs"]["Same_2"]["properties"].keys() == {"other"}
    assert schema["prefixItems"][1]["properties"]["same"] == {"$ref": "#/$defs/Same_2"}


class Plain:
    pass


@dataclass
class Holder:
    plain: Plain


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        (Plain, "Plain is a class that JSON values cannot be converted to"),
        (list[Plain], "Plain is a class"),
        (int | Plain, "Plain is a class"),
        (Holder, "its field 'plain' in Holder: Plain is a class"),
        (type[int], r"type\[int\] is a class|not a type"),
        (complex, "complex"),
        (Literal[b"x"], "Literal is not JSON"),
        (..., "Ellipsis"),
    ],
    ids=str,
)
def test_an_unsupported_type_names_tool_parameter_and_reason_when_the_tool_is_created(hint: Any, message: str):
    def take(value):
        return value

    take.__annotations__["value"] = hint
    with pytest.raises(UnsupportedTypeError, match="tool take, parameter `value`: ") as caught:
        Tool(take)
    with pytest.raises(UnsupportedTypeError, match=message):
        compile_type(hint)
    assert caught.value.message


async def test_defaults_of_parameters_can_be_fields_of_pydantic():
    @Tool
    def search(
        query: str,
        limit: int = pydantic.Field(5, ge=1, description="how many"),
        tags: Annotated[list[str], pydantic.Field(default_factory=list)] = pydantic.Field(default_factory=list),  # noqa: B008
        depth: Annotated[int, "how deep"] = 3,
    ) -> str:
        """Search."""
        return f"{query} {limit} {tags} {depth}"

    properties = search.parameters["properties"]
    assert properties["limit"] == {"type": "integer", "minimum": 1, "description": "how many", "default": 5}
    assert properties["depth"] == {"type": "integer", "description": "how deep", "default": 3}
    assert search.parameters["required"] == ["query"]
    assert await search.execute(query="a") == "a 5 [] 3"
    with pytest.raises(ToolFailure, match="`limit`"):
        await search.execute(query="a", limit=0)


def test_descriptions_come_from_every_kind_of_annotation():
    @Tool
    def take(
        a: Annotated[int, "text"],
        b: Annotated[int, pydantic.Field(description="field")],
        c: Annotated[int, msgspec.Meta(description="meta")],
        d: Annotated[int, Doc("doc")],
        e: Annotated[Point, "a point"],
    ) -> None: ...

    found = [one["description"] for one in take.parameters["properties"].values()]
    assert found == ["text", "field", "meta", "doc", "a point"]
