"""Arguments of a run are validated before anything is requested."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from outrider import Agent, Engine, Provider, async_run, async_run_stream, replay, run
from outrider.errors import ConfigurationError

SCRIPT = [{"tool": "double", "input": {"number": 21}}, "It is 42."]


def double(number: int) -> int:
    """Twice the number."""
    return 2 * number


def parts(**agent: Any) -> tuple[Agent, Provider]:
    model = Provider("demo", kind="scripted", options={"script": SCRIPT})
    return Agent("helper", "You help.", model="demo", provider="demo", **agent), model


def test_a_mode_that_does_not_exist_is_refused_before_anything_runs():
    agent, model = parts()
    with pytest.raises(ConfigurationError, match="the run has the unknown mode 'agnet'"):
        run(agent, "hi", providers=[model], mode="agnet")  # type: ignore[arg-type]
    odd, _ = parts(mode="everything")
    with pytest.raises(ConfigurationError, match="agent 'helper' has the unknown mode 'everything'"):
        Engine([odd], [model])


def test_a_provider_that_was_not_given_is_named_with_those_that_were():
    agent, model = parts()
    with pytest.raises(ConfigurationError, match="'demo'; no provider was given"):
        run(agent, "hi")
    other = Agent("other", "You help.", model="m", provider="elsewhere")
    with pytest.raises(ConfigurationError, match="'elsewhere'; there is demo"):
        run(other, "hi", providers=[model])


async def test_an_engine_takes_plain_functions_and_folders_as_text_and_replays_what_it_recorded(tmp_path: Path):
    agent, model = parts()
    tools: list[Any] = [double]
    async with Engine([agent], [model], tools, cassettes=str(tmp_path / "cassettes")) as engine:
        session = await engine.create()
        assert (await engine.prompt(session, "twice 21?")).output == "It is 42."
        again = await replay(engine, session)
        again.check()
        assert again.session.messages[-1].get_text_content() == "It is 42."


def test_editors_and_help_see_what_a_run_takes():
    takes = inspect.signature(async_run).parameters.keys()
    assert {"entry", "message", "tools", "limits", "output_type", "hooks"} <= takes
    for other in (run, async_run_stream):
        assert inspect.signature(other).parameters.keys() == takes
        assert other.__doc__
        assert not inspect.iscoroutinefunction(other)
