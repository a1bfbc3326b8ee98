"""Lenient JSON decoding of provider responses, and of tool inputs that models write."""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, assert_never, cast

import msgspec

from outrider._lazy import lazy_pattern
from outrider.errors import MalformedAnswerError
from outrider.types.partial_json import find_json_objects, find_value_end
from outrider.types.request import (
    AnswerStart,
    Delta,
    Finish,
    InputDelta,
    PartEnd,
    PartStart,
    ReasoningDelta,
    RemoteEvent,
    Retry,
    TextDelta,
    UsageReport,
)
from outrider.types.validate import JSON_ERRORS, MAX_NESTING, is_object, is_too_deep

Decoded = TypeVar("Decoded")

_PREVIEW_CHARACTERS = 200
_MAX_REPAIRED_FIELDS = 32  # fields of one event
_TYPE_MISMATCH = lazy_pattern(r"Expected `([^`]+)`, got `\w+` - at `\$((?:\.\w+|\[\d+\])+)`")
_PATH_STEP = lazy_pattern(r"\.(\w+)|\[(\d+)\]")


def decode_json(read: Callable[[bytes], Decoded], data: bytes, *, mark_surrogates: bool = False) -> Decoded:
    """Decodes JSON with `read`, repairs it if that fails, and raises MalformedAnswerError if both fail."""
    try:
        return read(data)
    except JSON_ERRORS as error:
        problem: Exception = error
    repaired = repair_json(data, mark_surrogates=mark_surrogates)
    try:
        if repaired is not None:
            return convert_leniently(msgspec.json.decode(repaired), lambda value: read(msgspec.json.encode(value)))
    except JSON_ERRORS as error:
        problem = error
    preview = data[:_PREVIEW_CHARACTERS].decode(errors="replace")
    raise MalformedAnswerError(f"the response does not have the documented form ({problem}): {preview}") from problem


def repair_json(data: bytes, *, mark_surrogates: bool = False) -> bytes | None:
    """Returns strictly valid JSON, or None if the data is not JSON at all.

    Replaces invalid UTF-8 and lone surrogates, accepts raw control characters in strings, and turns NaN and Infinity
    into null. With `mark_surrogates`, a half of a pair at the end or start of a string becomes a mark that
    `SurrogateJoiner` joins with the other half or replaces.
    """
    try:
        value = json.loads(data.decode("utf-8", "replace"), strict=False, parse_constant=_parse_constant)
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    if mark_surrogates:
        text = re.sub(_SPLIT_SURROGATE, lambda match: chr(ord(match[0]) + _MARK_OFFSET), text)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


# UTF-8 has no surrogates, so they are decoded as private use characters that no model writes.
_SPLIT_SURROGATE = r'[\ud800-\udbff](?=")|(?<=")[\udc00-\udfff]'  # at the end or at the start of a string
_MARK_OFFSET = 0x10F000 - 0xD800
_HIGH, _LOW = "\U0010f000-\U0010f3ff", "\U0010f400-\U0010f7ff"
_MARKED_PAIR = f"([{_HIGH}])([{_LOW}])"
_MARK = f"[{_HIGH}{_LOW}]"
_OPEN_MARK = f"[{_HIGH}]\\Z"


