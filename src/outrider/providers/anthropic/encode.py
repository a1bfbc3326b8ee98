"""Encodes prompt messages and settings for the Messages API; each message is encoded to bytes once."""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, assert_never

import msgspec
from msgspec.structs import replace

from outrider.providers.request_body import (
    data_url_text,
    encode_json,
    normalize_media_type,
    own_tools,
    tool_parameters,
    unreadable_file_note,
    uploaded_file_id,
)
from outrider.types.modes import ReasoningEffort, VendorTool
from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, ModelSettings, Request, ToolChoice, ToolSpec
from outrider.types.tool_state import attachment_url, data_url_base64

ThinkingForm = Literal["enabled", "adaptive"]  # values of `thinking.type` that turn it on

_VERSION = re.compile(r"(?<!\d)(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_LATEST_VERSION: tuple[int, int] = (99, 0)  # a Claude name without a version is the latest model
_EFFORT_LEVELS = ("low", "medium", "high", "xhigh", "max")

_TOO_MANY_TOKENS = re.compile(r"(?:max_tokens: \d+ >|maximum tokens.{0,40}exceeds the model limit of) (\d+)")
_FORM_REJECTED = re.compile(r"thinking\.type\.(enabled|adaptive|disabled)\W* is not supported")
_UNKNOWN_FORM = re.compile(r"thinking.{0,30}Input tag '(enabled|adaptive|disabled)'")
_KNOWN_FORMS = re.compile(r"thinking\.type: Input should be ((?:'\w+'(?: or |, )?)+)")
_OFF_REJECTED = re.compile(r"thinking.{0,40}(cannot|can not|can't|may not|must not) be disabled", re.IGNORECASE)
_THINKING_REJECTED = re.compile(r"not support.{0,40}\bthinking\b|\bthinking\b.{0,60}not (supported|permitted|allowed)")
_EFFORT_REJECTED = re.compile(
    r"not support.{0,20}\beffort\b(?! level)|\b(effort|output_config)\b.{0,60}not (supported|permitted|allowed)"
)
_TOP_MARK_REJECTED = re.compile(r"^cache_control\b.{0,40}not (permitted|allowed|supported)", re.IGNORECASE)
_BLOCK_MARK_REJECTED = re.compile(r"\.cache_control\b.{0,40}not (permitted|allowed|supported)", re.IGNORECASE)
_SUPPORTED_LEVELS = re.compile(r"Supported levels: ([\w, ]+)")
_SAMPLING_REJECTED = re.compile(r"(temperature|top_p)\W.{0,40}(deprecated|not supported|not permitted)")


class ModelTraits(msgspec.Struct, frozen=True):
    """Capabilities of one model. `version` is None for models of other vendors; `efforts` lists the supported effort
    levels."""

    version: tuple[int, int] | None
    output_limit: int | None = None
    rejected_forms: frozenset[str] = frozenset()
    efforts: tuple[str, ...] = _EFFORT_LEVELS
    sampling: bool = True
    block_marks: bool = False  # whether the server rejects a cache mark outside of blocks
    rejected_tools: frozenset[str] = frozenset()  # tools of the vendor
    marks: bool = True  # whether the server accepts cache marks

    def thinking_form(self, *, budget: bool) -> ThinkingForm | None:
        """Returns the `thinking.type` value to request, depending on an explicit budget; None if thinking is not
        supported."""
        return next((form for form in self._thinking_forms(budget=budget) if form not in self.rejected_forms), None)

    @property
    def thinks_by_default(self) -> bool:
        """Whether a request without `thinking` reasons, so that reasoning must be turned off explicitly."""
        return self.version is not None and self.version >= (5, 0)

    @property
    def hides_thinking(self) -> bool:
        """Whether the API returns thinking text only on request."""
        return self.version is not None and self.version >= (4, 7)

    @property
    def interleaves_on_request(self) -> bool:
        """Whether thinking between tool calls needs a beta header; later models do it by default."""
        return self.version is not None and (4, 0) <= self.version < (4, 6)

    @property
    def has_exclusive_sampling(self) -> bool:
        """Whether the API rejects temperature together with top_p."""
        return self.version is not None and self.version >= (4, 1)

    def supported_effort(self, effort: ReasoningEffort) -> str | None:
        """Returns the requested level, or the next lower level that the model supports; None if it supports none."""
        index = _EFFORT_LEVELS.index(effort) if effort in _EFFORT_LEVELS else 0
        levels = [level for level in _EFFORT_LEVELS[: index + 1] if level in self.efforts]
        return levels[-1] if levels else next(iter(self.efforts), None)

    def updated_from_error(self, message: str) -> "ModelTraits":
        """Returns traits corrected by an error message, or the same traits if the message matches no known pattern."""
        if match := _TOO_MANY_TOKENS.search(message):
            return replace(self, output_limit=int(match[1]))
        if match := _FORM_REJECTED.search(message):
            return replace(self, rejected_forms=self.rejected_forms | {match[1]})
        if match := _SUPPORTED_LEVELS.search(message):
            levels = tuple(level for level in _EFFORT_LEVELS if level in match[1].replace(",", " ").split())
            return replace(self, efforts=levels or self.efforts)
        if _SAMPLING_REJECTED.search(message):
            return replace(self, sampling=False)
        if _TOP_MARK_REJECTED.search(message):
            return replace(self, block_marks=True)
        if _BLOCK_MARK_REJECTED.search(message):
            return replace(self, marks=False)
        return self._without_rejected_reasoning(message)

    def _without_rejected_reasoning(self, message: str) -> "ModelTraits":
        if match := _UNKNOWN_FORM.search(message):
            return replace(self, rejected_forms=self.rejected_forms | {match[1]})
        if match := _KNOWN_FORMS.search(message):
            unknown = {"enabled", "adaptive", "disabled"} - set(re.findall(r"\w+", match[1]))
            return replace(self, rejected_forms=self.rejected_forms | unknown)
        if _OFF_REJECTED.search(message):
            return replace(self, rejected_forms=self.rejected_forms | {"disabled"})
        if _EFFORT_REJECTED.search(message):
            return replace(self, efforts=())
        if _THINKING_REJECTED.search(message):
            return replace(self, rejected_forms=frozenset({"enabled", "adaptive", "disabled"}))
        return self

    def _thinking_forms(self, *, budget: bool) -> tuple[ThinkingForm, ...]:
        version = self.version
        if version is None:
            return ("enabled",)
        if version < (3, 7):
            return ()
        if version < (4, 6) or (version < (4, 7) and budget):
            return ("enabled", "adaptive")
        return ("adaptive", "enabled")


@lru_cache(maxsize=64)
def traits_for_model(model: str) -> ModelTraits:
    _, claude, name = model.lower().partition("claude")
    if not claude:
        return ModelTraits(None)
    match = _VERSION.search(name)
    version = (int(match[1]), int(match[2] or 0)) if match else _LATEST_VERSION
    efforts = _EFFORT_LEVELS if version >= (4, 7) else tuple(level for level in _EFFORT_LEVELS if level != "xhigh")
    # These models always reason; the API rejects `thinking.type` "disabled".
    always_thinks = "fable" in name or "mythos" in name or ("opus" in name and version >= (5, 5))
    rejected = frozenset({"disabled"}) if always_thinks else frozenset[str]()
    return ModelTraits(version, efforts=efforts, sampling=version < (4, 7), rejected_forms=rejected)


_IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_PDF = "application/pdf"


def encode_file(mime: str, url: str, filename: str | None) -> dict[str, Any]:
    mime = normalize_media_type(mime)
    kind = "image" if mime.startswith("image/") else "document"
    source = _file_source(mime, url)
    if source is None:
        return {"type": "text", "text": unreadable_file_note(mime, url, filename)}
    if source["type"] == "text":
        kind = "document"
    title = {"title": filename} if filename and kind == "document" else {}
    return {"type": kind, "source": source, **title}


def _file_source(mime: str, url: str) -> dict[str, Any] | None:
    if (uploaded := uploaded_file_id(url)) is not None:
        return {"type": "file", "file_id": uploaded}
    if url.startswith(("https:", "http:")):
        is_readable = mime.startswith("image/") or mime == _PDF
        return {"type": "url", "url": url} if is_readable else None
    if mime in _IMAGE_TYPES or mime == _PDF:
        data = data_url_base64(url)
        return {"type": "base64", "media_type": mime, "data": data} if data is not None else None
    text = data_url_text(mime, url)
    return {"type": "text", "media_type": "text/plain", "data": text} if text else None


_INVALID_NAME_CHARACTERS = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_NAME_LENGTH = 128


def encode_message(message: ModelMessage, family: str) -> bytes:
    """Encodes one message. Returns empty bytes if it has no content for this family, and the message is then
    not sent."""
    blocks = [block for part in message.content for block in _encode_part(part, family)]
    blocks += [block for part in message.content for block in _failed_call_files(part)]
    return encode_json({"role": message.role, "content": blocks}) if blocks else b""


def _encode_part(part: ModelPart, family: str) -> Iterator[dict[str, Any]]:
    """Yields the content blocks of a part, including private fields from this family's earlier responses (citations,
    caller)."""
    match part:
        case TextPart():
            if part.text.strip():  # the API may return blank text but rejects it in a request
                yield {"type": "text", "text": part.text, **part.metadata.get(family, {})}
        case ReasoningPart():
            yield from _encode_reasoning(part, family)
        case FilePart():
            yield encode_file(part.mime, part.url, part.filename) | part.metadata.get(family, {})
        case ToolUsePart():
            yield {
                "type": "tool_use",
                "id": safe_name(part.tool_id),
                "name": safe_name(part.tool_name),
                "input": part.tool_input,
                **part.metadata.get(family, {}),
            }
        case ToolResultPart():
            yield _encode_tool_result(part, family)
        case _:
            assert_never(part)


def _encode_reasoning(part: ReasoningPart, family: str) -> Iterator[dict[str, Any]]:
    """Yields a thinking block. The API rejects thinking without a signature or with another family's signature, so both
    are dropped; opaque blocks are sent unchanged."""
    state = part.provider_state
    if state.get("family") != family:
        return
    if "block" in state:
        yield state["block"]
    elif state.get("signature"):
        yield {"type": "thinking", "thinking": part.text, "signature": state["signature"]}


def _encode_tool_result(part: ToolResultPart, family: str) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": safe_name(part.tool_use_id)}
    content = part.metadata["content"] if "content" in part.metadata else _result_content(part)
    if content is not None:
        block["content"] = content
    return block | ({"is_error": True} if part.is_error else {}) | part.metadata.get(family, {})


def _result_content(part: ToolResultPart) -> str | list[dict[str, Any]]:
    if part.is_error or not part.attachments:
        return part.content
    text = [{"type": "text", "text": part.content}] if part.content.strip() else []
    return [*text, *_encode_attachments(part)]


def _failed_call_files(part: ModelPart) -> Iterator[dict[str, Any]]:
    """Yields the files of a failed call. The API accepts only text in an error result, so the files follow after all
    results."""
    if isinstance(part, ToolResultPart) and part.is_error and "content" not in part.metadata:
        yield from _encode_attachments(part)


def _encode_attachments(part: ToolResultPart) -> Iterator[dict[str, Any]]:
    for attachment in part.attachments:
        yield encode_file(attachment.mime_type, attachment_url(attachment), attachment.name)


def refers_to_upload(part: ModelPart) -> bool:
    """Returns True if the part refers to a file that was uploaded to the provider."""
    match part:
        case FilePart():
            return uploaded_file_id(part.url) is not None
        case ToolResultPart():
            return any(uploaded_file_id(attachment.url or "") is not None for attachment in part.attachments)
        case ReasoningPart():
            return "file_id" in part.provider_state.get("block", ())
        case TextPart() | ToolUsePart():
            return False


def safe_name(name: str) -> str:
    """Returns an id or tool name that matches the API's pattern. Other providers' ids and misspelled names may not
    match it."""
    if name and len(name) <= _MAX_NAME_LENGTH and not _INVALID_NAME_CHARACTERS.search(name):
        return name
    mark = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()  # the hash prevents collisions
    return f"{_INVALID_NAME_CHARACTERS.sub('_', name)[: _MAX_NAME_LENGTH - 9]}_{mark}"


# Sent when the model's maximum is unknown: the error response states the maximum.
PROBE_MAX_TOKENS = 10_000_000
# A non-Claude server may accept any number, or return an error message that cannot be parsed.
FALLBACK_MAX_TOKENS = 32_000

_MIN_BUDGET = 1024
_BUDGET_BY_EFFORT = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 24_576, "max": 32_768}
_TOOL_CHOICE_TYPES = {"auto": "auto", "required": "any", "none": "none", "tool": "tool"}
_MIN_TOP_P_WITH_THINKING = 0.95

