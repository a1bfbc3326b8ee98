"""Encodes prompt messages and settings for Chat Completions; each message is encoded to bytes once.

`DIALECTS` has the differences between servers, one row per server."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache, partial
from typing import Any, Literal, assert_never

import msgspec
from msgspec.structs import replace

from outrider._lazy import lazy_pattern
from outrider.errors import ConfigurationError
from outrider.providers.openai.chat_decode import merge_reasoning_details
from outrider.providers.openai.common import (
    THREE_EFFORTS,
    efforts_in_error,
    is_strict_schema,
    nearest_effort,
    openai_efforts,
    openai_version,
    parameters_with_properties,
    provider_host,
)
from outrider.providers.request_body import (
    cache_per_tool,
    data_url_text,
    encode_json,
    is_fetchable_url,
    normalize_media_type,
    unreadable_file_note,
    uploaded_file_id,
)
from outrider.types.agents import Provider
from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import (
    ModelMessage,
    ModelSettings,
    OutputSchema,
    Request,
    ToolChoice,
    ToolSpec,
)
from outrider.types.tool_state import attachment_url, data_url_base64, make_data_url

# OpenAI's reasoning models accept only max_completion_tokens, and the role "developer" instead of "system".
_REASONING_MODELS = re.compile(r"(o\d|gpt-([5-9]|\d\d))")
_FAMILY_NAME = re.compile(r"gpt-oss|[a-z]+")
_REPLAY_REJECTED = r"\b(messages?|assistant)\b.{0,80}\breasoning(?!_effort)|\breasoning_(content|details)\b"
_UNSUPPORTED = r"unsupported|not support|unrecognized|unknown|unexpected|unavailable|extra|not (permitted|allowed)"
_OPTIONAL_FIELDS = ("temperature", "top_p", "stop", "parallel_tool_calls", "tool_choice", "strict")
_OUTPUT_FORMAT_REJECTED = lazy_pattern(r"response_format|json_schema|json_object|structured output", re.IGNORECASE)
_REASONING_REJECTED = lazy_pattern(r"reasoning|thinking|effort|chat_template_kwargs", re.IGNORECASE)
_TOOLS_WITH_EFFORT = lazy_pattern(r"tools with reasoning_effort", re.IGNORECASE)
_EFFORT_RANGE = ("minimal", "low", "medium", "high", "xhigh", "max")
_OPENAI_NAMES = r"(gpt-oss|o\d|gpt-([5-9]|\d\d))"

_USUAL_LIMIT = "max_tokens"


class ChatDialect(msgspec.Struct, frozen=True, kw_only=True):
    """Request features of one server. The defaults are what most servers accept.

    - `hosts`: host name suffixes.
    - `reasoning`: the form of the field that requests reasoning: `reasoning_effort` with one of `efforts` ("effort"),
      `reasoning` with an effort or a budget ("object"), `thinking` with a type ("thinking"), `enable_thinking` with a
      budget ("enable_thinking"), or none ("never").
    - `reasoners`: a pattern of model names. These models get the field if the settings do not mention reasoning.
    """

    name: str
    hosts: tuple[str, ...] = ()
    limit: str = ""  # name of the field with the output limit, for all models; by default it depends on the model
    reasoning: Literal["effort", "object", "thinking", "enable_thinking", "never"] = "effort"
    reasoners: str = _OPENAI_NAMES
    efforts: tuple[str, ...] = _EFFORT_RANGE
    tool_effort: Literal["send", "omit", "none"] = (
        "send"  # the effort in a request with tools: newer models of OpenAI reject it in Chat Completions
    )
    replay: Literal["as it came", "thinking blocks", "never"] = "as it came"
    empty_reasoning: bool = False  # replayed calls need reasoning_content, even if it is empty
    refusals: bool = False  # whether replayed messages have a `refusal` field
    documents: Literal["file", "document_url", "file_url"] = "file"
    schemas: bool = True  # whether the server supports JSON schemas for the response
    omitted: frozenset[str] = frozenset()  # optional fields that the server rejects
    stream_options: bool = True  # whether usage must be requested with this field
    cache_key: bool = False
    system: Literal["system", "developer"] = "system"
    call_ids: str = r".{1,64}"  # pattern that a call id must match


_OPENAI_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_dialect_with_thinking = partial(ChatDialect, reasoning="thinking")

DIALECTS = (
    ChatDialect(
        name="openai",
        hosts=("api.openai.com",),
        limit="max_completion_tokens",
        efforts=_OPENAI_EFFORTS,
        replay="never",
        refusals=True,
        cache_key=True,
        call_ids=r".{1,40}",
    ),
    ChatDialect(
        name="azure",
        hosts=(".azure.com",),
        efforts=_OPENAI_EFFORTS,
        replay="never",
        refusals=True,
        call_ids=r".{1,40}",
    ),
    # These two gateways ignore the switch for models that do not reason.
    ChatDialect(name="openrouter", hosts=("openrouter.ai",), reasoning="object", reasoners="", efforts=_OPENAI_EFFORTS),
    ChatDialect(
        name="vercel", hosts=("ai-gateway.vercel.sh",), reasoning="object", reasoners="", efforts=_OPENAI_EFFORTS
    ),
    ChatDialect(
        name="mistral",
        hosts=("api.mistral.ai",),
        efforts=("none", "high"),
        reasoners=r"mistral-(small|medium)-(latest|2[6-9]|[3-9])",
        replay="thinking blocks",
        documents="document_url",
        stream_options=False,
        call_ids=r"[a-zA-Z0-9]{9}",
    ),
    _dialect_with_thinking(
        name="deepseek",
        hosts=("api.deepseek.com",),
        reasoners="deepseek-(?!reasoner)",
        empty_reasoning=True,
        schemas=False,
    ),
    _dialect_with_thinking(
        name="moonshot",
        hosts=("api.moonshot.ai", "api.moonshot.cn"),
        reasoners=r"kimi-(k2\.[5-9]|k[3-9]|latest)",
        efforts=(),
        empty_reasoning=True,
    ),
    _dialect_with_thinking(
        name="zai", hosts=("api.z.ai", "bigmodel.cn"), reasoners=r"glm-(4\.[5-9]|[5-9])", efforts=(), schemas=False
    ),
    ChatDialect(
        name="alibaba",
        hosts=("dashscope.aliyuncs.com", ".aliyuncs.com"),
        reasoning="enable_thinking",
        reasoners=r"qwen(3(?!.*(instruct|coder|thinking))|-plus|-flash|-max)",
    ),
    ChatDialect(name="groq", hosts=("api.groq.com",), efforts=THREE_EFFORTS),
    ChatDialect(
        name="xai", hosts=("api.x.ai",), efforts=THREE_EFFORTS, reasoners=r"grok-(3-mini|4\.[3-9](?!\d)|[5-9])"
    ),
    ChatDialect(
        name="perplexity",
        hosts=("api.perplexity.ai",),
        efforts=THREE_EFFORTS,
        reasoners="sonar-(reasoning|deep)",
        documents="file_url",
    ),
    # The templates of models on other servers control reasoning; only OpenAI's model names get an effort.
    ChatDialect(name="compatible", efforts=("none", *THREE_EFFORTS)),
)


def dialect_for_provider(provider: Provider) -> ChatDialect:
    """Returns the dialect that `options["dialect"]` names, else the one that matches the host. Raises
    ConfigurationError for an unknown name."""
    name = provider.options.get("dialect")
    for row in DIALECTS:
        if row.name == name or (name is None and provider_host(provider).endswith(row.hosts)):
            return row
    if name is not None:
        names = ", ".join(row.name for row in DIALECTS)
        raise ConfigurationError(f"provider {provider.name}: no dialect {name!r}; known: {names}")
    return DIALECTS[-1]


def find_dialect(name: str, replay: str) -> ChatDialect:
    """Returns a dialect by name, for messages whose reasoning is sent back in the way `replay`."""
    dialect = next((row for row in DIALECTS if row.name == name), DIALECTS[-1])
    if dialect.replay == replay:
        return dialect
    return replace(dialect, replay=replay, empty_reasoning=False)  # as `dialect_after_error` changes it


@lru_cache(maxsize=64)  # called twice per response
def model_family(model: str) -> str:
    """Returns the model family, the first word of the name, independent of the server: deepseek, qwen, claude,
    gpt, …"""
    word = _FAMILY_NAME.match(_bare_model_name(model))
    return f"openai-chat/{word[0] if word else 'model'}"


def dialect_for_model(dialect: ChatDialect, model: str) -> ChatDialect:
    """Returns the dialect adjusted for the model."""
    is_reasoning_model = _REASONING_MODELS.match(_bare_model_name(model)) is not None
    changes: dict[str, Any] = {}
    if not dialect.limit:
        changes["limit"] = "max_completion_tokens" if is_reasoning_model else _USUAL_LIMIT
    if is_reasoning_model and dialect.name in ("openai", "azure"):
        minor = _minor_version(model)
        changes |= {"system": "developer", "efforts": openai_efforts(model)}
        changes["tool_effort"] = "none" if minor >= 56 else "omit" if minor >= 52 else "send"
    return replace(dialect, **changes)


def _minor_version(model: str) -> int:
    """Returns 54 for gpt-5.4; 0 for models without a version."""
    major, minor = openai_version(model) or (0, 0)
    return 10 * major + minor


def dialect_after_error(dialect: ChatDialect, message: str) -> ChatDialect:
    """Returns the dialect without the feature that the error message reports as unsupported."""
    if _TOOLS_WITH_EFFORT.search(message):
        return replace(dialect, tool_effort="none" if "'none'" in message else "omit")
    if efforts := efforts_in_error(message):
        return replace(dialect, efforts=efforts)
    if not re.search(_UNSUPPORTED, message, re.IGNORECASE):
        return dialect
    if re.search(rf"\b{dialect.limit}\b", message):
        limit = "max_tokens" if dialect.limit == "max_completion_tokens" else "max_completion_tokens"
        return replace(dialect, limit=limit)
    if dialect.replay != "never" and re.search(_REPLAY_REJECTED, message):
        return replace(dialect, replay="never", empty_reasoning=False)
    if "'developer'" in message or '"developer"' in message:
        return replace(dialect, system="system")
    if omitted := {name for name in _OPTIONAL_FIELDS if re.search(rf"\b{name}\b", message)} - dialect.omitted:
        return replace(dialect, omitted=dialect.omitted | omitted)
    if _OUTPUT_FORMAT_REJECTED.search(message):
        return replace(dialect, schemas=False, omitted=dialect.omitted if dialect.schemas else _without_format(dialect))
    if _REASONING_REJECTED.search(message):
        return replace(dialect, reasoning="never")
    return replace(
        dialect,
        stream_options=dialect.stream_options and "stream_options" not in message,
        cache_key=dialect.cache_key and "prompt_cache_key" not in message,
    )


def _without_format(dialect: ChatDialect) -> frozenset[str]:
    return dialect.omitted | {"response_format"}


def _bare_model_name(model: str) -> str:
    return model.rpartition("/")[2].lower().lstrip("@~")


FieldsOfFiles = dict[str, Any]

# Format names that the API uses instead of media subtypes.
_IMAGE_FORMATS = ("png", "jpeg", "gif", "webp")
_AUDIO_FORMATS = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav", "x-m4a": "m4a", "mp4": "m4a"}


def encode_file(mime: str, url: str, name: str | None, dialect: ChatDialect) -> FieldsOfFiles:
    """Returns one content block. An unsupported file is replaced with a text that names it."""
    if uploaded := uploaded_file_id(url):
        return {"type": "file", "file": {"file_id": uploaded}}
    if (text := data_url_text(mime, url)) is not None:
        return {"type": "text", "text": f'<file name="{name}">\n{text}\n</file>' if name else text}
    mime = normalize_media_type(mime)
    data = data_url_base64(url)
    if not _is_supported_file(mime, url, dialect):
        return {"type": "text", "text": unreadable_file_note(mime, url, name)}
    address = make_data_url(mime, data) if data is not None else url
    match mime.partition("/")[0]:
        case "image":
            return {"type": "image_url", "image_url": {"url": address}}
        case "audio" if data is not None:
            return _encode_audio(mime, data, dialect)
        case "video":
            return {"type": "video_url", "video_url": {"url": address}}
        case _:
            return _encode_document(mime, address, name, dialect)


def _is_supported_file(mime: str, url: str, dialect: ChatDialect) -> bool:
    """Returns True if the server accepts the file. OpenAI documents its types; other servers differ per model, so all
    types are sent."""
    if not url.startswith("data:") and not is_fetchable_url(url):
        return False
    if dialect.name not in ("openai", "azure"):
        return True
    match mime.partition("/"):
        case ("image", _, kind):
            return kind in _IMAGE_FORMATS or is_fetchable_url(url)
        case ("audio", _, kind):
            return _AUDIO_FORMATS.get(kind, kind) in ("mp3", "wav") or is_fetchable_url(url)
        case (kind, _, _):
            return kind != "video"


def _encode_audio(mime: str, data: str, dialect: ChatDialect) -> FieldsOfFiles:
    if dialect.name == "mistral":
        return {"type": "input_audio", "input_audio": data}
    kind = mime.partition("/")[2]
    return {"type": "input_audio", "input_audio": {"data": data, "format": _AUDIO_FORMATS.get(kind, kind)}}


def _encode_document(mime: str, address: str, name: str | None, dialect: ChatDialect) -> FieldsOfFiles:
    filename = name or f"file.{mime.rpartition('/')[2]}"
    match dialect.documents:
        case "document_url":
            return {"type": "document_url", "document_url": address, "document_name": filename}
        case "file_url":
            return {"type": "file_url", "file_url": {"url": data_url_base64(address) or address}, "file_name": filename}
        case "file" if address.startswith("data:") or dialect.name != "openai":
            return {"type": "file", "file": {"filename": filename, "file_data": address}}
        case "file":
            return {"type": "text", "text": f"({mime} file: {address})"}


Fields = dict[str, Any]

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SEE_ATTACHMENTS = "The result is attached to the message that follows."


class MessageWriter:
    """Encodes one message. `family` selects the private state that may be sent back."""

    def __init__(self, dialect: ChatDialect, family: str) -> None:
        self._dialect = dialect
        self._family = family

    @property
    def cache_key(self) -> str:
        """Key of the prompt's encoding cache: everything except the message that affects the bytes."""
        return f"{self._family}@{self._dialect.name}/{self._dialect.replay}"

    def write(self, message: ModelMessage) -> bytes:
        messages = self._assistant_messages(message) if message.role == "assistant" else self._user_messages(message)
        return encode_json(messages)[1:-1]

    def _user_messages(self, message: ModelMessage) -> list[Fields]:
        """Returns tool results first, because they must directly follow their calls, then a user message with the
        results' attachments and the text."""
        messages: list[Fields] = []
        attachments: list[Fields] = []
        blocks: list[Fields] = []
        for part in message.content:
            if isinstance(part, ToolResultPart):
                result = {
                    "role": "tool",
                    "tool_call_id": self._call_id(part.tool_use_id),
                    "content": _result_text(part),
                }
                messages.append(result)
                attachments += self._attachment_blocks(part) if part.attachments else ()
            elif (block := self._user_block(part)) is not None:
                blocks.append(block)
        if content := attachments + blocks:
            only_text = len(content) == 1 and content[0]["type"] == "text"
            messages.append({"role": "user", "content": content[0]["text"] if only_text else content})
        return messages

    def _user_block(self, part: ModelPart) -> Fields | None:
        match part:
            case TextPart():
                return {"type": "text", "text": part.text}
            case FilePart():
                return encode_file(part.mime, part.url, part.filename, self._dialect)
            case ToolResultPart() | ReasoningPart() | ToolUsePart():
                return None  # encoded separately, or never in a user message
            case _:
                assert_never(part)

    def _attachment_blocks(self, part: ToolResultPart) -> Iterator[Fields]:
        yield {"type": "text", "text": f"Attached to the result of {part.tool_name or 'call'} {part.tool_use_id}:"}
        for attachment in part.attachments:
            yield encode_file(attachment.mime_type, attachment_url(attachment), attachment.name, self._dialect)

    def _assistant_messages(self, message: ModelMessage) -> list[Fields]:
        kinds: dict[str, list[Any]] = {"text": [], "reasoning": [], "tool_use": [], "file": []}
        for part in message.content:
            kinds.setdefault(part.type, []).append(part)
        refusals = [
            part for part in kinds["text"] if self._family_metadata(part).get("refusal") and self._dialect.refusals
        ]
        text = "".join([part.text for part in kinds["text"] if part not in refusals])
        calls = [self._encode_call(part) for part in kinds["tool_use"]]
        fields: Fields = {"role": "assistant", "content": text or None}
        fields |= self._reasoning_fields(kinds["reasoning"], text, calls=bool(calls))
        fields |= self._generated_media(kinds["file"])
        if refusals:
            fields["refusal"] = "".join(part.text for part in refusals)
        if calls:
            fields["tool_calls"] = calls
        if len(fields) == 2 and not text:
            return []
        if fields["content"] is None and not calls and not refusals:
            fields["content"] = ""
        return [fields]

    def _family_metadata(self, part: TextPart | FilePart | ToolUsePart) -> Fields:
        return part.metadata.get(self._family, {})

    def _encode_call(self, part: ToolUsePart) -> Fields:
        private = self._family_metadata(part)
        call_id = self._call_id(part.tool_id)
        if private.get("custom"):
            free_text = part.tool_input.get("input", "")
            return {"id": call_id, "type": "custom", "custom": {"name": part.tool_name, "input": free_text}}
        function = {"name": part.tool_name, "arguments": encode_json(part.tool_input).decode()}
        call: Fields = {"id": call_id, "type": "function", "function": function}
        if "extra_content" in private:
            call["extra_content"] = private["extra_content"]
        return call

    def _reasoning_fields(self, parts: Iterable[ReasoningPart], text: str, *, calls: bool) -> Fields:
        """Returns reasoning of the same family, in the response field it came from."""
        own_family_parts = [part for part in parts if part.provider_state.get("family") == self._family]
        fields: Fields = {"reasoning_content": ""} if calls and self._dialect.empty_reasoning else {}
        if not own_family_parts or self._dialect.replay == "never":
            return fields
        blocks = self._dialect.replay == "thinking blocks"
        for field, thought in _reasoning_by_field(own_family_parts, "content" if blocks else None):
            fields[field] = [_thinking_block(thought), *_text_blocks(text)] if field == "content" else thought
        details = merge_reasoning_details(
            item for part in own_family_parts for item in part.provider_state.get("details", ())
        )
        return fields | ({"reasoning_details": details} if details and not blocks else {})

    def _generated_media(self, parts: Iterable[FilePart]) -> Fields:
        """Returns audio and images that the model generated."""
        fields: Fields = {}
        for part in parts:
            private = self._family_metadata(part)
            if private.get("audio"):
                fields["audio"] = {"id": private["audio"]}
            elif private.get("images") and self._dialect.replay == "as it came":
                fields.setdefault("images", []).append({"type": "image_url", "image_url": {"url": part.url}})
        return fields

    def _call_id(self, call_id: str) -> str:
        """Returns the id, or a hash of it that matches the pattern this server requires."""
        if _id_pattern(self._dialect.call_ids).fullmatch(call_id):
            return call_id
        digest = hashlib.sha256(call_id.encode()).digest()
        return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:9])


