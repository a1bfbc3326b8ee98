"""Reads the JSON object of a compact answer while it is written: text is given out as it comes, a call's input too."""

import json
import re
from collections.abc import Iterator
from typing import Literal

from outrider.providers.local.primer import SAY, Words
from outrider.types.ids import new_id
from outrider.types.stream import Delta, InputDelta, PartEnd, PartStart, TextDelta

_STRING = re.compile(r'(?:[^"\\]|\\(?:u[0-9a-fA-F]{4}|[^u]))*')
_HALF_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")
_SAID = re.compile(rf'\s*\{{\s*"{SAY}"\s*:\s*"')
_VALUE = re.compile(r'"(text|value)"\s*:\s*(?=("?))')

Mode = Literal["head", "said", "text", "value", "input", "plain", "over"]


class AnswerReader:
    """`words` is None for an answer that is not an object of the protocol, and so all text."""

    def __init__(self, words: Words | None) -> None:
        self._answer = words.answer if words else ""
        self._head = re.compile(rf'\s*[{{,]\s*"{words.tool if words else ""}"\s*:\s*"((?:[^"\\]|\\.)*)"\s*([,}}])\s*')
        self._mode: Mode = "head" if words else "plain"
        self._waiting = ""
        self._index = -1
        self._is_open = False
        self.called = False

    def feed(self, text: str) -> Iterator[Delta]:
        self._waiting += text
        mode = None
        while self._waiting and mode != self._mode:
            mode = self._mode
            match mode:
                case "head":
                    yield from self._begin()
                case "said" | "text":
                    yield from self._text()
                case "value":
                    yield from self._raw(TextDelta, held=1)
                case "input":
                    yield from self._raw(InputDelta)
                case "plain":
                    yield from self._plain()
                case "over":
                    self._waiting = ""

    def end(self, *, whole: bool) -> Iterator[Delta]:
        """A call that was cut off is not ended: what it lacks nobody knows."""
        if self._mode == "head" and self._waiting and self._index < 0:
            yield from self._plain()
        if self._is_open and (whole or not self.called):
            yield from self._close()

    def _begin(self) -> Iterator[Delta]:
        if found := _SAID.match(self._waiting):
            yield from self._open("said", self._waiting[found.end() :])
        elif found := self._head.match(self._waiting):
            name, rest = json.loads(f'"{found[1]}"'), self._waiting[found.end() :]
            if name != self._answer:
                self.called = True
                yield from self._open("input", "{" + rest if found[2] == "," else "{}", name)
            elif value := _VALUE.match(rest):
                yield from self._value(value[1], value[2], rest[value.end() :])

    def _value(self, name: str, quote: str, rest: str) -> Iterator[Delta]:
        if name == "value" and rest:
            yield from self._open("value", rest)
        elif name == "text" and quote:
            yield from self._open("text", rest[1:])

    def _open(self, mode: Mode, waiting: str, tool: str = "") -> Iterator[Delta]:
        self._mode, self._waiting, self._is_open = mode, waiting, True
        self._index += 1
        yield PartStart(self._index, "tool", f"call_{new_id()}", tool) if tool else PartStart(self._index, "text")

    def _close(self, then: Mode = "over") -> Iterator[Delta]:
        self._mode, self._is_open = then, False
        yield PartEnd(self._index)

    def _text(self) -> Iterator[Delta]:
        """What is whole of the string; half an escape, or half a pair of surrogates, waits for the rest."""
        found = _STRING.match(self._waiting)
        raw = found[0] if found else ""
        ended = self._waiting[len(raw) :].startswith('"')
        if not ended and (half := _HALF_PAIR.search(raw)):
            raw = raw[: half.start()]
        self._waiting = self._waiting[len(raw) + ended :]
        if raw:
            text: str = json.loads(f'"{raw}"', strict=False)
            yield TextDelta(self._index, text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
        if ended:
            yield from self._close("head" if self._mode == "said" else "over")

    def _raw(self, delta: type[TextDelta] | type[InputDelta], held: int = 0) -> Iterator[Delta]:
        """As it is; the last brace of the object around a value is held back."""
        given = self._waiting[: len(self._waiting) - held]
        self._waiting = self._waiting[len(given) :]
        if given:
            yield delta(self._index, given)

    def _plain(self) -> Iterator[Delta]:
        if not self._is_open:
            yield from self._open("plain", self._waiting)
        yield TextDelta(self._index, self._waiting)
        self._waiting = ""
