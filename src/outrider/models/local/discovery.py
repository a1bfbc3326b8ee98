"""Finds model servers on this machine that implement OpenAI's API, such as Ollama."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from outrider._sync import run_sync
from outrider.config.providers import LOCAL_SERVERS, NO_PROVIDER_MESSAGE
from outrider.errors import ConfigurationError, NetworkError
from outrider.types.agents import Provider

PROBE_SECONDS: Final = 0.5  # a local server responds faster than this
_MAX_RESPONSE_BYTES = 1024 * 1024
_MAX_NAMED_MODELS = 5  # in the message
_OK = 200


class FoundServer(msgspec.Struct, frozen=True):
    """A server that responded, and its models. Its name is a guess by port number."""

    provider: Provider
    models: tuple[str, ...]


def default_servers() -> list[Provider]:
    """Returns the known servers at their default ports, without an API key: any program may listen on these ports."""
    return [Provider(name, "openai", "", table.base_url) for name, table in LOCAL_SERVERS.items()]


def find_servers(servers: Sequence[Provider] | None = None, *, seconds: float = PROBE_SECONDS) -> list[FoundServer]:
    """Probes the servers in parallel, directly without a proxy, and returns those that respond.

    Blocks for about `seconds` at most. A found model can be used as `--model ollama/MODEL`.
    """
    candidates = default_servers() if servers is None else servers
    found = run_sync(lambda: _probe_servers(candidates, seconds))
    return [server for server in found if server is not None]


async def _probe_servers(servers: Sequence[Provider], seconds: float) -> list[FoundServer | None]:
    async with asyncio.TaskGroup() as group:
        probes = [group.create_task(_probe_server(server, seconds)) for server in servers]
    return [probe.result() for probe in probes]


def missing_model_message(missing: str, servers: Sequence[Provider] | None = None) -> str:
    """Returns the error text `missing`, extended by models that local servers offer if no provider is configured."""
    found = find_servers(servers) if missing == NO_PROVIDER_MESSAGE else []
    names = [f"{server.provider.name}/{model}" for server in found for model in server.models]
    if not names:
        return missing
    more = f" (or {', '.join(names[1:_MAX_NAMED_MODELS])})" if names[1:] else ""
    return f"{missing}\nOr use a model that a server on this machine already offers: --model {names[0]}{more}"


class _ServerModel(msgspec.Struct):
    id: str


class _ServerModelList(msgspec.Struct):
    data: list[_ServerModel]


async def _probe_server(server: Provider, seconds: float) -> FoundServer | None:
    from outrider.http.client import HttpClient, read_body
    from outrider.http.transport import HttpRequest

    url = f"{(server.base_url or '').rstrip('/')}/models"
    try:
        async with asyncio.timeout(seconds), aclosing(HttpClient()) as client:
            response = await client.send(HttpRequest(url, {"accept": "application/json"}, method="GET"))
            body, _ = await read_body(response, _MAX_RESPONSE_BYTES)
        listed = msgspec.json.decode(body, type=_ServerModelList) if response.status == _OK else None
    except (OSError, NetworkError, ConfigurationError, msgspec.MsgspecError, ValueError):  # includes TimeoutError
        return None
    if listed is None or not listed.data:
        return None
    return FoundServer(server, tuple(model.id for model in listed.data))
