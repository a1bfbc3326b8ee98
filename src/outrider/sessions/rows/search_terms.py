"""Words to look for: what a query means, which text of a part can be found, and the snippet that shows it."""

import re
import unicodedata
from functools import cache, lru_cache

import msgspec

from outrider.types.codec import AnyPart
from outrider.types.parts import TextPart, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError

SEARCHED_CHARACTERS = 256 * 1024
SNIPPET_CHARACTERS = 160

# Scripts written without spaces: each character is a word of its own.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd"
_IS_UNSPACED = f"[{_UNSPACED}]"
_QUERY_TERM = r'"([^"]*)"?|(\S+)'
_WORD = f"[{_UNSPACED}]|(?:(?![{_UNSPACED}])[^\\W_])+"
_INNER = r"[^\W_]"


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """When it is first needed: most programs only write, and large sets of characters take long to compile."""
    return re.compile(pattern)


class Term(msgspec.Struct, frozen=True):
    """Words that must stand side by side; the last may be the beginning of a longer one."""

    words: tuple[str, ...]
    prefix: bool = False


class Query(msgspec.Struct, frozen=True):
    terms: tuple[Term, ...]

    def matches(self, text: str) -> bool:
        folded = fold(text)
        return all(_pattern(term).search(folded) for term in self.terms)

    def phrases_match(self, text: str) -> bool:
        """Whether what an index of single words cannot know holds as well."""
        phrases = [term for term in self.terms if len(term.words) > 1]
        return not phrases or Query(tuple(phrases)).matches(text)

    def snippet(self, text: str) -> str:
        """A line around the first word found, with every word marked."""
        folded = fold(text)
        found = sorted(match.span() for term in self.terms for match in _pattern(term).finditer(folded))
        start = max(0, (found[0][0] if found else 0) - SNIPPET_CHARACTERS // 3)
        end = min(len(text), start + SNIPPET_CHARACTERS)
        pieces: list[str] = ["…"] if start else []
        position = start
        for left, right in found:
            if position <= left and right <= end:
                pieces += [text[position:left], "«", text[left:right], "»"]
                position = right
        pieces.append(text[position:end])
        return re.sub(r"\s+", " ", "".join(pieces) + ("…" if end < len(text) else "")).strip()


def parse(query: str) -> Query:
    """A query without any word has no terms and finds nothing."""
    terms: list[Term] = []
    for match in _compiled(_QUERY_TERM).finditer(query):
        text = match[1] if match[1] is not None else match[2]
        words = tuple(split_words(text))
        if words:
            terms.append(Term(words, prefix=match[1] is None and text.endswith("*")))
    return Query(tuple(terms))


def searchable(part: AnyPart) -> str:
    """The text by which a part is found: what was said, and what tools gave back."""
    match part:
        case TextPart(synthetic=False, ignored=False, text=text):
            return text[:SEARCHED_CHARACTERS]
        case ToolPart(state=ToolCompleted(output=text) | ToolError(error=text)):
            return text[:SEARCHED_CHARACTERS]
        case _:
            return ""


def split_words(text: str) -> list[str]:
    """The words of a text, as a query means them."""
    return _compiled(_WORD).findall(fold(text))


def spaced(text: str) -> str:
    """Text in which every word stands between spaces, for an index that splits at spaces."""
    return text if text.isascii() else _compiled(_IS_UNSPACED).sub(lambda match: f" {match[0]} ", text)


def fold(text: str) -> str:
    """Lower case without accents, of the same length."""
    if text.isascii():
        return text.lower()
    return "".join(map(_fold_character, text))


@lru_cache(maxsize=4096)
def _fold_character(character: str) -> str:
    return unicodedata.normalize("NFD", character)[0].lower()[0]


@lru_cache(maxsize=64)
def _pattern(term: Term) -> re.Pattern[str]:
    words = [
        word if _compiled(_IS_UNSPACED).match(word) else f"(?<!{_INNER}){re.escape(word)}(?!{_INNER})"
        for word in term.words
    ]
    if term.prefix and not _compiled(_IS_UNSPACED).match(term.words[-1]):
        words[-1] = f"(?<!{_INNER}){re.escape(term.words[-1])}{_INNER}*"
    return re.compile(r"[\W_]*".join(words))
