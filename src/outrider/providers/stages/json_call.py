"""A call that a model writes as a JSON object, given out while it arrives: {"name": …, "arguments": {…}}."""

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from outrider.providers.stages.split import End, Piece, Recast

Out = list[Piece | End | Recast]

_NAMES = ("name", "tool", "tool_name", "function")
_INPUTS = ("arguments", "parameters", "input", "args")
_HEAD = re.compile(
    rf'\{{\s*"(?:{"|".join(_NAMES)})"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"(?:{"|".join(_INPUTS)})"\s*:\s*(?=\S)'
)
_LOOSE_NAME = re.compile(r"""["']?\b(?:name|tool|tool_name|function)\b["']?\s*[:=]\s*["'](?P<name>[\w.:-]+)["']""")
_OUTSIDE = re.compile(r'["{}\[\],<]')
_IN_STRING = re.compile(r'["\\]')


class JsonSpan:
    """Finds where a JSON value ends, in text that arrives in pieces and may be damaged."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._string = False
        self._escaped = False

    def end(self, text: str) -> int | None:
        """The position after the value. A `<` outside strings belongs to no value, so it ends one, too."""
        position = 0
        while position < len(text):
            if self._string:
                position = self._through_string(text, position)
                if self._depth == 0 and not self._string:
                    return position
                continue
            found = _OUTSIDE.search(text, position)
            if found is None:
                return None
            position = found.end()
            if (end := self._at(found)) is not None:
                return end
        return None

    def _at(self, found: re.Match[str]) -> int | None:
        mark = found[0]
        if mark == "<" or (self._depth == 0 and mark in ",}]"):
            return found.start()
        if mark == '"':
            self._string = True
        elif mark in "{[":
            self._depth += 1
        elif mark in "}]":
            self._depth -= 1
            return found.end() if self._depth == 0 else None
        return None

    def _through_string(self, text: str, position: int) -> int:
        if self._escaped:
            self._escaped = False
            return position + 1
        found = _IN_STRING.search(text, position)
        if found is None:
            return len(text)
        if found[0] == '"':
            self._string = False
        else:
            self._escaped = True
        return found.end()


class JsonCall:
    """Reads one call. An object that begins with name and arguments streams; any other is read when it is whole.

    `failed` says that it was no call at all: then `raw` is all of its text.
    """

    def __init__(self) -> None:
        self.raw = ""
        self.failed = False
        self._read: Callable[[str, Out], str | None] = self._head
        self._span = JsonSpan()

    def feed(self, text: str, out: Out) -> str | None:
        """What follows the call, once it has ended."""
        return self._read(text, out)

    def close(self, out: Out) -> None:
        """The answer is over. A call that has begun stays as it is; its reader sees whether its input is whole."""
        if self._read == self._head:
            self._interpret(self.raw, out)

    def _head(self, text: str, out: Out) -> str | None:
        before = len(self.raw)
        self.raw += text
        found = _HEAD.match(self.raw)
        if found is not None:
            out.append(Piece("tool", tool=found["name"]))
            rest, self.raw = self.raw[found.end() :], ""
            self._read, self._span = self._value, JsonSpan()
            return self._value(rest, out)
        end = self._span.end(text)
        if end is None:
            return None
        self._interpret(self.raw[: before + end], out)
        return text[end:]

    def _value(self, text: str, out: Out) -> str | None:
        end = self._span.end(text)
        out.append(Piece("tool", text if end is None else text[:end]))
        if end is None:
            return None
        self._read, self._span = self._tail, JsonSpan(depth=1)
        return self._tail(text[end:], out)

    def _tail(self, text: str, out: Out) -> str | None:
        """The rest of the object. Where its end is missing, what follows is not swallowed."""
        text = text.lstrip()
        if not text:
            return None
        if text[0] not in ",}":
            return text
        self._read = self._skip
        return self._skip(text, out)

    def _skip(self, text: str, out: Out) -> str | None:
        end = self._span.end(text)
        return None if end is None else text[end:]

    def _interpret(self, raw: str, out: Out) -> None:
        try:
            name, given = _call_of(msgspec.json.decode(raw))
        except (msgspec.DecodeError, RecursionError):
            found = _LOOSE_NAME.search(raw)
            name, given = (found["name"], raw) if found else ("", "")
        if name:
            out.append(Piece("tool", given, name))
        else:
            self.failed, self.raw = True, raw


def _call_of(value: Any) -> tuple[str, str]:
    """Name and input of a call, in the shapes that models know; no name means that it is none."""
    if not isinstance(value, dict):
        return "", ""
    fields = cast("dict[str, Any]", value)
    inner = fields.get("function")
    if isinstance(inner, dict):
        return _call_of(inner)
    key = next((key for key in _NAMES if isinstance(fields.get(key), str) and fields[key]), None)
    if key is None:
        return "", ""
    return fields[key], _input_of(fields, key)


def _input_of(fields: Mapping[str, Any], name_key: str) -> str:
    """The arguments, or all the other fields where there are none of that name."""
    for key in _INPUTS:
        if key in fields:
            return msgspec.json.encode(fields[key]).decode()
    others = {key: value for key, value in fields.items() if key not in {name_key, "id", "type"}}
    return msgspec.json.encode(others).decode()
