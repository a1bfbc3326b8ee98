"""Keeps a native library from taking over what happens at an interrupt."""

import ctypes
import signal
from collections.abc import Generator
from contextlib import contextmanager

_ROOM = 512  # bytes; more than any platform's struct sigaction


@contextmanager
def signals_kept() -> Generator[None]:
    """The runtime sets handlers of its own behind Python's back while it starts. Python can put its own back only from
    the main thread, and models are loaded in others, so this is done with the system's own call."""
    libc = ctypes.CDLL(None)
    kept = {number: ctypes.create_string_buffer(_ROOM) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, action in kept.items():
        libc.sigaction(number, None, action)
    try:
        yield
    finally:
        for number, action in kept.items():
            libc.sigaction(number, action, None)
