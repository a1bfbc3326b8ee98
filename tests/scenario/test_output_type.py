"""Structured output: a value of the requested type, another attempt if the answer does not match, and then an error."""

import re
import threading
from dataclasses import dataclass
from typing import Literal, TypedDict

import pydantic
import pytest

from outrider import ConfigurationError, OutputMismatch
from tests.scenario.scripted_runs import Story, call


@dataclass
class City:
    name: str
    people: int


@dataclass
class Other:
    city: City


class CityDict(TypedDict):
    name: str
    people: int


class CityModel(pydantic.BaseModel):
    name: str
    people: int


SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
GOOD = '{"name": "Oslo", "people": 700000}'


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        (City, City("Oslo", 700000)),
        (CityDict, {"name": "Oslo", "people": 700000}),
        (CityModel, CityModel(name="Oslo", people=700000)),
        (SCHEMA, {"name": "Oslo", "people": 700000}),
        (dict, {"name": "Oslo", "people": 700000}),
    ],
)
async def test_an_answer_becomes_a_value_of_the_wanted_type(wanted, value):
    seen = []

    def answer(request):
        seen.append(request.settings.output)
        return GOOD

    result = await Story(answer).run("which city?", output_type=wanted)
    assert result.output == value
    assert seen[0].schema["type"] == "object"


@pytest.mark.parametrize(
    ("wanted", "text", "value"),
    [
        (list[City], f"```json\n[{GOOD}]\n```", [City("Oslo", 700000)]),
        (list[City], f'{{"value": [{GOOD}]}}', [City("Oslo", 700000)]),
        (int, '{"value": 3}', 3),
        (int, "3", 3),
        (Literal["yes", "no"], '{"value": "no"}', "no"),
        (City | None, '{"value": null}', None),
        ({"type": "array", "items": {"type": "string"}}, '{"value": ["a"]}', ["a"]),
        (dict[str, int], '{"value": 3}', {"value": 3}),
    ],
)
async def test_what_is_no_object_is_asked_for_as_a_field_of_one(wanted, text, value):
    """No API takes a schema of anything else; a model that answers without the object is understood too."""
    seen = []

    def answer(request):
        seen.append(request.settings.output.schema)
        return text

    result = await Story(answer).run("what?", output_type=wanted)
    assert result.output == value
    assert seen[0]["type"] == "object"
    for reference in re.findall(r"#/\$defs/(\w+)", str(seen[0])):
        assert reference in seen[0]["$defs"]


async def test_text_is_text():
    seen = []

    def answer(request):
        seen.append(request.settings.output)
        return "Oslo, of course."

    assert (await Story(answer).run("which city?", output_type=str)).output == "Oslo, of course."
    assert seen == [None]


@pytest.mark.parametrize("wanted", [object(), 3, threading.Thread, list[threading.Thread], "City"])
async def test_a_type_that_no_answer_can_have_is_refused_before_anything_is_asked(wanted):
    with pytest.raises(ConfigurationError, match="output_type"):
        await Story(["never"]).run("what?", output_type=wanted)


async def test_an_answer_that_does_not_fit_is_repaired():
    asked = []

    def answer(request):
        asked.append(request.prompt[-1].content[-1].text)
        return GOOD if len(asked) == 3 else ["Oslo!", '{"name": "Oslo", "people": "many"}'][len(asked) - 1]

    result = await Story(answer).run("which city?", output_type=City)
    assert result.output == City("Oslo", 700000)
    assert "it is not JSON" in asked[1]
    assert "people" in asked[2]


async def test_an_answer_that_never_fits_is_an_error_with_everything_preserved():
    message = "agent 'writer' gave no answer that is a value of City in 3 attempts: it is not JSON"
    with pytest.raises(OutputMismatch, match=message) as caught:
        await Story(lambda _: "never").run("which city?", output_type=City)
    assert caught.value.details["result"].session.messages[-1].get_text_content() == "never"


async def test_finish_can_carry_the_value():
    result = await Story([[call("finish", message=GOOD)]]).run(output_type=City)
    assert result.output == City("Oslo", 700000)


ORDER = {
    "type": "object",
    "properties": {
        "number": {"type": "integer", "minimum": 1},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}, "minItems": 1},
        "note": {"type": "string"},
    },
    "required": ["number", "lines"],
    "additionalProperties": False,
    "$defs": {"Line": {"anyOf": [{"type": "string", "enum": ["tea", "milk"]}, {"$ref": "#/$defs/Box"}]}, "Box": {
        "type": "object", "properties": {"size": {"type": ["number", "null"]}}, "required": ["size"]}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ('{"number": "x", "lines": ["tea"]}', "`number` must be integer, not string"),
        ('{"number": 0, "lines": ["tea"]}', "`number` must be at least 1"),
        ('{"number": 1}', "lacks lines"),
        ('{"number": 1, "lines": []}', "`lines` must have at least 1 items"),
        ('{"number": 1, "lines": ["cola"]}', r"`lines\[0\]` has none of the possible forms"),
        ('{"number": 1, "lines": ["tea"], "more": 1}', "`more` is not expected"),
        ("[]", "must be object, not array"),
    ],
)
async def test_an_answer_is_checked_by_a_json_schema(answer: str, message: str):
    with pytest.raises(OutputMismatch, match=message):
        await Story([answer]).run("what?", output_type=ORDER, output_attempts=1)
    good = '{"number": 1.0, "lines": ["tea", {"size": null}], "note": null}'
    result = await Story([good]).run("what?", output_type=ORDER)
    assert result.output == {"number": 1.0, "lines": ["tea", {"size": None}]}
