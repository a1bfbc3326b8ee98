"""A loaded model and the one thread that works for everybody who asks it, fairly."""

import asyncio
import atexit
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from threading import Condition
from typing import Generic, TypeVar

from outrider.errors import OverloadedError, ProviderError, ServerError
from outrider.providers.local.llama_cpp import EmbeddedRuntime
from outrider.providers.local.prefix_cache import Beginning, PrefixCache
from outrider.providers.local.runtime import Runtime, RuntimeLimits, as_provider_error

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Within a conversation the order is kept; conversations are served in turn. Any thread may put, take and close."""

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._waiting: dict[str, deque[Item]] = {}
        self._served = ""
        self._changed = Condition()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def put(self, conversation: str, job: Item) -> bool:
        """False when it is full or closed."""
        with self._changed:
            if self._closed or sum(map(len, self._waiting.values())) >= self._most:
                return False
            self._waiting.setdefault(conversation, deque()).append(job)
            self._changed.notify()
            return True

    def take(self) -> Item | None:
        """Waits for a job; None once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            others = (name for name in self._waiting if name != self._served)
            self._served = conversation = next(others, self._served)
            jobs = self._waiting.pop(conversation)
            job = jobs.popleft()
            if jobs:
                self._waiting[conversation] = jobs
            return job

    def discard(self, conversation: str, job: Item) -> None:
        """Forget a job that nobody waits for any more, if it still waits."""
        with self._changed:
            jobs = self._waiting.get(conversation)
            if jobs is None or job not in jobs:
                return
            jobs.remove(job)
            if not jobs:
                del self._waiting[conversation]

    def close(self) -> list[Item]:
        """What was still waiting."""
        with self._changed:
            left = [job for jobs in self._waiting.values() for job in jobs]
            self._waiting.clear()
            self._closed = True
            self._changed.notify_all()
            return left


class Job:
    """One request. `deliver` is called from the model's thread: chunks, then None or the error that ended it."""

    def __init__(
        self, body: str, beginning: Beginning | None, deliver: Callable[[str | ProviderError | None], bool]
    ) -> None:
        self.body = body
        self.beginning = beginning
        self.given_up = False
        self._deliver = deliver

    def told(self, chunk: str) -> bool:
        return self.given_up or not self._deliver(chunk)

    def end(self, error: ProviderError | None = None) -> None:
        if not self.given_up:
            self._deliver(error)


class LoadedModel:
    """Shared by all sessions of a process. Requests of all event loops wait in one queue."""

    def __init__(self, runtime: Runtime, imprints: PrefixCache | None) -> None:
        self._runtime = runtime
        self._imprints = imprints
        self._queue: FairQueue[Job] = FairQueue()
        self._served: Job | None = None
        self._worker = threading.Thread(target=self._work, name="outrider-local-model", daemon=True)
        self._worker.start()

    async def stream(self, body: str, beginning: Beginning | None, conversation: str) -> AsyncGenerator[str, None]:
        """The chunks of one answer, as JSON. Closing it ends the work within the time of one batch."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[str | ProviderError | None] = asyncio.Queue()
        job = Job(body, beginning, lambda item: _handed_over(loop, arrived, item))
        if not self._queue.put(conversation, job):
            raise OverloadedError("too many requests are waiting for the local model")
        try:
            while (item := await arrived.get()) is not None:
                if isinstance(item, ProviderError):
                    raise item
                yield item
        finally:
            job.given_up = True
            self._queue.discard(conversation, job)

    def close(self) -> None:
        """Gives up the answer under way, and blocks until it has stopped."""
        for job in self._queue.close():
            job.end(_closed())
        if (job := self._served) is not None:
            job.end(_closed())
            job.given_up = True
        self._worker.join()
        self._runtime.close()

    def _work(self) -> None:
        while (job := self._queue.take()) is not None:
            self._served = job
            if self._queue.closed:  # it was taken just before, and `close` may not have seen it
                job.end(_closed())
                return
            try:
                if self._imprints is not None and job.beginning is not None:
                    self._imprints.prepare(self._runtime, job.beginning, lambda _, job=job: job.given_up)
                if not job.given_up:
                    self._runtime.chat(job.body, job.told)
                job.end()
            except Exception as error:  # noqa: BLE001  whatever the runtime raises is this request's end, not ours
                job.end(as_provider_error(error))
            self._served = None


class Pool:
    """The models that this process has loaded, each once; the last one who lets go of a model unloads it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[tuple[Path, RuntimeLimits], tuple[LoadedModel, int]] = {}

    def take(self, weights: Path, imprints: Path, limits: RuntimeLimits) -> LoadedModel:
        """Blocks while it loads."""
        with self._lock:
            known = self._loaded.get((weights, limits))
            model = known[0] if known else _load(weights, imprints, limits)
            self._loaded[weights, limits] = (model, (known[1] if known else 0) + 1)
            return model

    def give_back(self, weights: Path, limits: RuntimeLimits) -> None:
        with self._lock:
            model, users = self._loaded.pop((weights, limits), (None, 0))
            if model is None:
                return
            if users > 1:
                self._loaded[weights, limits] = (model, users - 1)
            else:
                model.close()

    def close(self) -> None:
        """At the end of the process: a runtime that still computes then would take the process down with it."""
        with self._lock:
            while self._loaded:
                _, (model, _) = self._loaded.popitem()
                model.close()


# Weights are a resource of the process, as a mapped file is: two engines with the same model share it.
POOL = Pool()
atexit.register(POOL.close)


def _load(weights: Path, imprints: Path, limits: RuntimeLimits) -> LoadedModel:
    imprints.mkdir(parents=True, exist_ok=True, mode=0o700)
    return LoadedModel(EmbeddedRuntime(weights, imprints, limits), PrefixCache(imprints, weights))


def _closed() -> ProviderError:
    return ServerError("the local model was closed")


def _handed_over(
    loop: asyncio.AbstractEventLoop,
    arrived: "asyncio.Queue[str | ProviderError | None]",
    item: str | ProviderError | None,
) -> bool:
    """False when nobody is there any more."""
    try:
        loop.call_soon_threadsafe(arrived.put_nowait, item)
    except RuntimeError:
        return False
    return True
