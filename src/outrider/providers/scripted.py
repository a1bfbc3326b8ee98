"""A model client that plays answers from a script, for tests and demonstrations, and checks that a conversation follows
the rules of real servers."""

import asyncio
import inspect
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from outrider._sync import describe_exception
from outrider.errors import CallbackError, ConfigurationError, InvalidRequestError, OutriderError, ProviderError
from outrider.types.agents import Provider
from outrider.types.ids import new_id
from outrider.types.parts import FilePart, ReasoningPart, TextPart, Tokens, ToolPart, ToolResultPart, ToolUsePart
from outrider.types.request import (
    AnswerStart,
    Delta,
    Finish,
    InputDelta,
    ModelMessage,
    PartEnd,
    PartStart,
    Prompt,
    ReasoningDelta,
    Request,
    Retry,
    TextDelta,
    UsageReport,
)
from outrider.types.tool_state import ToolPending

Messages = Sequence[ModelMessage]
_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]+")


def anthropic_problems(messages: Messages) -> Iterator[str]:
    """Yields the problems for the Messages API: roles alternate, and results are at the beginning of a message."""
    yield from _check_roles(messages)
    yield from _check_last_role(messages)
    yield from _check_content(messages)
    yield from _check_blank_texts(messages)
    yield from _check_call_pairs(messages)
    yield from _check_result_order(messages)
    yield from _check_tool_names(messages, 128)
    yield from _check_call_ids(messages)


def openai_problems(messages: Messages) -> Iterator[str]:
    """Yields the problems for Chat Completions, where results are separate messages that directly follow the calls."""
    yield from _check_content(messages)
    yield from _check_call_pairs(messages)
    yield from _check_result_order(messages)
    yield from _check_tool_names(messages, 64)


def openai_responses_problems(messages: Messages) -> Iterator[str]:
    """Yields the problems for Responses, where calls and outputs are items that are paired by id, and a reasoning item
    needs the item that follows it."""
    yield from _check_content(messages)
    yield from _check_call_pairs(messages)
    yield from _check_tool_names(messages, 64)
    for position, message in enumerate(messages):
        last_part = message.content[-1] if message.content else None
        if (
            isinstance(last_part, ReasoningPart)
            and "block" in last_part.provider_state
            and position < len(messages) - 1
        ):
            yield f"messages.{position}: reasoning was given without the item that followed it"


def google_problems(messages: Messages) -> Iterator[str]:
    """Yields the problems for Gemini, where calls follow a user message, and the next message has one result per
    call."""
    yield from _check_roles(messages)
    yield from _check_last_role(messages)
    yield from _check_content(messages)
    yield from _check_call_pairs(messages)
    yield from _check_tool_names(messages, 64)


MESSAGE_RULES: dict[str, Callable[[Messages], Iterator[str]]] = {
    "anthropic": anthropic_problems,
    "openai": openai_problems,
    "openai-responses": openai_responses_problems,
    "google": google_problems,
}


def check_messages(kind: str, messages: Messages) -> None:
    """Raises InvalidRequestError with the first problem, as the API would; `details["problems"]` lists all."""
    problems = list(MESSAGE_RULES[kind](messages))
    if problems:
        raise InvalidRequestError(
            problems[0], provider=kind, status=400, type="invalid_request_error", problems=problems
        )


def _check_roles(messages: Messages) -> Iterator[str]:
    if not messages:
        yield "messages: at least one message is required"
        return
    if messages[0].role != "user":
        yield "messages.0: the first message must be the user's"
    for position in range(1, len(messages)):
        if messages[position].role == messages[position - 1].role:
            yield f"messages.{position}: roles must alternate, two in a row are {messages[position].role!r}"


def _check_last_role(messages: Messages) -> Iterator[str]:
    """Checks that the last message is the user's, unless it is an answer that the API paused: that ends with an opaque
    block and is sent back."""
    message = messages[-1] if messages else None
    if (
        message is None
        or message.role == "user"
        or (message.content and isinstance(message.content[-1], ReasoningPart))
    ):
        return
    yield f"messages.{len(messages) - 1}: the conversation must end with a user message"


def _check_content(messages: Messages) -> Iterator[str]:
    for position, message in enumerate(messages):
        if not message.content:
            yield f"messages.{position}: all messages must have non-empty content"


