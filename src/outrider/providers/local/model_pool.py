"""Loaded models: one worker thread per model, a fair queue of requests, and a pool shared by the process."""

import asyncio
import atexit
import contextlib
import http.client
import os
import secrets
import shutil
import socket
import tempfile
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from importlib import import_module
from pathlib import Path
from threading import Condition
from typing import Any, Generic, TypeVar

import msgspec

from outrider.errors import OverloadedError, ProviderError, ServerError
from outrider.providers.local.runtime import (
    ChunkCallback,
    ModelRuntime,
    PrefixCache,
    PromptPrefix,
    RuntimeLimits,
    as_provider_error,
    preserve_signal_handlers,
)

_SLOT_PATH = "/slots/0?action={}"


class EmbeddedRuntime:
    """A model loaded by llama.cpp. Loading takes seconds and holds the GIL. Raises ServerError if it fails."""

    def __init__(self, weights: Path, state_folder: Path, limits: RuntimeLimits) -> None:
        # Without these, idle OpenMP threads spin, and a failed assertion starts a debugger.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")
        library: Any = import_module("xllamacpp")
        self.version = str(library.__version__)
        self._key = secrets.token_hex(32)
        self._folder = Path(tempfile.mkdtemp(prefix="outrider-"))
        self._server: Any = None
        parameters = _configure(library.CommonParams(), weights, state_folder, limits)
        parameters.hostnames = [str(self._folder / "runtime.sock")]
        parameters.api_keys = [self._key]
        try:
            with preserve_signal_handlers():
                self._server = library.Server(parameters)
        except RuntimeError as error:
            self.close()
            raise ServerError(
                f"{weights.name} cannot be loaded: the file may be damaged, truncated or of an unsupported type, or "
                f"there is not enough memory ({error})"
            ) from error

    def chat(self, body: str, on_chunk: ChunkCallback) -> None:
        self._server.handle_chat_completions(body, on_chunk)

    def load_prompt(self, prompt: str, on_chunk: ChunkCallback) -> None:
        body = {"prompt": prompt, "max_tokens": 0, "stream": True, "return_progress": True}
        self._server.handle_completions(msgspec.json.encode(body).decode(), on_chunk)

    def render_template(self, messages: list[dict[str, str]]) -> str:
        return str(self._request_json("POST", "/apply-template", {"messages": messages})["prompt"])

    def save_state(self, name: str) -> None:
        self._request_json("POST", _SLOT_PATH.format("save"), {"filename": name})

    def restore_state(self, name: str) -> bool:
        try:
            self._request_json("POST", _SLOT_PATH.format("restore"), {"filename": name})
        except ServerError:
            return False
        return True

    def close(self) -> None:
        # Destroying the server before its loop runs blocks forever; a response proves that the loop is running.
        if self._server is not None:
            with contextlib.suppress(ServerError):
                self._request_json("GET", "/slots")
        self._server = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _request_json(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        connection = _SocketConnection(self._folder / "runtime.sock")
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, msgspec.json.encode(body) if body else None, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"the local runtime does not respond: {error}") from error
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise ServerError(content.decode(errors="replace"), status=answer.status)
        return msgspec.json.decode(content)


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("runtime")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def _configure(parameters: Any, weights: Path, state_folder: Path, limits: RuntimeLimits) -> Any:
    parameters.model.path = str(weights)
    parameters.n_ctx = limits.context
    parameters.n_batch = parameters.n_ubatch = limits.batch
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = limits.threads
    parameters.n_parallel = 1
    parameters.cache_ram_mib = limits.cache_mib
    parameters.no_extra_bufts = True  # repacked weights are slightly faster and use 50% more memory
    parameters.slot_save_path = f"{state_folder}{os.sep}"
    parameters.endpoint_slots = True
    parameters.n_threads_http = 1
    parameters.ui = False
    parameters.fit_params = False  # it would load the model twice to find values that we set anyway
    parameters.warmup = False
    parameters.verbosity = -1
    return parameters


Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """A bounded, thread-safe queue: FIFO within a conversation, round-robin between conversations."""

    def __init__(self, max_jobs: int = 256) -> None:
        self._max_jobs = max_jobs
        self._waiting: dict[str, deque[Item]] = {}
        self._served = ""
        self._changed = Condition()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def put(self, conversation: str, job: Item) -> bool:
        """Queues a job; returns False when the queue is full or closed."""
        with self._changed:
            if self._closed or sum(map(len, self._waiting.values())) >= self._max_jobs:
                return False
            self._waiting.setdefault(conversation, deque()).append(job)
            self._changed.notify()
            return True

    def take(self) -> Item | None:
        """Blocks until a job is available; returns None once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            other_conversations = (name for name in self._waiting if name != self._served)
            self._served = conversation = next(other_conversations, self._served)
            jobs = self._waiting.pop(conversation)
            job = jobs.popleft()
            if jobs:
                self._waiting[conversation] = jobs
            return job

    def discard(self, conversation: str, job: Item) -> None:
        """Removes a cancelled job if it is still queued."""
        with self._changed:
            jobs = self._waiting.get(conversation)
            if jobs is None or job not in jobs:
                return
            jobs.remove(job)
            if not jobs:
                del self._waiting[conversation]

    def close(self) -> list[Item]:
        """Closes the queue and returns the jobs that were still queued."""
        with self._changed:
            queued = [job for jobs in self._waiting.values() for job in jobs]
            self._waiting.clear()
            self._closed = True
            self._changed.notify_all()
            return queued


class InferenceJob:
    """One request. The worker thread calls `deliver` with each chunk, then with None or the error."""

    def __init__(
        self, body: str, prefix: PromptPrefix | None, deliver: Callable[[str | ProviderError | None], bool]
    ) -> None:
        self.body = body
        self.prefix = prefix
        self.cancelled = False
        self._deliver = deliver

    def deliver_chunk(self, chunk: str) -> bool:
        return self.cancelled or not self._deliver(chunk)

    def deliver_progress(self, chunk: str) -> bool:
        """Delivers a chunk of the evaluation of the prefix, unless it belongs to the empty answer after it."""
        return self.deliver_chunk(chunk) if "prompt_progress" in chunk else self.cancelled

    def finish(self, error: ProviderError | None = None) -> None:
        if not self.cancelled:
            self._deliver(error)


class LoadedModel:
    """A model with its worker thread, shared by all sessions and event loops of the process."""

    def __init__(self, runtime: ModelRuntime, prefix_cache: PrefixCache | None) -> None:
        self._runtime = runtime
        self._prefix_cache = prefix_cache
        self._queue: FairQueue[InferenceJob] = FairQueue()
        self._current_job: InferenceJob | None = None
        self._worker = threading.Thread(target=self._run_jobs, name="outrider-local-model", daemon=True)
        self._worker.start()

    async def stream(self, body: str, prefix: PromptPrefix | None, conversation: str) -> AsyncGenerator[str, None]:
        """Yields the chunks of one answer as JSON. Closing the generator stops the work after the current batch."""
        loop = asyncio.get_running_loop()
        items: asyncio.Queue[str | ProviderError | None] = asyncio.Queue()
        job = InferenceJob(body, prefix, lambda item: _deliver_item(loop, items, item))
        if not self._queue.put(conversation, job):
            raise OverloadedError("the request queue of the local model is full; try again later")
        try:
            while (item := await items.get()) is not None:
                if isinstance(item, ProviderError):
                    raise item
                yield item
        finally:
            job.cancelled = True
            self._queue.discard(conversation, job)

    def close(self) -> None:
        """Cancels all jobs and blocks until the worker thread has stopped."""
        for job in self._queue.close():
            job.finish(_closed_error())
        if (job := self._current_job) is not None:
            job.finish(_closed_error())
            job.cancelled = True
        self._worker.join()
        self._runtime.close()

    def _run_jobs(self) -> None:
        while (job := self._queue.take()) is not None:
            self._current_job = job
            # `close` may run between `take` and the assignment above, and then does not see this job.
            if self._queue.closed:
                job.finish(_closed_error())
                return
            try:
                if self._prefix_cache is not None and job.prefix is not None:
                    self._prefix_cache.prepare(self._runtime, job.prefix, job.deliver_progress)
                if not job.cancelled:
                    self._runtime.chat(job.body, job.deliver_chunk)
                job.finish()
            except Exception as error:  # noqa: BLE001  an error fails this job, not the worker
                job.finish(as_provider_error(error))
            self._current_job = None


class ModelPool:
    """Reference-counted models of this process; a model is unloaded when its last user releases it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[tuple[Path, RuntimeLimits], tuple[LoadedModel, int]] = {}

    def acquire(self, weights: Path, state_folder: Path, limits: RuntimeLimits) -> LoadedModel:
        """Returns a loaded model; blocks while it loads."""
        with self._lock:  # held during the load, so that concurrent callers do not load the weights twice
            entry = self._loaded.get((weights, limits))
            model = entry[0] if entry else _load_model(weights, state_folder, limits)
            self._loaded[weights, limits] = (model, (entry[1] if entry else 0) + 1)
            return model

    def release(self, weights: Path, limits: RuntimeLimits) -> None:
        with self._lock:
            model, users = self._loaded.pop((weights, limits), (None, 0))
            if model is None:
                return
            if users > 1:
                self._loaded[weights, limits] = (model, users - 1)
            else:
                model.close()

    def close(self) -> None:
        """Unloads all models at exit; a runtime that still computes would crash the process."""
        with self._lock:
            while self._loaded:
                _, (model, _) = self._loaded.popitem()
                model.close()


# Process-wide, because the weights are a large memory mapping: two engines with the same model share it.
MODEL_POOL = ModelPool()
atexit.register(MODEL_POOL.close)


def _load_model(weights: Path, state_folder: Path, limits: RuntimeLimits) -> LoadedModel:
    state_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return LoadedModel(EmbeddedRuntime(weights, state_folder, limits), PrefixCache(state_folder, weights))


def _closed_error() -> ProviderError:
    return ServerError("the local model was closed")


def _deliver_item(
    loop: asyncio.AbstractEventLoop,
    items: "asyncio.Queue[str | ProviderError | None]",
    item: str | ProviderError | None,
) -> bool:
    """Puts an item into the consumer's queue; returns False if its event loop is closed."""
    try:
        loop.call_soon_threadsafe(items.put_nowait, item)
    except RuntimeError:
        return False
    return True
