"""One content block of an answer while it is being written, and the part that it becomes."""

from typing import Any, Literal

import msgspec

from outrider.providers.anthropic.events import (
    CitationPiece,
    InputPiece,
    Piece,
    SignaturePiece,
    TextPiece,
    ThinkingPiece,
)
from outrider.providers.tool_input import read_tool_input
from outrider.types.stream import Delta, InputDelta, PartEnd, PartStart, ReasoningDelta, TextDelta

BlockKind = Literal["text", "thinking", "tool", "opaque"]

_KINDS: dict[object, BlockKind] = {"text": "text", "thinking": "thinking", "tool_use": "tool"}
_NOTHING: tuple[Delta, ...] = ()


class Block:
    """`opaque` blocks (redacted thinking, the provider's own tools, compaction, kinds from a newer API) have nothing
    to show; they are kept word for word, to be sent back in their place."""

    __slots__ = ("fields", "index", "kind", "pieces", "untouched")

    def __init__(self, index: int, fields: dict[str, Any]) -> None:
        self.index = index
        self.kind: BlockKind = _KINDS.get(fields.get("type"), "opaque")
        self.fields = dict(fields)
        self.pieces: list[str] = []
        self.untouched = True

    def start(self, call_id: str) -> tuple[Delta, ...]:
        """The start, with what it already carries: whole messages and some gateways put the content here."""
        match self.kind:
            case "text":
                return (PartStart(self.index, "text"), *self._text(str(self.fields.get("text") or "")))
            case "thinking":
                shown = self._thinking(str(self.fields.get("thinking") or ""))
                return (PartStart(self.index, "reasoning"), *shown)
            case "tool":
                return (PartStart(self.index, "tool", call_id, str(self.fields.get("name") or "")),)
            case "opaque":
                return (PartStart(self.index, "reasoning"),)

    def takes(self, piece: Piece) -> bool:
        match piece:
            case TextPiece() | CitationPiece():
                return self.kind == "text"
            case InputPiece():
                return self.kind in ("tool", "opaque")
            case ThinkingPiece() | SignaturePiece():
                return self.kind == "thinking"

    def add(self, piece: Piece) -> tuple[Delta, ...]:
        self.untouched = False
        match piece:
            case TextPiece(text):
                return self._text(text)
            case InputPiece(text):
                return self._input(text)
            case ThinkingPiece(text):
                return self._thinking(text)
            case SignaturePiece(signature):
                self.fields["signature"] = (self.fields.get("signature") or "") + signature
            case CitationPiece(citation):
                self.fields["citations"] = [*(self.fields.get("citations") or ()), citation]
        return _NOTHING

    def add_fields(self, fields: dict[str, Any]) -> None:
        """A delta of a kind without a name: text grows, anything else is set."""
        self.untouched = False
        for name, value in fields.items():
            if name != "type":
                known = self.fields.get(name)
                self.fields[name] = known + value if isinstance(known, str) and isinstance(value, str) else value

    def end(self) -> tuple[Delta, ...]:
        match self.kind:
            case "text":
                return (PartEnd(self.index, self._rest("text")),)
            case "thinking":
                return (PartEnd(self.index, self._thinking_state()),)
            case "tool":
                end = PartEnd(self.index, self._rest("id", "name", "input"))
                given = self.fields.get("input")
                if given and not self.pieces:
                    return (InputDelta(self.index, msgspec.json.encode(given).decode()), end)
                return (end,)
            case "opaque":
                if self.pieces:
                    self.fields["input"] = read_tool_input("".join(self.pieces))[0]
                return (PartEnd(self.index, {"block": self.fields}),)

    def _text(self, text: str) -> tuple[Delta, ...]:
        return (TextDelta(self.index, text),) if text else _NOTHING

    def _thinking(self, text: str) -> tuple[Delta, ...]:
        if not text:
            return _NOTHING
        self.pieces.append(text)
        return (ReasoningDelta(self.index, text),)

    def _input(self, text: str) -> tuple[Delta, ...]:
        if not text:
            return _NOTHING
        self.pieces.append(text)
        return (InputDelta(self.index, text),) if self.kind == "tool" else _NOTHING

    def _thinking_state(self) -> dict[str, Any]:
        """The signature; or the whole block when there is more in it than text and signature."""
        signature = self.fields.get("signature")
        if self._rest("thinking", "signature"):
            return {"block": self.fields | {"thinking": "".join(self.pieces)}}
        return {"signature": signature} if signature else {}

    def _rest(self, *known: str) -> dict[str, Any]:
        """The fields that a part has no name for (citations, caller, …), unless they are empty."""
        known = ("type", *known)
        return {name: value for name, value in self.fields.items() if name not in known and value not in (None, [])}
