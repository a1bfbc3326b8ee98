"""The tools todo, question, task and skill."""

from pathlib import Path
from typing import Any

import pytest

from outrider import ToolContext, ToolFailure
from outrider.tools.builtin.question import question_tool
from outrider.tools.builtin.skill import Skill, skill_tool
from outrider.tools.builtin.task import task_tool
from outrider.tools.builtin.todo import todo_tool
from outrider.tools.tool import UserQuestion
from outrider.types.tool_state import TodoItem
from tests.unit.tools.builtin.tool_workspace import ToolWorkspace


class Notes:
    def __init__(self) -> None:
        self.lists: dict[str, tuple[TodoItem, ...]] = {}

    async def recall(self, session_id: str) -> tuple[TodoItem, ...]:
        return self.lists.get(session_id, ())

    async def keep(self, session_id: str, todos: tuple[TodoItem, ...]) -> None:
        self.lists[session_id] = todos


@pytest.fixture
def notes(workspace: ToolWorkspace) -> Notes:
    notes = Notes()
    workspace.tools.append(todo_tool(notes.recall, notes.keep))
    return notes


async def test_a_list_is_preserved_per_session_and_read_again(workspace: ToolWorkspace, notes: Notes):
    todos = [{"content": "a", "status": "completed", "priority": "high", "id": "1"}, {"content": "b"}, "c"]
    assert await workspace.output_of("todo", todos=todos) == "[x] a\n[ ] b\n[ ] c"
    assert await workspace.output_of("todo") == "[x] a\n[ ] b\n[ ] c"
    assert await workspace.output_of("todo", "other") == "(the list is empty)"
    assert notes.lists["s"][0] == TodoItem("a", "completed")


@pytest.mark.parametrize(
    "todos", [[{"content": ""}], [{"content": "x" * 2_000}], ["x"] * 500, [{"status": "pending"}], 7, "a",
              [{"content": "a", "status": "someday"}], [[]], [None]]
)  # fmt: skip
async def test_a_wrong_list_is_refused_and_the_old_one_stays(workspace: ToolWorkspace, notes: Notes, todos: object):
    await workspace.output_of("todo", todos=["first"])
    assert await workspace.error_of("todo", todos=todos)
    assert notes.lists["s"] == (TodoItem("first"),)


async def test_a_question_reaches_the_user_and_the_answer_the_model(workspace: ToolWorkspace):
    asked: list[UserQuestion] = []

    async def ask(question: UserQuestion, context: ToolContext) -> tuple[str, ...]:
        asked.append(question)
        return ("red", "blue")

    workspace.tools.append(question_tool(ask))
    output = await workspace.output_of("question", question="Which?", options=["red", "blue"], multiple=True)
    assert output == "The user answered: red; blue"
    options = [{"label": "red", "description": "warm"}, {"label": "blue"}]
    await workspace.output_of("question", questions=[{"question": "Which?", "options": options, "multiSelect": True}])
    assert asked == [UserQuestion("Which?", ("red", "blue"), True), UserQuestion("Which?", ("red: warm", "blue"), True)]


async def test_in_unattended_mode_a_question_is_refused_with_a_helpful_message(workspace: ToolWorkspace):
    workspace.tools.append(question_tool(None))
    assert "no user is connected to answer" in await workspace.error_of("question", question="Which?")


@pytest.mark.parametrize(
    "arguments",
    [
        {}, {"question": " "}, {"question": "x" * 9_999}, {"question": "a", "options": [""]},
        {"question": "a", "options": ["x"] * 99}, {"questions": []}, {"question": 1},
    ],
)  # fmt: skip
async def test_a_wrong_question_is_refused(workspace: ToolWorkspace, arguments: dict):
    workspace.tools.append(question_tool(None))
    assert "nobody" not in await workspace.error_of("question", **arguments)


async def test_a_task_runs_the_named_agent_or_the_first(workspace: ToolWorkspace):
    ran: list[Any] = []

    async def run_task(agent: str, description: str, prompt: str, context: ToolContext) -> str:
        ran.append((agent, description, prompt, context.session_id))
        return "found it"

    tool = task_tool({"explorer": "finds things", "writer": "writes"}, run_task)
    workspace.tools.append(tool)
    assert "- explorer: finds things" in tool.description
    assert await workspace.output_of("task", description="find x", prompt="Where is x?") == "found it"
    await workspace.output_of("task", description="d", prompt="p", subagent_type="writer")
    assert ran == [("explorer", "find x", "Where is x?", "s"), ("writer", "d", "p", "s")]
    assert "the agents are: explorer, writer" in await workspace.error_of(
        "task", description="d", prompt="p", agent="x"
    )
    assert "`prompt` is empty" in await workspace.error_of("task", description="d", prompt=" ")
    assert await workspace.error_of("task", prompt="p")


async def test_a_skill_is_loaded_without_its_front_matter_and_names_where_its_files_are(
    workspace: ToolWorkspace, tmp_path: Path
):
    path = tmp_path / "pdf" / "SKILL.md"
    path.parent.mkdir()
    path.write_text("---\nname: pdf\ndescription: forms\n---\n\n# PDF\nDo this.\n")
    tool = skill_tool([Skill("pdf", "fills in forms", path)])
    workspace.tools.append(tool)
    assert "- pdf: fills in forms" in tool.description
    assert (
        await workspace.output_of("skill", skill="pdf")
        == f"# PDF\nDo this.\n\n(files of this skill are in {path.parent})"
    )
    assert "Did you mean pdf?" in await workspace.error_of("skill", name="pfd")
    path.unlink()
    assert "is not a file" in await workspace.error_of("skill", name="pdf")


async def test_a_failing_agent_is_a_failure_of_the_call(workspace: ToolWorkspace):
    async def run_task(agent: str, description: str, prompt: str, context: ToolContext) -> str:
        raise ToolFailure("the limit of depth was reached")

    workspace.tools.append(task_tool({"a": ""}, run_task))
    assert await workspace.error_of("task", description="d", prompt="p") == "the limit of depth was reached"
