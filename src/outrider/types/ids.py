"""Ids of sessions, messages and parts (UUIDs of version 7), and the wall clock that they and events begin with.

Everything else takes the time as an argument.
"""

import os
import re
import time

_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


def new_id() -> str:
    """A fresh UUIDv7. Ids sort roughly by time; order within a session is its sequence number, never an id."""
    random = int.from_bytes(os.urandom(10), "big")
    value = (
        (now_ms() & 0xFFFF_FFFF_FFFF) << 80
        | 0x7 << 76
        | (random >> 68) << 64
        | 0b10 << 62
        | (random & 0x3FFF_FFFF_FFFF_FFFF)
    )
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def is_id(value: object) -> bool:
    """Whether this is a UUID in its canonical form (any version: imported sessions bring their own)."""
    return isinstance(value, str) and _CANONICAL.fullmatch(value) is not None
