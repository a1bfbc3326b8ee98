"""Parts of a conversation as content blocks of the Messages API; each message is written once, to bytes."""

import re
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, assert_never, cast

from outrider.providers.anthropic.models import ModelTraits
from outrider.providers.request_body import encoded_json, file_id, inline, media_type, parameters_of, plain_text, unseen
from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, ModelSettings, Request, ToolChoice, ToolSpec

_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_PDF = "application/pdf"


def file_block(mime: str, url: str, filename: str | None) -> dict[str, Any]:
    mime = media_type(mime)
    kind = "image" if mime.startswith("image/") else "document"
    source = _source(mime, url)
    if source is None:
        return {"type": "text", "text": unseen(mime, url, filename)}
    if source["type"] == "text":
        kind = "document"
    title = {"title": filename} if filename and kind == "document" else {}
    return {"type": kind, "source": source, **title}


def _source(mime: str, url: str) -> dict[str, Any] | None:
    if (uploaded := file_id(url)) is not None:
        return {"type": "file", "file_id": uploaded}
    if url.startswith(("https:", "http:")):
        seen = mime.startswith("image/") or mime == _PDF
        return {"type": "url", "url": url} if seen else None
    if mime in _IMAGES or mime == _PDF:
        data = inline(url)
        return {"type": "base64", "media_type": mime, "data": data} if data is not None else None
    text = plain_text(mime, url)
    return {"type": "text", "media_type": "text/plain", "data": text} if text else None


_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME = 128


def encode_message(message: ModelMessage, family: str) -> bytes:
    """A message that has nothing left to say to this family is not sent."""
    blocks = [block for part in message.content for block in _blocks(part, family)]
    blocks += [block for part in message.content for block in _files_of_failure(part)]
    return encoded_json({"role": message.role, "content": blocks}) if blocks else b""


def _blocks(part: ModelPart, family: str) -> Iterator[dict[str, Any]]:
    """Private fields that the family's own answers carried (citations, caller, …) go back in their block."""
    match part:
        case TextPart():
            if part.text.strip():  # the API itself sends blank text, and refuses to have it back
                yield {"type": "text", "text": part.text, **part.metadata.get(family, {})}
        case ReasoningPart():
            yield from _reasoning(part, family)
        case FilePart():
            yield file_block(part.mime, part.url, part.filename) | part.metadata.get(family, {})
        case ToolUsePart():
            yield {
                "type": "tool_use",
                "id": safe_name(part.tool_id),
                "name": safe_name(part.tool_name),
                "input": part.tool_input,
                **part.metadata.get(family, {}),
            }
        case ToolResultPart():
            yield _result(part, family)
        case _:
            assert_never(part)


def _reasoning(part: ReasoningPart, family: str) -> Iterator[dict[str, Any]]:
    """Thinking without a signature, or with that of another family, is refused; what is opaque goes back as it was."""
    state = part.provider_state
    if state.get("family") != family:
        return
    if "block" in state:
        yield state["block"]
    elif state.get("signature"):
        yield {"type": "thinking", "thinking": part.text, "signature": state["signature"]}


def _result(part: ToolResultPart, family: str) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": safe_name(part.tool_use_id)}
    content = part.metadata["content"] if "content" in part.metadata else _result_content(part)
    if content is not None:
        block["content"] = content
    return block | ({"is_error": True} if part.is_error else {}) | part.metadata.get(family, {})


def _result_content(part: ToolResultPart) -> str | list[dict[str, Any]]:
    if part.is_error or not part.attachments:
        return part.content
    text = [{"type": "text", "text": part.content}] if part.content.strip() else []
    return [*text, *_attachments(part)]


def _files_of_failure(part: ModelPart) -> Iterator[dict[str, Any]]:
    """The API takes only text in the result of a failed call, so its files follow after the results."""
    if isinstance(part, ToolResultPart) and part.is_error and "content" not in part.metadata:
        yield from _attachments(part)


def _attachments(part: ToolResultPart) -> Iterator[dict[str, Any]]:
    for attachment in part.attachments:
        url = attachment.url or f"data:{attachment.mime_type};base64,{attachment.data}"
        yield file_block(attachment.mime_type, url, attachment.name)


def names_upload(part: ModelPart) -> bool:
    """Whether the part refers to a file that was uploaded to the provider before."""
    match part:
        case FilePart():
            return file_id(part.url) is not None
        case ToolResultPart():
            return any(file_id(attachment.url or "") is not None for attachment in part.attachments)
        case ReasoningPart():
            return "file_id" in part.provider_state.get("block", ())
        case TextPart() | ToolUsePart():
            return False


def safe_name(name: str) -> str:
    """Ids and tool names from other providers, or misspelt by a model, within the alphabet that the API takes."""
    if name and len(name) <= _LONGEST_NAME and not _NOT_IN_NAMES.search(name):
        return name
    mark = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()  # two names never become one
    return f"{_NOT_IN_NAMES.sub('_', name)[: _LONGEST_NAME - 9]}_{mark}"


# Asked for when nobody knows the model's maximum: the refusal names it.
PROBE = 10_000_000
# A server of another maker may take any number at its word, or refuse in words of its own.
CAUTIOUS_LIMIT = 32_000

