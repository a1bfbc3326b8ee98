"""Ids of sessions, messages and parts (UUID version 7), and the wall clock used by ids and events.

Other code takes the time as an argument, so that tests can set it.
"""

import os
import re
import time
from collections import deque
from functools import lru_cache
from typing import Any

_AT_ONCE = 64
_RANDOM_BITS = int("0fff3fffffffffffffff" * _AT_ONCE, 16)
_VERSION_BITS = int("70008000000000000000" * _AT_ONCE, 16)
_endings: deque[str] = deque()
if hasattr(os, "register_at_fork"):  # a forked child must not reuse the random bytes of its parent
    os.register_at_fork(after_in_child=_endings.clear)
_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


def now_ms() -> int:
    """Returns the time in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def new_id() -> str:
    """Returns a new UUIDv7. Ids sort roughly by time; the order within a session is its sequence number, never an
    id."""
    try:
        ending = _endings.pop()
    except IndexError:
        ending = _more_endings()
    return _beginning(now_ms()) + ending


@lru_cache(maxsize=1)
def _beginning(moment: int) -> str:
    """Returns the time prefix, which all ids of one millisecond share. It is cached for ids of the same millisecond."""
    digits = f"{moment & 0xFFFF_FFFF_FFFF:012x}"
    return f"{digits[:8]}-{digits[8:]}"


def _more_endings() -> str:
    """Generates the random suffixes of many ids with one system call, since a call per id would dominate the cost."""
    digits = f"{int.from_bytes(os.urandom(10 * _AT_ONCE), 'big') & _RANDOM_BITS | _VERSION_BITS:x}"
    starts = range(0, len(digits), 20)
    first, *spare_endings = [
        f"-{digits[start : start + 4]}-{digits[start + 4 : start + 8]}-{digits[start + 8 : start + 20]}"
        for start in starts
    ]
    _endings.extend(spare_endings)
    return first


def is_id(value: object) -> bool:
    """Returns whether the value is a canonical UUID string of any version (imported sessions have other versions)."""
    return isinstance(value, str) and _is_canonical(value)


def are_ids(*values: object) -> bool:
    """Returns whether all values are ids."""
    try:
        return all(map(_is_canonical, values))
    except TypeError:  # a value is not hashable or not a string
        return False


@lru_cache(maxsize=1024)
def _is_canonical(text: Any) -> bool:
    """Returns whether a string is a canonical UUID. Cached, because every part of a session repeats the same session
    and message ids."""
    return _CANONICAL.fullmatch(text) is not None
