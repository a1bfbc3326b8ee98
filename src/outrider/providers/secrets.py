"""Keys stay out of texts that people, logs and models may read."""

import re
from urllib.parse import parse_qsl, urlsplit

from outrider.permissions.texts.redact import HIDDEN, hide_patterns
from outrider.providers.provider import HttpCall

_SHORTEST = 8  # a shorter secret is part of too many words
_SECRET_NAME = re.compile(r"auth|key|token|secret|cookie|password|signature", re.IGNORECASE)
_SCHEME = re.compile(r"^(bearer|basic|token)\s+", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether a header or a query field of this name holds something that nobody else may know."""
    return _SECRET_NAME.search(name) is not None


def secrets_of(call: HttpCall) -> list[str]:
    """The keys that a call carries, longest first."""
    address = urlsplit(call.url)
    named = [*call.headers.items(), *parse_qsl(address.query)]
    found = {_SCHEME.sub("", value).strip() for name, value in named if is_secret(name)}
    found.add(address.password or "")
    return sorted((secret for secret in found if len(secret) >= _SHORTEST), key=len, reverse=True)


def without_secrets(text: str, call: HttpCall) -> str:
    """The text with this call's keys, and all that looks like a key, hidden."""
    for secret in secrets_of(call):
        text = text.replace(secret, HIDDEN)
    return hide_patterns(text)
