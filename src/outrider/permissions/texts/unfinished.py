"""Where a secret may have begun at the end of a text that is still being written."""

import re
from functools import cache
from re import Pattern

from outrider.permissions.texts.formats import CERTAIN, FORMATS

LONGEST_HELD = 8_192
_PEM_BEGIN, _PEM_END = "-----BEGIN ", "-----END "
_LONG_WORD = 20  # in a word of this length a key may begin without a mark
_ALL_WORD = re.compile(rf"[\w.+/=:~%-]{{{_LONG_WORD}}}")


def open_at(text: str) -> int:
    """From here on, more text could make a secret of it; the length of the text where nothing has begun."""
    start = max(0, len(text) - LONGEST_HELD)
    tail = text[start:]
    begun = tail.rfind(_PEM_BEGIN)
    if begun >= 0 and _PEM_END not in tail[begun:]:
        return start + begun
    word = _last_word(tail)
    if is_long_word(tail) or _key().search(tail, word):
        return start + word
    opened = _open_word().search(tail)
    return len(text) if opened is None else start + opened.start("rest")


def is_long_word(text: str) -> bool:
    """Whether the text ends in a word so long that it may be a key."""
    return len(text) >= _LONG_WORD and _ALL_WORD.fullmatch(text, len(text) - _LONG_WORD) is not None


def _last_word(text: str) -> int:
    """Where the letters and signs of which keys are made begin, at the end of a text."""
    at = len(text)
    while at and (text[at - 1].isalnum() or text[at - 1] in "_.+/=:~%-"):
        at -= 1
    return at


@cache
def _key() -> Pattern[str]:
    """Compiled with the first text that streams, not before the first request leaves."""
    marks = {form.mark for form in FORMATS if not form.folded} - CERTAIN.keys() | {_PEM_BEGIN}
    certain = [re.escape(mark) + rest for mark, rest in CERTAIN.items()]
    return re.compile("|".join([*map(re.escape, sorted(marks)), *certain]))


@cache
def _open_word() -> Pattern[str]:
    return re.compile(
        r"(?:(?:bearer|basic|token|passw(?:or)?d)\s+|(?:authorization|cookie)\\?[\"']?\s*[:=]\s*\\?[\"']?(?:[a-z]+\s+)?|"
        r"(?:key|token|secret|passw(?:or)?d|passphrase|credentials?|string|pwd|dsn)[a-z0-9_]*\\?[\"']?\s*(?:=>?|:)\s*\\?[\"']?|"
        r"://|(?:sig|signature|code|auth)=|hooks\.|webhooks/|(?:-u|--user)[ =][\"']?)"
        r"(?P<rest>[^\s\"']*)\Z",
        re.IGNORECASE,
    )
