"""The contract of a model runtime, its limits, and its errors."""

import ctypes
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec

from outrider.errors import ContextOverflowError, InvalidRequestError, ProviderError, ServerError

ChunkCallback = Callable[[str], bool]
"""Receives a chunk of an answer as JSON text; returns True to stop the generation."""


def default_threads() -> int:
    """Returns the number of available cores, at most 8: more do not speed up a small model."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, 8)


class RuntimeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of a model.

    `batch` is the number of prompt tokens per step; a request can be cancelled between two steps. `cache_mib` bounds
    the memory for cached states of other conversations.
    """

    context: int = 8192
    threads: int = msgspec.field(default_factory=default_threads)
    batch: int = 48
    cache_mib: int = 512


class ModelRuntime(Protocol):
    """One loaded model; not thread-safe."""

    version: str

    def chat(self, body: str, on_chunk: ChunkCallback) -> None: ...

    def load_prompt(self, prompt: str, on_chunk: ChunkCallback) -> None:
        """Evaluates a prompt without generating an answer."""
        ...

    def render_template(self, messages: list[dict[str, str]]) -> str:
        """Returns the prompt text for the messages, by the model's chat template."""
        ...

    def save_state(self, name: str) -> None:
        """Saves the evaluated state of the last prompt to a file in the state folder."""
        ...

    def restore_state(self, name: str) -> bool: ...

    def close(self) -> None: ...


_BAD_REQUEST = 400


def as_provider_error(error: Exception) -> ProviderError:
    """Converts any exception of a runtime to a ProviderError."""
    match error:
        case ProviderError():
            return error
        case ValueError():
            return InvalidRequestError(str(error))
        case _:
            return ServerError(f"the local model failed: {error!r}")


def error_from_runtime(body: dict[str, Any]) -> ProviderError:
    """Converts the runtime's error object {code, message, type} to an exception."""
    message = str(body.get("message", body))
    kind = str(body.get("type", "")) or None
    if kind == "exceed_context_size_error":
        return ContextOverflowError(message, type=kind)
    if body.get("code") == _BAD_REQUEST:
        return InvalidRequestError(message, status=_BAD_REQUEST, type=kind)
    return ServerError(message, type=kind)


_SIGACTION_BYTES = 512  # larger than struct sigaction on any platform


@contextmanager
def preserve_signal_handlers() -> Generator[None]:
    """Restores the SIGINT and SIGTERM handlers, which the runtime replaces when it starts.

    Python's `signal` module works only in the main thread, and models are loaded in worker threads, so this calls
    sigaction(2) directly.
    """
    libc = ctypes.CDLL(None)
    saved_actions = {
        number: ctypes.create_string_buffer(_SIGACTION_BYTES) for number in (signal.SIGINT, signal.SIGTERM)
    }
    for number, action in saved_actions.items():
        libc.sigaction(number, None, action)
    try:
        yield
    finally:
        for number, action in saved_actions.items():
            libc.sigaction(number, action, None)
