"""Reads the list of models from a provider's server, and decides which of its models can hold a conversation."""

import asyncio
import re
from collections.abc import Iterable
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from outrider.config.environment import proxy_for, with_environment_defaults
from outrider.errors import ConfigurationError, NetworkError
from outrider.http.client import HttpClient, read_body
from outrider.http.transport import HttpRequest
from outrider.types.agents import Provider

LIST_SECONDS: Final = 3.0
_MAX_RESPONSE_BYTES = 8 * 1024 * 1024
_OK = 200
# Models for other purposes, in the names of vendors, gateways and local servers.
_NOT_CHAT = re.compile(
    r"embed|rerank|whisper|transcri|(^|[-_/])(tts|audio|realtime|live|image|imagen|veo|sora|dall-e|moderation|guard)([-_.]|$)"
    r"|davinci|babbage|text-similarity|omni-moderation|computer-use|bge-|clip-|(^|/)aqa$",
    re.IGNORECASE,
)
_CHAT_METHODS = {"generateContent", "streamGenerateContent"}


_REFUSED = (400, 401, 403)  # Google answers 400 to an invalid key


class LiveModel(msgspec.Struct, frozen=True):
    """A model of a server's list. `created` is when it was published, as the server writes it, or ""."""

    name: str
    created: str = ""


def is_chat_model(name: str) -> bool:
    """Returns whether a name is that of a model for conversations, and not for embeddings, images or speech."""
    return _NOT_CHAT.search(name) is None


async def fetch_models(provider: Provider, seconds: float = LIST_SECONDS) -> list[LiveModel] | None:
    """Returns the chat models that the provider's server lists, newest first; None if it lists none in time."""
    request = _list_request(with_environment_defaults(provider))
    if request is None:
        return None
    proxy = None if _is_local(request.url) else proxy_for
    try:
        async with asyncio.timeout(seconds), aclosing(HttpClient(proxy=proxy)) as client:
            response = await client.send(request)
            body, _ = await read_body(response, _MAX_RESPONSE_BYTES)
        listed = msgspec.json.decode(body) if response.status == _OK else None
    except (OSError, NetworkError, ConfigurationError, msgspec.MsgspecError, ValueError):  # includes TimeoutError
        return None
    found = {model.name: model for model in _read_entries(listed) if is_chat_model(model.name)}
    return sorted(found.values(), key=lambda model: model.created, reverse=True) or None


class KeyProblem(msgspec.Struct, frozen=True):
    """What is wrong with a key; "" if the server accepts it. `refused` is False if it could not be checked."""

    text: str = ""
    refused: bool = False


async def check_key(provider: Provider, seconds: float = 15.0) -> KeyProblem:
    """Ask the provider's server for its models, which costs nothing, to learn whether it accepts the key."""
    request = _list_request(provider)
    if request is None:
        return KeyProblem(f"{provider.kind} has no list of models")
    try:
        async with asyncio.timeout(seconds), aclosing(HttpClient(proxy=proxy_for)) as client:
            response = await client.send(request)
            body, _ = await read_body(response, _MAX_RESPONSE_BYTES)
    except TimeoutError:
        return KeyProblem(f"the server did not answer within {seconds:g} s")
    except (OSError, NetworkError, ConfigurationError, ValueError) as error:
        return KeyProblem(str(error))
    if response.status == _OK:
        return KeyProblem()
    reason = f"status {response.status}{_error_text(body)}"
    return KeyProblem(reason, refused=response.status in _REFUSED)


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


def _list_request(provider: Provider) -> HttpRequest | None:
    base, key = (provider.base_url or "").rstrip("/"), provider.api_key or ""
    headers = {"accept": "application/json"} | {name.lower(): value for name, value in provider.headers.items()}
    match provider.kind:
        case "anthropic":
            gateway = {"authorization": f"Bearer {key}"} if key and base else {}  # some read this header only
            base = (base or "https://api.anthropic.com").removesuffix("/v1")
            own = {"anthropic-version": "2023-06-01"} | ({"x-api-key": key} if key else {}) | gateway
            return HttpRequest(f"{base}/v1/models?limit=1000", own | headers, method="GET")
        case "openai" | "openai-responses":
            own = {"authorization": f"Bearer {key}"} if key else {}
            return HttpRequest(f"{base or 'https://api.openai.com/v1'}/models", own | headers, method="GET")
        case "google" if "project" not in provider.options:
            base = base or "https://generativelanguage.googleapis.com"
            own = {"x-goog-api-key": key} if key else {}
            return HttpRequest(f"{base}/v1beta/models?pageSize=1000", own | headers, method="GET")
        case _:
            return None


def _read_entries(listed: Any) -> Iterable[LiveModel]:
    """Yields the models of a list in the form of OpenAI or Anthropic (`data`), Google or Ollama (`models`), or bare."""
    match listed:
        case {"data": [*entries]} | {"models": [*entries]} | [*entries]:
            pass
        case _:
            return
    for entry in entries:
        match entry:
            case {"supportedGenerationMethods": [*methods]} if not _CHAT_METHODS & set(methods):
                continue
            case {"id": str(name), **rest} | {"name": str(name), **rest}:
                created = rest.get("created_at") or rest.get("created") or rest.get("modified_at") or ""
                yield LiveModel(name.removeprefix("models/"), _sortable(created))
            case _:
                continue


def _sortable(created: Any) -> str:
    return f"{int(created):015}" if isinstance(created, int | float) else str(created)


def _is_local(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
