"""Attempts as background runs."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider import Agent, Background, ConfigurationError, Engine, EventBus
from outrider.config.providers import search_path
from outrider.engine.session_tools import ToolEnvironment
from outrider.evals import (
    AnswerCheck,
    CallsCheck,
    EvalCase,
    EvalMatrix,
    EvalPolicy,
    EvalSuite,
    FileCheck,
    async_run_suite,
)
from outrider.project.sandbox import LazySandbox
from outrider.testing import call, scripted_model
from outrider.types.request import Request


def answer_request(request: Request) -> Any:
    if any(message.role == "assistant" for message in request.prompt):
        return "done"
    return call("write", file_path="a.txt", content="hello\n")


@pytest.mark.slow
async def test_attempts_run_on_workers(tmp_path: Path):
    bus, data = EventBus(), tmp_path / "data"
    data.mkdir()
    environment = ToolEnvironment(sandbox=LazySandbox(data / "scratch", search_path), data=data, home=tmp_path, bus=bus)
    agent, model = Agent("worker", "Do the task.", "m", "demo"), scripted_model(answer_request)
    checks = (FileCheck(path="a.txt", equals="hello\n"), AnswerCheck(equals="done"), CallsCheck(tool="write"))
    matrix = EvalMatrix(policies={"free": EvalPolicy(), "reads": EvalPolicy(mode="plan")})
    suite = EvalSuite(name="s", cases=(EvalCase(name="a", prompt="write it", checks=checks),), matrix=matrix, repeat=2)
    database = f"sqlite:///{tmp_path / 'runs.sqlite'}"
    async with (
        Engine([agent], [model], bus=bus, surroundings=environment, attended=False) as engine,
        Background(engine, database) as background,
    ):
        run = await async_run_suite(suite, [agent], [model], background=background, folder=tmp_path / "run")
        for matrix, message in (
            (EvalMatrix(prompts={"a": "Other."}), "prompts and cassettes need a local run"),
            (EvalMatrix(models=("demo/n",)), "models and rules need a local run"),
        ):
            with pytest.raises(ConfigurationError, match=message):
                other = msgspec.structs.replace(suite, matrix=matrix)
                await async_run_suite(other, [agent], [model], background=background)
    assert [(one.variant, one.status) for one in run.attempts] == [("free", "passed"), ("reads", "failed")] * 2
    assert all((tmp_path / "run" / one.trace).exists() and one.steps == 2 for one in run.attempts)
