"""Encodes prompt messages and settings for the Responses API; each message is encoded to bytes once."""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any, assert_never

import msgspec

from outrider.providers.openai.common import (
    is_strict_schema,
    nearest_effort,
    openai_efforts,
    parameters_with_properties,
)
from outrider.providers.request_body import (
    data_url_text,
    encode_json,
    is_fetchable_url,
    normalize_media_type,
    own_tools,
    unreadable_file_note,
    uploaded_file_id,
)
from outrider.types.modes import VendorTool
from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, ModelSettings, OutputSchema, Request, ToolChoice, ToolSpec
from outrider.types.tool_state import Attachment, attachment_url, data_url_base64, make_data_url

Fields = dict[str, Any]

# Optional fields that are requested by default and dropped for models that reject them.
ENCRYPTED_REASONING, REASONING_SUMMARY, REASONING_EFFORT, PROMPT_CACHE_KEY = (
    "reasoning.encrypted_content",
    "reasoning.summary",
    "reasoning.effort",
    "prompt_cache_key",
)
STORE, STRICT = "store", "strict"
SAMPLING = ("temperature", "top_p")  # the settings that reasoning models reject
# These models return status 400 for a request of encrypted reasoning, because they have none.
_NON_REASONING_MODELS = ("gpt-3.5", "gpt-4", "chatgpt-4", "computer-use")

_VENDOR_TOOLS: dict[VendorTool, Fields] = {
    "web_search": {"type": "web_search"},
    "code_execution": {"type": "code_interpreter", "container": {"type": "auto"}},
}
_CODE_OUTPUTS = "code_interpreter_call.outputs"
_MAX_ID_LENGTH = 64
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class ResponsesTraits(msgspec.Struct, frozen=True):
    """What error responses revealed about a model: optional fields that it rejects, and its effort levels."""

    rejected: frozenset[str] = frozenset()
    efforts: tuple[str, ...] | None = None


NO_TRAITS = ResponsesTraits()


class ItemWriter:
    """Encodes the items of one message.

    `family` selects the private state that may be sent back. Unless the server stores responses, reasoning is sent only
    if it contains its content. `custom_call_ids` are the ids of calls with free-text input.
    """

    def __init__(self, family: str, custom_call_ids: frozenset[str], *, stored: bool) -> None:
        self._family = family
        self._custom_call_ids = custom_call_ids
        self._stored = stored

    def write(self, message: ModelMessage) -> bytes:
        items = self._assistant_items(message) if message.role == "assistant" else self._user_items(message)
        return encode_json(list(items))[1:-1]

    def _user_items(self, message: ModelMessage) -> Iterator[Fields]:
        content: list[Fields] = []
        for part in message.content:
            match part:
                case ToolResultPart():
                    yield self._tool_output(part)
                case TextPart():
                    content.append({"type": "input_text", "text": part.text})
                case FilePart():
                    detail = part.metadata.get(self._family, {}).get("detail", "auto")
                    content.append(_encode_file(part.mime, part.url, part.filename, detail))
                case ReasoningPart():  # an opaque item of this API, such as an MCP approval
                    if content:
                        yield {"role": "user", "content": content}
                        content = []
                    yield from self._encode_part(part, {})
                case ToolUsePart():
                    pass  # never in a user message
                case _:
                    assert_never(part)
        if content:
            yield {"role": "user", "content": content}

    def _assistant_items(self, message: ModelMessage) -> Iterator[Fields]:
        item: Fields | None = None
        for part in message.content:
            private: Fields = part.metadata.get(self._family, {})
            if isinstance(part, TextPart) and item and "id" in private and private["id"] == item.get("id"):
                item["content"].append(_message_content(part, private))
                continue
            if item is not None:
                yield item
            item = _message_item(part, private) if isinstance(part, TextPart) else None
            if item is None:
                yield from self._encode_part(part, private)
        if item is not None:
            yield item

    def _encode_part(self, part: ModelPart, private: Fields) -> Iterator[Fields]:
        match part:
            case ReasoningPart():
                state = part.provider_state
                if state.get("family") == self._family and "item" in state:
                    yield from self._replay_item(state["item"])
            case ToolUsePart():
                yield _call_item(part, private)
            case FilePart() if "item" in private:
                yield from self._replay_item(private["item"] | {"result": data_url_base64(part.url)})
            case FilePart() | TextPart() | ToolResultPart():
                pass  # only in user messages; `_assistant_items` encodes texts
            case _:
                assert_never(part)

    def _replay_item(self, item: Fields) -> Iterator[Fields]:
        """Yields a stored item without its null fields. Reasoning without content is skipped unless the server stores
        responses."""
        if item.get("type") == "reasoning" and not (
            self._stored or item.get("encrypted_content") or item.get("content")
        ):
            return
        yield {name: value for name, value in item.items() if value is not None}

    def _tool_output(self, part: ToolResultPart) -> Fields:
        text = _result_text(part)
        output: str | list[Fields] = text
        if part.attachments:
            output = [{"type": "input_text", "text": text}] if text else []
            output.extend(map(_encode_attachment, part.attachments))
        kind = "custom_tool_call_output" if part.tool_use_id in self._custom_call_ids else "function_call_output"
        return {"type": kind, "call_id": _shorten_call_id(part.tool_use_id), "output": output}


