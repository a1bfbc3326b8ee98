"""What vendors share when they read an answer: JSON with the damage that real servers do to it."""

import json
from collections.abc import Callable
from typing import TypeVar

import msgspec

from outrider.errors import MalformedAnswerError

Decoded = TypeVar("Decoded")
_SHOWN = 200


def decoded(read: Callable[[bytes], Decoded], data: bytes) -> Decoded:
    """What `read` makes of the JSON, after mending it where that helps; raises MalformedAnswerError."""
    try:
        return read(data)
    except (msgspec.DecodeError, RecursionError) as error:
        mended = mended_json(data)
        if mended is None or mended == data:
            shown = data[:_SHOWN].decode(errors="replace")
            raise MalformedAnswerError(f"the answer is not what the API promises ({error}): {shown}") from error
    return decoded(read, mended)


def mended_json(data: bytes) -> bytes | None:
    """JSON that a strict reader takes, or None where there is no saving it: bytes that are no UTF-8 and halves of
    surrogate pairs are replaced, raw control characters in strings are kept."""
    try:
        value = json.loads(data.decode("utf-8", "replace"), strict=False)
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
