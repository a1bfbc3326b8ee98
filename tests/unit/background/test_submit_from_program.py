"""A program can submit runs to an engine that has a run database."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider import Background, ConfigurationError, Engine, InvalidRequestError, OutputUnavailableError
from tests.scenario.scripted_runs import agent, scripted


async def test_a_run_that_no_worker_has_yet_is_submitted_found_again_and_canceled(tmp_path: Path):
    database = f"sqlite:///{tmp_path / 'runs.sqlite'}"
    async with Engine([agent()], [scripted(["never asked"])]) as engine:
        with pytest.raises(ConfigurationError, match="has no run queue"):
            await engine.submit("too early")
        async with Background(engine, database, works=False) as background:
            with pytest.raises(ConfigurationError, match="must be a UUID"):
                await engine.submit("look around", workspace=str(tmp_path), run_id="nightly")
            handle = await engine.submit("look around", workspace=str(tmp_path), mode="agent", approval="edits")
            assert (await engine.store.get(handle.id)).approval == "edits"
            again = background.run(handle.id)
            assert (await again.show()).state == "queued"
            await handle.cancel()
            assert (await again.result()).outcome.reason == "aborted"
        with pytest.raises(ConfigurationError, match="has no run queue"):
            await engine.submit("too late")


@dataclass
class Links:
    dead: int
    note: str = ""


@pytest.mark.slow
async def test_a_background_run_has_a_typed_output(tmp_path: Path):
    database = f"sqlite:///{tmp_path / 'runs.sqlite'}"
    seen: list[Any] = []

    def answer(request: Any) -> str:
        seen.append(request.settings.output)
        return '{"dead": "many"}' if len(seen) == 1 else '{"dead": 3}'

    async with Engine([agent()], [scripted(answer)]) as engine, Background(engine, database) as background:
        handle = await background.submit("count them", workspace=str(tmp_path), worktree=False, output_type=Links)
        assert await handle.output() == Links(3)
        assert await background.run(handle.id, list[int] | Links).output() == Links(3)
        assert "dead" in await background.run(handle.id).output()
        with pytest.raises(OutputUnavailableError, match="before there was a value of int"):
            await background.run(handle.id, int).output()
    assert seen[0].schema["required"] == ["dead"]


@pytest.mark.slow
async def test_the_output_of_a_run_that_failed_or_never_started_is_an_error_and_no_empty_text(tmp_path: Path):
    database, model = f"sqlite:///{tmp_path / 'runs.sqlite'}", scripted([InvalidRequestError("no such field")])
    async with Engine([agent()], [model]) as engine, Background(engine, database) as background:
        handle = await background.submit("x", workspace=str(tmp_path), worktree=False)
        with pytest.raises(OutputUnavailableError, match="before there was an answer: no such field") as caught:
            await handle.output()
        assert caught.value.reason == "error"
    async with Engine([agent()], [model]) as engine, Background(engine, database, works=False) as background:
        handle = await background.submit("y", workspace=str(tmp_path), worktree=False)
        await handle.cancel()
        with pytest.raises(OutputUnavailableError, match="'aborted' before there was an answer"):
            await handle.output()
