"""Tool calls for models without native support: tools, calls and results are rendered as plain text."""

from collections.abc import AsyncGenerator, Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, assert_never

import msgspec
from msgspec.structs import replace

from outrider.providers.provider import ModelClient
from outrider.providers.stream_filters.stream_filter import TextSplitFilter, filter_stream
from outrider.providers.stream_filters.text_tool_calls import TextCallScanner
from outrider.types.deltas import Delta
from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, Prompt, Request, ToolChoice, ToolSpec
from outrider.types.tool_state import Attachment

_PROMPT_FORM = "text-tools"


class TextToolsClient:
    """Wraps a client whose models have no native tool calls, and parses calls from their text."""

    def __init__(self, client: ModelClient) -> None:
        self.repeats_requests = getattr(client, "repeats_requests", False)
        self.name = client.name
        self._client = client

    def model_family(self, model: str) -> str:
        return self._client.model_family(model)

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        deltas = self._client.stream(render_tools_as_text(request))
        if not request.tools or request.settings.tool_choice.mode == "none":
            return deltas
        typed = {tool.name: _typed_parameters(tool) for tool in request.tools}
        return filter_stream(deltas, TextSplitFilter(lambda: TextCallScanner(typed)))

    async def aclose(self) -> None:
        await self._client.aclose()


def render_tools_as_text(request: Request) -> Request:
    """Returns the request without tools: appends their description to the system text and renders calls and results.

    The rewritten prompt is cached with the original one and only appends, so its encoded prefix stays stable.
    """
    system = "\n\n".join(filter(None, (request.system, *_tool_sections(request.tools, request.settings.tool_choice))))
    return replace(
        request,
        system=system or None,
        tools=(),
        prompt=rewrite_as_text(request.prompt),
        settings=replace(request.settings, tool_choice=ToolChoice()),
    )


def rewrite_as_text(prompt: Prompt) -> Prompt:
    """Returns the prompt with calls and results as text."""
    return prompt.rewritten(_PROMPT_FORM, _render_message)


def render_call(use: ToolUsePart) -> str:
    call = msgspec.json.encode({"name": use.tool_name, "arguments": use.tool_input}).decode()
    return f"<tool_call>\n{call}\n</tool_call>"


def render_result(result: ToolResultPart, tool: str) -> str:
    failed = ' error="true"' if result.is_error else ""
    return f'<tool_result name="{tool}"{failed}>\n{result.content}\n</tool_result>'


@cache
def _protocol_prompt() -> str:
    return Path(__file__).with_suffix(".md").read_text(encoding="utf-8").strip()


def _tool_sections(tools: tuple[ToolSpec, ...], choice: ToolChoice) -> Iterator[str]:
    if not tools:
        return
    yield _protocol_prompt()
    for tool in tools:
        schema = msgspec.json.encode(tool.parameters).decode()
        yield f"## {tool.name}\n\n{tool.description.strip()}\n\nSchema of the arguments: {schema}"
    match choice.mode:
        case "auto":
            pass
        case "required":
            yield "In this answer you must call at least one tool."
        case "none":
            yield "In this answer you must not call any tool."
        case "tool":
            yield f"In this answer you must call the tool {choice.tool}."
        case _:
            assert_never(choice.mode)
    if not choice.parallel:
        yield "Make one call at a time."


def _typed_parameters(tool: ToolSpec) -> Collection[str]:
    """Returns the names of parameters whose type is not a string."""
    properties: dict[str, Any] = tool.parameters.get("properties") or {}
    return {name for name, schema in properties.items() if not _is_text(schema)}


def _is_text(schema: Any) -> bool:
    match schema:
        case {"type": str(kind)}:
            return kind == "string"
        case {"type": [*kinds]}:
            return "string" in kinds
        case {"anyOf": [*choices]} | {"oneOf": [*choices]}:
            return any(_is_text(choice) for choice in choices)
        case _:
            return True


def _render_message(message: ModelMessage, before: ModelMessage | None) -> ModelMessage:
    if not any(isinstance(part, ToolUsePart | ToolResultPart) for part in message.content):
        return message
    called = before.content if before else ()
    names = {part.tool_id: part.tool_name for part in called if isinstance(part, ToolUsePart)}
    return ModelMessage(message.role, tuple(_join_texts(_render_parts(message.content, names))))


def _render_parts(content: Iterable[ModelPart], names: dict[str, str]) -> Iterator[ModelPart]:
    for part in content:
        match part:
            case ToolUsePart():
                yield TextPart(render_call(part))
            case ToolResultPart():
                yield TextPart(render_result(part, names.get(part.tool_use_id, "unknown")))
                yield from map(_to_file_part, part.attachments)
            case TextPart() | ReasoningPart() | FilePart():
                yield part
            case _:
                assert_never(part)


def _join_texts(parts: Iterable[ModelPart]) -> Iterator[ModelPart]:
    """Joins consecutive text parts, because some servers accept a single text only. An empty text has only the vendor's
    signature, so it stays as it is."""
    texts: list[str] = []
    for part in parts:
        if isinstance(part, TextPart) and part.text.strip():
            texts.append(part.text)
            continue
        if texts:
            yield TextPart("\n\n".join(texts))
            texts = []
        yield part
    if texts:
        yield TextPart("\n\n".join(texts))


def _to_file_part(attachment: Attachment) -> FilePart:
    url = attachment.url or f"data:{attachment.mime_type};base64,{attachment.data}"
    return FilePart(attachment.mime_type, url, attachment.name)