@cache
def _id_pattern(call_ids: str) -> re.Pattern[str]:
    return re.compile(call_ids)


def _result_text(part: ToolResultPart) -> str:
    """Returns the result text with an "Error:" prefix on failure, because this API has no error flag."""
    text = part.content or (_SEE_ATTACHMENTS if part.attachments else "(no output)")
    return f"Error: {text}" if part.is_error and not text.lower().startswith("error") else text


def _reasoning_by_field(parts: Iterable[ReasoningPart], always: str | None) -> Iterator[tuple[str, str]]:
    texts_by_field: dict[str, list[str]] = {}
    for part in parts:
        field = always or part.provider_state.get("field")
        if field and part.text:
            texts_by_field.setdefault(field, []).append(part.text)
    return ((field, "".join(texts)) for field, texts in texts_by_field.items())


def _thinking_block(text: str) -> Fields:
    return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}


def _text_blocks(text: str) -> list[Fields]:
    return [{"type": "text", "text": text}] if text else []


FieldsOfSettings = dict[str, Any]

_SCHEMA_PROMPT = "Answer with one JSON object, and nothing else, that follows this JSON schema:\n{schema}"


def encode_chat_fields(request: Request, dialect: ChatDialect) -> FieldsOfSettings:
    settings = request.settings
    fields: FieldsOfSettings = {"model": request.model}
    if request.stream:
        fields["stream"] = True
        if dialect.stream_options:
            fields["stream_options"] = {"include_usage": True}
    if dialect.cache_key and request.conversation:
        fields["prompt_cache_key"] = request.conversation
    if request.tools:
        encode_tool = _encode_tool if "strict" not in dialect.omitted else _encode_loose_tool
        fields["tools"] = [encode_tool(tool) for tool in request.tools]
        fields |= _tool_choice_fields(settings.tool_choice)
    if settings.output is not None:
        fields["response_format"] = _response_format(settings.output, dialect)
    fields |= _sampling_fields(settings, dialect) | _reasoning_settings(request, dialect)
    return _without_omitted(fields, dialect.omitted) if dialect.omitted else fields


