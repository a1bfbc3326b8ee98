"""Attempts to break out of a sandbox, and what is needed to judge them."""

from tests.e2e.escapes import lasting, reaching, reading, writing

ATTEMPTS = [*writing.ATTEMPTS, *reading.ATTEMPTS, *reaching.ATTEMPTS, *lasting.ATTEMPTS]
