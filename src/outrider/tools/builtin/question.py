"""The `question` tool: asks the user through the connected front end."""

from time import monotonic
from typing import Annotated, Any

from outrider.errors import ToolFailure
from outrider.tools.definitions import load_prompt
from outrider.tools.tool import (
    MAX_OPTIONS,
    AskUser,
    Progress,
    Tool,
    ToolContext,
    ToolResult,
    UserQuestion,
)
from outrider.types.tool_state import WAITED
from outrider.types.validate import is_object

MAX_TEXT_LENGTH = 4_000


def question_tool(ask: AskUser | None) -> Tool:
    """Returns the tool. `ask` is None if no front end can ask the user."""

    async def question(
        question: str,
        context: ToolContext,
        options: Annotated[list[str] | None, "answers to choose from"] = None,
        multiple: Annotated[bool, "several may be chosen"] = False,  # noqa: FBT002
    ) -> ToolResult:
        user_question = UserQuestion(question.strip(), tuple(options or ()), multiple)
        _check_question(user_question)
        started = monotonic()
        answers = await ask(user_question, context) if ask is not None else None
        context.report(Progress(metadata={WAITED: round((monotonic() - started) * 1000)}))
        if answers is None:
            raise ToolFailure(
                "no user is connected to answer; decide yourself, or finish and state what you need to know"
            )
        texts = [answer.strip() for answer in answers if answer.strip()]
        return ToolResult(
            f"The user answered: {'; '.join(texts)}" if texts else "The user gave no answer.",
            title=user_question.text[:100],
            metadata={"answers": texts},
        )

    return Tool(
        question,
        description=load_prompt(__file__, "question"),
        read_only=True,
        display="think",
        parallel=False,
        asks=True,
        preprocess_args=_normalize_arguments,
    )


def _normalize_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Accepts other agents' parameters: a list with one question, and options as objects with a description."""
    questions: Any = arguments.get("questions")
    if "question" not in arguments and isinstance(questions, list) and len(questions) == 1 and is_object(questions[0]):  # pyright: ignore
        only_question = questions[0]
        arguments = {"question": only_question.get("question"), "options": only_question.get("options")}
        arguments["multiple"] = only_question.get("multiSelect", only_question.get("multiple", False))
    options: Any = arguments.get("options")
    if isinstance(options, list):
        arguments["options"] = [_option_label(option) for option in options]  # pyright: ignore
    return arguments


def _option_label(option: Any) -> Any:
    if not is_object(option) or "label" not in option:
        return option
    description = option.get("description")
    return f"{option['label']}: {description}" if description else option["label"]


def _check_question(user_question: UserQuestion) -> None:
    if not user_question.text or len(user_question.text) > MAX_TEXT_LENGTH:
        raise ToolFailure(f"`question` has 1 to {MAX_TEXT_LENGTH:,} characters")
    if len(user_question.options) > MAX_OPTIONS or any(
        not 0 < len(option) <= MAX_TEXT_LENGTH for option in user_question.options
    ):
        raise ToolFailure(f"`options` are at most {MAX_OPTIONS} texts, none of them empty")
