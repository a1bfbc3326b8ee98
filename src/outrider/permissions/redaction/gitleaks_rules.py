"""Loads the secret formats of gitleaks and checks what they match.

The data in `gitleaks_rules.json` is converted from gitleaks' configuration by `scripts/update-secret-rules`; its
licence is in `GITLEAKS_LICENSE`. The generic entropy rule and rules that depend on file names are not included."""

import math
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

_FIRST_GROUP = -1


class GitleaksRule(msgspec.Struct, frozen=True, gc=False):
    """One rule: where it is tried (`marks`, each with whether case is ignored), what it matches and what it excludes.

    A `prefix` rule matches at a mark. An `assigned` rule matches at a vendor's name that is followed by an operator and
    the secret. A `search` rule needs a mark anywhere in the text. `entropy` is the Shannon entropy in bits per
    character that a secret has to exceed. Matches of `allow` and values that contain one of `stopwords` are
    placeholders."""

    id: str
    kind: Literal["prefix", "assigned", "search"]
    marks: tuple[tuple[str, bool], ...]
    regex: str
    group: int = 0
    entropy: float = 0
    allow: tuple[str, ...] = ()
    stopwords: tuple[str, ...] = ()

    def secret_span(self, match: re.Match[str]) -> tuple[int, int] | None:
        """Returns the span of the secret in a match of the rule, or None if it is a placeholder."""
        group = self.group
        if group == _FIRST_GROUP:
            group = next((number for number, value in enumerate(match.groups(), 1) if value), 0)
        secret = match[group]
        if self.entropy and shannon_entropy(secret) <= self.entropy:
            return None
        if _is_placeholder(secret, self.allow, self.stopwords):
            return None
        shared = _load_data().shared
        return None if _is_placeholder(secret, shared.allow, shared.stopwords) else match.span(group)


class SharedExceptions(msgspec.Struct, frozen=True):
    """The allowlist that applies to every rule."""

    allow: tuple[str, ...] = ()
    stopwords: tuple[str, ...] = ()


class RuleData(msgspec.Struct, frozen=True):
    """The content of the data file."""

    rules: tuple[GitleaksRule, ...]
    shared: SharedExceptions


def load_rules() -> tuple[GitleaksRule, ...]:
    """Returns all rules. Reads the data file on the first call."""
    return _load_data().rules


def shannon_entropy(text: str) -> float:
    """Returns the entropy of the text in bits per character."""
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())


@cache
def _load_data() -> RuleData:
    return msgspec.json.decode(Path(__file__).with_name("gitleaks_rules.json").read_bytes(), type=RuleData)


def _is_placeholder(secret: str, allow: tuple[str, ...], stopwords: tuple[str, ...]) -> bool:
    lowered = secret.lower()
    return any(word in lowered for word in stopwords) or any(
        _compile_exception(regex).search(secret) for regex in allow
    )


@cache
def _compile_exception(regex: str) -> re.Pattern[str]:
    return re.compile(regex, re.ASCII)
