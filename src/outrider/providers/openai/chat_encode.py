"""Messages of a prompt as Chat Completions wants them, each written exactly once."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, assert_never

import msgspec

from outrider.providers.openai.chat_decode import merged_details
from outrider.providers.openai.common import is_strict, listed_parameters
from outrider.providers.openai.dialects import Dialect, nearest_effort
from outrider.providers.request_body import (
    can_be_fetched,
    encoded_json,
    file_id,
    inline,
    media_type,
    once_for_each_tool,
    plain_text,
    unseen,
)
from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, ModelSettings, OutputSchema, Request, ToolChoice, ToolSpec

FieldsOfFiles = dict[str, Any]

# The names by which the API knows what others call by their media types.
_PICTURES = ("png", "jpeg", "gif", "webp")
_SOUNDS = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav", "x-m4a": "m4a", "mp4": "m4a"}


def file_content(mime: str, url: str, name: str | None, dialect: Dialect) -> FieldsOfFiles:
    """One block of content. What the API cannot carry is at least named."""
    if uploaded := file_id(url):
        return {"type": "file", "file": {"file_id": uploaded}}
    if (text := plain_text(mime, url)) is not None:
        return {"type": "text", "text": f'<file name="{name}">\n{text}\n</file>' if name else text}
    mime = media_type(mime)
    data = inline(url)
    if not _is_taken(mime, url, dialect):
        return {"type": "text", "text": unseen(mime, url, name)}
    address = f"data:{mime};base64,{data}" if data is not None else url
    match mime.partition("/")[0]:
        case "image":
            return {"type": "image_url", "image_url": {"url": address}}
        case "audio" if data is not None:
            return _sound(mime, data, dialect)
        case "video":
            return {"type": "video_url", "video_url": {"url": address}}
        case _:
            return _document(mime, address, name, dialect)


def _is_taken(mime: str, url: str, dialect: Dialect) -> bool:
    """OpenAI's own servers name what they take; what others take differs from model to model."""
    if not url.startswith("data:") and not can_be_fetched(url):
        return False
    if dialect.name not in ("openai", "azure"):
        return True
    match mime.partition("/"):
        case ("image", _, kind):
            return kind in _PICTURES or can_be_fetched(url)
        case ("audio", _, kind):
            return _SOUNDS.get(kind, kind) in ("mp3", "wav") or can_be_fetched(url)
        case (kind, _, _):
            return kind != "video"


def _sound(mime: str, data: str, dialect: Dialect) -> FieldsOfFiles:
    if dialect.name == "mistral":
        return {"type": "input_audio", "input_audio": data}
    kind = mime.partition("/")[2]
    return {"type": "input_audio", "input_audio": {"data": data, "format": _SOUNDS.get(kind, kind)}}


def _document(mime: str, address: str, name: str | None, dialect: Dialect) -> FieldsOfFiles:
    named = name or f"file.{mime.rpartition('/')[2]}"
    match dialect.documents:
        case "document_url":
            return {"type": "document_url", "document_url": address, "document_name": named}
        case "file_url":
            return {"type": "file_url", "file_url": {"url": inline(address) or address}, "file_name": named}
        case "file" if address.startswith("data:") or dialect.name != "openai":
            return {"type": "file", "file": {"filename": named, "file_data": address}}
        case "file":
            return {"type": "text", "text": f"({mime} file: {address})"}


Fields = dict[str, Any]

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SEE_ATTACHMENTS = "The result is attached to the message that follows."


