"""The contract of a runtime: what computes, and what it may use."""

import ctypes
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec

from outrider.errors import ContextOverflowError, InvalidRequestError, ProviderError, ServerError

Told = Callable[[str], bool]
"""Given a chunk of an answer as JSON text; True ends the answer there."""


def usual_threads() -> int:
    """All the cores that this process may use, up to where more of them no longer help a small model."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, 8)


class RuntimeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a model may use. `batch` is how many tokens of a prompt are read in one go: a request can be given up
    between two of them. `cache_mib` bounds what is remembered of the conversations that are not being answered."""

    context: int = 8192
    threads: int = msgspec.field(default_factory=usual_threads)
    batch: int = 48
    cache_mib: int = 512


class Runtime(Protocol):
    """One loaded model. It is used by one thread at a time."""

    version: str

    def chat(self, body: str, told: Told) -> None: ...

    def read(self, prompt: str, told: Told) -> None:
        """Take a prompt in, without answering it."""
        ...

    def prefix(self, messages: list[dict[str, str]]) -> str:
        """The text of messages as the model gets it."""
        ...

    def save(self, name: str) -> None:
        """Keep what the model has made of the last prompt, in a file of that name in the folder of imprints."""
        ...

    def restore(self, name: str) -> bool: ...

    def close(self) -> None: ...


_INVALID = 400


def as_provider_error(error: Exception) -> ProviderError:
    match error:
        case ProviderError():
            return error
        case ValueError():
            return InvalidRequestError(str(error))
        case _:
            return ServerError(f"the local model failed: {error}")


def refusal(said: dict[str, Any]) -> ProviderError:
    """Refusals come as {"error": {code, message, type}}."""
    message = str(said.get("message", said))
    kind = str(said.get("type", "")) or None
    if kind == "exceed_context_size_error":
        return ContextOverflowError(message, type=kind)
    if said.get("code") == _INVALID:
        return InvalidRequestError(message, status=_INVALID, type=kind)
    return ServerError(message, type=kind)


_ROOM = 512  # bytes; more than any platform's struct sigaction


@contextmanager
def signals_kept() -> Generator[None]:
    """The runtime sets handlers of its own behind Python's back while it starts. Python can put its own back only from
    the main thread, and models are loaded in others, so this is done with the system's own call."""
    libc = ctypes.CDLL(None)
    kept = {number: ctypes.create_string_buffer(_ROOM) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, action in kept.items():
        libc.sigaction(number, None, action)
    try:
        yield
    finally:
        for number, action in kept.items():
            libc.sigaction(number, action, None)
