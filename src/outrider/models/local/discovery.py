"""Finds servers on this machine that speak OpenAI's API: where somebody asks for it, or has no model at all."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from typing import Final
from urllib.parse import urlsplit

import msgspec

from outrider.config.providers import NO_PROVIDER, SERVERS
from outrider.types.agents import Provider

SECONDS: Final = 0.5  # a server on this machine that is slower is not worth waiting for
_LARGEST = 1024 * 1024
_NAMED = 5  # models in a sentence
_OK = 200


class FoundServer(msgspec.Struct, frozen=True):
    """A server that answered, with the models that it offers. Its name is a guess: any program may listen on a port."""

    provider: Provider
    models: tuple[str, ...]


def usual_servers() -> list[Provider]:
    """Those that programs of this kind start at their usual ports. They have no key: the user's own stays away from a
    server that nobody has vouched for."""
    return [Provider(name, "openai", "", table.base_url) for name, table in SERVERS.items()]


def find_servers(servers: Sequence[Provider] | None = None, *, seconds: float = SECONDS) -> list[FoundServer]:
    """Blocks for `seconds` at most, more or less. Only this machine is asked, directly. What is found can be named as
    it is: --model ollama/MODEL."""
    asked = usual_servers() if servers is None else servers
    with ThreadPoolExecutor(max_workers=max(len(asked), 1)) as threads:
        found = threads.map(_asked, asked, [seconds] * len(asked))
        return [server for server in found if server is not None]


def ways_to_a_model(missing: str, servers: Sequence[Provider] | None = None) -> str:
    """What stands between a user and a model, and, where they have none, what programs on this machine offer."""
    found = find_servers(servers) if missing == NO_PROVIDER else []
    names = [f"{server.provider.name}/{model}" for server in found for model in server.models]
    if not names:
        return missing
    more = f" (or {', '.join(names[1:_NAMED])})" if names[1:] else ""
    return f"{missing}\nOr take what a program on this machine serves already: say --model {names[0]}{more}"


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def _asked(server: Provider, seconds: float) -> FoundServer | None:
    place = urlsplit(server.base_url or "")
    connection = HTTPConnection(place.hostname or "", place.port, timeout=seconds)
    try:
        connection.request("GET", f"{place.path}/models", headers={"Accept": "application/json"})
        answer = connection.getresponse()
        listed = msgspec.json.decode(answer.read(_LARGEST), type=_Models) if answer.status == _OK else None
    except (OSError, HTTPException, msgspec.MsgspecError):
        return None
    finally:
        connection.close()
    if listed is None or not listed.data:
        return None
    return FoundServer(server, tuple(model.id for model in listed.data))