class MessageWriter:
    """Writes one message. `family` names the private state that may go back."""

    def __init__(self, dialect: Dialect, family: str) -> None:
        self._dialect = dialect
        self._family = family

    @property
    def form(self) -> str:
        """All that the bytes depend on besides the message."""
        return f"{self._family}@{self._dialect.name}/{self._dialect.replay}"

    def write(self, message: ModelMessage) -> bytes:
        written = self._answer(message) if message.role == "assistant" else self._question(message)
        return encoded_json(written)[1:-1]

    def _question(self, message: ModelMessage) -> list[Fields]:
        """Results first, since they must follow their calls; their attachments, which they cannot carry, after them."""
        written: list[Fields] = []
        attached: list[Fields] = []
        said: list[Fields] = []
        for part in message.content:
            if isinstance(part, ToolResultPart):
                result = {"role": "tool", "tool_call_id": self._call_id(part.tool_use_id), "content": _result(part)}
                written.append(result)
                attached += self._attachments(part) if part.attachments else ()
            elif (block := self._said_by_user(part)) is not None:
                said.append(block)
        if content := attached + said:
            only_text = len(content) == 1 and content[0]["type"] == "text"
            written.append({"role": "user", "content": content[0]["text"] if only_text else content})
        return written

    def _said_by_user(self, part: ModelPart) -> Fields | None:
        match part:
            case TextPart():
                return {"type": "text", "text": part.text}
            case FilePart():
                return file_content(part.mime, part.url, part.filename, self._dialect)
            case ToolResultPart() | ReasoningPart() | ToolUsePart():
                return None  # written elsewhere, or not a user's
            case _:
                assert_never(part)

    def _attachments(self, part: ToolResultPart) -> Iterator[Fields]:
        yield {"type": "text", "text": f"Attached to the result of {part.tool_name or 'call'} {part.tool_use_id}:"}
        for attachment in part.attachments:
            url = attachment.url or f"data:{attachment.mime_type};base64,{attachment.data}"
            yield file_content(attachment.mime_type, url, attachment.name, self._dialect)

    def _answer(self, message: ModelMessage) -> list[Fields]:
        kinds: dict[str, list[Any]] = {"text": [], "reasoning": [], "tool_use": [], "file": []}
        for part in message.content:
            kinds.setdefault(part.type, []).append(part)
        refusals = [part for part in kinds["text"] if self._own(part).get("refusal") and self._dialect.refusals]
        text = "".join([part.text for part in kinds["text"] if part not in refusals])
        calls = [self._call(part) for part in kinds["tool_use"]]
        fields: Fields = {"role": "assistant", "content": text or None}
        fields |= self._reasoning(kinds["reasoning"], text, calls=bool(calls))
        fields |= self._made(kinds["file"])
        if refusals:
            fields["refusal"] = "".join(part.text for part in refusals)
        if calls:
            fields["tool_calls"] = calls
        if len(fields) == 2 and not text:
            return []
        if fields["content"] is None and not calls and not refusals:
            fields["content"] = ""
        return [fields]

    def _own(self, part: TextPart | FilePart | ToolUsePart) -> Fields:
        return part.metadata.get(self._family, {})

    def _call(self, part: ToolUsePart) -> Fields:
        own = self._own(part)
        call_id = self._call_id(part.tool_id)
        if own.get("custom"):
            free = part.tool_input.get("input", "")
            return {"id": call_id, "type": "custom", "custom": {"name": part.tool_name, "input": free}}
        function = {"name": part.tool_name, "arguments": encoded_json(part.tool_input).decode()}
        call: Fields = {"id": call_id, "type": "function", "function": function}
        if "extra_content" in own:
            call["extra_content"] = own["extra_content"]
        return call

    def _reasoning(self, parts: Iterable[ReasoningPart], text: str, *, calls: bool) -> Fields:
        """Reasoning goes back to its own family, under the name by which it came."""
        own = [part for part in parts if part.provider_state.get("family") == self._family]
        fields: Fields = {"reasoning_content": ""} if calls and self._dialect.empty_reasoning else {}
        if not own or self._dialect.replay == "never":
            return fields
        blocks = self._dialect.replay == "thinking blocks"
        for field, thought in _by_field(own, "content" if blocks else None):
            fields[field] = [_thinking(thought), *_text_blocks(text)] if field == "content" else thought
        details = merged_details(item for part in own for item in part.provider_state.get("details", ()))
        return fields | ({"reasoning_details": details} if details and not blocks else {})

    def _made(self, parts: Iterable[FilePart]) -> Fields:
        """Sound and pictures that the model made itself."""
        fields: Fields = {}
        for part in parts:
            own = self._own(part)
            if own.get("audio"):
                fields["audio"] = {"id": own["audio"]}
            elif own.get("images") and self._dialect.replay == "as it came":
                fields.setdefault("images", []).append({"type": "image_url", "image_url": {"url": part.url}})
        return fields

    def _call_id(self, call_id: str) -> str:
        """The id as it is, or a name for it of the form that this server insists on."""
        if _form(self._dialect.call_ids).fullmatch(call_id):
            return call_id
        digest = hashlib.sha256(call_id.encode()).digest()
        return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:9])