_SMALLEST_BUDGET = 1024
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 24_576, "max": 32_768}
_MODES = {"auto": "auto", "required": "any", "none": "none", "tool": "tool"}
_TOP_P_WITH_THINKING = 0.95

Mark = dict[str, Any] | None
"""What is put where a cached prefix may end; None where the server does not want it."""


def head(request: Request, mark: Mark) -> dict[str, Any]:
    """What comes before the messages for the model, and so for its cache: tools, then the system prompt.

    Marks stand at the end of both and never move, so that neither depends on the other."""
    fields: dict[str, Any] = {}
    if request.tools:
        fields["tools"] = [_tool(spec) for spec in request.tools]
        fields["tools"][-1] |= _marked(mark)
    if request.system and request.system.strip():
        fields["system"] = [{"type": "text", "text": request.system, **_marked(mark)}]
    return fields


def tuning(request: Request, traits: ModelTraits, limit: int | None) -> dict[str, Any]:
    """How the model is to answer. `limit` is what the catalog says of its largest answer."""
    settings = request.settings
    unknown = PROBE if traits.version is not None else CAUTIOUS_LIMIT
    max_tokens = settings.max_output_tokens or traits.output_limit or limit or unknown
    fields: dict[str, Any] = {"max_tokens": max_tokens}
    if request.stream:
        fields["stream"] = True
    if thinking := settings.extra.get("thinking") or _thinking(settings, traits, max_tokens):
        fields["thinking"] = thinking
    form = thinking["type"] if thinking else "disabled"
    if output := _output_config(settings, traits, adaptive=form == "adaptive"):
        fields["output_config"] = output
    fields |= _sampling(settings, traits, thinks=form != "disabled")
    if settings.stop:
        fields["stop_sequences"] = list(settings.stop)
    if (choice := _choice(settings.tool_choice)) and (request.tools or "tools" in settings.extra):
        fields["tool_choice"] = choice
    return fields


def _tool(spec: ToolSpec) -> dict[str, Any]:
    tool: dict[str, Any] = {"name": spec.name}
    if spec.description:
        tool["description"] = spec.description
    tool["input_schema"] = parameters_of(spec)
    if spec.strict:
        tool["strict"] = True
    return tool


def _thinking(settings: ModelSettings, traits: ModelTraits, max_tokens: int) -> dict[str, Any] | None:
    """The API refuses thinking together with a forced call, and where there is no room for it."""
    if not settings.reasoning or settings.tool_choice.mode in ("required", "tool"):
        return None
    match traits.thinking_form(budget=settings.reasoning_budget is not None):
        case "enabled":
            budget = _budget(settings, max_tokens)
            return {"type": "enabled", "budget_tokens": budget} if budget < max_tokens else None
        case "adaptive":
            return {"type": "adaptive", "display": "summarized"} if traits.hides_thinking else {"type": "adaptive"}
        case None:
            return None


def _budget(settings: ModelSettings, max_tokens: int) -> int:
    """A budget that nobody named leaves half of the answer's tokens to the answer."""
    given = settings.reasoning_budget
    budget = min(given, max_tokens - 1) if given else min(_BUDGETS[settings.reasoning_effort], max_tokens // 2)
    return max(budget, _SMALLEST_BUDGET)


def _output_config(settings: ModelSettings, traits: ModelTraits, *, adaptive: bool) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if adaptive and settings.reasoning:
        config["effort"] = traits.effort(settings.reasoning_effort)
    if settings.output is not None:
        config["format"] = {"type": "json_schema", "schema": _closed(settings.output.schema)}
    return config


def _sampling(settings: ModelSettings, traits: ModelTraits, *, thinks: bool) -> dict[str, Any]:
    """Together with thinking the API takes only values that hardly steer."""
    fields: dict[str, Any] = {}
    if settings.temperature is not None and (not thinks or settings.temperature == 1):
        fields["temperature"] = settings.temperature
    if settings.top_p is not None and (not thinks or settings.top_p >= _TOP_P_WITH_THINKING):
        fields["top_p"] = settings.top_p
    if len(fields) > 1 and traits.samples_one_way:
        del fields["top_p"]
    return fields if traits.sampling else {}


def _choice(choice: ToolChoice) -> dict[str, Any]:
    """Empty where the API's own default says the same."""
    if choice == ToolChoice():
        return {}
    fields: dict[str, Any] = {"type": _MODES[choice.mode]}
    if choice.mode == "tool":
        fields["name"] = choice.tool
    if not choice.parallel and choice.mode != "none":
        fields["disable_parallel_tool_use"] = True
    return fields


def _closed(schema: Any) -> Any:
    """The API takes an object in a schema only if nothing else may be in it; one that says nothing of it is closed."""
    if isinstance(schema, list):
        return [_closed(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = {name: _closed(value) for name, value in cast("dict[str, Any]", schema).items()}
    return {"additionalProperties": False, **fields} if fields.get("type") == "object" else fields


def _marked(mark: Mark) -> dict[str, Any]:
    return {"cache_control": mark} if mark else {}
