"""Keys stay out of texts that people, logs and models may read."""

import re
from urllib.parse import parse_qsl, urlsplit

from outrider.providers.provider import HttpCall

HIDDEN = "[hidden]"
_SHORTEST = 8  # a shorter secret is part of too many words
_SECRET_NAME = re.compile(r"auth|key|token|secret|cookie|password|signature", re.IGNORECASE)
_SCHEME = re.compile(r"^(bearer|basic|token)\s+", re.IGNORECASE)
# What keys of well-known providers look like, wherever they come from.
_KEYS = re.compile(r"\b(?:sk|pk|rk|gsk|xai|hf|ghp|key)[-_][A-Za-z0-9_-]{16,}|\bAIza[A-Za-z0-9_-]{20,}")
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{12,}", re.IGNORECASE)


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
    return _KEYS.sub(HIDDEN, _BEARER.sub(rf"\1 {HIDDEN}", text))
