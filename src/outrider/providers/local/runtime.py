"""The contract of a model runtime, its limits and errors, and the cache of evaluated prompt prefixes on disk."""

import ctypes
import hashlib
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
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


_CONTENT_MARK = "\N{BLACK STAR}"
_MAX_STATES = 8  # least recently used files are deleted; each takes about 30 KB per token


class PromptPrefix(msgspec.Struct, frozen=True):
    """The messages that conversations share.

    `messages` are (role, text) pairs common to all; `workspace_text` starts the first request of each conversation in
    one workspace.
    """

    messages: tuple[tuple[str, str], ...]
    workspace_text: str = ""

    def as_chat(self) -> list[dict[str, str]]:
        return [{"role": role, "content": text} for role, text in self.messages]


class PrefixCache:
    """Saves and restores runtime states.

    A file name contains a hash of everything the state depends on, and the checksum of the file. The checksum is
    verified before use, because the runtime aborts the process when it loads a damaged file.
    """

    def __init__(self, folder: Path, weights: Path) -> None:
        self._folder = folder
        status = weights.stat()
        self._weights = f"{weights.name} {status.st_size} {status.st_mtime_ns}"
        self._ready: set[PromptPrefix] = set()

    def prepare(self, runtime: ModelRuntime, prefix: PromptPrefix, on_chunk: ChunkCallback) -> None:
        """Restores the prefix from disk, or evaluates and saves it. `on_chunk` may cancel between two batches."""
        if prefix in self._ready:
            return
        common = runtime.render_template([*prefix.as_chat(), {"role": "user", "content": _CONTENT_MARK}]).partition(
            _CONTENT_MARK
        )[0]
        texts = [common, common + prefix.workspace_text] if prefix.workspace_text else [common]
        keys = [self._cache_key(runtime, text) for text in texts]
        restored = next(
            (index for index in reversed(range(len(keys))) if self._restore_state(runtime, keys[index])), -1
        )
        for text, key in zip(texts[restored + 1 :], keys[restored + 1 :], strict=True):
            if not _load_prompt(runtime, text, on_chunk):
                return
            self._save_state(runtime, key)
        self._touch_files(keys[0])  # keep the prefix that all workspaces share longest
        self._ready.add(prefix)

    def _touch_files(self, key: str) -> None:
        for path in self._folder.glob(f"{key}-*.bin"):
            path.touch()

    def _cache_key(self, runtime: ModelRuntime, text: str) -> str:
        return hashlib.sha256(f"{runtime.version}\0{self._weights}\0{text}".encode()).hexdigest()[:32]

    def _restore_state(self, runtime: ModelRuntime, key: str) -> bool:
        for path in self._folder.glob(f"{key}-*.bin"):
            if path.stem == f"{key}-{_file_digest(path)}" and runtime.restore_state(path.name):
                path.touch()
                return True
            path.unlink(missing_ok=True)
        return False

    def _save_state(self, runtime: ModelRuntime, key: str) -> None:
        temporary = self._folder / f"{key}.{os.getpid()}.new"
        try:
            runtime.save_state(temporary.name)
            temporary.chmod(0o600)
            temporary.replace(self._folder / f"{key}-{_file_digest(temporary)}.bin")
            self._delete_oldest()
        except (OSError, ServerError):
            # A full or read-only disk only means that the next start evaluates the prefix again.
            temporary.unlink(missing_ok=True)

    def _delete_oldest(self) -> None:
        states = sorted(self._folder.glob("*-*.bin"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in states[_MAX_STATES:]:
            path.unlink(missing_ok=True)


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def _load_prompt(runtime: ModelRuntime, text: str, on_chunk: ChunkCallback) -> bool:
    """Evaluates the text; returns False when `on_chunk` cancelled it."""
    cancellations: list[bool] = []

    def forward(chunk: str) -> bool:
        cancellations.append(on_chunk(chunk))
        return cancellations[-1]

    runtime.load_prompt(text, forward)
    return not any(cancellations)
