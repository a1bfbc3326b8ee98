"""Tools from functions: schemas from type hints, conversion of arguments, and precise errors."""

import asyncio
import threading
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

from outrider import Attachment, ConfigurationError, Tool, ToolContext, ToolFailure, ToolResult


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Options(TypedDict, total=False):
    depth: int


class Inner(pydantic.BaseModel):
    label: str


class Shape(pydantic.BaseModel):
    name: str
    inner: Inner | None = None


@Tool
def search_web(query: Annotated[str, "what to look for"], lang: Literal["ko", "en"] = "en") -> str:
    """Search the web."""
    return f"{query} in {lang}"


def test_a_function_becomes_a_tool_and_can_still_be_called():
    assert search_web.name == "search_web"
    assert search_web.description == "Search the web."
    assert search_web.to_schema() == {
        "name": "search_web",
        "description": "Search the web.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "what to look for"},
                "lang": {"type": "string", "enum": ["ko", "en"], "default": "en"},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    }
    assert search_web("cats", lang="ko") == "cats in ko"


async def test_a_tool_is_executed_with_its_defaults():
    assert await search_web.execute(query="cats") == "cats in en"


async def test_async_functions_and_options_work():
    @Tool(name="add", description="Adds.", timeout=5, read_only=True)
    async def plus(a: int, b: int = 1) -> int:
        return a + b

    assert (plus.name, plus.description, plus.timeout, plus.read_only) == ("add", "Adds.", 5, True)
    assert await plus.execute(a=2) == "3"


async def test_hints_of_every_kind_are_described_and_read():
    seen: dict[str, Any] = {}

    @Tool
    def draw(
        colour: Colour,
        point: Point,
        options: Options,
        shape: Shape,
        shapes: list[Shape],
        path: Path,
        size: float | None = None,
        tags: list[str] = [],  # noqa: B006
    ) -> None:
        """Draw."""
        seen.update(locals())

    schema = draw.parameters
    assert schema["properties"]["colour"]["$ref"] == "#/$defs/Colour"
    assert schema["$defs"]["Colour"] == {"type": "string", "enum": ["red", "blue"]}
    assert schema["$defs"]["Point"]["required"] == ["x"]
    assert schema["properties"]["shape"]["properties"]["inner"]["anyOf"][0] == {"$ref": "#/$defs/Inner"}
    assert schema["$defs"]["Inner"]["properties"]["label"]["type"] == "string"
    assert schema["required"] == ["colour", "point", "options", "shape", "shapes", "path"]
    result = await draw.execute(
        colour="red",
        point={"x": 1},
        options={"depth": 2},
        shape={"name": "s", "inner": {"label": "l"}},
        shapes=[{"name": "t"}],
        path="a/b",
    )
    assert result == ""
    assert seen["colour"] is Colour.RED
    assert seen["point"] == Point(1, 0)
    assert seen["options"] == {"depth": 2}
    assert seen["shape"] == Shape(name="s", inner=Inner(label="l"))
    assert seen["shapes"] == [Shape(name="t")]
    assert (seen["path"], seen["size"], seen["tags"]) == (Path("a/b"), None, [])


def test_the_docstring_describes_parameters_too():
    @Tool
    def move(source: str, target: str, force: bool = False) -> None:
        """Move a file.

        Args:
            source: where it is
            target (str): where it goes

        :param force: also over another file
        """

    properties = move.parameters["properties"]
    assert [properties[name]["description"] for name in properties] == [
        "where it is",
        "where it goes",
        "also over another file",
    ]
    assert move.description == "Move a file."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "`query` is missing"),
        ({"query": None}, "`query`: expected `str`, got `null`; got null"),
        ({"query": 7}, "`query`: expected `str`, got `int`; got a number (7)"),
        ({"query": "a", "lang": "fr"}, "`lang`: invalid enum value 'fr'; got a string ('fr')"),
        ({"query": "a", "quer": "b"}, "`quer` is not an argument of search_web; it takes `query`, `lang`"),
        ({"lang": 3}, "`query` is missing; `lang`: expected `str`, got `int`; got a number (3)"),
        ({"query": "x" * 10_000, "lang": ["y" * 10_000]}, "`lang`: expected `str`, got `array`; got an array (['yyy"),
    ],
)
async def test_wrong_arguments_are_reported_precisely(arguments, message):
    with pytest.raises(ToolFailure) as caught:
        await search_web.execute(**arguments)
    assert message in caught.value.message
    assert caught.value.message.startswith("Invalid arguments for search_web: ")
    assert len(caught.value.message) < 500


async def test_a_wrong_field_inside_an_argument_is_named():
    @Tool
    def plot(points: list[Point], shape: Shape | None = None) -> str:
        return "ok"

    with pytest.raises(ToolFailure, match=r"`points`: expected `int`, got `str` at `\[1\]\.x`"):
        await plot.execute(points=[{"x": 1}, {"x": "one"}])
    with pytest.raises(ToolFailure, match=r"`shape`: name: Field required"):
        await plot.execute(points=[], shape={"inner": None})


async def test_text_that_spells_a_number_or_a_truth_value_is_read_as_one():
    @Tool
    def repeat(times: int, loud: bool = False) -> str:
        return f"{times} {loud}"

    assert await repeat.execute(times="3", loud="true") == "3 True"


async def test_a_tool_from_a_schema_gets_the_arguments_as_they_are():
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    tool = Tool.from_schema("odd", "An odd tool.", schema, lambda **arguments: str(arguments), timeout=3)
    assert tool.to_schema() == {"name": "odd", "description": "An odd tool.", "parameters": schema}
    assert await tool.execute(x="no int", y=1) == "{'x': 'no int', 'y': 1}"


