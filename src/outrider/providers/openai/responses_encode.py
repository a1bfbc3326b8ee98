"""A request, written as the Responses API wants it: messages become items, one by one, each exactly once."""

from collections.abc import Iterator, Set
from hashlib import sha256
from typing import Any, assert_never

import msgspec

from outrider.providers.openai.common import is_strict, listed_parameters
from outrider.providers.request_body import (
    can_be_fetched,
    encoded_json,
    file_id,
    inline,
    media_type,
    plain_text,
    unseen,
)
from outrider.types.parts import FilePart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, ModelSettings, OutputSchema, Request, ToolChoice, ToolSpec
from outrider.types.tool_state import Attachment

Fields = dict[str, Any]

# Niceties that we ask for by ourselves, and do without where they are refused.
ENCRYPTED, SUMMARY, CACHE_KEY = "reasoning.encrypted_content", "reasoning.summary", "prompt_cache_key"
# These answer 400 when they are asked for encrypted reasoning, since they have none.
_NEVER_REASON = ("gpt-3.5", "gpt-4", "chatgpt-4", "computer-use")

_LONGEST_ID = 64
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class ItemWriter:
    """Writes the items of one message. `family` names the private state that may go back; where the server does
    not store answers, reasoning goes back only if it carries its own content. `custom` holds the ids of calls
    whose input is free text."""

    def __init__(self, family: str, custom: frozenset[str], *, stored: bool) -> None:
        self._family = family
        self._custom = custom
        self._stored = stored

    def write(self, message: ModelMessage) -> bytes:
        items = self._answer(message) if message.role == "assistant" else self._question(message)
        return encoded_json(list(items))[1:-1]

    def _question(self, message: ModelMessage) -> Iterator[Fields]:
        content: list[Fields] = []
        for part in message.content:
            match part:
                case ToolResultPart():
                    yield self._result(part)
                case TextPart():
                    content.append({"type": "input_text", "text": part.text})
                case FilePart():
                    detail = part.metadata.get(self._family, {}).get("detail", "auto")
                    content.append(_file(part.mime, part.url, part.filename, detail))
                case ReasoningPart():  # an item that only this API knows, such as the approval of a call by MCP
                    if content:
                        yield {"role": "user", "content": content}
                        content = []
                    yield from self._other(part, {})
                case ToolUsePart():
                    pass  # a user makes none
                case _:
                    assert_never(part)
        if content:
            yield {"role": "user", "content": content}

    def _answer(self, message: ModelMessage) -> Iterator[Fields]:
        said: Fields | None = None
        for part in message.content:
            own: Fields = part.metadata.get(self._family, {})
            if isinstance(part, TextPart) and said and "id" in own and own["id"] == said.get("id"):
                said["content"].append(_said(part, own))
                continue
            if said is not None:
                yield said
            said = _message(part, own) if isinstance(part, TextPart) else None
            if said is None:
                yield from self._other(part, own)
        if said is not None:
            yield said

    def _other(self, part: Any, own: Fields) -> Iterator[Fields]:
        match part:
            case ReasoningPart():
                state = part.provider_state
                if state.get("family") == self._family and "item" in state:
                    yield from self._replayed(state["item"])
            case ToolUsePart():
                yield _call(part, own)
            case FilePart() if "item" in own:
                yield from self._replayed(own["item"] | {"result": inline(part.url)})
            case _:
                pass  # what only a user sends

    def _replayed(self, item: Fields) -> Iterator[Fields]:
        """An item of the provider's own, as it came, without the fields that it left empty."""
        if item.get("type") == "reasoning" and not (
            self._stored or item.get("encrypted_content") or item.get("content")
        ):
            return
        yield {name: value for name, value in item.items() if value is not None}

    def _result(self, part: ToolResultPart) -> Fields:
        text = _outcome(part)
        output: str | list[Fields] = text
        if part.attachments:
            output = [{"type": "input_text", "text": text}] if text else []
            output.extend(map(_attachment, part.attachments))
        kind = "custom_tool_call_output" if part.tool_use_id in self._custom else "function_call_output"
        return {"type": kind, "call_id": _call_id(part.tool_use_id), "output": output}


def custom_calls(message: ModelMessage, family: str) -> bytes:
    """The ids of the message's calls with free text, comma-separated as JSON; mostly none."""
    ids = [
        part.tool_id
        for part in message.content
        if isinstance(part, ToolUsePart) and part.metadata.get(family, {}).get("custom")
    ]
    return msgspec.json.encode(ids)[1:-1]


