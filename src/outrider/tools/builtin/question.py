"""Asks the user, through whichever front end is there."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec

from outrider.errors import ToolFailure
from outrider.tools.context import ToolContext
from outrider.tools.tool import Tool, ToolResult, prompt_beside
from outrider.types.validate import is_object

MOST_OPTIONS = 20
LONGEST = 4_000


class Question(msgspec.Struct, frozen=True):
    """With no options the answer is free text; with some, it may be free text too."""

    text: str
    options: tuple[str, ...] = ()
    multiple: bool = False


Ask = Callable[[Question, ToolContext], Awaitable[tuple[str, ...] | None]]
"""The user's answers, or None when nobody is there to give one."""


def question_tool(ask: Ask | None) -> Tool:
    """`ask` is None where nobody can be asked."""

    async def question(
        question: str,
        context: ToolContext,
        options: Annotated[list[str] | None, "answers to choose from"] = None,
        multiple: Annotated[bool, "several may be chosen"] = False,  # noqa: FBT002
    ) -> ToolResult:
        asked = Question(question.strip(), tuple(options or ()), multiple)
        _require_sane(asked)
        answers = await ask(asked, context) if ask is not None else None
        if answers is None:
            raise ToolFailure("nobody is there to answer; decide yourself, or end and say what you need to know")
        said = [answer.strip() for answer in answers if answer.strip()]
        return ToolResult(
            f"The user answered: {'; '.join(said)}" if said else "The user gave no answer.",
            title=asked.text[:100],
            metadata={"answers": said},
        )

    return Tool(
        question,
        description=prompt_beside(__file__),
        read_only=True,
        parallel=False,
        asks=True,
        preprocess_args=_understood,
    )


def _understood(arguments: dict[str, Any]) -> dict[str, Any]:
    """Other agents ask lists of questions, and give options a description; a list of one is taken."""
    many: Any = arguments.get("questions")
    if "question" not in arguments and isinstance(many, list) and len(many) == 1 and is_object(many[0]):  # pyright: ignore
        first = many[0]
        arguments = {"question": first.get("question"), "options": first.get("options")}
        arguments["multiple"] = first.get("multiSelect", first.get("multiple", False))
    options: Any = arguments.get("options")
    if isinstance(options, list):
        arguments["options"] = [_label(option) for option in options]  # pyright: ignore
    return arguments


def _label(option: Any) -> Any:
    if not is_object(option) or "label" not in option:
        return option
    description = option.get("description")
    return f"{option['label']}: {description}" if description else option["label"]


def _require_sane(asked: Question) -> None:
    if not asked.text or len(asked.text) > LONGEST:
        raise ToolFailure(f"`question` has 1 to {LONGEST:,} characters")
    if len(asked.options) > MOST_OPTIONS or any(not 0 < len(option) <= LONGEST for option in asked.options):
        raise ToolFailure(f"`options` are at most {MOST_OPTIONS} texts, none of them empty")
