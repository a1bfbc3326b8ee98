"""An engine takes work for later once somebody keeps it."""

from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider import Background, ConfigurationError, Engine
from tests.scenario.stories import agent, scripted


async def test_a_run_that_nobody_works_on_yet_is_submitted_found_again_and_canceled(tmp_path: Path):
    database = f"sqlite:///{tmp_path / 'runs.sqlite'}"
    async with Engine([agent()], [scripted(["never asked"])]) as engine:
        with pytest.raises(ConfigurationError, match="has no run queue"):
            await engine.submit("too early")
        async with Background(engine, database, works=False) as background:
            handle = await engine.submit("look around", workspace=str(tmp_path))
            again = background.run(handle.id)
            assert (await again.show()).state == "queued"
            await handle.cancel()
            assert (await again.result()).outcome.reason == "aborted"
        with pytest.raises(ConfigurationError, match="has no run queue"):
            await engine.submit("too late")
