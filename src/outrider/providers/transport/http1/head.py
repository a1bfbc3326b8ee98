"""The heads of HTTP messages: written for a call, read from an answer."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from outrider.errors import ConfigurationError, NetworkError

LARGEST = 128 * 1024
_FORBIDDEN = re.compile(r"[\r\n\0]")


class Headers(Mapping[str, str]):
    """Found in any case; what comes several times is joined, as the standard says."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._values: dict[str, str] = {}
        for given, value in pairs:
            name = given.lower()
            known = self._values.get(name)
            self._values[name] = value if known is None else f"{known}, {value}"

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name.lower(), default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Head:
    """The head of an answer."""

    __slots__ = ("headers", "status", "version")

    def __init__(self, version: str, status: int, headers: Headers) -> None:
        self.version = version
        self.status = status
        self.headers = headers

    @property
    def stays_open(self) -> bool:
        """Whether the connection can take another call after this answer."""
        said = [word.strip() for word in self.headers.get("connection", "").lower().split(",")]
        return "close" not in said if self.version == "HTTP/1.1" else "keep-alive" in said


def written(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1"]
    for name, value in headers.items():
        if _FORBIDDEN.search(value) or _FORBIDDEN.search(name):
            raise ConfigurationError(f"the header {name!r} holds a line break or a NUL, which no header may")
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")


def end_of(data: bytearray) -> int:
    """Where the head ends and the body begins; -1 while it is not whole. Lines may end without a carriage return."""
    place = data.find(b"\r\n\r\n")
    if place >= 0:
        return place + 4
    place = data.find(b"\n\n")
    if place >= 0:
        return place + 2
    if len(data) > LARGEST:
        raise NetworkError("the head of the answer has no end; this is no HTTP server", type="disconnected")
    return -1


def read(data: bytes) -> Head:
    first, *lines = data.decode("latin-1").replace("\r\n", "\n").rstrip("\n").split("\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not status.isdecimal() or len(status) != 3:
        raise NetworkError("what answers there does not speak HTTP", type="disconnected")
    pairs: list[tuple[str, str]] = []
    for line in lines:
        if line[:1] in (" ", "\t") and pairs:
            name, value = pairs.pop()
            pairs.append((name, f"{value} {line.strip()}"))
            continue
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise NetworkError("the head of the answer is damaged", type="disconnected")
        pairs.append((name, value.strip()))
    return Head(version, int(status), Headers(pairs))
