"""Full-text queries: parsing, the searchable text of a part, and result snippets."""

import re
import unicodedata
from functools import cache, lru_cache
from typing import assert_never

import msgspec

from outrider.errors import ConfigurationError
from outrider.types.codec import AnyPart
from outrider.types.parts import (
    AgentPart,
    CompactionPart,
    FilePart,
    PatchPart,
    ReasoningPart,
    RetryPart,
    SnapshotPart,
    StepFinishPart,
    StepStartPart,
    SubtaskPart,
    TextPart,
    ToolPart,
    is_standard_part,
)
from outrider.types.tool_state import ToolCompleted, ToolError

SEARCHED_CHARACTERS = 256 * 1024
SNIPPET_CHARACTERS = 160

# Scripts without spaces between words (Chinese, Japanese): each character is one search term.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd"
_IS_UNSPACED = f"[{_UNSPACED}]"
_QUERY_TERM = r'"([^"]*)"?|(\S+)'
_WORD = f"[{_UNSPACED}]|(?:(?![{_UNSPACED}])[^\\W_])+"
_INNER = r"[^\W_]"


@cache
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern on first use: large character classes compile slowly, and most programs never search."""
    return re.compile(pattern)


class QueryTerm(msgspec.Struct, frozen=True):
    """Adjacent words. With `prefix`, the last word matches longer words too."""

    words: tuple[str, ...]
    prefix: bool = False


class TextQuery(msgspec.Struct, frozen=True):
    """A parsed query. A text matches if it contains all terms."""

    terms: tuple[QueryTerm, ...]

    def matches(self, text: str) -> bool:
        folded = fold_text(text)
        return all(_term_pattern(term).search(folded) for term in self.terms)

    def phrases_match(self, text: str) -> bool:
        """Returns whether the text contains all phrases. An index of single words cannot check the order of words."""
        phrases = [term for term in self.terms if len(term.words) > 1]
        return not phrases or TextQuery(tuple(phrases)).matches(text)

    def make_snippet(self, text: str) -> str:
        """Returns one line around the first match, with all matches marked."""
        folded = fold_text(text)
        spans = sorted(match.span() for term in self.terms for match in _term_pattern(term).finditer(folded))
        start = max(0, (spans[0][0] if spans else 0) - SNIPPET_CHARACTERS // 3)
        end = min(len(text), start + SNIPPET_CHARACTERS)
        pieces: list[str] = ["…"] if start else []
        position = start
        for match_start, match_end in spans:
            if position <= match_start and match_end <= end:
                pieces += [text[position:match_start], "«", text[match_start:match_end], "»"]
                position = match_end
        pieces.append(text[position:end])
        return re.sub(r"\s+", " ", "".join(pieces) + ("…" if end < len(text) else "")).strip()


def parse_query(query: str) -> TextQuery:
    """Parses a query string. A query without words has no terms and matches nothing."""
    if not isinstance(query, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"a search takes the words to search for, got {query!r}")
    terms: list[QueryTerm] = []
    for match in _compile_pattern(_QUERY_TERM).finditer(query):
        text = match[1] if match[1] is not None else match[2]
        words = tuple(split_words(text))
        if words:
            terms.append(QueryTerm(words, prefix=match[1] is None and text.endswith("*")))
    return TextQuery(tuple(terms))


def searchable_text(part: AnyPart) -> str:
    """Returns the text of a part that search covers: messages and tool output."""
    if not is_standard_part(part):
        return ""
    match part:
        case TextPart():
            return "" if part.synthetic or part.ignored else part.text[:SEARCHED_CHARACTERS]
        case ToolPart(state=ToolCompleted(output=text) | ToolError(error=text)):
            return text[:SEARCHED_CHARACTERS]
        case ToolPart() | ReasoningPart() | FilePart() | StepStartPart() | StepFinishPart() | SnapshotPart():
            return ""
        case PatchPart() | AgentPart() | SubtaskPart() | RetryPart() | CompactionPart():
            return ""
        case _:
            assert_never(part)


def split_words(text: str) -> list[str]:
    """Splits a text into lower-case words without accents, in the same way as a query."""
    return _compile_pattern(_WORD).findall(fold_text(text))


def space_words(text: str) -> str:
    """Puts spaces around characters of scripts without spaces, for a database index that splits at spaces."""
    return text if text.isascii() else _compile_pattern(_IS_UNSPACED).sub(lambda match: f" {match[0]} ", text)


def fold_text(text: str) -> str:
    """Returns the text in lower case without accents; the length stays, so that positions match the original."""
    if text.isascii():
        return text.lower()
    return "".join(map(_fold_character, text))


@lru_cache(maxsize=4096)
def _fold_character(character: str) -> str:
    return unicodedata.normalize("NFD", character)[0].lower()[0]


@lru_cache(maxsize=64)
def _term_pattern(term: QueryTerm) -> re.Pattern[str]:
    words = [
        word if _compile_pattern(_IS_UNSPACED).match(word) else f"(?<!{_INNER}){re.escape(word)}(?!{_INNER})"
        for word in term.words
    ]
    if term.prefix and not _compile_pattern(_IS_UNSPACED).match(term.words[-1]):
        words[-1] = f"(?<!{_INNER}){re.escape(term.words[-1])}{_INNER}*"
    return re.compile(r"[\W_]*".join(words))
