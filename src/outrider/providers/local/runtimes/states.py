"""What a model has made of a prompt's beginning, kept on disk: the second start need not read it again."""

import hashlib
import os
from pathlib import Path

from outrider.providers.local.runtimes.runtime import Runtime, Told

_MARK = "\N{BLACK STAR}"
_KEPT = 8  # the most recently used ones; each has some 30 KB a token


class PrefixStates:
    """A state is named by all that it depends on and by the checksum of its file: the runtime aborts the whole process
    when it is given a damaged one."""

    def __init__(self, folder: Path, weights: Path) -> None:
        self._folder = folder
        about = weights.stat()
        self._weights = f"{weights.name} {about.st_size} {about.st_mtime_ns}"
        self._ready: set[str] = set()

    def prepare(self, runtime: Runtime, messages: list[dict[str, str]], told: Told) -> None:
        """Have the runtime know these messages, which many conversations begin with; from disk, where that can be."""
        name = hashlib.sha256("\0".join(f"{m['role']} {m['content']}" for m in messages).encode()).hexdigest()
        if name in self._ready:
            return
        text = runtime.prefix([*messages, {"role": "user", "content": _MARK}]).partition(_MARK)[0]
        key = self._key(runtime, text)
        if not self._restored(runtime, key):
            ended: list[bool] = []
            runtime.read(text, lambda chunk: _noted(told(chunk), ended))
            if any(ended):
                return
            self._keep(runtime, key)
        self._ready.add(name)

    def _key(self, runtime: Runtime, text: str) -> str:
        return hashlib.sha256(f"{runtime.version}\0{self._weights}\0{text}".encode()).hexdigest()[:32]

    def _restored(self, runtime: Runtime, key: str) -> bool:
        for path in self._folder.glob(f"{key}-*.bin"):
            if path.stem == f"{key}-{_digest(path)}" and runtime.restore(path.name):
                path.touch()
                return True
            path.unlink(missing_ok=True)
        return False

    def _keep(self, runtime: Runtime, key: str) -> None:
        new = self._folder / f"{key}.{os.getpid()}.new"
        try:
            runtime.save(new.name)
            new.chmod(0o600)
            new.replace(self._folder / f"{key}-{_digest(new)}.bin")
            self._tidy()
        except OSError:  # a disk that is full or read-only costs time at the next start, and nothing else
            new.unlink(missing_ok=True)

    def _tidy(self) -> None:
        states = sorted(self._folder.glob("*-*.bin"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in states[_KEPT:]:
            path.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def _noted(ends: bool, ended: list[bool]) -> bool:  # noqa: FBT001
    ended.append(ends)
    return ends
