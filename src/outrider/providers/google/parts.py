"""The parts of a Gemini answer while they stream: text that goes on, calls, files, and what Google did on its side.

A text with a thought signature is a part of its own, even an empty one: the signature must go back where it stood.
"""

import re
from collections.abc import Callable
from typing import Any, cast

import msgspec

from outrider.providers.google.partial_args import ArgsWriter
from outrider.types.ids import new_id
from outrider.types.stream import Delta, InputDelta, PartEnd, PartStart, ReasoningDelta, TextDelta

Fields = dict[str, Any]

# Ids of calls that came without one begin like this, and never leave for Google.
MADE_UP = "noid_"
_TEXT_FIELDS = {"text", "thought", "thoughtSignature"}


class PartReader:
    """Gives the deltas of the parts it reads to `emit`."""

    def __init__(self, emit: Callable[[Delta], object]) -> None:
        self._emit = emit
        self._next = 0
        self._text: int | None = None  # the text or thought that goes on
        self._is_thought = False
        self._call: int | None = None  # the call whose arguments go on
        self._args = ArgsWriter()
        self._call_state: Fields = {}
        self._call_ids: set[str] = set()

    @property
    def calls(self) -> int:
        return len(self._call_ids)

    def read(self, part: Fields, response_id: str) -> None:
        text = part.get("text")
        if type(text) is str and "thoughtSignature" not in part:
            if text:
                self._write(text, thought=bool(part.get("thought")))
        elif "functionCall" in part:
            self._read_call(_fields(part["functionCall"]), _state(part), response_id)
        elif part.keys() <= _TEXT_FIELDS:
            self._read_signed(part)
        else:
            self._read_other(part)

    def end(self) -> None:
        """Nothing goes on any more."""
        self._end_text()
        self._end_call()

    def _write(self, text: str, *, thought: bool) -> None:
        if self._text is None or self._is_thought is not thought:
            self.end()
            self._text, self._is_thought = self._take(), thought
            self._emit(PartStart(self._text, "reasoning" if thought else "text"))
        self._emit(ReasoningDelta(self._text, text) if thought else TextDelta(self._text, text))

    def _end_text(self, state: Fields | None = None) -> None:
        if self._text is not None:
            self._emit(PartEnd(self._text, state or {}))
            self._text = None

    def _read_signed(self, part: Fields) -> None:
        state, thought = _state(part), bool(part.get("thought"))
        text = _text(part.get("text"))
        if not state:
            if text:
                self._write(text, thought=thought)
            return
        self.end()
        self._write(text, thought=thought)
        self._end_text(state)

    def _read_call(self, call: Fields, state: Fields, response_id: str) -> None:
        if call.get("name") or (self._call is None and call):  # a call without a name ends in error, not in silence
            self.end()
            self._call, self._args, self._call_state = self._take(), ArgsWriter(), state
            call_id = self._call_id(call.get("id"), response_id)
            self._emit(PartStart(self._call, "tool", call_id, _text(call.get("name"))))
        if self._call is None:
            return  # the end of a call that has ended
        self._call_state |= state
        text = "".join(self._args.write(piece) for piece in call.get("partialArgs") or ())
        if call.get("args") is not None:
            text += _text(call["args"])
        if text:
            self._emit(InputDelta(self._call, text))
        if not call.get("willContinue"):
            self._end_call()

    def _call_id(self, given: Any, response_id: str) -> str:
        """The call's id, or one made up where there is none or two calls got the same: results are paired by it."""
        call_id = _text(given)
        if not call_id or call_id in self._call_ids:
            call_id = _made_up(response_id, len(self._call_ids))
        self._call_ids.add(call_id)
        return call_id

    def _end_call(self) -> None:
        if self._call is None:
            return
        if rest := self._args.end():
            self._emit(InputDelta(self._call, rest))
        self._emit(PartEnd(self._call, self._call_state))
        self._call = None

    def _read_other(self, part: Fields) -> None:
        """A file that the model made, or something of Google's own, which is kept and goes back whole."""
        self.end()
        index = self._take()
        inline = _fields(part.get("inlineData"))
        file = inline or _fields(part.get("fileData"))
        if not file:
            self._emit(PartStart(index, "reasoning"))
            self._emit(PartEnd(index, {"part": part}))
            return
        mime: str = file.get("mimeType") or "application/octet-stream"
        url: str = f"data:{mime};base64,{file.get('data', '')}" if inline else file.get("fileUri", "")
        own: Fields = {"by_model": True} | ({"thought": True} if part.get("thought") else {})
        self._emit(PartStart(index, "file"))
        self._emit(PartEnd(index, own | _state(part), mime, url))

    def _take(self) -> int:
        self._next += 1
        return self._next - 1


def _fields(value: Any) -> Fields:
    return cast("Fields", value) if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    """The text, also where something else stands in its place."""
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value).decode()


def _state(part: Fields) -> Fields:
    signature = part.get("thoughtSignature")
    return {"thought_signature": signature} if signature else {}


def _made_up(response_id: str, number: int) -> str:
    """The same for the same answer, however it arrives."""
    return f"{MADE_UP}{re.sub(r'[^0-9A-Za-z_-]', '_', response_id)[:40] or new_id()}_{number}"
