"""Reads the list of models from a provider's server, and decides which of its models can hold a conversation."""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, cast

import msgspec

from outrider.config.providers import proxy_for, with_environment_defaults
from outrider.errors import ConfigurationError, NetworkError
from outrider.http.client import send_single_request
from outrider.http.transport import HttpRequest
from outrider.models.clients import with_current_key
from outrider.presentation.formats import format_duration, format_iso_time
from outrider.providers.catalog import ModelFacts, ModelPrices, without_dated_names
from outrider.types.agents import Provider

LIST_SECONDS: Final = 3.0
_MAX_RESPONSE_BYTES = 8 * 1024 * 1024
_OK = 200
# Models for other purposes, in the names of vendors, gateways and local servers.
_NOT_CHAT = re.compile(
    r"embed|rerank|whisper|transcri|(^|[-_/])(tts|audio|realtime|live|image|imagen|veo|sora|dall-e|moderation|guard)([-_.]|$)"
    r"|davinci|babbage|turbo-instruct|(^|[-_])ocr([-_]|$)|\*|text-similarity|omni-moderation|computer-use|bge-|clip-|(^|/)aqa$",
    re.IGNORECASE,
)
_CHAT_METHODS = ("generateContent", "streamGenerateContent")
_CHAT_TYPES = ("", "model", "chat", "language", "llm", "vlm", "text", "code", "base")  # the others cannot chat
_CONTEXT_FIELDS = ("max_model_len", "context_length", "context_window", "max_context_length", "inputTokenLimit")
_MAX_NAME = 256
_MILLISECONDS = 10**11  # larger times are in milliseconds
_PER_MILLION = 6


_REFUSED = (400, 401, 403)  # Google answers 400 to an invalid key


class LiveModel(msgspec.Struct, frozen=True):
    """A model of a server's list. `created` is when it was published, in ISO format, or "". `facts` has the context
    size and the prices that the server lists."""

    name: str
    created: str = ""
    facts: ModelFacts = ModelFacts()


def is_chat_model(name: str) -> bool:
    """Returns whether a name is that of a model for conversations, and not for embeddings, images or speech."""
    return _NOT_CHAT.search(name) is None


async def fetch_models(provider: Provider, seconds: float = LIST_SECONDS) -> list[LiveModel] | None:
    """Returns the chat models that the provider's server lists, newest first; None if it lists none in time."""
    request = model_list_request(await with_current_key(with_environment_defaults(provider)))
    if request is None:
        return None
    try:
        status, body = await send_single_request(
            request, seconds=seconds, max_bytes=_MAX_RESPONSE_BYTES, proxy=proxy_for
        )
        document = msgspec.json.decode(body) if status == _OK else None
    except (OSError, NetworkError, ConfigurationError, msgspec.MsgspecError, ValueError, RecursionError):
        return None  # OSError includes TimeoutError
    models = {model.name: model for model in _read_entries(document) if is_chat_model(model.name)}
    distinct = [models[name] for name in without_dated_names(models)]
    return sorted(distinct, key=lambda model: model.created, reverse=True) or None


class KeyProblem(msgspec.Struct, frozen=True):
    """What is wrong with a key; "" if the server accepts it. `refused` is False if it could not be checked."""

    text: str = ""
    refused: bool = False


async def check_key(provider: Provider, seconds: float = 15.0) -> KeyProblem:
    """Requests the list of models from the provider's server, which costs nothing, and returns whether it accepts the
    key."""
    request = model_list_request(provider)
    if request is None:
        return KeyProblem(f"{provider.kind} has no list of models")
    try:
        status, body = await send_single_request(
            request, seconds=seconds, max_bytes=_MAX_RESPONSE_BYTES, proxy=proxy_for
        )
    except TimeoutError:
        return KeyProblem(f"the server did not answer within {format_duration(seconds)}")
    except (OSError, NetworkError, ConfigurationError, ValueError) as error:
        return KeyProblem(str(error))
    if status == _OK:
        return KeyProblem()
    return KeyProblem(f"status {status}{_error_text(body)}", refused=status in _REFUSED)


def _error_text(body: bytes) -> str:
    match _decode(body):
        case {"error": {"message": str(text)}} | {"message": str(text)} | [{"error": {"message": str(text)}}, *_]:
            return f", {text[:300]}"
        case _:
            return ""