def _check_blank_texts(messages: Messages) -> Iterator[str]:
    for position, message in enumerate(messages):
        if any(isinstance(part, TextPart) and not part.text.strip() for part in message.content):
            yield f"messages.{position}: text content blocks must contain non-whitespace text"


def _check_call_pairs(messages: Messages) -> Iterator[str]:
    """Checks that the next message has exactly one result for every call, and no other results."""
    used_ids: set[str] = set()
    call_ids: list[str] = []
    for position, message in enumerate(messages):
        uses = [part.tool_id for part in message.content if isinstance(part, ToolUsePart)]
        results = [part.tool_use_id for part in message.content if isinstance(part, ToolResultPart)]
        yield from _check_block_roles(position, message, uses, results)
        yield from _find_unanswered(position - 1, call_ids, results)
        yield from _find_orphans(position, call_ids, results)
        yield from (f"messages.{position}: the id {use} was used before" for use in uses if use in used_ids)
        if len(set(uses)) < len(uses):
            yield f"messages.{position}: `tool_use` ids must be unique"
        used_ids.update(uses)
        call_ids = uses
    yield from _find_unanswered(len(messages) - 1, call_ids, [])


def _check_block_roles(position: int, message: ModelMessage, uses: list[str], results: list[str]) -> Iterator[str]:
    if uses and message.role != "assistant":
        yield f"messages.{position}: `tool_use` blocks can only be in assistant messages"
    if results and message.role != "user":
        yield f"messages.{position}: `tool_result` blocks can only be in user messages"


def _find_unanswered(position: int, call_ids: list[str], results: list[str]) -> Iterator[str]:
    missing = [use for use in call_ids if use not in results]
    if missing:
        yield (
            f"messages.{position}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(missing)}"
        )


def _find_orphans(position: int, call_ids: list[str], results: list[str]) -> Iterator[str]:
    for result in results:
        if result not in call_ids:
            yield f"messages.{position}: unexpected `tool_use_id` in a `tool_result`: {result}; no call before has it"
    if len(set(results)) < len(results):
        yield f"messages.{position}: each `tool_use` must have a single result"


def _check_result_order(messages: Messages) -> Iterator[str]:
    for position, message in enumerate(messages):
        kinds = [isinstance(part, ToolResultPart) for part in message.content]
        if kinds != sorted(kinds, reverse=True):
            yield f"messages.{position}: `tool_result` blocks must come before anything else"


def _check_tool_names(messages: Messages, max_length: int) -> Iterator[str]:
    for position, message in enumerate(messages):
        for part in message.content:
            if isinstance(part, ToolUsePart) and not _is_tool_name(part.tool_name, max_length):
                name = part.tool_name
                yield f"messages.{position}: the tool name {name!r} must be 1 to {max_length} of [A-Za-z0-9_-]"


def _check_call_ids(messages: Messages) -> Iterator[str]:
    for position, message in enumerate(messages):
        for part in message.content:
            if isinstance(part, ToolUsePart) and not _IDENTIFIER.fullmatch(part.tool_id):
                yield f"messages.{position}: the id {part.tool_id!r} must consist of [A-Za-z0-9_-]"


def _is_tool_name(name: str, max_length: int) -> bool:
    return len(name) <= max_length and _IDENTIFIER.fullmatch(name) is not None


_CHARACTERS_PER_TOKEN = 4

ScriptItem = (
    str | TextPart | ReasoningPart | ToolUsePart | ToolPart | FilePart | Mapping[str, Any]  # content
    | Tokens | Finish | Retry  # metadata
    | asyncio.Event | Exception  # await, raise
)  # fmt: skip
"""One item of a scripted answer. A string is text. A mapping is the form for configuration files: {"text": …},
{"reasoning": …} or {"tool": name, "input": {…}}. The client awaits an event before it plays the next item, and raises
an exception at its position."""

ScriptedAnswer = (
    str | Exception | list[ScriptItem] | tuple[ScriptItem, ...] | Mapping[str, Any] | Callable[[Request], Any]
)
"""One item, several items, or a function that returns them for a request."""


