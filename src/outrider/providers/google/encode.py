"""Encodes prompt messages and settings for the Gemini API; each message is encoded to bytes once."""

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, assert_never

from outrider.providers.google.decode import GENERATED_ID_PREFIX
from outrider.providers.request_body import (
    data_url_text,
    encode_json,
    is_fetchable_url,
    normalize_media_type,
    own_tools,
    tool_parameters,
    unreadable_file_note,
    uploaded_file_id,
)
from outrider.types.modes import ReasoningEffort, VendorTool
from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, ModelSettings, Request, ToolChoice
from outrider.types.tool_state import Attachment, attachment_url, data_url_base64

_BUDGET_BY_EFFORT: dict[ReasoningEffort, int] = {
    "none": 0,
    "minimal": 512,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
    "xhigh": 24576,
    "max": 24576,
}
_LEVEL_BY_EFFORT: dict[ReasoningEffort, str] = {
    "none": "minimal",
    "minimal": "minimal",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
_MIN_PRO_BUDGET = 128  # Gemini 2.5 Pro cannot stop thinking
_NOT_THINKING = ("-image", "-tts", "-audio", "-live", "embedding")


def model_generation(model: str) -> float:
    """Returns the model generation as a number: 2.5 for `gemini-2.5-flash`. A `-latest` alias returns 3.1, any other
    name 2.5."""
    match = re.search(r"gemini-(\d+(?:\.\d+)?)", model)
    if match:
        return float(match[1])
    return 3.1 if model.endswith("-latest") else 2.5


def thinking_config(settings: ModelSettings, model: str, generation: float) -> dict[str, Any] | None:
    """Returns the thinking configuration, or None for the model's default behaviour without visible thoughts.

    An explicit budget is always sent; 0 disables thinking on models that allow it, as does the effort "none".
    """
    budget, supported = settings.reasoning_budget, _can_think(model, generation)
    if settings.reasoning_effort == "none":
        return _least_thinking(model, generation) if supported else None
    if not settings.requests_reasoning(supported=supported):
        return {"thinkingBudget": 0} if budget == 0 else None
    config: dict[str, Any] = {"includeThoughts": True}
    if budget is not None:
        return config | {"thinkingBudget": budget}
    if generation < 3:
        return config | {"thinkingBudget": _BUDGET_BY_EFFORT[settings.reasoning_effort]}
    return config | {"thinkingLevel": _thinking_level(settings.reasoning_effort, model, generation)}


def _can_think(model: str, generation: float) -> bool:
    return "gemini" in model and generation >= 2.5 and not any(mark in model for mark in _NOT_THINKING)


def _least_thinking(model: str, generation: float) -> dict[str, Any]:
    if generation >= 3:
        return {"thinkingLevel": _thinking_level("none", model, generation)}
    return {"thinkingBudget": _MIN_PRO_BUDGET if "pro" in model else 0}


def _thinking_level(effort: ReasoningEffort, model: str, generation: float) -> str:
    """Returns the thinking level. Pro models and those from 3.7 on do not support "minimal"; Gemini 3.0 Pro supports
    only "low" and "high"."""
    level = _LEVEL_BY_EFFORT[effort]
    if level == "minimal" and ("pro" in model or generation >= 3.7):
        return "low"
    return "high" if level == "medium" and "pro" in model and generation < 3.1 else level


Fields = dict[str, Any]

# Gemini 3 rejects a call without a signature; Google documents this value for calls that another model generated.
_FOREIGN_CALL_SIGNATURE = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
# Media types that Gemini 3 accepts inside a function response. Other types, and all files for older models, follow as
# separate parts.
_RESPONSE_PART_TYPES = ("image/", "application/pdf", "text/plain")

_SUPPORTED_TYPES = (
    "image/png", "image/jpeg", "image/webp", "image/heic", "image/heif", "audio/", "video/", "text/", "application/pdf",
)  # fmt: skip


class ContentWriter:
    """Encodes one message for one model generation. The callback `tool_name_of` returns the tool name of a call id, for
    results that lack it."""

    def __init__(self, family: str, generation: float, tool_name_of: Callable[[str], str]) -> None:
        self._family = family
        self._generation = generation
        self._tool_name_of = tool_name_of

    def write(self, message: ModelMessage) -> bytes:
        if message.role == "assistant":
            content: Fields = {"role": "model", "parts": self._model_parts(message)}
        else:
            content = {"role": "user", "parts": list(self._user_parts(message))}
        return encode_json(content) if content["parts"] else b""

    def _user_parts(self, message: ModelMessage) -> Iterator[Fields]:
        deferred: list[Attachment] = []
        for part in message.content:
            if not isinstance(part, ToolResultPart):
                yield from map(_encode_attachment, deferred)  # all function responses must precede other parts
                deferred = []
            match part:
                case ToolResultPart():
                    yield self._function_response(part, deferred)
                case TextPart():
                    yield {"text": part.text}
                case FilePart():
                    yield _encode_file(part.mime, part.url, part.filename)
                case ReasoningPart():  # an opaque part that only this API understands
                    yield from self._encode_part(part)
                case ToolUsePart():
                    pass  # never in a user message
                case _:
                    assert_never(part)
        yield from map(_encode_attachment, deferred)

    def _function_response(self, part: ToolResultPart, deferred: list[Attachment]) -> Fields:
        response_parts: list[Fields] = []
        for attachment in part.attachments:
            encoded = _encode_attachment(attachment)
            is_file = "text" not in encoded
            if self._generation >= 3 and is_file and attachment.mime_type.startswith(_RESPONSE_PART_TYPES):
                response_parts.append(encoded)
            else:
                deferred.append(attachment)
        response: Fields = {
            **_call_id_field(part.tool_use_id),
            "name": part.tool_name or self._tool_name_of(part.tool_use_id),
            "response": {"error" if part.is_error else "output": part.content},
        }
        return {"functionResponse": response | ({"parts": response_parts} if response_parts else {})}

    def _model_parts(self, message: ModelMessage) -> list[Fields]:
        parts = [encoded for part in message.content for encoded in self._encode_part(part)]
        if self._generation >= 3:
            for call in (encoded for encoded in parts if "functionCall" in encoded):
                call.setdefault("thoughtSignature", _FOREIGN_CALL_SIGNATURE)
                break  # only the first of several parallel calls needs a signature
        return parts

    def _encode_part(self, part: ModelPart) -> Iterator[Fields]:
        private: Fields = part.metadata.get(self._family, {})
        match part:
            case TextPart():
                yield {"text": part.text, **_signature_field(private)}
            case ToolUsePart():
                call = {**_call_id_field(part.tool_id), "name": part.tool_name, "args": part.tool_input}
                yield {"functionCall": call, **_signature_field(private)}
            case ReasoningPart(provider_state=state) if (
                state.get("family") == self._family and "grounding" not in state
            ):
                yield (
                    state["part"]
                    if "part" in state
                    else {"text": part.text, "thought": True, **_signature_field(state)}
                )
            case FilePart():
                thought = {"thought": True} if private.get("thought") else {}
                yield _encode_file(part.mime, part.url, part.filename) | thought | _signature_field(private)
            case ReasoningPart() | ToolResultPart():
                pass  # from another family, or part of a user message
            case _:
                assert_never(part)


_VENDOR_TOOLS: dict[VendorTool, Fields] = {
    "web_search": {"googleSearch": {}},
    "code_execution": {"codeExecution": {}},
}


def _tool_fields(request: Request, generation: float, rejected: Collection[str]) -> Fields:
    """Returns functions and tools of the vendor. Models before Gemini 3 reject both in one request."""
    settings = request.settings
    vendor_tools: list[VendorTool] = [name for name in settings.vendor_tools if name not in rejected]
    functions = own_tools(request, vendor_tools)
    if functions and generation < 3:
        vendor_tools, functions = [], list(request.tools)
    tools = [_VENDOR_TOOLS[name] for name in vendor_tools]
    config: Fields = {}
    if functions:
        declared = [
            {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool_parameters(tool)}
            for tool in functions
        ]
        tools.append({"functionDeclarations": declared})
        if settings.tool_choice.mode != "auto":
            config["functionCallingConfig"] = _function_calling_config(settings.tool_choice)
        if vendor_tools:
            config["includeServerSideToolInvocations"] = True
    return ({"tools": tools} if tools else {}) | ({"toolConfig": config} if config else {})


def encode_body_fields(
    request: Request, generation: float, *, thinking: bool = True, rejected: Collection[str] = ()
) -> Fields:
    """Returns the body without contents and without the user's extra fields. Without `thinking` it has no thinking
    configuration, for models that reject it. The tools of the vendor in `rejected` are left out."""
    fields: Fields = {}
    if request.system:
        fields["systemInstruction"] = {"parts": [{"text": request.system}]}
    fields |= _tool_fields(request, generation, rejected)
    config = _generation_config(request.settings)
    if thinking and (thoughts := thinking_config(request.settings, request.model, generation)):
        config["thinkingConfig"] = thoughts
    if config:
        fields["generationConfig"] = config
    return fields


def _generation_config(settings: ModelSettings) -> Fields:
    fields: Fields = {
        "maxOutputTokens": settings.max_output_tokens,
        "temperature": settings.temperature,
        "topP": settings.top_p,
        "stopSequences": list(settings.stop) or None,
    }
    if settings.output is not None:
        fields |= {"responseMimeType": "application/json", "responseJsonSchema": settings.output.schema}
    return {name: value for name, value in fields.items() if value is not None}


def _function_calling_config(choice: ToolChoice) -> Fields:
    match choice.mode:
        case "auto":
            return {"mode": "AUTO"}
        case "none":
            return {"mode": "NONE"}
        case "required":
            return {"mode": "ANY"}
        case "tool":
            return {"mode": "ANY", "allowedFunctionNames": [choice.tool]}


def _call_id_field(call_id: str) -> Fields:
    return {} if call_id.startswith(GENERATED_ID_PREFIX) else {"id": call_id}


def _signature_field(state: Fields) -> Fields:
    return {"thoughtSignature": state["thought_signature"]} if state.get("thought_signature") else {}


def _encode_attachment(attachment: Attachment) -> Fields:
    return _encode_file(attachment.mime_type, attachment_url(attachment), attachment.name)


def _encode_file(mime: str, url: str, name: str | None) -> Fields:
    content, mime = data_url_base64(url), normalize_media_type(mime)
    if content is None and (uploaded_file_id(url) or is_fetchable_url(url)):
        return {"fileData": {"mimeType": mime, "fileUri": uploaded_file_id(url) or url}}
    # The API rejects textual types outside text/* as files.
    text = None if mime.startswith("text/") else data_url_text(mime, url)
    if text is not None:
        return {"text": f'<file name="{name}">\n{text}\n</file>' if name else text}
    if content is None or not mime.startswith(_SUPPORTED_TYPES):
        return {"text": unreadable_file_note(mime, url, name)}
    return {"inlineData": {"mimeType": mime, "data": content}}