CacheControl = dict[str, Any] | None
"""The `cache_control` object for the end of a cacheable prefix, or None if caching is off."""


_VENDOR_TOOLS: dict[VendorTool, dict[str, Any]] = {
    "web_search": {"type": "web_search_20250305", "name": "web_search"},
    "code_execution": {"type": "code_execution_20250825", "name": "code_execution"},
}


def encode_prefix(
    request: Request, cache_control: CacheControl, vendor_tools: Sequence[VendorTool] = ()
) -> dict[str, Any]:
    """Returns tools and system prompt, which precede the messages in the model's cache.

    Each ends with its own cache mark at a fixed position, so a change of one does not move the other's mark.
    """
    fields: dict[str, Any] = {}
    if request.tools or vendor_tools:
        fields["tools"] = [dict(_VENDOR_TOOLS[name]) for name in vendor_tools]
        fields["tools"] += map(_encode_tool, own_tools(request, vendor_tools))
        fields["tools"][-1] |= _cache_control_field(cache_control)
    if request.system and request.system.strip():
        fields["system"] = [{"type": "text", "text": request.system, **_cache_control_field(cache_control)}]
    return fields


def encode_settings(request: Request, traits: ModelTraits, limit: int | None) -> dict[str, Any]:
    """Returns the fields that control the response. `limit` is the catalog's maximum output tokens."""
    settings = request.settings
    unknown = PROBE_MAX_TOKENS if traits.version is not None else FALLBACK_MAX_TOKENS
    max_tokens = settings.max_output_tokens or traits.output_limit or limit or unknown
    fields: dict[str, Any] = {"max_tokens": max_tokens}
    if request.stream:
        fields["stream"] = True
    if thinking := settings.extra.get("thinking") or _thinking_config(request, traits, max_tokens):
        fields["thinking"] = thinking
    form = thinking["type"] if thinking else "disabled"
    if output := _output_config(settings, traits, form):
        fields["output_config"] = output
    fields |= _sampling_fields(settings, traits, thinks=form != "disabled")
    if settings.stop:
        fields["stop_sequences"] = list(settings.stop)
    if (choice := _encode_tool_choice(settings.tool_choice)) and (request.tools or "tools" in settings.extra):
        fields["tool_choice"] = choice
    return fields