def encode_custom_call_ids(message: ModelMessage, family: str) -> bytes:
    """Returns the ids of calls with free-text input as comma-separated JSON strings; usually empty."""
    ids = [
        part.tool_id
        for part in message.content
        if isinstance(part, ToolUsePart) and part.metadata.get(family, {}).get("custom")
    ]
    return msgspec.json.encode(ids)[1:-1]


def encode_responses_fields(request: Request, traits: ResponsesTraits = NO_TRAITS) -> Fields:
    """Returns the body without items and without the user's extra fields."""
    settings, rejected = request.settings, traits.rejected
    fields: Fields = {"model": request.model} | ({} if STORE in rejected else {"store": False})
    if request.stream:
        fields["stream"] = True
    if request.system:
        fields["instructions"] = request.system
    if ENCRYPTED_REASONING not in rejected and not request.model.rpartition("/")[2].startswith(_NON_REASONING_MODELS):
        fields["include"] = [ENCRYPTED_REASONING]
    if request.conversation and PROMPT_CACHE_KEY not in rejected:
        fields[PROMPT_CACHE_KEY] = request.conversation
    vendor_tools: list[VendorTool] = [name for name in settings.vendor_tools if name not in rejected]
    if "code_execution" in vendor_tools:
        fields["include"] = [*fields.get("include", ()), _CODE_OUTPUTS]
    if request.tools or vendor_tools:
        fields["tools"] = [_VENDOR_TOOLS[name] for name in vendor_tools]
        fields["tools"] += map(_tool_definition, own_tools(request, vendor_tools))
        if STRICT in rejected:
            fields["tools"] = [{name: tool[name] for name in tool if name != STRICT} for tool in fields["tools"]]
        fields |= _tool_choice_fields(settings.tool_choice)
    if reasoning := _reasoning_fields(request.model, settings, traits):
        fields["reasoning"] = reasoning
    return fields | {name: value for name, value in _settings_fields(settings).items() if name not in rejected}


def _reasoning_fields(model: str, settings: ModelSettings, traits: ResponsesTraits) -> Fields:
    """Returns effort and summary. Servers of other vendors get the requested level, since their levels are unknown."""
    efforts = openai_efforts(model) if traits.efforts is None else traits.efforts
    reasons = settings.requests_reasoning(supported=bool(efforts))
    if REASONING_EFFORT in traits.rejected or not (reasons or (settings.reasoning_effort == "none" and efforts)):
        return {}
    effort = nearest_effort(efforts, settings.reasoning_effort) if efforts else settings.reasoning_effort
    summary = {"summary": "auto"} if reasons and REASONING_SUMMARY not in traits.rejected else {}
    return {"effort": effort, **summary}


def _settings_fields(settings: ModelSettings) -> Fields:
    """Returns the settings fields. This API supports neither stop sequences nor a reasoning budget, so both are
    omitted."""
    fields: Fields = {
        "max_output_tokens": settings.max_output_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
    }
    if settings.output is not None:
        fields["text"] = {"format": _output_format(settings.output)}
    return {name: value for name, value in fields.items() if value is not None}