class ScriptedClient:
    """Plays the answers of a script in order; a script that is a function returns every answer.

    `requests` stores each request. `rules` names the API whose message rules every request must follow (see
    `MESSAGE_RULES`). Text is streamed in chunks of `chunk` characters, `delay` seconds apart.
    """

    def __init__(
        self,
        script: Iterable[ScriptedAnswer] | Callable[[Request], Any],
        *,
        name: str = "scripted",
        rules: str | None = None,
        chunk: int = 12,
        delay: float = 0.0,
    ) -> None:
        if rules is not None and rules not in MESSAGE_RULES:
            raise ConfigurationError(f"unknown rules {rules!r}; use one of: {', '.join(MESSAGE_RULES)}")
        if isinstance(script, str):
            raise ConfigurationError(f"the script of a provider is a list of answers or a function; write [{script!r}]")
        self.name = name
        self.repeats_requests = True  # a script contains its retries
        self.requests: list[Request] = []
        self._script = script if callable(script) else list(script)
        self._rules = rules
        self._chunk = chunk
        self._delay = delay

    def model_family(self, model: str) -> str:
        return "scripted"

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        prompt_size = _count_prompt(request.prompt)
        # The agent appends to its prompt after the request, so store a copy.
        request = msgspec.structs.replace(request, prompt=Prompt(request.prompt))
        self.requests.append(request)
        if self._rules:
            check_messages(self._rules, request.prompt)
        items = await self._next_answer(request)
        if isinstance(items[0], Exception):
            raise items[0]
        yield AnswerStart(f"scripted-{len(self.requests)}", request.model)
        for item in self._play_items(items):
            match item:
                case asyncio.Event():
                    await item.wait()
                case Exception():
                    raise item
                case _:
                    yield item
                    await asyncio.sleep(self._delay)
        for delta in _final_deltas(prompt_size, items):
            yield delta

    async def aclose(self) -> None:
        pass

    async def _next_answer(self, request: Request) -> list[ScriptItem]:
        number = len(self.requests)
        if callable(self._script):
            answer: Any = self._script
        elif number <= len(self._script):
            answer = self._script[number - 1]
        else:
            raise InvalidRequestError(f"the script has {len(self._script)} answers, this is request {number}")
        while callable(answer):
            answer = await self._call_script(answer, request)
        return _to_items(answer)

    async def _call_script(self, function: Callable[[Request], Any], request: Request) -> Any:
        """Returns the answer of a function of the program. Its exceptions become a CallbackError, except for errors of
        providers, which are answers, and those of `assert`, which fail the test that has the function."""
        try:
            answer = function(request)
            return await answer if inspect.isawaitable(answer) else answer
        except (OutriderError, AssertionError):
            raise
        except Exception as error:
            name = f"the script of the provider {self.name!r}"
            raise CallbackError(name, f"failed ({describe_exception(error)})") from error

    def _play_items(self, items: list[ScriptItem]) -> Iterator[Delta | asyncio.Event | Exception]:
        """Yields deltas, and the events and exceptions between them; consecutive strings form one text part."""
        writing: int | None = None
        for index, item in enumerate(items):
            if isinstance(item, asyncio.Event | Exception):
                yield item
                continue
            if isinstance(item, str):
                if writing is None:
                    writing = index
                    yield PartStart(writing, "text")
                yield from self._text_deltas(writing, item)
                continue
            if writing is not None:
                yield PartEnd(writing)
                writing = None
            yield from self._part_deltas(index, item)
        if writing is not None:
            yield PartEnd(writing)

    def _text_deltas(self, index: int, text: str) -> Iterator[Delta]:
        return (TextDelta(index, chunk) for chunk in self._split_text(text))

    def _part_deltas(self, index: int, item: Any) -> Iterator[Delta]:
        match item:
            case TextPart(text=text):
                yield PartStart(index, "text")
                yield from self._text_deltas(index, text)
                yield PartEnd(index)
            case ReasoningPart(text=text, provider_state=state):
                yield PartStart(index, "reasoning")
                yield from (ReasoningDelta(index, chunk) for chunk in self._split_text(text))
                yield PartEnd(index, state={name: value for name, value in state.items() if name != "family"})
            case ToolUsePart() | ToolPart():
                yield from self._tool_deltas(index, item)
            case FilePart(mime=mime, url=url):
                yield PartStart(index, "file")
                yield PartEnd(index, mime=mime, url=url)
            case Tokens():
                yield UsageReport(item)
            case Retry():
                yield item
            case Finish():
                pass  # emitted by _final_deltas
            case _:
                raise ConfigurationError(f"a scripted answer cannot contain {item!r}")

    def _tool_deltas(self, index: int, call: ToolUsePart | ToolPart) -> Iterator[Delta]:
        """Streams the `raw` input of a pending ToolPart unchanged, so that scripts can send invalid or cut JSON."""
        use = call if isinstance(call, ToolUsePart) else call.use()
        state = call.state if isinstance(call, ToolPart) else ToolPending(phase="ready")
        raw = state.raw if isinstance(state, ToolPending) and state.raw else _encode_json(use.tool_input)
        yield PartStart(index, "tool", use.tool_id, use.tool_name)
        yield from (InputDelta(index, chunk) for chunk in self._split_text(raw))
        if not (isinstance(state, ToolPending) and state.phase == "streaming"):
            yield PartEnd(index)

    def _split_text(self, text: str) -> Iterator[str]:
        return (text[start : start + self._chunk] for start in range(0, len(text), self._chunk))


