"""A tool declares what its calls do; the policy and the front ends read it from the tool."""

from pathlib import Path
from typing import Any

import pytest

from outrider import Agent, Provider, Session, Tool, run
from outrider.engine.session_tools import list_built_in_tools
from outrider.errors import ConfigurationError
from outrider.permissions import decide
from outrider.permissions.rule_suggestions import suggested_rules
from outrider.presentation.tool_calls import call_kind, has_output_for_people
from outrider.types import ToolPart
from outrider.types.modes import MODES
from outrider.types.tool_declaration import KNOWN_NAMES
from tests.fixtures.cases import for_each


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "a.txt").write_text("a")
    return tmp_path / "ws"


def count_words(path: str, other: str = "") -> str:
    """Count the words of files."""
    return f"{path} {other}"


COUNT = Tool(count_words, read_only=True, path_parameters=("path", "other"), display="search")
STAMP = Tool(count_words, name="stamp", path_parameters=("path",))
SEND = Tool(count_words, name="send", path_parameters=("path",), read_only=True, network=True)
GET = Tool(lambda address: address, name="get_page", url_parameters=("address",))
CLOCK = Tool(lambda: "12:00", name="clock", read_only=True)
MINE = Tool(lambda: "", name="mine")


@for_each(
    ("tool", "arguments", "effects"),
    [
        (COUNT, {"path": "a.txt"}, "deny allow allow allow"),
        (COUNT, {}, "deny allow allow allow"),
        (COUNT, {"path": "a.txt", "other": "../x"}, "deny ask ask deny"),
        (COUNT, {"path": ["a.txt", "/etc/passwd"]}, "deny ask ask deny"),
        (COUNT, {"path": ".git/config"}, "deny allow allow allow"),
        (STAMP, {"path": "a.txt"}, "deny deny ask allow"),
        (STAMP, {"path": ".git/config"}, "deny deny ask deny"),
        (SEND, {"path": "a.txt"}, "deny ask ask deny"),
        (GET, {"address": "https://example.org"}, "deny ask ask deny"),
        (CLOCK, {}, "deny allow allow allow"),
        (MINE, {}, "deny ask ask deny"),
    ],
)
def test_a_declaration_decides_in_every_mode(workspace: Path, tool: Tool, arguments: dict[str, Any], effects: str):
    found = [decide(tool, arguments, mode=mode, workspace=workspace).effect for mode in MODES]
    assert found == effects.split()


def test_rules_apply_to_declared_paths_and_hosts(workspace: Path):
    def effect(tool: Tool, arguments: dict[str, Any], **rules: Any) -> str:
        return decide(tool, arguments, mode="agent", workspace=workspace, **rules).effect

    assert effect(STAMP, {"path": "a.txt"}, allow=["stamp(/a.txt)"]) == "allow"
    assert effect(STAMP, {"path": "b.txt"}, allow=["stamp(/a.txt)"]) == "ask"
    assert effect(COUNT, {"path": "a.txt", "other": "b.txt"}, deny=["count_words(b.txt)"]) == "deny"
    assert effect(GET, {"address": "https://example.org/x"}, allow=["get_page(example.org)"]) == "allow"
    assert effect(GET, {"address": "https://example.com/x"}, allow=["get_page(example.org)"]) == "ask"
    assert suggested_rules(STAMP, {"path": "a.txt"}, workspace=str(workspace)) == ("stamp(/a.txt)",)
    assert suggested_rules(GET, {"address": "https://example.org/x"}, workspace=str(workspace)) == (
        "get_page(example.org)",
    )


def test_a_misspelled_parameter_is_reported():
    with pytest.raises(ConfigurationError, match="no parameter 'paht'"):
        Tool(count_words, path_parameters=("paht",))


def test_built_in_tools_declare_what_their_names_mean(workspace: Path):
    for name, tool in list_built_in_tools(str(workspace)).items():
        known = KNOWN_NAMES.get(name, tool.declaration)  # a name that is not listed has no second declaration
        assert (tool.declaration.kind, tool.declaration.operation) == (known.kind, known.operation), name
        assert set(tool.declaration.parameters) <= set(known.parameters), name
        assert tool.declaration.display == known.display, name


def run_count(workspace: Path, path: str) -> ToolPart:
    script = [{"tool": "count_words", "input": {"path": path}}, "Done."]
    model = Provider("demo", kind="scripted", options={"script": script})
    agent = Agent("helper", "You help.", model="demo", provider="demo")
    done = run(agent, "count", tools=[COUNT], providers=[model], session=Session(workspace_directory=str(workspace)))
    return next(part for message in done.session.messages for part in message.get_parts_by_type(ToolPart))


def test_a_run_checks_the_paths_that_its_own_tools_declare(workspace: Path):
    assert run_count(workspace, "a.txt").state.status == "completed"
    assert getattr(run_count(workspace, "/etc/passwd").state, "reason", "") == "denied"


def test_a_stored_call_is_shown_as_its_tool_declared(workspace: Path):
    part = run_count(workspace, "a.txt")
    assert call_kind(part) == "search"
    assert not has_output_for_people(part)


def test_a_stored_call_of_an_unknown_tool_or_with_a_newer_kind_is_shown_in_a_generic_way():
    assert call_kind(ToolPart("c1", "gone")) == "other"
    assert call_kind(ToolPart("c1", "gone", metadata={"display": "hologram"})) == "other"
    assert call_kind(ToolPart("c1", "shell", metadata={"display": 7})) == "execute"


NAMES = [*KNOWN_NAMES, "search", "bash", "fetch", "patch", "Read", "Bash"]
OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"path": "a.txt", "other": "x"}),
    ({"read_only": True}, {"path": "no file", "other": "x"}),
    ({"read_only": True, "path_parameters": ("path",)}, {"path": "a.txt"}),
    ({"read_only": True, "path_parameters": ("path",)}, {"path": "/etc/passwd"}),
    ({"path_parameters": ("path",)}, {"path": "a.txt"}),
    ({"path_parameters": ("other",)}, {"path": "x", "other": ".git/config"}),
    ({"url_parameters": ("path",)}, {"path": "https://example.org"}),
    ({"network": True}, {"path": "a.txt"}),
]


@for_each("name", NAMES)
@for_each(("options", "arguments"), OPTIONS)
def test_the_name_of_a_tool_of_ones_own_decides_nothing(
    workspace: Path, name: str, options: dict[str, Any], arguments: dict[str, Any]
):
    named, neutral = (Tool(count_words, name=name, **options) for name in (name, "my_tool"))
    assert named.declaration == neutral.declaration
    for mode in MODES:
        one, other = (decide(tool, arguments, mode=mode, workspace=workspace) for tool in (named, neutral))
        assert (one.effect, one.confinement, one.invalid) == (other.effect, other.confinement, other.invalid)


@pytest.mark.parametrize("name", ["read", "search", "shell", "apply_patch", "process", "web_fetch"])
def test_a_tool_of_ones_own_with_a_built_in_name_runs(workspace: Path, name: str):
    ran: list[str] = []

    def look(query: str) -> str:
        ran.append(query)
        return "found"

    script = [{"tool": name, "input": {"query": "x"}}, "done"]
    run(
        entry=Agent("a", "", "m", "p"),
        message="go",
        agents=[],
        tools=[Tool(look, name=name)],
        providers=[Provider("p", "scripted", options={"script": script})],
        session=Session(workspace_directory=str(workspace)),
    )
    assert ran == ["x"]