async def test_a_tool_that_asks_for_its_context_gets_it_and_the_model_never_sees_it():
    @Tool
    async def where(context: ToolContext, name: str) -> str:
        return f"{name} in {context.session_id}"

    assert list(where.parameters["properties"]) == ["name"]
    assert await where.call({"name": "a"}, ToolContext(session_id="s")) == "a in s"


async def test_further_arguments_are_passed_on_where_a_function_takes_them():
    @Tool
    def anything(name: str, **more: Any) -> str:
        return f"{name} {more}"

    assert anything.parameters["additionalProperties"] is True
    assert await anything.execute(name="a", b=2) == "a {'b': 2}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("text", "text"),
        (b"bytes\xff", "bytes\ufffd"),
        (42, "42"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        ([Point(1)], '[{"x":1,"y":0}]'),
        (Inner(label="l"), '{"label":"l"}'),
        (Path("a"), '"a"'),
    ],
)
async def test_any_return_value_becomes_text(value, text):
    assert await Tool(lambda: value, name="t").execute() == text


async def test_a_result_can_carry_attachments():
    result = ToolResult("see", (Attachment("image/png", "QUJD"),))
    assert await Tool(lambda: result, name="t").execute() is result


async def test_attachments_in_a_list_are_sent_as_files_not_as_text():
    image = Attachment("image/png", "QUJD")
    result = await Tool(lambda: ["the plot:", image, {"points": 3}], name="t").execute()
    assert result == ToolResult('the plot:\n{"points":3}', (image,))
    assert await Tool(lambda: (image, image), name="t").execute() == ToolResult("", (image, image))


async def test_a_plain_function_runs_in_a_thread_and_never_blocks_the_loop():
    loop_continued = threading.Event()

    @Tool
    def slow() -> str:
        return str(loop_continued.wait(30))

    async def proceed() -> None:
        for _ in range(3):
            await asyncio.sleep(0.005)
        loop_continued.set()

    going_on = asyncio.ensure_future(proceed())
    assert await slow.execute() == "True"
    await going_on


async def test_many_plain_calls_run_side_by_side():
    barrier = threading.Barrier(8, timeout=30)

    @Tool
    def wait() -> str:
        barrier.wait()
        return "met"

    assert await asyncio.gather(*(wait.execute() for _ in range(8))) == ["met"] * 8


async def test_an_error_in_a_thread_reaches_the_caller():
    @Tool
    def broken() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        await broken.execute()


def test_a_policy_can_be_tightened_and_never_loosened():
    tool = Tool(lambda: "", name="t", policy="ask", evaluate_policy=lambda base, args: args["wish"])
    assert [tool.policy_for({"wish": wish}) for wish in ("allow", "ask", "deny")] == ["ask", "ask", "deny"]


def test_arguments_are_prepared_before_anything_is_decided():
    tool = Tool(lambda path: path, name="t", preprocess_args=lambda args: args | {"path": args["path"].strip()})
    given = {"path": " a "}
    assert tool.prepare(given) == {"path": "a"}
    assert given == {"path": " a "}


@pytest.mark.parametrize("name", ["<lambda>", "a b", "größe", "a/b", "x" * 129])
def test_a_name_that_every_api_refuses_is_refused_at_once(name: str):
    with pytest.raises(ConfigurationError, match="no model can call a tool"):
        Tool(lambda: "", name=name)


def test_what_cannot_be_a_tool_is_refused_at_once():
    with pytest.raises(ConfigurationError, match="made from a function"):
        Tool(42)  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(ConfigurationError, match="the options are"):
        Tool(lambda: "", timeot=3)
    with pytest.raises(ConfigurationError, match="a model cannot fill in"):
        Tool(lambda *items: "", name="t")
    with pytest.raises(ConfigurationError, match="tool odd, parameter `thread`: Thread is a class"):

        @Tool
        def odd(thread: threading.Thread) -> None: ...


def test_annotated_limits_go_into_the_schema():
    @Tool
    def page(size: Annotated[int, msgspec.Meta(ge=1, le=100), "how many"] = 10) -> None: ...

    assert page.parameters["properties"]["size"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 100,
        "description": "how many",
        "default": 10,
    }


def test_closures_of_one_definition_have_separate_types_and_texts():
    def make(kind: type, text: str):
        def convert(value: kind) -> str:
            return f"{value}"

        convert.__doc__ = text
        return Tool(convert)

    for _ in range(2):
        numbers, words = make(int, "Convert a number."), make(str, "Convert a word.")
        assert [tool.parameters["properties"]["value"]["type"] for tool in (numbers, words)] == ["integer", "string"]
        assert [tool.description for tool in (numbers, words)] == ["Convert a number.", "Convert a word."]


def test_closures_of_one_definition_have_separate_defaults_and_unions():
    def make(default: object, first: type, second: type):
        def convert(value: first | second, times: float | bool = default) -> str:  # type: ignore[valid-type]
            return f"{value}"

        return Tool(convert)

    for _ in range(2):
        tools = [make(1, int, str), make(True, int, str), make(1, str, int)]
        fields = [tool.parameters["properties"] for tool in tools]
        assert [repr(field["times"]["default"]) for field in fields] == ["1", "True", "1"]
        assert [str(field["value"]).index("integer") < str(field["value"]).index("string") for field in fields] == [
            True,
            True,
            False,
        ]


def test_closures_with_default_values_are_inspected_once():
    def make():
        def search(pattern: str, folder: str | None = None, kind: Literal["file", "line"] = "file") -> str:
            return pattern

        return Tool(search)

    tools = [make() for _ in range(3)]
    assert tools[1].signature is tools[0].signature is tools[2].signature
