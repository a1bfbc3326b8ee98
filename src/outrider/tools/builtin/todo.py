"""The `todo` tool: the model's task list, stored per session."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from outrider.errors import ToolFailure
from outrider.tools.definitions import argument_aliases, load_prompt
from outrider.tools.tool import Tool, ToolContext, ToolResult
from outrider.types.messages import Message
from outrider.types.tool_state import TodoItem, ToolCompleted

TOOL_NAME = "todo"
MAX_ITEMS = 200
MAX_CONTENT_LENGTH = 1_000
_MARKS = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]", "cancelled": "[-]"}


LoadTodos = Callable[[str], Awaitable[tuple[TodoItem, ...]]]
"""Callback that loads the list of a session by id."""
SaveTodos = Callable[[str, tuple[TodoItem, ...]], Awaitable[None]]
"""Callback that stores the list of a session; the list is durable when it returns."""


def todo_tool(load: LoadTodos, save: SaveTodos) -> Tool:
    async def todo(context: ToolContext, todos: list[TodoItem] | None = None) -> ToolResult:
        if todos is None:
            return _format_todos(await load(context.session_id))
        _check_bounds(todos)
        await save(context.session_id, tuple(todos))
        return _format_todos(tuple(todos))

    return Tool(
        todo,
        name=TOOL_NAME,
        description=load_prompt(__file__, "todo"),
        read_only=True,  # it changes only the session's task list
        display="think",
        parallel=False,
        repeatable=True,
        preprocess_args=_normalize_arguments,
    )


def recorded_todos(messages: Sequence[Message]) -> tuple[TodoItem, ...]:
    """Returns the list from the transcript: the metadata of the last completed `todo` call."""
    for message in reversed(messages):
        for part in reversed(message.get_calls()):
            if part.tool == TOOL_NAME and isinstance(part.state, ToolCompleted) and "todos" in part.state.metadata:
                return msgspec.convert(part.state.metadata["todos"], tuple[TodoItem, ...])
    return ()


def _normalize_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    arguments = argument_aliases({"items": "todos", "list": "todos", "plan": "todos"})(arguments)
    todos: Any = arguments.get("todos")
    if isinstance(todos, list):
        arguments["todos"] = [{"content": item} if isinstance(item, str) else item for item in todos]  # pyright: ignore
    return arguments


def _check_bounds(todos: list[TodoItem]) -> None:
    if len(todos) > MAX_ITEMS:
        raise ToolFailure(f"a list has at most {MAX_ITEMS} entries, got {len(todos)}")
    for number, item in enumerate(todos, 1):
        if not item.content.strip() or len(item.content) > MAX_CONTENT_LENGTH:
            raise ToolFailure(f"entry {number}: `content` has 1 to {MAX_CONTENT_LENGTH} characters")


def _format_todos(todos: tuple[TodoItem, ...]) -> ToolResult:
    text = "\n".join(f"{_MARKS[item.status]} {item.content}" for item in todos) or "(the list is empty)"
    open_count = sum(item.status in {"pending", "in_progress"} for item in todos)
    return ToolResult(text, title=f"{open_count} to do", metadata={"todos": msgspec.to_builtins(todos)})
