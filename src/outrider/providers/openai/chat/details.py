"""OpenRouter's `reasoning_details`: pieces in a stream, merged into the items that the server wants back."""

from collections.abc import Iterable, Iterator
from typing import Any, cast

_GROWING = ("text", "summary")

Piece = dict[str, Any]


def merged_details(pieces: Iterable[Any]) -> list[Piece]:
    """The items that the pieces make up: text goes on until it is signed; encrypted items are whole as they come."""
    groups: list[list[Piece]] = []
    for piece in _objects(pieces):
        if groups and _goes_on(groups[-1], piece):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return [_joined(group) for group in groups]


def text_of_details(pieces: Iterable[Any]) -> str:
    return "".join(_grown(piece, field) for piece in _objects(pieces) for field in _GROWING)


def _goes_on(group: list[Piece], piece: Piece) -> bool:
    last = group[-1]
    same = last.get("type") == piece.get("type") and last.get("index") == piece.get("index")
    return same and "data" not in piece and not (last.get("signature") and text_of_details([piece]))


def _joined(group: list[Piece]) -> Piece:
    item: Piece = {}
    for piece in group:
        item |= {name: value for name, value in piece.items() if value is not None or name not in item}
    grown = {field: "".join(_grown(piece, field) for piece in group) for field in _GROWING if field in item}
    return item | grown


def _grown(piece: Piece, field: str) -> str:
    value = piece.get(field)
    return value if isinstance(value, str) else ""


def _objects(pieces: Iterable[Any]) -> Iterator[Piece]:
    return (cast("Piece", piece) for piece in pieces if isinstance(piece, dict))
