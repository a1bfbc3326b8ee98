"""Typed outputs over all four APIs: lowered schemas are accepted, a rejected one is left out, validators decide."""

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import annotated_types
import pydantic
import pytest

from outrider import Agent, CallbackError, OutputMismatch, OutputUnavailableError, SessionContext, Tool, async_run
from outrider.testing.simulator import Simulator
from outrider.testing.simulator_answers import SIMULATED_APIS, SimulatedError, call

MODELS = {
    "anthropic": "claude-sonnet-4-6",
    "openai": "gpt-4.1",
    "openai-responses": "gpt-4.1",
    "google": "gemini-2.5-flash",
}


@dataclass
class Circle:
    kind: Literal["circle"]
    radius: Annotated[float, annotated_types.Gt(0)]


@dataclass
class Square:
    kind: Literal["square"]
    side: float = 1.0


@dataclass
class Tree:
    label: str
    children: "list[Tree]" = field(default_factory=list)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=1)
    age: int = pydantic.Field(5, ge=0)


CASES: list[tuple[Any, Any, Any]] = [
    (Circle | Square, {"value": {"kind": "square", "side": None}}, Square("square")),
    (Tree, {"label": "a", "children": [{"label": "b", "children": []}]}, Tree("a", [Tree("b")])),
    (Person, {"name": "Ada", "age": None}, Person(name="Ada")),
    (list[Person], {"value": [{"name": "Ada", "age": 3}]}, [Person(name="Ada", age=3)]),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (Literal["b", "a"], {"value": "a"}, "a"),
    (tuple[int, str], {"value": [1, "a"]}, (1, "a")),
    (Person | str, {"value": "nobody"}, "nobody"),
]


def agent_of(kind: str) -> Agent:
    return Agent("helper", "You answer.", model=MODELS[kind], provider="simulator")


@pytest.mark.parametrize("kind", SIMULATED_APIS)
@pytest.mark.parametrize(("wanted", "answer", "value"), CASES, ids=lambda one: str(one)[:30])
async def test_a_typed_answer_is_requested_and_read(kind: Any, wanted: Any, answer: Any, value: Any):
    async with Simulator([json.dumps(answer)]) as server:
        result = await async_run(agent_of(kind), "Go.", providers=[server.provider(kind)], output_type=wanted)
        server.check()
    assert result.output == value
    request = server.requests[0]
    assert request.output_schema is not None or "follows this JSON schema" in request.system


@pytest.mark.parametrize("kind", SIMULATED_APIS)
async def test_a_rejected_schema_is_left_out_once_and_remembered(kind: Any):
    refusal = SimulatedError(400, "Invalid schema: property 'minimum' is not supported", "invalid_request_error")
    answer = '{"name": "Ada", "age": 3}'
    async with Simulator([refusal, answer, answer]) as server:
        provider = server.provider(kind)
        result = await async_run(agent_of(kind), "Go.", providers=[provider], output_type=Person)
    assert result.output == Person(name="Ada", age=3)
    first, second = server.requests
    assert first.output_schema is not None
    assert second.output_schema is None
    assert '"minimum":0' in second.system


@pytest.mark.parametrize("kind", SIMULATED_APIS)
async def test_strict_tools_of_every_api_validate_with_the_type_of_the_author(kind: Any):
    seen: list[Any] = []

    @Tool(strict=True)
    def order(person: Person, shape: Circle | Square, count: Annotated[int, annotated_types.Ge(1)] = 2) -> str:
        """Order."""
        seen.append((person, shape, count))
        return "done"

    bad = call("order", person={"name": ""}, shape={"kind": "circle", "radius": 1}, count=1)
    good = call("order", person={"name": "Ada", "age": None}, shape={"kind": "circle", "radius": 1}, count=None)
    async with Simulator([[bad], [good], "Done."]) as server:
        await async_run(agent_of(kind), "Go.", tools=[order], providers=[server.provider(kind)])
        server.check()
    assert seen == [(Person(name="Ada"), Circle("circle", 1.0), 2)]
    assert "Invalid arguments" in server.requests[1].results[0]


@pytest.mark.parametrize("kind", SIMULATED_APIS)
async def test_a_validator_returns_the_answer_to_the_model(kind: Any):
    asked: list[str] = []

    async def check(context: SessionContext[Any], person: Person) -> Person | None:
        asked.append(context.agent)
        if person.name == "Eve":
            raise ValueError("Eve is not a customer.")
        return person if person.name == "Bob" else Person(name=person.name.upper())

    answers = ['{"name": "Eve"}', '{"name": "Ada"}']
    async with Simulator(answers) as server:
        result = await async_run(
            agent_of(kind),
            "Who?",
            providers=[server.provider(kind)],
            output_type=Person,
            output_validators=[check, lambda person: None],
        )
    assert result.output == Person(name="ADA")
    assert asked == ["helper", "helper"]
    assert "Eve is not a customer" in server.requests[1].texts[-1]


async def run_with(answers: list[str], **options: Any) -> Any:
    async with Simulator(answers) as server:
        return await async_run(agent_of("anthropic"), "Go.", providers=[server.provider("anthropic")], **options)


async def test_the_number_of_attempts_is_configurable_and_the_error_names_all():
    def refuse(value: Person) -> None:
        raise OutputMismatch("nobody fits")

    message = "agent 'helper' gave no answer that is a value of Person in 2 attempts: nobody fits"
    with pytest.raises(OutputMismatch, match=message) as caught:
        await run_with(['{"name": "Ada"}'] * 2, output_type=Person, output_validators=refuse, output_attempts=2)
    assert caught.value.details["attempts"] == 2
    with pytest.raises(OutputMismatch, match="in 1 attempt: it is not JSON"):
        await run_with(["no"], output_type=Person, output_attempts=1)
    with pytest.raises(OutputUnavailableError):
        _ = caught.value.details["result"].output


async def test_text_can_be_validated_too():
    def check(text: str) -> str:
        assert "!" in text, "shout"
        return text.lower()

    result = await run_with(["quiet", "LOUD!"], output_validators=check)
    assert (result.output, result.text) == ("loud!", "LOUD!")


async def test_a_validator_that_fails_ends_the_run_with_its_name():
    def broken(value: Person) -> None:
        raise KeyError("x")

    with pytest.raises(CallbackError, match="the output validator broken failed"):
        await run_with(['{"name": "Ada"}'], output_type=Person, output_validators=broken)
