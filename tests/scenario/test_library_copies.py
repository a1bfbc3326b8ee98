"""Values of the library in other processes and as copies: errors, results and tools can be pickled and copied."""

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import pytest

from outrider import (
    Agent,
    AuthenticationError,
    CallbackError,
    Engine,
    InvalidRequestError,
    InvalidStateTransition,
    LimitReachedError,
    Limits,
    OutputUnavailableError,
    OutriderError,
    Provider,
    ProviderError,
    RunResult,
    Tool,
    ToolFailure,
    async_run,
    errors,
    run,
)
from tests.fixtures.cases import for_each
from tests.scenario.scripted_runs import call

AGENT = Agent("helper", "You help.", model="demo", provider="demo")


def model(*answers: Any) -> Provider:
    return Provider("demo", kind="scripted", options={"script": list(answers)})


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


COPIES: dict[str, Callable[[Any], Any]] = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": pickled}
ERRORS = [
    InvalidStateTransition("completed", "running", ()),
    CallbackError("the hook", "failed"),
    LimitReachedError("turns", 3, 4),
    OutputUnavailableError("no value", reason="limit"),
    ToolFailure("too slow", reason="timeout", seconds=3),
    ProviderError("no", provider="p", status=500, type="t", retry_after=2.0, more=1),
]


def test_every_class_of_errors_is_tested_below_or_has_the_constructor_of_its_base_class():
    classes = {one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, OutriderError)}
    assert {one for one in classes if "__init__" in vars(one)} == {OutriderError, *map(type, ERRORS)}


@pytest.mark.parametrize("way", COPIES)
@for_each("error", ERRORS)
def test_an_error_is_copied_with_its_class_text_and_values(error: OutriderError, way: str):
    again = COPIES[way](error)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


def fail(text: str) -> RunResult[str]:
    return run(AGENT, text, providers=[model(InvalidRequestError("no such field", provider="demo", status=400))])


@pytest.mark.slow
def test_an_error_of_a_run_in_another_process_is_raised_here_and_the_pool_continues():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(InvalidRequestError, match="no such field") as caught:
            pool.submit(fail, "x").result(60)
        assert caught.value.status == 400
        assert caught.value.details["result"].reason == "error"
        assert pool.submit(max, 1, 2).result(60) == 2


@pytest.mark.parametrize("way", COPIES)
async def test_the_error_of_a_copied_result_has_its_class_and_values(way: str):
    refused = AuthenticationError("no key", provider="demo", status=401, response=lambda: "cannot be pickled")
    async with Engine([AGENT], [model(refused)]) as engine:
        result = await engine.prompt(await engine.create(), "x")
    error = COPIES[way](result).error
    assert isinstance(error, AuthenticationError)
    assert (error.status, error.provider, error.message) == (401, "demo", "no key")


async def test_a_result_at_a_limit_is_copied_with_the_limit():
    result = pickled(await async_run(AGENT, "x", providers=[model("a")], limits=Limits(turns=0)))
    assert (result.reason, result.limit) == ("limit", "turns")


async def test_a_result_can_be_pickled_if_its_validators_cannot():
    result = await async_run(AGENT, "x", providers=[model("3")], output_type=int, output_validators=lambda one: one + 1)
    assert pickled(result).output == 4
    async with Engine([AGENT], [model(*["no"] * 3)]) as engine:
        failed = await engine.prompt(await engine.create(), "x", output_type=int, output_validators=lambda one: one + 1)
    with pytest.raises(OutputUnavailableError, match="a value of int"):
        _ = pickled(failed).output


@Tool(timeout=3)
def decorated(number: int) -> int:
    """Add one."""
    return number + 1


def plain(number: int) -> int:
    """Add one."""
    return number + 1


class Counter:
    def __init__(self, step: int) -> None:
        self.step = step

    @Tool
    def count(self, number: int) -> int:
        """Add one."""
        return number + self.step


TOOLS = [
    decorated,
    Tool(plain, name="named"),
    Tool(partial(plain), name="filled"),
    Tool.from_schema("described", "Add one.", {"type": "object", "properties": {}}, plain),
    Counter(1).count,
]


@pytest.mark.parametrize("way", COPIES)
@for_each("tool", TOOLS)
def test_a_copied_tool_is_a_tool_with_the_same_definition(tool: Tool, way: str):
    again = COPIES[way](tool)
    assert isinstance(again, Tool)
    assert again.to_schema() == tool.to_schema()
    assert again.options == tool.options
    assert again(1) == 2
    assert run(AGENT, "x", tools=[again], providers=[model(call(tool.name, number=2), "done")]).output == "done"


@pytest.mark.slow
def test_a_decorated_function_is_found_by_its_name_in_another_process():
    assert pickled(decorated) is decorated
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(decorated, 2).result(60) == 3
