"""Code in colours, from whatever lexer knows its language."""

from functools import lru_cache
from typing import Any

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename  # pyright: ignore[reportUnknownVariableType]
from pygments.token import Token
from pygments.util import ClassNotFound
from rich.style import Style
from rich.text import Text

from outrider.tui.rendering.palette import Palette

LONGEST = 40_000  # characters; more than this is shown plain, since colours would hold up the screen

_COLOURS: dict[Any, tuple[str, dict[str, bool]]] = {
    Token.Comment: ("quiet", {"italic": True}),
    Token.Keyword: ("keyword", {}),
    Token.Operator.Word: ("keyword", {}),
    Token.Name.Function: ("name", {}),
    Token.Name.Class: ("name", {}),
    Token.Name.Decorator: ("name", {}),
    Token.Name.Builtin: ("name", {}),
    Token.Name.Tag: ("keyword", {}),
    Token.Name.Attribute: ("name", {}),
    Token.Literal.String: ("string", {}),
    Token.Literal.Number: ("number", {}),
    Token.Generic.Inserted: ("good", {}),
    Token.Generic.Deleted: ("bad", {}),
    Token.Generic.Heading: ("quiet", {}),
    Token.Generic.Subheading: ("quiet", {}),
    Token.Generic.Prompt: ("quiet", {}),
}


def coloured(code: str, language: str, palette: Palette) -> list[Text]:
    """The lines of a piece of code; an unknown language stays plain."""
    lexer = lexer_for(language) if len(code) <= LONGEST else None
    if lexer is None:
        return [Text(found, palette.style("text"), end="") for found in code.split("\n")]
    whole = Text(end="")
    for token, text in lexer.get_tokens(code):
        whole.append(text, _style(token, palette))
    lines = list(whole.split("\n", allow_blank=True))
    return lines[: code.count("\n") + 1]  # lexers add a last newline


@lru_cache(maxsize=64)
def lexer_for(language: str) -> Lexer | None:
    """By the name of a language, else by a file's name."""
    if not language:
        return None
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        pass
    try:
        return get_lexer_for_filename(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@lru_cache(maxsize=512)
def _style(token: Any, palette: Palette) -> Style:
    while token is not None:
        if token in _COLOURS:
            colour, more = _COLOURS[token]
            return palette.style(colour, **more)
        token = token.parent
    return palette.style("text")