@cache
def _form(call_ids: str) -> re.Pattern[str]:
    return re.compile(call_ids)


def _result(part: ToolResultPart) -> str:
    """This API has no flag for errors, so the words must say it."""
    text = part.content or (_SEE_ATTACHMENTS if part.attachments else "(no output)")
    return f"Error: {text}" if part.is_error and not text.lower().startswith("error") else text


def _by_field(parts: Iterable[ReasoningPart], always: str | None) -> Iterator[tuple[str, str]]:
    found: dict[str, list[str]] = {}
    for part in parts:
        field = always or part.provider_state.get("field")
        if field and part.text:
            found.setdefault(field, []).append(part.text)
    return ((field, "".join(texts)) for field, texts in found.items())


def _thinking(text: str) -> Fields:
    return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}


def _text_blocks(text: str) -> list[Fields]:
    return [{"type": "text", "text": text}] if text else []


FieldsOfSettings = dict[str, Any]

_SCHEMA = "Answer with one JSON object, and nothing else, that follows this JSON schema:\n{schema}"


def head(request: Request, dialect: Dialect) -> FieldsOfSettings:
    settings = request.settings
    fields: FieldsOfSettings = {"model": request.model}
    if request.stream:
        fields["stream"] = True
        if dialect.stream_options:
            fields["stream_options"] = {"include_usage": True}
    if dialect.cache_key and request.conversation:
        fields["prompt_cache_key"] = request.conversation
    if request.tools:
        fields["tools"] = [_written(tool) for tool in request.tools]
        fields |= _choice(settings.tool_choice)
    if settings.output is not None:
        fields["response_format"] = _format(settings.output, dialect)
    return fields | _sampling(settings, dialect) | (_reasoning(settings, dialect) if settings.reasoning else {})


def system_message(request: Request, dialect: Dialect) -> FieldsOfSettings | None:
    text = request.system or ""
    output = request.settings.output
    if output is not None and not dialect.schemas:
        told = _SCHEMA.format(schema=encoded_json(output.schema).decode())
        text = f"{text}\n\n{told}" if text else told
    if not text:
        return None
    return {"role": dialect.system, "content": text}


def _sampling(settings: ModelSettings, dialect: Dialect) -> FieldsOfSettings:
    fields: FieldsOfSettings = {
        dialect.limit: settings.max_output_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "stop": list(settings.stop) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _reasoning(settings: ModelSettings, dialect: Dialect) -> FieldsOfSettings:
    effort = nearest_effort(dialect, settings.reasoning_effort) if dialect.efforts else None
    budget = settings.reasoning_budget
    match dialect.reasoning:
        case "effort":
            return {"reasoning_effort": effort}
        case "object":
            return {"reasoning": {"max_tokens": budget} if budget else {"effort": effort}}
        case "thinking":
            return {"thinking": {"type": "enabled"}} | ({"reasoning_effort": effort} if effort else {})
        case "enable_thinking":
            return {"enable_thinking": True} | ({"thinking_budget": budget} if budget else {})
        case _:
            assert_never(dialect.reasoning)


@once_for_each_tool
def _written(tool: ToolSpec) -> msgspec.Raw:
    return msgspec.Raw(encoded_json(_tool(tool)))


def _tool(tool: ToolSpec) -> FieldsOfSettings:
    parameters = listed_parameters(tool)
    function: FieldsOfSettings = {"name": tool.name, "description": tool.description, "parameters": parameters}
    if tool.strict:
        function["strict"] = is_strict(parameters)
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice) -> FieldsOfSettings:
    fields: FieldsOfSettings = {} if choice.parallel else {"parallel_tool_calls": False}
    match choice.mode:
        case "auto":
            return fields
        case "required" | "none":
            return fields | {"tool_choice": choice.mode}
        case "tool":
            return fields | {"tool_choice": {"type": "function", "function": {"name": choice.tool}}}
        case _:
            assert_never(choice.mode)


def _format(output: OutputSchema, dialect: Dialect) -> FieldsOfSettings:
    if not dialect.schemas:
        return {"type": "json_object"}
    described = {"description": output.description} if output.description else {}
    strict = output.strict and is_strict(output.schema)
    return {
        "type": "json_schema",
        "json_schema": {"name": output.name, **described, "schema": output.schema, "strict": strict},
    }