def _output_format(output: OutputSchema) -> Fields:
    described = {"description": output.description} if output.description else {}
    return {
        "type": "json_schema",
        "name": output.name,
        "schema": output.schema,
        "strict": output.strict and is_strict_schema(output.schema),
        **described,
    }


def _tool_definition(tool: ToolSpec) -> Fields:
    """Returns the tool definition. `strict` is always explicit, because this API enables it by default."""
    parameters = parameters_with_properties(tool)
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": parameters,
        "strict": tool.strict and is_strict_schema(parameters),
    }


def _tool_choice_fields(choice: ToolChoice) -> Fields:
    fields: Fields = {} if choice.parallel else {"parallel_tool_calls": False}
    match choice.mode:
        case "auto":
            return fields
        case "required" | "none":
            return fields | {"tool_choice": choice.mode}
        case "tool":
            return fields | {"tool_choice": {"type": "function", "name": choice.tool}}


def _message_item(part: TextPart, private: Fields) -> Fields:
    """Returns a message item. Text from another provider has no id and does not need one."""
    if "id" not in private:
        phase = {"phase": private["phase"]} if "phase" in private else {}
        return {"role": "assistant", "content": part.text, **phase}
    identity = {name: private[name] for name in ("id", "phase") if name in private}
    status: str = private.get("status", "completed")
    return {
        "type": "message",
        "role": "assistant",
        **identity,
        "status": status,
        "content": [_message_content(part, private)],
    }


def _message_content(part: TextPart, private: Fields) -> Fields:
    if private.get("refusal"):
        return {"type": "refusal", "refusal": part.text}
    return {"type": "output_text", "text": part.text, "annotations": private.get("annotations", [])}


def _call_item(part: ToolUsePart, private: Fields) -> Fields:
    fields = {name: value for name, value in private.items() if name != "custom"}
    call: Fields = {"call_id": _shorten_call_id(part.tool_id), "name": part.tool_name, **fields}
    if private.get("custom"):
        return {"type": "custom_tool_call", **call, "input": part.tool_input.get("input", "")}
    return {"type": "function_call", **call, "arguments": encode_json(part.tool_input).decode()}


def _shorten_call_id(call_id: str) -> str:
    """Returns the id, or a hash of it if another server's id exceeds the length limit."""
    if len(call_id) <= _MAX_ID_LENGTH:
        return call_id
    return f"call_{sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def _result_text(part: ToolResultPart) -> str:
    """Returns the result text with an "Error:" prefix on failure, because this API has no error flag."""
    text = part.content
    return f"Error: {text}" if part.is_error and not text.lower().startswith("error") else text


def _encode_attachment(attachment: Attachment) -> Fields:
    return _encode_file(attachment.mime_type, attachment_url(attachment), attachment.name)


def _encode_file(mime: str, url: str, name: str | None, detail: str = "auto") -> Fields:
    uploaded, mime = uploaded_file_id(url), normalize_media_type(mime)
    if not uploaded and (text := data_url_text(mime, url)) is not None:
        return {"type": "input_text", "text": _with_file_tag(name, text)}
    if not uploaded and not _is_supported_file(mime, url):
        return {"type": "input_text", "text": unreadable_file_note(mime, url, name)}
    if mime.startswith("image/"):
        source = {"file_id": uploaded} if uploaded else {"image_url": url}
        return {"type": "input_image", "detail": detail, **source}
    if uploaded:
        return {"type": "input_file", "file_id": uploaded}
    content = data_url_base64(url)
    if content is None:
        return {"type": "input_file", "file_url": url}
    return {
        "type": "input_file",
        "filename": name or f"file.{mime.rpartition('/')[2]}",
        "file_data": make_data_url(mime, content),
    }


def _is_supported_file(mime: str, url: str) -> bool:
    if not url.startswith("data:"):
        return is_fetchable_url(url)
    return mime in _IMAGE_TYPES if mime.startswith("image/") else not mime.startswith(("audio/", "video/"))


def _with_file_tag(name: str | None, text: str) -> str:
    return f'<file name="{name}">\n{text}\n</file>' if name else text
