"""A request, written as Gemini wants it: messages become contents, one by one, each exactly once."""

import re
from collections.abc import Callable, Iterator
from typing import Any, assert_never

from outrider.providers.google.decode import MADE_UP
from outrider.providers.request_body import (
    can_be_fetched,
    encoded_json,
    file_id,
    inline,
    media_type,
    parameters_of,
    plain_text,
    unseen,
)
from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, ModelSettings, ReasoningEffort, Request, ToolChoice
from outrider.types.tool_state import Attachment

_BUDGETS: dict[ReasoningEffort, int] = {
    "minimal": 512,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
    "xhigh": 24576,
    "max": 24576,
}
_LEVELS: dict[ReasoningEffort, str] = {
    "minimal": "minimal",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}


def generation_of(model: str) -> float:
    """`gemini-2.5-flash` is 2.5. The latest, whatever it is, has levels; any other name that does not tell is 2.5."""
    found = re.search(r"gemini-(\d+(?:\.\d+)?)", model)
    if found:
        return float(found[1])
    return 3.1 if model.endswith("-latest") else 2.5


def thinking(settings: ModelSettings, model: str, generation: float) -> dict[str, Any] | None:
    """A budget that is given counts in any case (0 turns thinking off where a model allows it). Without `reasoning`
    a model does as it is used to, and its thoughts are not shown."""
    budget = settings.reasoning_budget
    if not settings.reasoning:
        return {"thinkingBudget": 0} if budget == 0 else None
    shown: dict[str, Any] = {"includeThoughts": True}
    if budget is not None:
        return shown | {"thinkingBudget": budget}
    if generation < 3:
        return shown | {"thinkingBudget": _BUDGETS[settings.reasoning_effort]}
    return shown | {"thinkingLevel": _level(settings.reasoning_effort, model, generation)}


def _level(effort: ReasoningEffort, model: str, generation: float) -> str:
    """The larger models know no minimal level, and the first of them only two."""
    level = _LEVELS[effort]
    if "pro" not in model:
        return level
    if level == "minimal":
        return "low"
    return "high" if level == "medium" and generation < 3.1 else level


Fields = dict[str, Any]

# Gemini 3 refuses a call without a signature; for calls that another model wrote this is Google's own stand-in.
_FOREIGN_CALL = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
# What may stand inside a function response of Gemini 3; anything else, and all else before, stands beside it.
_INSIDE_RESPONSE = ("image/", "application/pdf", "text/plain")

_TAKEN = (
    "image/png", "image/jpeg", "image/webp", "image/heic", "image/heif", "audio/", "video/", "text/", "application/pdf",
)  # fmt: skip


class ContentWriter:
    """Writes the content of one message for one generation of models. `name_of` finds a call's tool where a result
    does not name it."""

    def __init__(self, family: str, generation: float, name_of: Callable[[str], str]) -> None:
        self._family = family
        self._generation = generation
        self._name_of = name_of

    def write(self, message: ModelMessage) -> bytes:
        if message.role == "assistant":
            content: Fields = {"role": "model", "parts": self._answer(message)}
        else:
            content = {"role": "user", "parts": list(self._question(message))}
        return encoded_json(content) if content["parts"] else b""

    def _question(self, message: ModelMessage) -> Iterator[Fields]:
        beside: list[Attachment] = []
        for part in message.content:
            if not isinstance(part, ToolResultPart):
                yield from map(_attachment, beside)  # every response comes before what stands beside them
                beside = []
            match part:
                case ToolResultPart():
                    yield self._response(part, beside)
                case TextPart():
                    yield {"text": part.text}
                case FilePart():
                    yield _file(part.mime, part.url, part.filename)
                case ReasoningPart():  # a part that only this API knows
                    yield from self._said(part)
                case ToolUsePart():
                    pass  # a user makes none
                case _:
                    assert_never(part)
        yield from map(_attachment, beside)

    def _response(self, part: ToolResultPart, beside: list[Attachment]) -> Fields:
        inside: list[Fields] = []
        for attachment in part.attachments:
            written = _attachment(attachment)
            is_file = "text" not in written
            if self._generation >= 3 and is_file and attachment.mime_type.startswith(_INSIDE_RESPONSE):
                inside.append(written)
            else:
                beside.append(attachment)
        response: Fields = {
            **_id(part.tool_use_id),
            "name": part.tool_name or self._name_of(part.tool_use_id),
            "response": {"error" if part.is_error else "output": part.content},
        }
        return {"functionResponse": response | ({"parts": inside} if inside else {})}

    def _answer(self, message: ModelMessage) -> list[Fields]:
        said = [written for part in message.content for written in self._said(part)]
        if self._generation >= 3:
            for call in (written for written in said if "functionCall" in written):
                call.setdefault("thoughtSignature", _FOREIGN_CALL)
                break  # of several calls the first carries it for all
        return said

    def _said(self, part: ModelPart) -> Iterator[Fields]:
        own: Fields = part.metadata.get(self._family, {})
        match part:
            case TextPart():
                yield {"text": part.text, **_signature(own)}
            case ToolUsePart():
                call = {**_id(part.tool_id), "name": part.tool_name, "args": part.tool_input}
                yield {"functionCall": call, **_signature(own)}
            case ReasoningPart(provider_state=state) if state.get("family") == self._family:
                yield state["part"] if "part" in state else {"text": part.text, "thought": True, **_signature(state)}
            case FilePart():
                thought = {"thought": True} if own.get("thought") else {}
                yield _file(part.mime, part.url, part.filename) | thought | _signature(own)
            case ReasoningPart() | ToolResultPart():
                pass  # of another family, or a user's
            case _:
                assert_never(part)


