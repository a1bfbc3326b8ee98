"""What the user and a trusted workspace add to the sessions of the standard engine."""

from pathlib import Path

import pytest

from outrider.config.settings import read_settings
from outrider.engine.factory import standard_engine
from outrider.errors import ConfigurationError
from outrider.project.trust import WorkspaceTrust, find_project
from outrider.providers.scripted import call
from outrider.testing.simulator import Simulator
from outrider.types.parts import CompactionPart, ToolPart
from tests.fixtures.standard_engine import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def trust(place: Place) -> WorkspaceTrust:
    return WorkspaceTrust(find_project(place.workspace, place.home), place.own / "trust.json")


async def test_instructions_of_the_user_and_of_a_trusted_workspace_are_in_the_system_prompt(place):
    (place.own / "AGENTS.md").write_text("Speak plainly.")
    (place.workspace / "AGENTS.md").write_text("Use tabs.")
    for trusted in (False, True):
        if trusted:
            trust(place).trust()
        async with place.engine(["done"]) as engine:
            await engine.prompt(await engine.create(workspace=place.workspace), "go")
        system = place.requests[-1].system
        assert "Speak plainly." in system
        assert ("Use tabs." in system) is trusted


async def test_the_system_prompt_stays_the_same_to_the_end_of_a_session_also_in_another_engine(place):
    (place.workspace / "AGENTS.md").write_text("Use tabs.")
    trust(place).trust()
    async with place.engine(["one", "two"]) as engine:
        session = await engine.create(workspace=place.workspace)
        await engine.prompt(session, "go")
        (place.workspace / "AGENTS.md").write_text("Use spaces.")
        await engine.prompt(session, "and on")
    trust(place).revoke_trust()
    async with place.engine(["three"]) as engine:
        await engine.prompt(session, "and on")
        first, second, third = (request.system for request in place.requests)
        assert first == second == third
        await engine.prompt(await engine.create(workspace=place.workspace), "anew")
    assert "Use" not in place.requests[-1].system


async def test_a_skill_is_offered_and_loaded_on_demand(place):
    skill = place.own / "skills" / "pdf" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: pdf\ndescription: reads PDF files\n---\nUse pdftotext.")
    async with place.engine([[call("skill", name="pdf")], "done"]) as engine:
        session = await engine.create(workspace=place.workspace)
        await engine.prompt(session, "go")
        loaded = await engine.store.load(session)
    offered = {tool.name: tool.description for tool in place.requests[0].tools}
    assert "pdf: reads PDF files" in offered["skill"]
    (part,) = [part for message in loaded.messages for part in message.get_parts_by_type(ToolPart)]
    assert "Use pdftotext." in part.state.output


async def test_without_skills_there_is_no_tool_for_them(place):
    async with place.engine(["done"]) as engine:
        await engine.prompt(await engine.create(workspace=place.workspace), "go")
    assert "skill" not in {tool.name for tool in place.requests[0].tools}


async def test_the_user_s_own_prompts_take_the_place_of_ours(place):
    (place.own / "prompts").mkdir()
    (place.own / "prompts" / "agent.md").write_text("You are a pirate.")
    (place.own / "prompts" / "read.md").write_text("Aye, read. {ours}")
    (place.own / "prompts" / "plan_mode.md").write_text("Plot a course.")
    async with place.engine(["done"], mode="plan") as engine:
        await engine.prompt(await engine.create(workspace=place.workspace), "go")
    (request,) = place.requests
    assert request.system.startswith("You are a pirate.")
    assert request.system.endswith("Plot a course.")
    assert next(tool.description for tool in request.tools if tool.name == "read").startswith("Aye, read. Reads a file")


async def test_facts_of_a_model_that_cannot_be_read_are_named(place):
    (place.own / "config.toml").write_text("[models.mine]\ncontext_limit = 'large'")
    with pytest.raises(ConfigurationError, match=r"models\['mine'\]: Expected `int .* at `\$\.context_limit`"):
        async with place.engine([]):
            pass


async def test_old_sessions_are_forgotten_only_where_the_user_wants_it(place):
    async with place.engine(["done"]) as engine:
        session = await engine.create(workspace=place.workspace)
        await engine.prompt(session, "go")
    async with place.engine([]) as engine:
        assert (await engine.store.get(session)).id == session
    (place.own / "config.toml").write_text("[retention]\ndays = 0")
    async with place.engine([]):
        pass
    (place.own / "config.toml").unlink()
    async with place.engine([]) as engine:
        assert (await engine.store.list()).sessions == ()


@pytest.mark.parametrize("automatic", [True, False])
async def test_settings_of_a_model_and_of_compaction_apply(place, automatic):
    (place.own / "config.toml").write_text(
        f"[compaction]\nautomatic = {str(automatic).lower()}\n"
        "[models.'claude-sonnet-4-6']\ncontext_limit = 6000\noutput_limit = 500"
    )

    def answer(request) -> str:
        return "a summary" if "about to be shortened" in request.texts[-1] else "an answer"

    async with Simulator(answer) as server:
        environ = {**place.environ, "ANTHROPIC_BASE_URL": server.url()}
        settings = read_settings(cwd=place.workspace, environ=environ)
        async with standard_engine(settings, workspace=place.workspace, attended=False) as engine:
            session = await engine.create(workspace=place.workspace)
            for question in ("short", "also short", "long " * 4_200):
                await engine.prompt(session, question)
            messages = (await engine.store.load(session)).messages
    compactions = [part for message in messages for part in message.get_parts_by_type(CompactionPart)]
    assert bool(compactions) is automatic
