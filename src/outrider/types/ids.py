"""Ids of sessions, messages and parts (UUIDs of version 7), and the wall clock that they and events begin with.

Everything else takes the time as an argument.
"""

import os
import re
import time
from collections import deque
from functools import lru_cache

_AT_ONCE = 64
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_randoms: deque[str] = deque()
os.register_at_fork(after_in_child=_randoms.clear)  # a child must not use those of its parent
_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


def new_id() -> str:
    """A fresh UUIDv7. Ids sort roughly by time; order within a session is its sequence number, never an id."""
    try:
        random = _randoms.pop()
    except IndexError:
        random = _more_randoms()
    moment = f"{now_ms() & 0xFFFF_FFFF_FFFF:012x}"
    return f"{moment[:8]}-{moment[8:]}-7{random[:3]}-{_VARIANT[random[3]]}{random[4:7]}-{random[7:19]}"


def _more_randoms() -> str:
    """Random digits for many ids: a system call for each would take longer than all the rest."""
    digits = os.urandom(10 * _AT_ONCE).hex()
    _randoms.extend(digits[start : start + 20] for start in range(20, len(digits), 20))
    return digits[:20]


def is_id(value: object) -> bool:
    """Whether this is a UUID in its canonical form (any version: imported sessions bring their own)."""
    return isinstance(value, str) and _is_canonical(value)


@lru_cache(maxsize=1024)
def _is_canonical(text: str) -> bool:
    """Remembered: every part names its session and its message."""
    return _CANONICAL.fullmatch(text) is not None
