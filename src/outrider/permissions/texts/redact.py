"""Hides secrets in text, at one place: what looks like a key, and the values of variables that are named like one."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "[hidden]"
SHORTEST = 8  # a shorter secret is part of too many words
_SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:key|token|secret|password|passwd|pwd|auth|credentials?|cookie|signature|private|dsn|bearer)s?(?:$|[_-])|"
    r"apikey|api_?key|authorization|access_?key|connection_?string",
    re.IGNORECASE,
)
_HARMLESS_NAMES = re.compile(r"^(?:.*_)?(?:PUBLIC_KEY|KEYBOARD.*|TOKENIZERS.*|SSH_AUTH_SOCK|XAUTHORITY|MAX_TOKENS)$")
# What keys look like, wherever they come from.
_KEYS = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|hf|key|pat|pplx|r8|fw|nvapi|sess|tvly|lin_api|shpat|dop_v1|glpat|npm|pypi|dckr_pat)[-_]"
    r"[A-Za-z0-9_-]{16,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}"
    r"|\bAIza[A-Za-z0-9_-]{20,}|\bya29\.[A-Za-z0-9_-]{20,}|\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}"
    r"|\bxox[abeoprs]-[A-Za-z0-9-]{10,}|\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|\bwhsec_[A-Za-z0-9+/=]{16,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
)
_BEARER = re.compile(r"\b(Bearer|Basic|Token)\s+[A-Za-z0-9._~+/=-]{12,}", re.IGNORECASE)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN (?P<kind>[A-Z0-9 ]*PRIVATE KEY)-----.*?(?:-----END (?P=kind)-----|\Z)", re.DOTALL
)
_IN_ADDRESS = re.compile(r"(?P<before>\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)(?P<password>[^\s/@]+)(?=@)", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?P<before>\b[A-Za-z0-9_.-]*(?:api[_-]?key|_key|token(?!s)|secret|passw(?:or)?d|credential)[A-Za-z0-9_]*[\"']?\s*[:=]\s*"
    r"[\"']?)(?P<value>(?=[^\s\"',;]*[A-Za-z])[^\s\"',;]{8,})",
    re.IGNORECASE,
)


def is_secret_name(name: str) -> bool:
    """Whether a variable, header or field of this name holds something that nobody else may know."""
    return _SECRET_NAME.search(name) is not None and not _HARMLESS_NAMES.match(name.upper())


def secret_values(named: Mapping[str, str]) -> list[str]:
    """The secrets among variables or headers, longest first so that none leaves a rest of another."""
    found = {value.strip() for name, value in named.items() if is_secret_name(name)}
    return sorted((value for value in found if len(value) >= SHORTEST), key=len, reverse=True)


class Redactor:
    """Knows the secrets of one engine; give it every text before it is logged, traced, told or stored."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = sorted({secret for secret in secrets if len(secret) >= SHORTEST}, key=len, reverse=True)
        self._known = re.compile("|".join(re.escape(secret) for secret in known)) if known else None

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> "Redactor":
        return cls(secret_values(environment))

    def text(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        return hide_patterns(text)

    def value(self, value: Any) -> Any:
        """A JSON-like value with every text in it redacted; a field that is named like a secret loses its text."""
        match value:
            case str():
                return self.text(value)
            case dict():
                return {self.text(str(key)): self._field(str(key), item) for key, item in value.items()}  # pyright: ignore
            case list() | tuple():
                return [self.value(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
            case _:
                return value

    def _field(self, name: str, value: Any) -> Any:
        return HIDDEN if is_secret_name(name) and isinstance(value, str) and value else self.value(value)


def hide_patterns(text: str) -> str:
    """Hides what looks like a secret or is called one, whoever's it is."""
    return hide_keys(_ASSIGNED.sub(rf"\g<before>{HIDDEN}", text))


def hide_keys(text: str) -> str:
    """Hides only what is a key by its look; the shape of what stands around it stays, so that JSON stays JSON."""
    text = _PRIVATE_KEY.sub(HIDDEN, text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    text = _IN_ADDRESS.sub(rf"\g<before>{HIDDEN}", text)
    return _KEYS.sub(HIDDEN, text)
