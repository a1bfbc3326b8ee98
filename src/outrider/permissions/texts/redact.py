"""Hides secrets in text, at one place: what looks like a key, and the values that somebody said are secret."""

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

from outrider.permissions.texts.formats import SHORTEST, Spans, marked_in, spans_in
from outrider.permissions.texts.unfinished import is_long_word, open_at
from outrider.permissions.texts.walking import HIDDEN, Words, walked
from outrider.types.parts import PartBase

_SHORTEST_WORD = 16  # one of letters alone is a word of the language below this length
_SHORTEST_BEGINNING = 4
_SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:key|token|secret|password|passwd|pwd|auth|credentials?|cookie|signature|private|dsn|bearer)s?(?:$|[_-])|"
    r"apikey|api_?key|authorization|access_?key|connection_?string",
    re.IGNORECASE,
)
_HARMLESS_NAMES = re.compile(r"^(?:.*_)?(?:PUBLIC_KEY|KEYBOARD.*|TOKENIZERS.*|SSH_AUTH_SOCK|XAUTHORITY|MAX_TOKENS)$")
_CLEAN_PARTS = 512
# As `html.escape` does it, whose module brings the names of 2,000 characters along.
_IN_PAGES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_PATH = re.compile(r"^(?:~|\.{1,2})?(?:/[\w.@+-]{0,40})+$")


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a variable, header or field of this name holds something that nobody else may know."""
    return _SECRET_NAME.search(name) is not None and not _HARMLESS_NAMES.match(name.upper())


def secret_values(named: Mapping[str, str]) -> list[str]:
    """The secrets among variables or headers, longest first so that none leaves a rest of another."""
    found = {named[name].strip() for name in named if is_secret_name(name)}
    return sorted(filter(_is_telling, found), key=len, reverse=True)


def _is_telling(value: str) -> bool:
    """Whether hiding the value hides a secret rather than a word, a path or a switch."""
    if len(value) < SHORTEST or _PATH.match(value):
        return False
    return len(value) >= _SHORTEST_WORD or not value.isalpha()


class Redactor:
    """Knows the secrets of one engine; give it every text before it is logged, traced, told or stored."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if len(secret) >= SHORTEST for form in _written(secret)}
        self.known = sorted(forms, key=len, reverse=True)
        self._beginnings = tuple({secret[:_SHORTEST_BEGINNING] for secret in self.known})
        self._clean: dict[int, PartBase] = {}
        self._secrets = _secrets(tuple(self.known))
        self._words = self._secrets.words

    @classmethod
    def of_environment(cls, environment: Mapping[str, str], more: Iterable[str] = ()) -> "Redactor":
        return cls([*secret_values(environment), *more])

    def spans(self, text: str) -> Spans:
        """Where secrets stand: in order, and none touching another."""
        return self._secrets.spans(text)

    def spans_of_bytes(self, raw: bytes) -> Spans:
        """Where secrets stand in output that may be any bytes."""
        found = spans_in(raw.decode("latin-1"))
        for secret in self.known:
            at = raw.find(form := secret.encode(errors="replace"))
            while at >= 0:
                found.append((at, at + len(form)))
                at = raw.find(form, at + len(form))
        return _merged(found)

    def text(self, text: str) -> str:
        return self._words.hide(text)

    def open_at(self, text: str) -> int:
        """Where a secret may have begun that further text would complete."""
        begun = open_at(text)
        for secret in self.known:
            at = text.find(secret[:_SHORTEST_BEGINNING], max(0, len(text) - len(secret)))
            while 0 <= at < begun:
                if secret.startswith(text[at:]):
                    begun = at
                at = text.find(secret[:_SHORTEST_BEGINNING], at + 1)
        return begun

    def is_plain(self, text: str) -> bool:
        """Whether nothing in the text is a secret, nor the beginning of one; quickly, for the many texts that are."""
        if marked_in(text) or is_long_word(text):
            return False
        for beginning in self._beginnings:  # noqa: SIM110  a generator takes longer than what it would look for
            if beginning in text:
                return False
        return True

    def is_plain_beginning(self, text: str) -> bool:
        """As `is_plain`, for the first piece of a text. Often it is all of it, and comes again as what is kept."""
        if not self.is_plain(text):
            return False
        self._words.remember(text)
        return True

    def so_far(self, text: str) -> str:
        """For a text that goes on: what may be the beginning of a secret is left for later."""
        return self.text(text[: self.open_at(text)])

    def value(self, value: Any) -> Any:
        """The value with every text in it redacted: the same object where there was nothing to hide."""
        return walked(value, self._words)

    def kept(self, value: Any) -> Any:
        """As `value`, for what is told next: a part with nothing to hide is known to be clean for a while."""
        clean = walked(value, self._words)
        if clean is value and isinstance(value, PartBase):
            self._clean[id(value)] = value
            while len(self._clean) > _CLEAN_PARTS:
                self._clean.pop(next(iter(self._clean)), None)
        return clean

    def is_clean(self, part: object) -> bool:
        """Whether this very part was lately `kept`, and found to have nothing to hide."""
        return self._clean.get(id(part)) is part

    def draft(self, value: Any) -> Any:
        return walked(value, Words(self.so_far))


def hide_patterns(text: str) -> str:
    """Hides what looks like a secret or is called one, whoever's it is."""
    return _hidden(text, _merged(spans_in(text)))


def _hidden(text: str, spans: Spans) -> str:
    pieces, at = list[str](), 0
    for start, end in spans:
        pieces += (text[at:start], HIDDEN)
        at = end
    return "".join((*pieces, text[at:]))


def _merged(spans: Spans) -> Spans:
    merged: Spans = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _written(secret: str) -> Iterable[str]:
    """A secret as it stands in JSON, in addresses, in pages, and line by line where it has several."""
    lines = [line for line in secret.splitlines() if len(line) >= _SHORTEST_WORD] if "\n" in secret else []
    for form in (secret, *lines):
        yield from (form, json.dumps(form)[1:-1], json.dumps(form, ensure_ascii=False)[1:-1])
        yield from (quote(form, safe=""), quote(form), quote_plus(form), form.translate(_IN_PAGES))


class _Secrets:
    """Finds the secrets that are known, and all that look like one."""

    def __init__(self, known: tuple[str, ...]) -> None:
        self._pattern = re.compile("|".join(map(re.escape, known))) if known else None
        self.words = Words(self._hidden)

    def spans(self, text: str) -> Spans:
        found = spans_in(text)
        if self._pattern is not None and self._pattern.search(text):
            found += (match.span() for match in self._pattern.finditer(text))
        return _merged(found) if found else found

    def _hidden(self, text: str) -> str:
        spans = self.spans(text)
        return _hidden(text, spans) if spans else text


@lru_cache(maxsize=4)
def _secrets(known: tuple[str, ...]) -> _Secrets:
    """Shared by all who know the same secrets: a program that runs agents again and again learns its words once."""
    return _Secrets(known)
