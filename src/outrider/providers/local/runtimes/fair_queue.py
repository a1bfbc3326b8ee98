"""A queue in which every conversation gets its turn, however much another one has asked for."""

from collections import deque
from threading import Condition
from typing import Generic, TypeVar

Job = TypeVar("Job")


class FairQueue(Generic[Job]):
    """Within a conversation the order is kept; conversations are served in turn. Any thread may put, take and close."""

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._waiting: dict[str, deque[Job]] = {}
        self._served = ""
        self._changed = Condition()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def put(self, conversation: str, job: Job) -> bool:
        """False when it is full or closed."""
        with self._changed:
            if self._closed or sum(map(len, self._waiting.values())) >= self._most:
                return False
            self._waiting.setdefault(conversation, deque()).append(job)
            self._changed.notify()
            return True

    def take(self) -> Job | None:
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

    def discard(self, conversation: str, job: Job) -> None:
        """Forget a job that nobody waits for any more, if it still waits."""
        with self._changed:
            jobs = self._waiting.get(conversation)
            if jobs is None or job not in jobs:
                return
            jobs.remove(job)
            if not jobs:
                del self._waiting[conversation]

    def close(self) -> list[Job]:
        """What was still waiting."""
        with self._changed:
            left = [job for jobs in self._waiting.values() for job in jobs]
            self._waiting.clear()
            self._closed = True
            self._changed.notify_all()
            return left