def _encode_tool(spec: ToolSpec) -> dict[str, Any]:
    tool: dict[str, Any] = {"name": spec.name}
    if spec.description:
        tool["description"] = spec.description
    tool["input_schema"] = tool_parameters(spec)
    if spec.strict:
        tool["strict"] = True
    return tool


def _thinking_config(request: Request, traits: ModelTraits, max_tokens: int) -> dict[str, Any] | None:
    """Returns the thinking configuration, or None. The API rejects thinking together with a forced tool call or with a
    budget that does not fit into `max_tokens`."""
    settings = request.settings
    if settings.reasoning_effort == "none" and traits.thinks_by_default and "disabled" not in traits.rejected_forms:
        return {"type": "disabled"}
    if not settings.requests_reasoning(supported=traits.version is not None):
        return None
    if settings.tool_choice.mode in ("required", "tool") or lacks_required_thinking(request, traits):
        return None
    match traits.thinking_form(budget=settings.reasoning_budget is not None):
        case "enabled":
            budget = _thinking_budget(settings, max_tokens)
            return {"type": "enabled", "budget_tokens": budget} if budget < max_tokens else None
        case "adaptive":
            return {"type": "adaptive", "display": "summarized"} if traits.hides_thinking else {"type": "adaptive"}
        case None:
            return None


