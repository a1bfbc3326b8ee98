"""A call's input as the model wrote it, read into an object or into words that tell the model what is wrong."""

import json
from typing import Any

import msgspec

from outrider.types.validate import is_object

_SHOWN = 200


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
    return value, None


def _damaged(text: str, why: str) -> tuple[dict[str, Any], str]:
    decoder = json.JSONDecoder()
    try:
        _, end = decoder.raw_decode(text)
    except (ValueError, RecursionError):
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        return {}, (
            f"The input of this call is not valid JSON ({why}). It may have been cut off. Nothing was run. "
            f"Send the call again with one complete JSON object. Received: {shown}"
        )
    rest = text[end:].strip()
    return {}, (
        "The input of this call is a JSON value followed by more text, so it is unclear what was meant. Nothing was "
        f"run. Send the call again with exactly one JSON object. The surplus begins: {rest[:_SHOWN]}"
    )


def _must_be_object(got: str, text: str) -> str:
    return (
        f"The input of this call must be one JSON object, got {got}. Nothing was run. Send the call again with an "
        f"object. Received: {text[:_SHOWN]}"
    )
