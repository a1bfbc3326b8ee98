"""Calls put together from the pieces in which servers stream them, however these are numbered and named."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from outrider.providers.openai.chat.chunks import Call, Function
from outrider.types.ids import new_id
from outrider.types.request import ToolSpec
from outrider.types.stream import Delta, InputDelta, PartEnd, PartStart

UNNAMED = "unnamed"  # a name must be sent back with the call, and no tool has this one
_FREE_TEXT, _FREE_TEXT_END = '{"input":"', '"}'  # input that is no JSON, made into an object while it streams
_LEGACY = -1  # the place of the one call that the older function_call field can hold


class _Draft:
    """A call while it streams. It is shown once its name is known; pieces that came before wait for that."""

    def __init__(self, given_id: str, call_id: str) -> None:
        self.given_id = given_id
        self.id = call_id
        self.name = self.shown = ""  # what it is called, and what it was called when it was shown
        self.pieces: list[str] = []
        self.part: int | None = None
        self.custom = False
        self.state: dict[str, Any] = {}

    def is_whole(self) -> bool:
        try:
            msgspec.json.decode("".join(self.pieces))
        except (msgspec.DecodeError, RecursionError):
            return False
        return True


class Calls:
    """The calls of one answer, in order of appearance. `numbers` gives the indexes of parts that begin, and `offered`
    are the tools that the model may know."""

    def __init__(self, numbers: Iterator[int], offered: Iterable[ToolSpec] = ()) -> None:
        self._numbers = numbers
        self._offered = offered
        self._drafts: list[_Draft] = []
        self._numbered: dict[int, _Draft] = {}
        self._ids: set[str] = set()
        self._shown = False

    def __bool__(self) -> bool:
        """Whether any was shown."""
        return self._shown

    def add(self, call: Call) -> list[Delta]:
        function, custom = _function(call)
        draft = self._draft(call.index, call.id or "", function.name or "")
        if function.name and function.name != draft.name:
            draft.name = self._longer(draft.name, function.name) or draft.name
        if call.extra_content:
            draft.state["extra_content"] = call.extra_content
        if custom and not draft.custom:
            draft.custom = draft.state["custom"] = True
            draft.pieces.append(_FREE_TEXT)
        return self._show(draft, _escaped(function.arguments) if draft.custom else _text(function.arguments))

    def add_legacy(self, function: Function) -> list[Delta]:
        """A piece of the older function_call field. Servers that fill both fields say the same in each."""
        if self._numbered.keys() - {_LEGACY} or not (function.name or function.arguments):
            return []
        return self.add(Call(_LEGACY, None, function))

    def end(self) -> list[Delta]:
        """The ends of all calls. One that has arguments and never got a name is still a call that must be answered."""
        deltas: list[Delta] = []
        for draft in self._drafts:
            if draft.part is None and draft.pieces:
                draft.name = UNNAMED
                deltas += self._show(draft, "")
            if draft.custom:
                deltas += self._show(draft, _FREE_TEXT_END)
            if draft.part is not None:
                deltas.append(PartEnd(draft.part, draft.state))
        return deltas

    def _draft(self, number: int | None, given_id: str, name: str) -> _Draft:
        found = self._numbered.get(number) if number is not None else self._unnumbered(given_id, name)
        if found is None or not self._goes_on(found, given_id, name):
            found = _Draft(given_id, self._unique(given_id))
            self._drafts.append(found)
        if number is not None:
            self._numbered[number] = found
        return found

    def _goes_on(self, draft: _Draft, given_id: str, name: str) -> bool:
        """Whether a piece under a call's number belongs to it, or begins another call under the same number."""
        if not name or not draft.name or (given_id and given_id == draft.given_id):
            return True
        if given_id and draft.given_id:
            return False
        if draft.pieces:
            return not draft.is_whole()
        return name == draft.name or self._longer(draft.name, name) is not None

    def _longer(self, known: str, piece: str) -> str | None:
        """The name that another piece of it makes, in the few servers that cut names; None for any other name."""
        if not known:
            return piece
        offered = {tool.name for tool in self._offered}
        if known + piece in offered and piece not in offered:
            return known + piece
        return piece if piece.startswith(known) and piece in offered and known not in offered else None

    def _unnumbered(self, given_id: str, name: str) -> _Draft | None:
        """The call that a piece without a number goes on with: the one of its id, else the last one."""
        if given_id:
            return next((draft for draft in self._drafts if draft.given_id == given_id), None)
        return self._drafts[-1] if self._drafts and not name else None

    def _unique(self, call_id: str) -> str:
        """The server's id, or one made up where it gave none or gave the same to two calls."""
        if not call_id or call_id in self._ids:
            call_id = f"call_{new_id().replace('-', '')}"
        self._ids.add(call_id)
        return call_id

    def _show(self, draft: _Draft, piece: str) -> list[Delta]:
        if piece:
            draft.pieces.append(piece)
        if draft.part is not None and draft.shown == draft.name:
            return [InputDelta(draft.part, piece)] if piece else []
        if not draft.name:
            return []
        draft.part, self._shown = next(self._numbers) if draft.part is None else draft.part, True
        draft.shown = draft.name
        begun: list[Delta] = [PartStart(draft.part, "tool", draft.id, draft.name)]
        waiting = "".join(draft.pieces)
        return [*begun, InputDelta(draft.part, waiting)] if waiting else begun


def _function(call: Call) -> tuple[Function, bool]:
    """What is called, and whether its input is free text. Some servers send an empty shape of the other kind along."""
    custom = Function(call.custom.name, call.custom.input) if call.custom is not None else None
    if custom is not None and (call.function is None or (custom.name and not call.function.name)):
        return custom, True
    return call.function or Function(), False


def _text(arguments: Any) -> str:
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return msgspec.json.encode(arguments).decode()


def _escaped(text: Any) -> str:
    return msgspec.json.encode(_text(text))[1:-1].decode()