def lacks_required_thinking(request: Request, traits: ModelTraits) -> bool:
    """Returns whether tool results are sent for an answer without thinking, because another model gave it or reasoning
    was off. The API then rejects a thinking budget; adaptive thinking has no such rule. All answers since the last
    input are one turn: if its first one begins with thinking, models without interleaved thinking omit it later."""
    prompt = request.prompt
    if traits.thinking_form(budget=request.settings.reasoning_budget is not None) != "enabled" or len(prompt) < 2:
        return False
    if not _has_results(prompt[-1]) or _begins_with_thinking(prompt[-2]):
        return False
    # The prompt caches the marks, so each message is read once: a turn can have thousands of them.
    ends = prompt.message_ends(prompt.encoded("anthropic-inputs", _mark_input))
    last_input = bisect_left(ends, ends[-1]) if ends[-1] else 0 if prompt[0].role == "user" else -1
    return not _begins_with_thinking(prompt[min(last_input + 1, len(prompt) - 2)])


def _mark_input(message: ModelMessage) -> bytes:
    return b"1" if message.role == "user" and not _has_results(message) else b""


def _has_results(message: ModelMessage) -> bool:
    return any(isinstance(part, ToolResultPart) for part in message.content)


def _begins_with_thinking(answer: ModelMessage) -> bool:
    first = answer.content[0] if answer.content else None
    return isinstance(first, ReasoningPart) and bool({"signature", "block"} & first.provider_state.keys())


