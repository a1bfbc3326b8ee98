"""What the default set of tools costs in every prompt."""

import json
import re
from pathlib import Path
from typing import Any

from outrider import Tool
from outrider.engine.session_tools import list_built_in_tools
from outrider.tools import builtin
from outrider.tools.builtin.question import question_tool
from outrider.tools.builtin.skill import skill_tool
from outrider.tools.builtin.task import task_tool
from outrider.tools.builtin.web import SearchBackend, web_search_tool
from tests.unit.tools.builtin.tool_workspace import ToolWorkspace

BUDGET = 2_000


def default_set(workspace: ToolWorkspace) -> list[Tool]:
    nothing: Any = None
    built_in = list_built_in_tools(str(workspace.files.root))
    search = web_search_tool(SearchBackend(service="searxng"))
    return [*built_in.values(), search, question_tool(None), task_tool({}, nothing), skill_tool([])]


def strict_estimate(text: str) -> int:
    """A strict estimate: every four letters and every digit, punctuation character and line break are one token."""
    return sum(-(-len(word) // 4) for word in re.findall(r"[^\W\d_]+|\d|_|[^\w ]|\n", text))


def test_the_descriptions_of_the_default_set_stay_within_their_budget(workspace: ToolWorkspace):
    texts = [tool.description for tool in default_set(workspace)]
    texts += [
        text
        for tool in default_set(workspace)
        for text in re.findall(r'"description": "(.*?)"', json.dumps(tool.parameters))
    ]
    whole = "\n".join(texts)
    assert len(whole) / 4 < BUDGET
    assert strict_estimate(whole) < BUDGET


def test_all_that_is_sent_about_the_default_set_stays_within_the_budget_too(workspace: ToolWorkspace):
    """Names and schemas included, as JSON."""
    sent = json.dumps([tool.to_schema() for tool in default_set(workspace)], separators=(",", ":"))
    assert len(sent) / 4 < BUDGET


def test_the_set_has_every_tool_that_has_a_prompt(workspace: ToolWorkspace):
    prompts = {path.stem for path in Path(builtin.__file__).parent.glob("*.md")}
    assert {tool.name for tool in default_set(workspace)} == prompts


def test_every_tool_has_a_closed_schema_with_required_fields(workspace: ToolWorkspace):
    for tool in default_set(workspace):
        assert tool.parameters["type"] == "object"
        assert tool.parameters["additionalProperties"] is False
        assert "{" not in tool.description.replace("{a,b}", "")
