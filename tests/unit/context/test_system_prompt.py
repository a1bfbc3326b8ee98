"""The system prompt: short, with the rights of the mode, and unchanged for sessions of version 0.1."""

import pytest

from outrider.context.prompts import prompt_text, system_prompt
from outrider.engine.session_tools import ATTENDED, UNATTENDED
from outrider.types.agents import Agent
from outrider.types.modes import MODES

RIGHTS = {"sandbox": "in a sandbox without network", "attended": UNATTENDED}
NOTES_OF_0_1 = "Today is 2026-01-01; the system is Linux x86_64."


def agent(name: str = "agent") -> Agent:
    return Agent("outrider", prompt_text(name), "m", "p")


@pytest.mark.parametrize("mode", MODES)
def test_the_prompt_of_every_mode_has_at_most_2000_characters(mode):
    text = system_prompt(agent(), [], mode, rights=RIGHTS)
    assert len(text) <= 2_000
    assert "{" not in text
    for phrase in ("run in parallel", "until it is done or you are blocked", "compacted automatically", "Never weaken"):
        assert phrase in text


def test_the_prompt_states_how_commands_run_and_whether_questions_are_possible():
    background = system_prompt(agent(), [], "background", rights=RIGHTS)
    assert "in a sandbox without network" in background
    assert UNATTENDED in background
    assert ATTENDED in system_prompt(agent(), [], "agent", rights={**RIGHTS, "attended": ATTENDED})


def test_a_program_that_passes_its_own_instructions_gets_nothing_else():
    assert system_prompt(Agent("writer", "You write.", "m", "p"), []) == "You write."


@pytest.mark.parametrize("mode", MODES)
def test_a_session_of_0_1_has_its_old_prompt(mode):
    text = system_prompt(agent(), [], mode, notes=NOTES_OF_0_1, rights=RIGHTS)
    before = [prompt_text("agent_0_1"), NOTES_OF_0_1, *([prompt_text("plan_mode_0_1")] if mode == "plan" else [])]
    assert text == "\n\n".join(before)


def test_small_local_models_get_a_short_prompt():
    assert system_prompt(agent("local_agent"), [], "agent", rights=RIGHTS) == prompt_text("local_agent")
