"""JSON that is incomplete or arrives in chunks: finds the end of a value, parses the text so far, and writes text that
grows."""

import json
import re
from functools import lru_cache
from typing import Any, cast

import msgspec

from outrider._lazy import lazy_pattern

PathStep = str | int

_STRUCTURE_MARK = lazy_pattern(r'["{}\[\],<]')
_STRING_MARK = lazy_pattern(r'["\\]')
_STRING_BODY = lazy_pattern(r'(?:[^"\\]|\\(?:u[0-9a-fA-F]{4}|[^u]))*')
_HALF_SURROGATE = lazy_pattern(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")
_CUT_ESCAPE = lazy_pattern(
    r"(?:\\u[dD][89abAB][0-9a-fA-F]{2})?\\(?:u[0-9a-fA-F]{0,3})?$|\\u[dD][89abAB][0-9a-fA-F]{2}$"
)
_CLOSERS = {"{": "}", "[": "]"}


class JsonSpan:
    """Finds the end of a JSON value in text that arrives in chunks and may be invalid; reads each character once."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self.in_string = False
        self._escaped = False

    def find_end(self, text: str) -> int | None:
        """Returns the position after the value, None if it continues. A `<` outside a string also ends the value."""
        position = 0
        while position < len(text):
            if self.in_string:
                position = self.skip_string(text, position)
                if self._depth == 0 and not self.in_string:
                    return position
                continue
            match = _STRUCTURE_MARK.search(text, position)
            if match is None:
                return None
            position = match.end()
            if (end := self._read_mark(match)) is not None:
                return end
        return None

    def skip_string(self, text: str, position: int) -> int:
        """Returns the position after the next quote or backslash of the open string, or the end of the text."""
        if self._escaped:
            self._escaped = False
            return position + 1
        match = _STRING_MARK.search(text, position)
        if match is None:
            return len(text)
        if match[0] == '"':
            self.in_string = False
        else:
            self._escaped = True
        return match.end()

    def _read_mark(self, match: re.Match[str]) -> int | None:
        mark = match[0]
        if mark == "<" or (self._depth == 0 and mark in ",}]"):
            return match.start()
        if mark == '"':
            self.in_string = True
        elif mark in "{[":
            self._depth += 1
        elif mark in "}]":
            self._depth -= 1
            return match.end() if self._depth == 0 else None
        return None


@lru_cache(maxsize=16)
def parse_partial_object(text: str) -> dict[str, Any]:
    """Reads an incomplete JSON object, including the part of its last string that has arrived.

    Cached, because a front end reads the same text for several purposes. Callers must not change the result."""
    closed, complete = _close_containers(text)
    for candidate in (text, closed, complete):
        try:
            value = json.loads(candidate, strict=False)
        except (ValueError, RecursionError):
            continue
        return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return {}


def _close_containers(text: str) -> tuple[str, str]:
    """Returns the text with every open string and container closed, and this text without its last, incomplete
    member."""
    span, position = JsonSpan(), 0
    closers: list[str] = []
    ends: list[int] = []  # for each open container, where its last complete member ends
    while position < len(text):
        if span.in_string:
            position = span.skip_string(text, position)
            continue
        match = _STRUCTURE_MARK.search(text, position)
        if match is None:
            break
        position, mark = match.end(), match[0]
        if mark == '"':
            span.in_string = True
        elif mark in _CLOSERS:
            closers.append(_CLOSERS[mark])
            ends.append(position)
        elif mark in "}]" and closers:
            closers.pop()
            ends.pop()
        elif mark == "," and ends:
            ends[-1] = match.start()
    closing = "".join(reversed(closers))
    open_text = _CUT_ESCAPE.sub("", text) + '"' if span.in_string else text
    return open_text + closing, text[: ends[-1] if ends else 0] + closing


def read_string(raw: str) -> tuple[str, int, bool]:
    """Decodes the body of a JSON string that may be cut off.

    Returns the text, how many characters of `raw` it took, and whether the closing quote follows. An incomplete escape
    or surrogate pair at the end is not read yet."""
    match = _STRING_BODY.match(raw)
    body = match[0] if match else ""
    ended = raw[len(body) :].startswith('"')
    if not ended and (surrogate := _HALF_SURROGATE.search(body)):
        body = body[: surrogate.start()]
    text: str = json.loads(f'"{body}"', strict=False) if body else ""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), len(body), ended


def find_value_end(text: str, start: int = 0) -> int | None:
    """Returns the position after the JSON value that starts there; None if it is incomplete or invalid."""
    try:
        return json.JSONDecoder(strict=False).raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None


def find_json_objects(data: bytes) -> list[bytes]:
    """Returns the top-level JSON objects in the data, without the text between them and without an incomplete last
    object."""
    text = data.decode("utf-8", "replace")
    objects: list[bytes] = []
    start = text.find("{")
    while start >= 0 and (end := find_value_end(text, start)) is not None:
        objects.append(text[start:end].encode())
        start = text.find("{", end)
    return objects


class JsonPathWriter:
    """Writes the JSON text of an object from its values by path, in document order. Text that is written never
    changes."""

    def __init__(self) -> None:
        self._open_steps: list[PathStep] = []  # path to the innermost open container
        self._closers: list[str] = []  # closing bracket of each open container, outermost first
        self._filled: list[bool] = []  # whether each open container has a member
        self._string: list[PathStep] | None = None  # path of the string that is still open

    def write_value(self, path: list[PathStep], value: Any) -> str:
        """Returns the text that a complete value adds."""
        return self._open_path(path) + _to_json(value)

    def write_string(self, path: list[PathStep], value: str, *, continues: bool) -> str:
        """Returns the text that a part of a string adds; with `continues` the next part has the same path."""
        escaped = _to_json(value)[1:-1]
        text = escaped if path == self._string else f'{self._open_path(path)}"{escaped}'
        self._string = path
        return text if continues else text + self._close_string()

    def finish(self) -> str:
        """Returns the closing brackets; an empty string if nothing was written."""
        text = self._close_string() + "".join(reversed(self._closers))
        self._open_steps, self._closers, self._filled = [], [], []
        return text

    def _close_string(self) -> str:
        closing = "" if self._string is None else '"'
        self._string = None
        return closing

    def _open_path(self, path: list[PathStep]) -> str:
        """Closes the containers that do not contain the path and opens those that do, up to the key of its value."""
        text = self._close_string()
        if not self._closers:
            text += self._open_container("{")
        while self._open_steps != path[: len(self._open_steps)] or len(self._open_steps) >= len(path):
            self._open_steps.pop()
            self._filled.pop()
            text += self._closers.pop()
        for depth in range(len(self._open_steps), len(path) - 1):
            text += self._write_key(path[depth]) + self._open_container(
                "[" if isinstance(path[depth + 1], int) else "{"
            )
            self._open_steps.append(path[depth])
        return text + self._write_key(path[-1])

    def _open_container(self, opener: str) -> str:
        self._closers.append(_CLOSERS[opener])
        self._filled.append(False)
        return opener

    def _write_key(self, step: PathStep) -> str:
        comma = "," if self._filled[-1] else ""
        self._filled[-1] = True
        return comma if isinstance(step, int) else f"{comma}{_to_json(step)}:"


def _to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