class SurrogateJoiner:
    """Joins the two halves of a character that a server has split over two deltas of a part. A half without the other
    one becomes a replacement character."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[type[TextDelta | ReasoningDelta | InputDelta], str]] = {}

    def feed(self, deltas: Iterable[Delta]) -> list[Delta]:
        return [joined for delta in deltas for joined in self._join(delta)]

    def _join(self, delta: Delta) -> Iterable[Delta]:
        match delta:
            case TextDelta(index, text) | ReasoningDelta(index, text) | InputDelta(index, text):
                return self._join_text(delta, index, text)
            case PartStart(index) | PartEnd(index):
                return (*self._close(index), delta)
            case Finish():
                return (*(closed for index in list(self._open) for closed in self._close(index)), delta)
            case AnswerStart() | Retry() | UsageReport() | RemoteEvent():
                return (delta,)
            case _:
                assert_never(delta)

    def _join_text(self, delta: TextDelta | ReasoningDelta | InputDelta, index: int, text: str) -> Iterable[Delta]:
        if index in self._open:
            text = self._open.pop(index)[1] + text
        elif text.isascii() or not re.search(_MARK, text):
            return (delta,)
        if re.search(_OPEN_MARK, text):
            self._open[index], text = (type(delta), text[-1]), text[:-1]
        return (type(delta)(index, _join_marks(text)),) if text else ()

    def _close(self, index: int) -> Iterable[Delta]:
        if index not in self._open:
            return ()
        kind, mark = self._open.pop(index)
        return (kind(index, _join_marks(mark)),)


def _join_marks(text: str) -> str:
    joined = re.sub(_MARKED_PAIR, lambda pair: _unmark(pair[1]) + _unmark(pair[2]), text)
    return re.sub(_MARK, "\ufffd", joined.encode("utf-16", "surrogatepass").decode("utf-16"))


def _unmark(mark: str) -> str:
    return chr(ord(mark) - _MARK_OFFSET)


def decode_error_body(body: bytes) -> Any:
    """Returns the JSON value of an error body, which may be framed as a server-sent event; else its text."""
    try:
        framed = find_json_objects(body) if body.lstrip().startswith((b"data:", b"event:")) else []
        return msgspec.json.decode(framed[0] if framed else repair_json(body) or body)
    except JSON_ERRORS:
        return body.decode("utf-8", "replace")


def error_fields(payload: Any) -> dict[str, Any]:
    """Returns the fields of an error object, or of the innermost one if objects or lists contain it. Any other value
    becomes the message."""
    while (inner := _inner_error(payload)) is not None:
        payload = inner
    if is_object(payload):
        return payload
    return {"message": payload if isinstance(payload, str) else format_json(payload)}


def _inner_error(payload: Any) -> Any:
    """Returns the nested error object, or None if `payload` is the error itself."""
    if isinstance(payload, list):
        return cast("list[Any]", payload)[0] if payload else None
    for name in ("error", "errors") if is_object(payload) else ():
        inner = payload.get(name)
        if inner and isinstance(inner, dict | list):
            return cast("Any", inner)
    return None


def format_json(value: Any) -> str:
    """Returns a value as JSON text for error messages; "" if it is nested too deeply."""
    try:
        return msgspec.json.encode(value).decode()
    except RecursionError:
        return ""


def convert_leniently(value: Any, convert: Callable[[Any], Decoded]) -> Decoded:
    """Converts a value with `convert`. A field of the wrong type is coerced if that is unambiguous, else deleted."""
    for _ in range(_MAX_REPAIRED_FIELDS):
        try:
            return convert(value)
        except msgspec.ValidationError as error:
            if not _repair_field(value, str(error)):
                raise
    return convert(value)


def _parse_constant(_: str) -> None:
    """Decodes NaN and Infinity, which JavaScript servers may write, as None."""


def _repair_field(value: Any, problem: str) -> bool:
    """Coerces or deletes the field named in a msgspec error message; returns False if the message names none."""
    match = _TYPE_MISMATCH.match(problem)
    if match is None:
        return False
    steps = [int(index) if index else name for name, index in _PATH_STEP.findall(match[2])]
    for step in steps[:-1]:
        value = value[step]
    holder, key = cast("dict[Any, Any]", value), steps[-1]
    coerced = _coerce_value(holder[key], match[1])
    if coerced is None:
        del holder[key]
    else:
        holder[key] = coerced
    return True


def _coerce_value(value: Any, expected: str) -> Any:
    """Returns the value in the expected type, or None if that is not possible."""
    if "str" in expected and value is not None:
        return json.dumps(value, ensure_ascii=False)
    if "int" in expected and isinstance(value, str | float):
        try:
            return int(float(value))
        except (ValueError, OverflowError):
            return None
    return None


_SHOWN_TOOL_INPUT = 200


def parse_tool_input(raw: str) -> tuple[dict[str, Any], str | None]:
    """Parses a tool input; returns the object and an error message, or None. An empty string is an empty object."""
    text = raw.strip()
    if not text:
        return {}, None
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:  # ValueError: not JSON, or not even Unicode
        return _describe_invalid_input(text, str(error))
    if isinstance(value, str):  # some servers encode the arguments as JSON twice
        inner, problem = parse_tool_input(value) if value.strip().startswith("{") else ({}, "a string")
        return (inner, None) if problem is None else ({}, _must_be_object("a string", text))
    if value is None:
        return {}, None
    if not is_object(value):
        return {}, _must_be_object(type(value).__name__, text)
    if text.count("{") + text.count("[") > MAX_NESTING and is_too_deep(value):
        return {}, f"The input of this call is nested deeper than {MAX_NESTING} levels. Nothing was run."
    return value, None


def _describe_invalid_input(text: str, reason: str) -> tuple[dict[str, Any], str]:
    end = find_value_end(text)
    surplus = "" if end is None else text[end:].strip()
    if not surplus:
        preview = text if len(text) <= _SHOWN_TOOL_INPUT else f"{text[:_PREVIEW_CHARACTERS]}…"
        return {}, (
            f"The input of this call is not valid JSON ({reason}). It may have been cut off. Nothing was run. "
            f"Send the call again with one complete JSON object. Received: {preview}"
        )
    return {}, (
        "The input of this call is a JSON value followed by more text, so it is unclear what was meant. Nothing was "
        f"run. Send the call again with exactly one JSON object. The surplus begins: {surplus[:_PREVIEW_CHARACTERS]}"
    )


def _must_be_object(actual: str, text: str) -> str:
    return (
        f"The input of this call must be one JSON object, got {actual}. Nothing was run. Send the call again with an "
        f"object. Received: {text[:_PREVIEW_CHARACTERS]}"
    )
