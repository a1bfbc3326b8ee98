"""The agent of an embedded model, and its descriptions of the built-in tools."""

from pathlib import Path

import pytest

from outrider.context.prompts import prompt_text
from outrider.engine.approval_gate import function_channel
from outrider.engine.session_tools import SessionTools, ToolEnvironment
from outrider.event_bus import EventBus
from outrider.models.clients import adapt_to_local_models
from outrider.models.local_models import LOCAL_TOOLS, local_profile
from outrider.processes.sandbox.sandbox import NoSandbox
from outrider.providers.local.prompt import LOCAL_TOOL_PROMPT, strip_line_numbers
from outrider.sessions.session import Session
from outrider.types.agents import Agent, Provider
from outrider.types.request import ToolSpec

STANDARD = Agent("outrider", prompt_text("agent"), "1.5b", "local")


@pytest.fixture
async def built_in(tmp_path: Path) -> dict[str, ToolSpec]:
    around = ToolEnvironment(sandbox=NoSandbox("", ""), data=tmp_path, home=tmp_path, bus=EventBus())
    toolbox = SessionTools(Session(workspace_directory=str(tmp_path)), around, function_channel(None))
    specs = {name: tool.spec() for name, tool in toolbox.tools.items()}
    await toolbox.aclose()
    return specs


def test_the_standard_agent_gets_few_tools_and_short_instructions():
    agent = local_profile(STANDARD)
    assert agent.tools == LOCAL_TOOLS
    assert len(agent.instructions) < len(STANDARD.instructions)


def test_what_the_user_has_written_stays():
    own = Agent("mine", "Speak like a pirate.", "1.5b", "local", tools=("read", "todo"))
    assert local_profile(own) == own


def test_only_agents_with_an_embedded_model_are_changed():
    remote = Agent("remote", prompt_text("agent"), "large", "vendor")
    local, other = adapt_to_local_models(
        [STANDARD, remote], [Provider("local", "local"), Provider("vendor", "openai", "k")]
    )
    assert local.tools == LOCAL_TOOLS
    assert other is remote


async def test_the_primer_speaks_of_tools_and_parameters_that_exist(built_in):
    assert set(LOCAL_TOOLS) <= built_in.keys()
    for name, compact in LOCAL_TOOL_PROMPT.tools.items():
        properties = built_in[name].parameters["properties"]
        assert set(compact.parameters) <= properties.keys()
        assert set(built_in[name].parameters.get("required", ())) <= set(compact.parameters)
        assert compact.file_parameter in (*compact.parameters, "")


def test_every_example_is_a_call_that_the_primer_allows():
    for _, call in LOCAL_TOOL_PROMPT.examples:
        arguments = {name for name in call if name != "tool"}
        assert arguments <= (
            {"text"} if call["tool"] == "answer" else set(LOCAL_TOOL_PROMPT.tools[call["tool"]].parameters)
        )


def test_a_file_is_shown_without_line_numbers():
    assert strip_line_numbers("     1\tdef a():\n     2\t    return 1\n\n(lines 1-2 of 9)") == (
        "def a():\n    return 1\n\n(lines 1-2 of 9)"
    )
