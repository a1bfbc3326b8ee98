"""What vendors share when they read an answer: JSON with the damage that real servers do to it."""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import msgspec

from outrider.errors import MalformedAnswerError
from outrider.types.validate import is_object

Decoded = TypeVar("Decoded")

# A value may also be nested deeper than Python can follow.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_SHOWN = 200
_MOST_MENDED = 32  # fields of one event
_MISFIT = re.compile(r"Expected `([^`]+)`, got `\w+` - at `\$((?:\.\w+|\[\d+\])+)`")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


def decoded(read: Callable[[bytes], Decoded], data: bytes) -> Decoded:
    """What `read` makes of the JSON, after mending it where that helps; raises MalformedAnswerError."""
    try:
        return read(data)
    except UNREADABLE as error:
        problem: Exception = error
    mended = mended_json(data)
    try:
        if mended is not None:
            return fitted(msgspec.json.decode(mended), lambda value: read(msgspec.json.encode(value)))
    except UNREADABLE as error:
        problem = error
    shown = data[:_SHOWN].decode(errors="replace")
    raise MalformedAnswerError(f"the answer is not what the API promises ({problem}): {shown}") from problem


def mended_json(data: bytes) -> bytes | None:
    """JSON that a strict reader takes, or None where there is no saving it: bytes that are no UTF-8 and halves of
    surrogate pairs are replaced, raw control characters in strings are kept, and what is no number is null."""
    try:
        value = json.loads(data.decode("utf-8", "replace"), strict=False, parse_constant=_no_number)
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def said_in(body: bytes) -> Any:
    """What the body of a refusal says: the value of its JSON, also where it comes as an event, or else its text."""
    try:
        framed = values_in(body) if body.lstrip().startswith((b"data:", b"event:")) else []
        return msgspec.json.decode(framed[0] if framed else mended_json(body) or body)
    except UNREADABLE:
        return body.decode("utf-8", "replace")


def shown(value: Any) -> str:
    """The JSON of a value, for people; nothing for what is nested deeper than anybody can follow."""
    try:
        return msgspec.json.encode(value).decode()
    except RecursionError:
        return ""


def fitted(value: Any, convert: Callable[[Any], Decoded]) -> Decoded:
    """What `convert` makes of the value. Where a field is not of the type that the API promises, what it says is
    taken if there is no doubt about it, and otherwise the field says as little as one that is missing."""
    for _ in range(_MOST_MENDED):
        try:
            return convert(value)
        except msgspec.ValidationError as error:
            if not _mend(value, str(error)):
                raise
    return convert(value)


def values_in(data: bytes) -> list[bytes]:
    """The JSON objects that stand in the data one after the other; what stands between them is left out."""
    text = data.decode("utf-8", "replace")
    decoder = json.JSONDecoder(strict=False)
    found: list[bytes] = []
    start = text.find("{")
    try:
        while start >= 0:
            _, end = decoder.raw_decode(text, start)
            found.append(text[start:end].encode())
            start = text.find("{", end)
    except (ValueError, RecursionError):
        pass  # what follows is cut off
    return found


def _no_number(_: str) -> None:
    """NaN and the infinities, as JavaScript writes them."""


def _mend(value: Any, problem: str) -> bool:
    """Whether the field that the reader stumbled over could be put right."""
    found = _MISFIT.match(problem)
    if found is None:
        return False
    steps = [int(index) if index else name for name, index in _STEP.findall(found[2])]
    for step in steps[:-1]:
        value = value[step]
    holder, last = cast("dict[Any, Any]", value), steps[-1]
    meant = _meant(holder[last], found[1])
    if meant is None:
        del holder[last]
    else:
        holder[last] = meant
    return True


def _meant(given: Any, expected: str) -> Any:
    """The value in the type that was expected, or None."""
    if "str" in expected and given is not None:
        return json.dumps(given, ensure_ascii=False)
    if "int" in expected and isinstance(given, str | float):
        try:
            return int(float(given))
        except (ValueError, OverflowError):
            return None
    return None


_SHOWN_TOOL_INPUT = 200
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
        shown = text if len(text) <= _SHOWN_TOOL_INPUT else f"{text[:_SHOWN]}…"
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
