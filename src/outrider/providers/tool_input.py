"""A call's input as the model wrote it, read into an object or into words that tell the model what is wrong."""

import json
from collections.abc import Iterable
from typing import Any, cast

import msgspec

from outrider.types.validate import is_object

_SHOWN = 200
_MOST_NESTED = 100  # levels: whoever looks at an input later may follow it step by step


def read_tool_input(raw: str) -> tuple[dict[str, Any], str | None]:
    """The input, and what is wrong with it. No text at all is a call without arguments."""
    text = raw.strip()
    if not text:
        return {}, None
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:  # ValueError: not JSON, or not even Unicode
        return _damaged(text, str(error))
    if isinstance(value, str):  # some servers encode the arguments twice
        inner, problem = read_tool_input(value) if value.strip().startswith("{") else ({}, "a string")
        return (inner, None) if problem is None else ({}, _must_be_object("a string", text))
    if value is None:
        return {}, None
    if not is_object(value):
        return {}, _must_be_object(type(value).__name__, text)
    if text.count("{") + text.count("[") > _MOST_NESTED and _is_too_deep(value):
        return {}, f"The input of this call is nested deeper than {_MOST_NESTED} levels. Nothing was run."
    return value, None


def _is_too_deep(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(_MOST_NESTED):
        level = [inner for outer in level for inner in _inside(outer)]
    return bool(level)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).values()
    return cast("list[Any]", value) if isinstance(value, list) else ()


def _damaged(text: str, why: str) -> tuple[dict[str, Any], str]:
    decoder = json.JSONDecoder()
    try:
        _, end = decoder.raw_decode(text)
    except (ValueError, RecursionError):
        end = len(text)
    rest = text[end:].strip()
    if not rest:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        return {}, (
            f"The input of this call is not valid JSON ({why}). It may have been cut off. Nothing was run. "
            f"Send the call again with one complete JSON object. Received: {shown}"
        )
    return {}, (
        "The input of this call is a JSON value followed by more text, so it is unclear what was meant. Nothing was "
        f"run. Send the call again with exactly one JSON object. The surplus begins: {rest[:_SHOWN]}"
    )


def _must_be_object(got: str, text: str) -> str:
    return (
        f"The input of this call must be one JSON object, got {got}. Nothing was run. Send the call again with an "
        f"object. Received: {text[:_SHOWN]}"
    )
