"""Keys stay out of texts that people, logs and models may read."""

import re
from collections.abc import Mapping

SECRET_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "set-cookie"}
)
HIDDEN = "[hidden]"
_SHORTEST = 8  # a shorter secret is part of too many words
# What keys of well-known providers look like, wherever they come from.
_KEYS = re.compile(r"\b(?:sk|pk|rk|gsk|xai|hf|ghp|key)[-_][A-Za-z0-9_-]{16,}|\bAIza[A-Za-z0-9_-]{20,}")
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{12,}", re.IGNORECASE)


def without_secrets(text: str, headers: Mapping[str, str]) -> str:
    """The text with the secrets of these request headers, and all that looks like a key, hidden."""
    for name, value in headers.items():
        if name.lower() in SECRET_HEADERS:
            secret = value.removeprefix("Bearer ").strip()
            if len(secret) >= _SHORTEST:
                text = text.replace(secret, HIDDEN)
    return _KEYS.sub(HIDDEN, _BEARER.sub(rf"\1 {HIDDEN}", text))
