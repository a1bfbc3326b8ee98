"""What vendors share when they read an answer: JSON with the damage that real servers do to it."""

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from outrider.errors import MalformedAnswerError

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