def scripted_client(provider: Provider) -> ScriptedClient:
    """Creates the client for a provider of kind "scripted"; its options are the arguments of ScriptedClient."""
    options = dict(provider.options)
    try:
        return ScriptedClient(options.pop("script", ()), name=provider.name, **options)
    except TypeError as error:
        raise ConfigurationError(f"options of the scripted provider {provider.name!r}: {error}") from error


def call(tool: str, call_id: str = "", /, **tool_input: Any) -> ToolUsePart:
    """Returns a tool call for a script: `call("read_file", path="a.txt")`."""
    if not isinstance(tool, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"call() takes the name of a tool, got {tool!r}; write call('add', a=1, b=2)")
    return ToolUsePart(tool_id=call_id or f"call_{new_id().replace('-', '')}", tool_name=tool, tool_input=tool_input)


def _to_items(answer: Any) -> list[ScriptItem]:
    several = isinstance(answer, list | tuple)
    items = cast("Sequence[ScriptItem]", answer) if several else [cast("ScriptItem", answer)]
    return [_parse_mapping(item) if isinstance(item, Mapping) else item for item in items] or [""]


def _parse_mapping(item: Mapping[str, Any]) -> ScriptItem:
    match dict(item):
        case {"text": str(text), **rest} if not rest:
            return text
        case {"reasoning": str(text), **rest} if not rest:
            return ReasoningPart(text)
        case {"tool": str(tool), **rest} if not rest.keys() - {"input", "id"}:
            return call(tool, rest.get("id", ""), **rest.get("input", {}))
        case {"error": str(message), **rest} if not rest:
            return ProviderError(message, provider="scripted")
        case _:
            raise ConfigurationError(
                f"a script item needs one of the keys text, reasoning, tool (with input) or error, not {item!r}"
            )


def _final_deltas(prompt_size: int, items: list[ScriptItem]) -> Iterator[Delta]:
    """Yields usage (estimated unless scripted) and the finish reason."""
    calls = any(isinstance(item, ToolUsePart | ToolPart) for item in items)
    if not any(isinstance(item, Tokens) for item in items):
        yield UsageReport(_estimate_tokens(prompt_size, items))
    finishes = [item for item in items if isinstance(item, Finish)]
    yield finishes[-1] if finishes else Finish("tool_use" if calls else "stop", "scripted")


def _count_prompt(prompt: Prompt) -> int:
    """Returns the number of characters of a prompt; only new messages are counted."""
    characters = prompt.encoded("characters", _write_characters)
    return len(characters) - max(len(prompt) - 1, 0)  # without the commas between messages


def _write_characters(message: ModelMessage) -> bytes:
    """Returns one byte for each character."""
    return "".join(str(part.to_api_format()) for part in message.content).encode("latin-1", "replace")


def _estimate_tokens(prompt_size: int, items: list[ScriptItem]) -> Tokens:
    answer_size = sum(_count_characters(item) for item in items)
    return Tokens(input=prompt_size // _CHARACTERS_PER_TOKEN + 1, output=answer_size // _CHARACTERS_PER_TOKEN + 1)


def _count_characters(item: ScriptItem) -> int:
    match item:
        case str(text) | TextPart(text=text) | ReasoningPart(text=text):
            return len(text)
        case ToolUsePart(tool_name=name, tool_input=tool_input):
            return len(name) + len(_encode_json(tool_input))
        case _:
            return 0


def _encode_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
