"""Finds servers on this machine that speak OpenAI's API; nothing looks around unless somebody asks for it."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from typing import Final

import msgspec

from outrider.types.agents import Provider

SECONDS: Final = 0.5  # a server on this machine that is slower is not worth waiting for
_LARGEST = 1024 * 1024
_OK = 200


class LocalPort(msgspec.Struct, frozen=True):
    """Where a program listens unless it is told otherwise."""

    program: str
    port: int


class FoundServer(msgspec.Struct, frozen=True):
    """A server that answered, with the models that it offers. Its name is a guess: any program may listen on a port."""

    provider: Provider
    models: tuple[str, ...]


USUAL: Final = (
    LocalPort("ollama", 11434),
    LocalPort("llama.cpp", 8080),
    LocalPort("lm-studio", 1234),
    LocalPort("vllm", 8000),
)


def find_servers(places: Sequence[LocalPort] = USUAL, *, seconds: float = SECONDS) -> list[FoundServer]:
    """Blocks for `seconds` at most, more or less. Only this machine is asked, directly and without a key."""
    with ThreadPoolExecutor(max_workers=max(len(places), 1)) as threads:
        found = threads.map(_asked, places, [seconds] * len(places))
        return [server for server in found if server is not None]


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def _asked(place: LocalPort, seconds: float) -> FoundServer | None:
    connection = HTTPConnection("127.0.0.1", place.port, timeout=seconds)
    try:
        connection.request("GET", "/v1/models", headers={"Accept": "application/json"})
        answer = connection.getresponse()
        listed = msgspec.json.decode(answer.read(_LARGEST), type=_Models) if answer.status == _OK else None
    except (OSError, HTTPException, msgspec.MsgspecError):
        return None
    finally:
        connection.close()
    if listed is None or not listed.data:
        return None
    # An empty key is none: the user's key for OpenAI stays away from a server that nobody has vouched for.
    provider = Provider(place.program, "openai", "", f"http://127.0.0.1:{place.port}/v1")
    return FoundServer(provider, tuple(model.id for model in listed.data))