def _without_omitted(fields: FieldsOfSettings, omitted: frozenset[str]) -> FieldsOfSettings:
    """Returns the fields without those that the server rejects; a tool that must be called is not optional."""
    choice = fields.get("tool_choice", "none")
    return {name: value for name, value in fields.items() if name not in omitted} | (
        {} if choice == "none" else {"tool_choice": choice}
    )


def system_message(request: Request, dialect: ChatDialect) -> FieldsOfSettings | None:
    text = request.system or ""
    output = request.settings.output
    if output is not None and not dialect.schemas:
        instruction = _SCHEMA_PROMPT.format(schema=encode_json(output.schema).decode())
        text = f"{text}\n\n{instruction}" if text else instruction
    if not text:
        return None
    return {"role": dialect.system, "content": text}


def _sampling_fields(settings: ModelSettings, dialect: ChatDialect) -> FieldsOfSettings:
    fields: FieldsOfSettings = {
        dialect.limit or _USUAL_LIMIT: settings.max_output_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "stop": list(settings.stop) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _reasoning_settings(request: Request, dialect: ChatDialect) -> FieldsOfSettings:
    """Returns the server's reasoning switch: on, off, or nothing for models that are not known to reason."""
    settings = request.settings
    supported = re.match(dialect.reasoners, _bare_model_name(request.model)) is not None
    if request.tools and dialect.tool_effort != "send":
        return {"reasoning_effort": "none"} if dialect.tool_effort == "none" else {}
    if settings.requests_reasoning(supported=supported and _accepts_switch(request, dialect)):
        return _reasoning_on(settings, dialect)
    return _reasoning_off(dialect, supported=supported) if settings.reasoning_effort == "none" else {}


def _accepts_switch(request: Request, dialect: ChatDialect) -> bool:
    """Returns False for requests with which a server rejects reasoning."""
    match dialect.reasoning:
        case "thinking":
            return request.settings.tool_choice.mode not in ("required", "tool")
        case "enable_thinking":
            return request.stream
        case _:
            return True


def _reasoning_on(settings: ModelSettings, dialect: ChatDialect) -> FieldsOfSettings:
    effort, budget = nearest_effort(dialect.efforts, settings.reasoning_effort), settings.reasoning_budget
    effort_field = {"reasoning_effort": effort} if effort else {}
    match dialect.reasoning:
        case "effort":
            return effort_field
        case "object":
            return {"reasoning": {"max_tokens": budget} if budget else {"effort": effort}}
        case "thinking":
            return {"thinking": {"type": "enabled"}} | effort_field
        case "enable_thinking":
            return {"enable_thinking": True} | ({"thinking_budget": budget} if budget else {})
        case "never":
            return {}
        case _:
            assert_never(dialect.reasoning)


def _reasoning_off(dialect: ChatDialect, *, supported: bool) -> FieldsOfSettings:
    """Returns the switch that turns reasoning off, or the lowest effort. Local servers (vLLM, llama.cpp, SGLang) pass
    `chat_template_kwargs` to the template of the model."""
    if dialect.name == "compatible" and dialect.reasoning == "effort":
        return {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": False}}
    match dialect.reasoning:
        case "effort":
            lowest = nearest_effort(dialect.efforts, "none")
            return {"reasoning_effort": lowest} if supported and lowest else {}
        case "object":
            return {"reasoning": {"enabled": False}}
        case "thinking":
            return {"thinking": {"type": "disabled"}} if supported else {}
        case "enable_thinking":
            return {"enable_thinking": False} if supported else {}
        case "never":
            return {}
        case _:
            assert_never(dialect.reasoning)


@cache_per_tool
def _encode_tool(tool: ToolSpec) -> msgspec.Raw:
    return msgspec.Raw(encode_json(_tool_definition(tool)))


@cache_per_tool
def _encode_loose_tool(tool: ToolSpec) -> msgspec.Raw:
    return msgspec.Raw(encode_json(_tool_definition(replace(tool, strict=False))))


def _tool_definition(tool: ToolSpec) -> FieldsOfSettings:
    parameters = parameters_with_properties(tool)
    function: FieldsOfSettings = {"name": tool.name, "description": tool.description, "parameters": parameters}
    if tool.strict:
        function["strict"] = is_strict_schema(parameters)
    return {"type": "function", "function": function}


def _tool_choice_fields(choice: ToolChoice) -> FieldsOfSettings:
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


def _response_format(output: OutputSchema, dialect: ChatDialect) -> FieldsOfSettings:
    if not dialect.schemas:
        return {"type": "json_object"}
    described = {"description": output.description} if output.description else {}
    strict = output.strict and is_strict_schema(output.schema)
    return {
        "type": "json_schema",
        "json_schema": {"name": output.name, **described, "schema": output.schema, "strict": strict},
    }
