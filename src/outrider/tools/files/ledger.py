"""Which version of a file each session has seen, so that nothing is overwritten that its model does not know."""

from collections import OrderedDict
from hashlib import blake2b

_MOST = 20_000

Version = bytes


def version_of(content: bytes) -> Version:
    return blake2b(content, digest_size=16).digest()


class Ledger:
    """Bounded: the versions seen longest ago are forgotten, and such a file must be read again."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], Version] = OrderedDict()

    def saw(self, session_id: str, path: str, version: Version) -> None:
        self._seen[session_id, path] = version
        self._seen.move_to_end((session_id, path))
        while len(self._seen) > _MOST:
            self._seen.popitem(last=False)

    def seen(self, session_id: str, path: str) -> Version | None:
        return self._seen.get((session_id, path))

    def forget(self, session_id: str, path: str) -> None:
        self._seen.pop((session_id, path), None)
