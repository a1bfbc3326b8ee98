"""A runtime without a model: it answers what it was told to, in the chunks of the real one."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

from outrider.errors import ServerError
from outrider.providers.local.runtimes.runtime import Told


class FakeRuntime:
    """`answer` gives the text for a request's body, or raises. `pieces` is how many characters a chunk holds. With
    `gate` it waits before each chunk of text, but for the first `free` ones, until the gate is open."""

    version = "fake-1"

    def __init__(
        self,
        answer: Callable[[dict], str],
        *,
        imprints: Path | None = None,
        pieces: int = 4,
        finish: str = "stop",
        gate: threading.Event | None = None,
        free: int = 0,
    ) -> None:
        self.bodies: list[dict] = []
        self.read_prompts: list[str] = []
        self.restored: list[str] = []
        self.given_up = 0
        self.closed = False
        self._answer = answer
        self._imprints = imprints
        self._pieces = pieces
        self._finish = finish
        self._gate = gate
        self._free = free

    def chat(self, body: str, told: Told) -> None:
        asked = json.loads(body)
        self.bodies.append(asked)
        text = self._answer(asked)
        if told(_chunk(prompt_progress={"total": 9, "processed": 9})):
            self.given_up += 1
            return
        for start in range(0, len(text), self._pieces):
            if start >= self._free * self._pieces and not self._wait(told):
                return
            if told(_chunk({"content": text[start : start + self._pieces]})):
                self.given_up += 1
                return
        told(_chunk({}, self._finish))
        used = {"prompt_tokens": 9, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}
        told(json.dumps({"id": "1", "model": "/models/tiny.gguf", "choices": [], "usage": used}))

    def read(self, prompt: str, told: Told) -> None:
        told(_chunk(prompt_progress={"total": 1, "processed": 1}))
        self.read_prompts.append(prompt)

    def prefix(self, messages: list[dict[str, str]]) -> str:
        return "".join(f"<{message['role']}>{message['content']}" for message in messages)

    def save(self, name: str) -> None:
        if self._imprints is None:
            raise ServerError("there is no folder of imprints")
        (self._imprints / name).write_bytes(self.read_prompts[-1].encode())

    def restore(self, name: str) -> bool:
        self.restored.append(name)
        return True

    def close(self) -> None:
        self.closed = True

    def _wait(self, told: Told) -> bool:
        """As between two batches of a prompt, a request can be given up while it waits."""
        while self._gate is not None and not self._gate.wait(0.01):
            if told(_chunk(prompt_progress={})):
                self.given_up += 1
                return False
        return True


def _chunk(delta: dict | None = None, finish: str | None = None, **more: object) -> str:
    choice = {"index": 0, "delta": delta or {"role": "assistant", "content": None}, "finish_reason": finish}
    return json.dumps({"id": "1", "model": "/models/tiny.gguf", "choices": [choice], **more})