def head(request: Request, unwanted: Set[str] = frozenset()) -> Fields:
    """All of the body but the items and the user's own fields, without the niceties that a model does not take."""
    settings = request.settings
    fields: Fields = {"model": request.model, "store": False}
    if request.stream:
        fields["stream"] = True
    if request.system:
        fields["instructions"] = request.system
    if ENCRYPTED not in unwanted and not request.model.rpartition("/")[2].startswith(_NEVER_REASON):
        fields["include"] = [ENCRYPTED]
    if request.conversation and CACHE_KEY not in unwanted:
        fields[CACHE_KEY] = request.conversation
    if request.tools:
        fields["tools"] = [_tool(tool) for tool in request.tools]
        fields |= _choice(settings.tool_choice)
    if settings.reasoning:
        summary = {} if SUMMARY in unwanted else {"summary": "auto"}
        fields["reasoning"] = {"effort": settings.reasoning_effort, **summary}
    return fields | _settings(settings)


def _settings(settings: ModelSettings) -> Fields:
    """This API knows neither stop sequences nor a budget of reasoning tokens, so these two settings are not sent."""
    fields: Fields = {
        "max_output_tokens": settings.max_output_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
    }
    if settings.output is not None:
        fields["text"] = {"format": _format(settings.output)}
    return {name: value for name, value in fields.items() if value is not None}


def _format(output: OutputSchema) -> Fields:
    described = {"description": output.description} if output.description else {}
    return {
        "type": "json_schema",
        "name": output.name,
        "schema": output.schema,
        "strict": output.strict and is_strict(output.schema),
        **described,
    }


def _tool(tool: ToolSpec) -> Fields:
    """`strict` is said in any case: here it would be on by default."""
    parameters = listed_parameters(tool)
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": parameters,
        "strict": tool.strict and is_strict(parameters),
    }


def _choice(choice: ToolChoice) -> Fields:
    fields: Fields = {} if choice.parallel else {"parallel_tool_calls": False}
    match choice.mode:
        case "auto":
            return fields
        case "required" | "none":
            return fields | {"tool_choice": choice.mode}
        case "tool":
            return fields | {"tool_choice": {"type": "function", "name": choice.tool}}


def _message(part: TextPart, own: Fields) -> Fields:
    """Text that did not come from here has no id and needs none."""
    if "id" not in own:
        phase = {"phase": own["phase"]} if "phase" in own else {}
        return {"role": "assistant", "content": part.text, **phase}
    rest = {name: own[name] for name in ("id", "phase") if name in own}
    status: str = own.get("status", "completed")
    return {"type": "message", "role": "assistant", **rest, "status": status, "content": [_said(part, own)]}


def _said(part: TextPart, own: Fields) -> Fields:
    if own.get("refusal"):
        return {"type": "refusal", "refusal": part.text}
    return {"type": "output_text", "text": part.text, "annotations": own.get("annotations", [])}


def _call(part: ToolUsePart, own: Fields) -> Fields:
    rest = {name: value for name, value in own.items() if name != "custom"}
    call: Fields = {"call_id": _call_id(part.tool_id), "name": part.tool_name, **rest}
    if own.get("custom"):
        return {"type": "custom_tool_call", **call, "input": part.tool_input.get("input", "")}
    return {"type": "function_call", **call, "arguments": encoded_json(part.tool_input).decode()}


def _call_id(given: str) -> str:
    """The id as it is, or a name for one of another server that is too long here."""
    if len(given) <= _LONGEST_ID:
        return given
    return f"call_{sha256(given.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def _outcome(part: ToolResultPart) -> str:
    """There is no field for it here, so the text says that a call failed."""
    text = part.content
    return f"Error: {text}" if part.is_error and not text.lower().startswith("error") else text


def _attachment(attachment: Attachment) -> Fields:
    url = attachment.url or f"data:{attachment.mime_type};base64,{attachment.data}"
    return _file(attachment.mime_type, url, attachment.name)


def _file(mime: str, url: str, name: str | None, detail: str = "auto") -> Fields:
    uploaded, mime = file_id(url), media_type(mime)
    if not uploaded and (text := plain_text(mime, url)) is not None:
        return {"type": "input_text", "text": _titled(name, text)}
    if not uploaded and not _is_taken(mime, url):
        return {"type": "input_text", "text": unseen(mime, url, name)}
    if mime.startswith("image/"):
        where = {"file_id": uploaded} if uploaded else {"image_url": url}
        return {"type": "input_image", "detail": detail, **where}
    if uploaded:
        return {"type": "input_file", "file_id": uploaded}
    content = inline(url)
    if content is None:
        return {"type": "input_file", "file_url": url}
    return {
        "type": "input_file",
        "filename": name or f"file.{mime.rpartition('/')[2]}",
        "file_data": f"data:{mime};base64,{content}",
    }


def _is_taken(mime: str, url: str) -> bool:
    if not url.startswith("data:"):
        return can_be_fetched(url)
    return mime in _PICTURES if mime.startswith("image/") else not mime.startswith(("audio/", "video/"))


def _titled(name: str | None, text: str) -> str:
    return f'<file name="{name}">\n{text}\n</file>' if name else text
