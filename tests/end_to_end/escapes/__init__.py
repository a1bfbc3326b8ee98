"""Attempts to break out of a sandbox, and what is needed to judge them."""

from tests.end_to_end.escapes import lasting, reaching, reading, writing

ATTEMPTS = [*writing.ATTEMPTS, *reading.ATTEMPTS, *reaching.ATTEMPTS, *lasting.ATTEMPTS]
