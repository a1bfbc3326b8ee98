"""The model's own list of what is to be done, kept for the session."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import msgspec

from outrider.errors import ToolFailure
from outrider.tools.context import ToolContext
from outrider.tools.tool import Tool, ToolResult, argument_aliases, prompt_beside
from outrider.types.messages import Message
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolCompleted

NAME = "todo"
MOST = 200
LONGEST = 1_000
_MARKS = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]", "cancelled": "[-]"}


class Todo(msgspec.Struct, frozen=True):
    content: str
    status: Literal["pending", "in_progress", "completed", "cancelled"] = "pending"


Recall = Callable[[str], Awaitable[tuple[Todo, ...]]]
"""The list of a session, by its id."""
Keep = Callable[[str, tuple[Todo, ...]], Awaitable[None]]
"""Has kept the list of a session when it returns."""


def todo_tool(recall: Recall, keep: Keep) -> Tool:
    async def todo(context: ToolContext, todos: list[Todo] | None = None) -> ToolResult:
        if todos is None:
            return _told(await recall(context.session_id))
        _require_bounded(todos)
        await keep(context.session_id, tuple(todos))
        return _told(tuple(todos))

    return Tool(
        todo,
        name=NAME,
        description=prompt_beside(__file__),
        read_only=True,  # it changes nothing but the session's own notes
        parallel=False,
        repeatable=True,
        preprocess_args=_understood,
    )


def recorded_todos(messages: Sequence[Message]) -> tuple[Todo, ...]:
    """The list as the transcript has it: what the last call that changed or read it said."""
    for message in reversed(messages):
        for part in reversed(message.get_parts_by_type(ToolPart)):
            if part.tool == NAME and isinstance(part.state, ToolCompleted) and "todos" in part.state.metadata:
                return msgspec.convert(part.state.metadata["todos"], tuple[Todo, ...])
    return ()


def _understood(arguments: dict[str, Any]) -> dict[str, Any]:
    arguments = argument_aliases({"items": "todos", "list": "todos", "plan": "todos"})(arguments)
    todos: Any = arguments.get("todos")
    if isinstance(todos, list):
        arguments["todos"] = [{"content": item} if isinstance(item, str) else item for item in todos]  # pyright: ignore
    return arguments


def _require_bounded(todos: list[Todo]) -> None:
    if len(todos) > MOST:
        raise ToolFailure(f"a list has at most {MOST} entries, got {len(todos)}")
    for number, item in enumerate(todos, 1):
        if not item.content.strip() or len(item.content) > LONGEST:
            raise ToolFailure(f"entry {number}: `content` has 1 to {LONGEST} characters")


def _told(todos: tuple[Todo, ...]) -> ToolResult:
    text = "\n".join(f"{_MARKS[item.status]} {item.content}" for item in todos) or "(the list is empty)"
    left = sum(item.status in {"pending", "in_progress"} for item in todos)
    return ToolResult(text, title=f"{left} to do", metadata={"todos": msgspec.to_builtins(todos)})
