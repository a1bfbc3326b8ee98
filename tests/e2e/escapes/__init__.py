"""Attempts to break out of a sandbox, and what is needed to judge them."""

from tests.e2e.escapes import network_attempts as network_attempts
from tests.e2e.escapes import persistence_attempts as persistence_attempts
from tests.e2e.escapes import read_attempts as read_attempts
from tests.e2e.escapes import write_attempts as write_attempts

ATTEMPTS = [
    *write_attempts.ATTEMPTS,
    *read_attempts.ATTEMPTS,
    *network_attempts.ATTEMPTS,
    *persistence_attempts.ATTEMPTS,
]
