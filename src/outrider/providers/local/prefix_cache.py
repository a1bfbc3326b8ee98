"""What a model has made of a prompt's beginning, kept on disk: the second start need not read it again."""

import hashlib
import os
from pathlib import Path

import msgspec

from outrider.errors import ServerError
from outrider.providers.local.runtime import Runtime, Told

_MARK = "\N{BLACK STAR}"
_KEPT = 8  # the most recently used ones; each has some 30 KB a token


class Beginning(msgspec.Struct, frozen=True):
    """What conversations have in common: pairs of role and text in all of them, then `place`, with which the first
    request of those in one workspace begins."""

    messages: tuple[tuple[str, str], ...]
    place: str = ""

    def as_chat(self) -> list[dict[str, str]]:
        return [{"role": role, "content": text} for role, text in self.messages]


class PrefixCache:
    """An imprint is named by all that it depends on and by the checksum of its file: the runtime aborts the process
    when it is given a damaged one."""

    def __init__(self, folder: Path, weights: Path) -> None:
        self._folder = folder
        about = weights.stat()
        self._weights = f"{weights.name} {about.st_size} {about.st_mtime_ns}"
        self._ready: set[Beginning] = set()

    def prepare(self, runtime: Runtime, beginning: Beginning, told: Told) -> None:
        """Have the runtime know the beginning of a conversation: from disk, or it is read, and kept there. `told` may
        give that up between two batches."""
        if beginning in self._ready:
            return
        common = runtime.prefix([*beginning.as_chat(), {"role": "user", "content": _MARK}]).partition(_MARK)[0]
        texts = [common, common + beginning.place] if beginning.place else [common]
        keys = [self._key(runtime, text) for text in texts]
        known = next((place for place in reversed(range(len(keys))) if self._restored(runtime, keys[place])), -1)
        for text, key in zip(texts[known + 1 :], keys[known + 1 :], strict=True):
            if not _has_read(runtime, text, told):
                return
            self._keep(runtime, key)
        self._touch(keys[0])  # what all workspaces share outlives what is one's own
        self._ready.add(beginning)

    def _touch(self, key: str) -> None:
        for path in self._folder.glob(f"{key}-*.bin"):
            path.touch()

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
        except (OSError, ServerError):
            # A disk that is full or read-only costs time at the next start, and nothing else.
            new.unlink(missing_ok=True)

    def _tidy(self) -> None:
        imprints = sorted(self._folder.glob("*-*.bin"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in imprints[_KEPT:]:
            path.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def _has_read(runtime: Runtime, text: str, told: Told) -> bool:
    """False when it was given up."""
    ends: list[bool] = []

    def listen(chunk: str) -> bool:
        ends.append(told(chunk))
        return ends[-1]

    runtime.read(text, listen)
    return not any(ends)
