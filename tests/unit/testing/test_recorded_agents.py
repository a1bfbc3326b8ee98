"""Agents of a user are recorded once; later test runs report differences."""

from pathlib import Path

import pytest

from outrider.providers.scripted import call
from outrider.testing.simulator import Simulator
from outrider.testing.simulator_answers import SIMULATED_APIS
from tests.unit.testing.test_plugin import run_pytest

USER_TEST = '''
import asyncio
from outrider import Agent, Provider, compare

provider = Provider("vendor", {kind!r}, "sk-made-up", {url!r})
writer = Agent("writer", {instructions!r}, {model!r}, "vendor")

def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

def test_mine(outrider_replay):
    replay = asyncio.run(outrider_replay.run("add 1 and 2", [writer], [add], [provider]))
    replay.check()
    assert replay.session.messages[-1].get_text_content() == "It is 3."
    assert compare(replay.recorded, replay.session).same

def test_otherwise(outrider_replay):
    asyncio.run(outrider_replay.run("add 1 and 2", [writer], [add], [provider], fresh_results=True)).check()
    (call_id,) = [p.call_id for p in asyncio.run(outrider_replay.session()).messages[1].parts if p.type == "tool"]
    found = asyncio.run(outrider_replay.what_if([writer], [add], [provider], results={{call_id: "4"}}))
    assert found.end.output == "Then it is 4."
    assert found.comparison.a.answer == "It is 3."
    print(found.text())
'''


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["anthropic", "google"])
async def test_agents_are_recorded_once_and_replayed_after(tmp_path: Path, kind: str):
    def write(url: str, instructions: str = "You add.") -> None:
        fields = {"kind": vendor.kind, "url": url, "model": vendor.model, "instructions": instructions}
        (tmp_path / "test_mine.py").write_text(USER_TEST.format(**fields))

    vendor = SIMULATED_APIS[kind]
    asks, answer = [call("add", "c1", a=1, b=2)], "It is 3."
    async with Simulator([asks, answer, asks, answer, "Then it is 4."]) as server:
        write(server.url(kind))
        code, printed = await run_pytest(tmp_path, "--outrider-record")
        assert code == 0, printed
        assert len(server.requests) == 5
    files = {path.name for path in (tmp_path / "cassettes").iterdir()}
    assert files == {
        "test_mine.test_mine.jsonl",
        "test_mine.test_mine.session.json",
        "test_mine.test_otherwise.jsonl",
        "test_mine.test_otherwise.session.json",
        "test_mine.test_otherwise.fork1.jsonl",
    }

    write("http://127.0.0.1:9")
    code, printed = await run_pytest(tmp_path)
    assert code == 0, printed

    write("http://127.0.0.1:9", "You subtract.")
    code, printed = await run_pytest(tmp_path)
    assert code == 1
    assert "the replay differs from the recorded session" in printed
    assert "You subtract." in printed


@pytest.mark.slow
async def test_a_missing_recording_explains_how_to_record(tmp_path: Path):
    fields = {"kind": "anthropic", "url": "http://127.0.0.1:9", "model": "m", "instructions": "You add."}
    (tmp_path / "test_mine.py").write_text(USER_TEST.format(**fields))
    code, printed = await run_pytest(tmp_path)
    assert code == 1
    assert "record one with --outrider-record" in printed