def _thinking_budget(settings: ModelSettings, max_tokens: int) -> int:
    """Returns the token budget for thinking. A default budget leaves at least half of `max_tokens` to the answer."""
    requested = settings.reasoning_budget
    budget = (
        min(requested, max_tokens - 1)
        if requested
        else min(_BUDGET_BY_EFFORT[settings.reasoning_effort], max_tokens // 2)
    )
    return max(budget, _MIN_BUDGET)


def _output_config(settings: ModelSettings, traits: ModelTraits, form: str) -> dict[str, Any]:
    """Returns effort and output schema. A model that always reasons gets the lowest effort if reasoning is off."""
    config: dict[str, Any] = {}
    reasons = settings.requests_reasoning(supported=traits.version is not None)
    always_reasons = (
        settings.reasoning_effort == "none" and traits.thinks_by_default and "disabled" in traits.rejected_forms
    )
    if ((form == "adaptive" and reasons) or always_reasons) and (
        effort := traits.supported_effort(settings.reasoning_effort)
    ):
        config["effort"] = effort
    if settings.output is not None:
        config["format"] = {"type": "json_schema", "schema": settings.output.schema}
    return config


def _sampling_fields(settings: ModelSettings, traits: ModelTraits, *, thinks: bool) -> dict[str, Any]:
    """Returns temperature and top_p. With thinking enabled the API rejects values other than temperature 1 and top_p
    from 0.95."""
    fields: dict[str, Any] = {}
    if settings.temperature is not None and (not thinks or settings.temperature == 1):
        fields["temperature"] = settings.temperature
    if settings.top_p is not None and (not thinks or settings.top_p >= _MIN_TOP_P_WITH_THINKING):
        fields["top_p"] = settings.top_p
    if len(fields) > 1 and traits.has_exclusive_sampling:
        del fields["top_p"]
    return fields if traits.sampling else {}


def _encode_tool_choice(choice: ToolChoice) -> dict[str, Any]:
    """Returns an empty dict if the choice equals the API's default."""
    if choice == ToolChoice():
        return {}
    fields: dict[str, Any] = {"type": _TOOL_CHOICE_TYPES[choice.mode]}
    if choice.mode == "tool":
        fields["name"] = choice.tool
    if not choice.parallel and choice.mode != "none":
        fields["disable_parallel_tool_use"] = True
    return fields


def _cache_control_field(cache_control: CacheControl) -> dict[str, Any]:
    return {"cache_control": cache_control} if cache_control else {}