def _decode(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return None


def model_list_request(provider: Provider) -> HttpRequest | None:
    """Builds the request for the models of a provider; None if its API has no list of them."""
    base, key = (provider.base_url or "").rstrip("/"), provider.api_key or ""
    headers = {"accept": "application/json"} | {name.lower(): value for name, value in provider.headers.items()}
    match provider.kind:
        case "anthropic":
            gateway = {"authorization": f"Bearer {key}"} if key and base else {}  # some servers read only this header
            base = (base or "https://api.anthropic.com").removesuffix("/v1")
            auth = {"anthropic-version": "2023-06-01"} | ({"x-api-key": key} if key else {}) | gateway
            return HttpRequest(f"{base}/v1/models?limit=1000", auth | headers, method="GET")
        case "openai" | "openai-responses":
            auth = {"authorization": f"Bearer {key}"} if key else {}
            return HttpRequest(f"{base or 'https://api.openai.com/v1'}/models", auth | headers, method="GET")
        case "google" if "project" not in provider.options:
            base = base or "https://generativelanguage.googleapis.com"
            auth = {"x-goog-api-key": key} if key else {}
            return HttpRequest(f"{base}/v1beta/models?pageSize=1000", auth | headers, method="GET")
        case _:
            return None


def _read_entries(document: Any) -> Iterable[LiveModel]:
    """Yields the models of a list in the form of OpenAI or Anthropic (`data`), Google or Ollama (`models`), or bare."""
    match document:
        case {"data": [_, *_] as entries} | {"models": [_, *_] as entries} | [*entries]:
            pass
        case _:
            return
    for entry in cast("list[Any]", entries):
        match entry:
            case {"id": str(name)} | {"name": str(name)} if _is_name(name) and _is_for_chat(entry):
                created = entry.get("created_at") or entry.get("created") or entry.get("modified_at")
                yield LiveModel(name.removeprefix("models/"), _iso_time(created), _listed_facts(entry))
            case _:
                continue


def _is_name(name: str) -> bool:
    return bool(name.strip()) and len(name) <= _MAX_NAME and name.isprintable()


def _is_for_chat(entry: Mapping[str, Any]) -> bool:
    """Returns whether a model can hold a conversation, by the fields that the servers of Google, OpenRouter, Together,
    Vercel, LM Studio, Mistral and Groq list."""
    match entry:
        case {"supportedGenerationMethods": [*methods]} if not any(name in _CHAT_METHODS for name in methods):
            return False
        case {"architecture": {"output_modalities": [*outputs]}} if "text" not in outputs:
            return False
        case {"type": str(kind)} if kind.lower() not in _CHAT_TYPES:
            return False
        case {"capabilities": {"completion_chat": False}} | {"active": False}:
            return False
        case _:
            return True


def _listed_facts(entry: Mapping[str, Any]) -> ModelFacts:
    sizes = (entry.get(name) for name in _CONTEXT_FIELDS)
    context = next((size for size in sizes if isinstance(size, int) and size > 1), None)
    return ModelFacts(context_limit=context, prices=_listed_prices(entry.get("pricing")))


def _listed_prices(pricing: Any) -> ModelPrices | None:
    """Returns the prices of OpenRouter, which are in dollars per token; a negative one means that it varies."""
    names = {"input": "prompt", "output": "completion", "cache_read": "input_cache_read"}
    names["cache_write"] = "input_cache_write"
    fields = cast("dict[str, Any]", pricing) if isinstance(pricing, dict) else {}
    try:
        rates = {
            rate: Decimal(str(fields[name])).scaleb(_PER_MILLION) for rate, name in names.items() if name in fields
        }
    except InvalidOperation:
        return None
    if not {"input", "output"} <= rates.keys() or not all(rate.is_finite() and rate >= 0 for rate in rates.values()):
        return None
    return ModelPrices(
        input=rates["input"],
        output=rates["output"],
        cache_read=rates.get("cache_read"),
        cache_write=rates.get("cache_write"),
    )


def _iso_time(created: Any) -> str:
    if isinstance(created, str):
        return created
    if not isinstance(created, int | float) or isinstance(created, bool):
        return ""
    return format_iso_time(created if created > _MILLISECONDS else created * 1000)
