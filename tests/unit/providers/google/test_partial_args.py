"""Streamed arguments of every form are assembled into the JSON of one object."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.google.decode import parse_json_path, write_argument
from outrider.types.partial_json import JsonPathWriter

names = st.text(st.characters(codec="ascii", exclude_characters=".[]'\"\\"), min_size=1, max_size=6)
leaves = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8"), max_size=8)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(names, inner, min_size=1, max_size=3),
)
objects = st.dictionaries(names, values, min_size=1, max_size=4)


def pieces(value: Any, path: str = "$") -> Iterator[dict[str, Any]]:
    """The value as a model's server streams it: strings in halves, the second half last."""
    match value:
        case dict():
            for name, inner in value.items():
                yield from pieces(inner, f"{path}.{name}")
        case list():
            for number, inner in enumerate(value):
                yield from pieces(inner, f"{path}[{number}]")
        case str():
            yield {"jsonPath": path, "stringValue": value[: len(value) // 2], "willContinue": True}
            yield {"jsonPath": path, "stringValue": value[len(value) // 2 :]}
        case bool():
            yield {"jsonPath": path, "boolValue": value}
        case None:
            yield {"jsonPath": path, "nullValue": "NULL_VALUE"}
        case _:
            yield {"jsonPath": path, "numberValue": value}


@given(objects)
def test_any_object_comes_out_as_it_went_in(value: dict[str, Any]):
    writer = JsonPathWriter()
    assert json.loads("".join([*(write_argument(writer, piece) for piece in pieces(value)), writer.finish()])) == value


def test_every_piece_adds_text_at_once():
    writer = JsonPathWriter()
    assert write_argument(writer, {"jsonPath": "$.a", "stringValue": "one", "willContinue": True}) == '{"a":"one'
    assert write_argument(writer, {"jsonPath": "$.a", "stringValue": ' "two"'}) == ' \\"two\\""'
    assert write_argument(writer, {"jsonPath": "$.b[0].c", "numberValue": 1}) == ',"b":[{"c":1'
    assert write_argument(writer, {"jsonPath": "$.b[1].c", "numberValue": 2}) == '},{"c":2'
    assert writer.finish() == "}]}"


def test_no_pieces_are_no_text():
    assert JsonPathWriter().finish() == ""


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("$.a.b", ["a", "b"]),
        ("$.a[2].b", ["a", 2, "b"]),
        ("$['a b'].c", ["a b", "c"]),
        ('$["a.b"]', ["a.b"]),
        ("$", []),
    ],
)
def test_paths_are_read_in_every_spelling(path: str, found: list[str | int]):
    assert parse_json_path(path) == found
