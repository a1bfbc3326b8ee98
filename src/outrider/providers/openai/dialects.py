"""How servers that speak Chat Completions differ in what they accept: a server is one row."""

import re
from functools import lru_cache
from typing import Literal

import msgspec
from msgspec.structs import replace

from outrider.errors import ConfigurationError
from outrider.providers.openai.common import host
from outrider.types.agents import Provider
from outrider.types.request import ReasoningEffort

# OpenAI's reasoning models: they know max_completion_tokens only, and developers instead of a system.
_REASONING = re.compile(r"(o\d|gpt-([5-9]|\d\d))")
_FAMILY = re.compile(r"gpt-oss|[a-z]+")
_REPLAYED = r"\b(messages?|assistant)\b.{0,80}\breasoning(?!_effort)|\breasoning_(content|details)\b"
_UNSUPPORTED = r"unsupported|not support|unrecognized|unknown|unexpected|extra|not (permitted|allowed)"
_RANGE: tuple[ReasoningEffort, ...] = ("minimal", "low", "medium", "high", "xhigh", "max")


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """`hosts` are the ends of host names. The other fields begin as what most servers accept."""

    name: str
    hosts: tuple[str, ...] = ()
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    reasoning: Literal["effort", "object", "thinking", "enable_thinking"] = "effort"
    efforts: tuple[str, ...] = _RANGE
    replay: Literal["as it came", "thinking blocks", "never"] = "as it came"
    empty_reasoning: bool = False  # calls must be sent back with reasoning_content, even if there was none
    refusals: bool = False  # whether a refusal has a field of its own in what is sent back
    documents: Literal["file", "document_url", "file_url"] = "file"
    schemas: bool = True  # whether an answer can be bound to a JSON schema
    stream_options: bool = True  # whether usage must be asked for, and may be
    cache_key: bool = False
    system: Literal["system", "developer"] = "system"
    call_ids: str = r".{1,64}"  # what an id of a call must look like


_OPENAI_EFFORTS = ("minimal", "low", "medium", "high", "xhigh")
_THREE_EFFORTS = ("low", "medium", "high")

DIALECTS = (
    Dialect(
        name="openai",
        hosts=("api.openai.com",),
        limit="max_completion_tokens",
        efforts=_OPENAI_EFFORTS,
        replay="never",
        refusals=True,
        cache_key=True,
        call_ids=r".{1,40}",
    ),
    Dialect(
        name="azure",
        hosts=(".azure.com",),
        efforts=_OPENAI_EFFORTS,
        replay="never",
        refusals=True,
        call_ids=r".{1,40}",
    ),
    Dialect(name="openrouter", hosts=("openrouter.ai",), reasoning="object", efforts=_OPENAI_EFFORTS),
    Dialect(name="vercel", hosts=("ai-gateway.vercel.sh",), reasoning="object", efforts=_OPENAI_EFFORTS),
    Dialect(
        name="mistral",
        hosts=("api.mistral.ai",),
        efforts=("high",),
        replay="thinking blocks",
        documents="document_url",
        stream_options=False,
        call_ids=r"[a-zA-Z0-9]{9}",
    ),
    Dialect(name="deepseek", hosts=("api.deepseek.com",), reasoning="thinking", empty_reasoning=True, schemas=False),
    Dialect(
        name="moonshot",
        hosts=("api.moonshot.ai", "api.moonshot.cn"),
        reasoning="thinking",
        efforts=(),
        empty_reasoning=True,
    ),
    Dialect(name="zai", hosts=("api.z.ai", "bigmodel.cn"), reasoning="thinking", schemas=False),
    Dialect(name="alibaba", hosts=("dashscope.aliyuncs.com", ".aliyuncs.com"), reasoning="enable_thinking"),
    Dialect(name="groq", hosts=("api.groq.com",), efforts=_THREE_EFFORTS),
    Dialect(name="xai", hosts=("api.x.ai",), efforts=("low", "high")),
    Dialect(name="perplexity", hosts=("api.perplexity.ai",), efforts=_THREE_EFFORTS, documents="file_url"),
    Dialect(name="compatible", efforts=_THREE_EFFORTS),
)


def dialect_of(provider: Provider) -> Dialect:
    """By `options["dialect"]`, else by the address."""
    named = provider.options.get("dialect")
    for row in DIALECTS:
        if row.name == named or (named is None and host(provider).endswith(row.hosts)):
            return row
    if named is not None:
        known = ", ".join(row.name for row in DIALECTS)
        raise ConfigurationError(f"provider {provider.name}: no dialect {named!r}; known: {known}")
    return DIALECTS[-1]


@lru_cache(maxsize=64)  # asked for twice with every answer
def family_of(model: str) -> str:
    """The makers of a model name it first, whoever serves it: deepseek, qwen, claude, gpt, …"""
    word = _FAMILY.match(_bare(model))
    return f"openai-chat/{word[0] if word else 'model'}"


def for_model(dialect: Dialect, model: str) -> Dialect:
    """The dialect with what a model changes in it."""
    if not _REASONING.match(_bare(model)):
        return dialect
    developer = dialect.name in ("openai", "azure")
    return replace(dialect, limit="max_completion_tokens", system="developer" if developer else dialect.system)


def after_refusal(dialect: Dialect, message: str) -> Dialect:
    """The dialect without what a refusal says that this server does not know."""
    if not re.search(_UNSUPPORTED, message, re.IGNORECASE):
        return dialect
    if re.search(rf"\b{dialect.limit}\b", message):
        other = "max_tokens" if dialect.limit == "max_completion_tokens" else "max_completion_tokens"
        return replace(dialect, limit=other)
    if dialect.replay != "never" and re.search(_REPLAYED, message):
        return replace(dialect, replay="never", empty_reasoning=False)
    if "'developer'" in message or '"developer"' in message:
        return replace(dialect, system="system")
    return replace(
        dialect,
        stream_options=dialect.stream_options and "stream_options" not in message,
        cache_key=dialect.cache_key and "prompt_cache_key" not in message,
    )


def nearest_effort(dialect: Dialect, effort: ReasoningEffort) -> str:
    """The effort that comes closest, where a server knows fewer."""
    wanted = _RANGE.index(effort)
    return min(dialect.efforts, key=lambda known: abs(_RANGE.index(known) - wanted))  # type: ignore[arg-type]


def _bare(model: str) -> str:
    return model.rpartition("/")[2].lower().lstrip("@~")
