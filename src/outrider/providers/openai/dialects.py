"""Differences between Chat Completions servers: one table row per server."""

import re
from functools import lru_cache
from typing import Literal

import msgspec
from msgspec.structs import replace

from outrider.errors import ConfigurationError
from outrider.providers.openai.common import provider_host
from outrider.types.agents import Provider
from outrider.types.request import ReasoningEffort

# OpenAI's reasoning models accept only max_completion_tokens, and the role "developer" instead of "system".
_REASONING_MODELS = re.compile(r"(o\d|gpt-([5-9]|\d\d))")
_FAMILY_NAME = re.compile(r"gpt-oss|[a-z]+")
_REPLAY_REJECTED = r"\b(messages?|assistant)\b.{0,80}\breasoning(?!_effort)|\breasoning_(content|details)\b"
_UNSUPPORTED = r"unsupported|not support|unrecognized|unknown|unexpected|extra|not (permitted|allowed)"
_EFFORT_RANGE: tuple[ReasoningEffort, ...] = ("minimal", "low", "medium", "high", "xhigh", "max")


class ChatDialect(msgspec.Struct, frozen=True, kw_only=True):
    """Request features of one server. `hosts` are host name suffixes; defaults are what most servers accept."""

    name: str
    hosts: tuple[str, ...] = ()
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    reasoning: Literal["effort", "object", "thinking", "enable_thinking"] = "effort"
    efforts: tuple[str, ...] = _EFFORT_RANGE
    replay: Literal["as it came", "thinking blocks", "never"] = "as it came"
    empty_reasoning: bool = False  # replayed calls need reasoning_content, even if it is empty
    refusals: bool = False  # whether replayed messages have a `refusal` field
    documents: Literal["file", "document_url", "file_url"] = "file"
    schemas: bool = True  # whether the server supports JSON schemas for the response
    stream_options: bool = True  # whether usage must be requested with this field
    cache_key: bool = False
    system: Literal["system", "developer"] = "system"
    call_ids: str = r".{1,64}"  # pattern that a call id must match


_OPENAI_EFFORTS = ("minimal", "low", "medium", "high", "xhigh")
_THREE_EFFORTS = ("low", "medium", "high")

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
    ChatDialect(name="openrouter", hosts=("openrouter.ai",), reasoning="object", efforts=_OPENAI_EFFORTS),
    ChatDialect(name="vercel", hosts=("ai-gateway.vercel.sh",), reasoning="object", efforts=_OPENAI_EFFORTS),
    ChatDialect(
        name="mistral",
        hosts=("api.mistral.ai",),
        efforts=("high",),
        replay="thinking blocks",
        documents="document_url",
        stream_options=False,
        call_ids=r"[a-zA-Z0-9]{9}",
    ),
    ChatDialect(
        name="deepseek", hosts=("api.deepseek.com",), reasoning="thinking", empty_reasoning=True, schemas=False
    ),
    ChatDialect(
        name="moonshot",
        hosts=("api.moonshot.ai", "api.moonshot.cn"),
        reasoning="thinking",
        efforts=(),
        empty_reasoning=True,
    ),
    ChatDialect(name="zai", hosts=("api.z.ai", "bigmodel.cn"), reasoning="thinking", schemas=False),
    ChatDialect(name="alibaba", hosts=("dashscope.aliyuncs.com", ".aliyuncs.com"), reasoning="enable_thinking"),
    ChatDialect(name="groq", hosts=("api.groq.com",), efforts=_THREE_EFFORTS),
    ChatDialect(name="xai", hosts=("api.x.ai",), efforts=("low", "high")),
    ChatDialect(name="perplexity", hosts=("api.perplexity.ai",), efforts=_THREE_EFFORTS, documents="file_url"),
    ChatDialect(name="compatible", efforts=_THREE_EFFORTS),
)


def dialect_for_provider(provider: Provider) -> ChatDialect:
    """Returns the dialect that `options["dialect"]` names, else the one that matches the host. Raises
    ConfigurationError for an unknown name."""
    named = provider.options.get("dialect")
    for row in DIALECTS:
        if row.name == named or (named is None and provider_host(provider).endswith(row.hosts)):
            return row
    if named is not None:
        known = ", ".join(row.name for row in DIALECTS)
        raise ConfigurationError(f"provider {provider.name}: no dialect {named!r}; known: {known}")
    return DIALECTS[-1]


@lru_cache(maxsize=64)  # called twice per response
def model_family(model: str) -> str:
    """Returns the model family, the first word of the name, independent of the server: deepseek, qwen, claude,
    gpt, …"""
    word = _FAMILY_NAME.match(_bare_model_name(model))
    return f"openai-chat/{word[0] if word else 'model'}"


def dialect_for_model(dialect: ChatDialect, model: str) -> ChatDialect:
    """Returns the dialect adjusted for the model."""
    if not _REASONING_MODELS.match(_bare_model_name(model)):
        return dialect
    developer = dialect.name in ("openai", "azure")
    return replace(dialect, limit="max_completion_tokens", system="developer" if developer else dialect.system)


def dialect_after_error(dialect: ChatDialect, message: str) -> ChatDialect:
    """Returns the dialect without the feature that the error message reports as unsupported."""
    if not re.search(_UNSUPPORTED, message, re.IGNORECASE):
        return dialect
    if re.search(rf"\b{dialect.limit}\b", message):
        other = "max_tokens" if dialect.limit == "max_completion_tokens" else "max_completion_tokens"
        return replace(dialect, limit=other)
    if dialect.replay != "never" and re.search(_REPLAY_REJECTED, message):
        return replace(dialect, replay="never", empty_reasoning=False)
    if "'developer'" in message or '"developer"' in message:
        return replace(dialect, system="system")
    return replace(
        dialect,
        stream_options=dialect.stream_options and "stream_options" not in message,
        cache_key=dialect.cache_key and "prompt_cache_key" not in message,
    )


def nearest_effort(dialect: ChatDialect, effort: ReasoningEffort) -> str:
    """Returns the supported effort level that is closest to the requested one."""
    wanted = _EFFORT_RANGE.index(effort)
    return min(dialect.efforts, key=lambda known: abs(_EFFORT_RANGE.index(known) - wanted))  # type: ignore[arg-type]


def _bare_model_name(model: str) -> str:
    return model.rpartition("/")[2].lower().lstrip("@~")
