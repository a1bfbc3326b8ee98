"""The standard engine needs only an API key, stores sessions, and creates private files."""

import stat
from pathlib import Path

import pytest

from outrider.config.settings import read_settings
from outrider.engine.factory import standard_engine
from outrider.errors import ConfigurationError
from outrider.providers.scripted import call
from outrider.types.parts import ToolPart
from tests.fixtures.standard_engine import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def calls_of(engine, session_id: str) -> list[ToolPart]:
    loaded = await engine.store.load(session_id)
    return [part for message in loaded.messages for part in message.get_parts_by_type(ToolPart)]


async def test_a_turn_with_built_in_tools_is_answered_and_preserved_for_the_next_engine(place):
    (place.workspace / "notes.txt").write_text("milk\n")
    async with place.engine([[call("read", file_path="notes.txt")], "It says milk."]) as engine:
        session = await engine.create(workspace=place.workspace)
        end = await engine.prompt(session, "what do the notes say?")
        assert end.output == "It says milk."
    async with place.engine([]) as later:
        (part,) = await calls_of(later, session)
        assert "milk" in part.state.output
    assert stat.S_IMODE(place.own.stat().st_mode) == 0o700


async def test_rules_and_unattended_mode_decide_about_calls(place):
    script = [[call("shell", command="echo hi > made.txt"), call("shell", command="date")], "done"]
    async with place.engine(script, deny=("shell(date *)", "shell(date)")) as engine:
        session = await engine.create(workspace=place.workspace)
        await engine.prompt(session, "go")
        made, date = await calls_of(engine, session)
    assert (made.state.reason, date.state.reason) == ("denied", "denied")
    assert "no user is available" in made.state.error
    assert not (place.workspace / "made.txt").exists()


async def test_limits_hold_for_the_turn(place):
    script = [[call("list", path=".")]] * 5
    async with place.engine(script, max_turns=2) as engine:
        end = await engine.prompt(await engine.create(workspace=place.workspace), "go")
    assert end.reason == "limit"
    assert len(place.requests) == 2


async def test_without_a_provider_it_explains_how_to_get_one(place):
    settings = read_settings(cwd=place.workspace, environ={"OUTRIDER_HOME": str(place.own)})
    with pytest.raises(ConfigurationError, match="three ways"):
        async with standard_engine(settings, workspace=place.workspace, attended=False):
            pass


async def test_a_configured_script_is_a_model_too(place):
    (place.own / "config.toml").write_text(
        'model = "demo/one"\n[providers.demo]\nkind = "scripted"\noptions = { script = [{text = "Hello."}] }'
    )
    async with standard_engine(place.settings(), workspace=place.workspace, attended=False) as engine:
        end = await engine.prompt(await engine.create(workspace=place.workspace), "hi")
    assert end.output == "Hello."