def head(request: Request, generation: float) -> Fields:
    """All of the body but the contents and the user's own fields."""
    fields: Fields = {}
    if request.system:
        fields["systemInstruction"] = {"parts": [{"text": request.system}]}
    if request.tools:
        declared = [
            {"name": tool.name, "description": tool.description, "parametersJsonSchema": parameters_of(tool)}
            for tool in request.tools
        ]
        fields["tools"] = [{"functionDeclarations": declared}]
        if request.settings.tool_choice.mode != "auto":
            fields["toolConfig"] = {"functionCallingConfig": _choice(request.settings.tool_choice)}
    if config := _config(request.settings, request.model, generation):
        fields["generationConfig"] = config
    return fields


def _config(settings: ModelSettings, model: str, generation: float) -> Fields:
    fields: Fields = {
        "maxOutputTokens": settings.max_output_tokens,
        "temperature": settings.temperature,
        "topP": settings.top_p,
        "stopSequences": list(settings.stop) or None,
        "thinkingConfig": thinking(settings, model, generation),
    }
    if settings.output is not None:
        fields |= {"responseMimeType": "application/json", "responseJsonSchema": settings.output.schema}
    return {name: value for name, value in fields.items() if value is not None}


def _choice(choice: ToolChoice) -> Fields:
    match choice.mode:
        case "auto":
            return {"mode": "AUTO"}
        case "none":
            return {"mode": "NONE"}
        case "required":
            return {"mode": "ANY"}
        case "tool":
            return {"mode": "ANY", "allowedFunctionNames": [choice.tool]}


def _id(call_id: str) -> Fields:
    return {} if call_id.startswith(MADE_UP) else {"id": call_id}


def _signature(own: Fields) -> Fields:
    return {"thoughtSignature": own["thought_signature"]} if own.get("thought_signature") else {}


def _attachment(attachment: Attachment) -> Fields:
    url = attachment.url or f"data:{attachment.mime_type};base64,{attachment.data}"
    return _file(attachment.mime_type, url, attachment.name)


def _file(mime: str, url: str, name: str | None) -> Fields:
    content, mime = inline(url), media_type(mime)
    if content is None and (file_id(url) or can_be_fetched(url)):
        return {"fileData": {"mimeType": mime, "fileUri": file_id(url) or url}}
    # As files, kinds of text outside text/* are refused.
    text = None if mime.startswith("text/") else plain_text(mime, url)
    if text is not None:
        return {"text": f'<file name="{name}">\n{text}\n</file>' if name else text}
    if content is None or not mime.startswith(_TAKEN):
        return {"text": unseen(mime, url, name)}
    return {"inlineData": {"mimeType": mime, "data": content}}
