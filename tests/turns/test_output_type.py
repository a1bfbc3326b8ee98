"""Structured output: a value of the wanted type, mended where it does not fit, an error where it cannot be."""

from dataclasses import dataclass
from typing import TypedDict

import pydantic
import pytest

from outrider import OutriderError
from tests.turns.stories import Story, call


@dataclass
class City:
    name: str
    people: int


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


async def test_a_list_of_values_works_too():
    result = await Story([f"```json\n[{GOOD}]\n```"]).run(output_type=list[City])
    assert result.output == [City("Oslo", 700000)]


async def test_an_answer_that_does_not_fit_is_mended():
    asked = []

    def answer(request):
        asked.append(request.prompt[-1].content[-1].text)
        return GOOD if len(asked) == 3 else ["Oslo!", '{"name": "Oslo", "people": "many"}'][len(asked) - 1]

    result = await Story(answer).run("which city?", output_type=City)
    assert result.output == City("Oslo", 700000)
    assert "it is not JSON" in asked[1]
    assert "people" in asked[2]


async def test_an_answer_that_never_fits_is_an_error_with_everything_kept():
    with pytest.raises(OutriderError, match="not JSON") as caught:
        await Story(lambda _: "never").run("which city?", output_type=City)
    assert caught.value.details["result"].session.messages[-1].get_text_content() == "never"


async def test_finish_can_carry_the_value():
    result = await Story([[call("finish", message=GOOD)]]).run(output_type=City)
    assert result.output == City("Oslo", 700000)
