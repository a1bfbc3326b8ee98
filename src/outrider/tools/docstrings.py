"""Reads docstrings in Google, numpy, Sphinx and Epytext style: the text, and the description of each parameter."""

import inspect
import re
from collections.abc import Sequence

import msgspec

_GOOGLE_SECTION = r"(Arg(?:ument)?s|Param(?:eter)?s|Keyword Arg(?:ument)?s|Other Parameters|Attributes)\s*:\s*$"
_NUMPY_SECTION = r"(Parameters|Other Parameters|Attributes)\s*$"
_UNDERLINE = r"-{3,}\s*$"
_GOOGLE_ENTRY = r"\*{0,2}(?P<name>\w+)\s*(?:\((?:[^()]|\([^()]*\))*\))?\s*:(?:\s+(?P<text>.*)|\s*)$"
_NUMPY_ENTRY = r"(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$"
_FIELD = r"[:@](?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(?P<name>\w+)\s*:\s*(?P<text>.*)$"
_TYPE_FIELD = r"[:@](?:type|rtype|kwtype|vartype)\b[^:]*:"


class ParsedDocstring(msgspec.Struct, frozen=True):
    """The text of a docstring without its list of parameters, and the descriptions of the parameters."""

    summary: str = ""
    parameters: dict[str, str] = {}


def parse_docstring(docstring: str | None) -> ParsedDocstring:
    """Reads a docstring. What is not about a parameter stays in the summary, also other sections such as Returns."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    text: list[str] = []
    found: dict[str, list[str]] = {}
    position = 0
    while position < len(lines):
        line = lines[position]
        if re.match(_GOOGLE_SECTION, line):
            position = _read_google(lines, position + 1, found)
        elif re.match(_NUMPY_SECTION, line) and re.match(_UNDERLINE, "".join(lines[position + 1 : position + 2])):
            position = _read_numpy(lines, position + 2, found)
        elif match := re.match(_FIELD, line.lstrip()):
            position, more = _read_indented(lines, position + 1, _indent(line))
            found[match["name"]] = [match["text"], *more]
        elif re.match(_TYPE_FIELD, line.lstrip()):
            position, _ = _read_indented(lines, position + 1, _indent(line))
        else:
            text.append(line)
            position += 1
    summary = re.sub(r"\n{3,}", "\n\n", "\n".join(text)).strip()
    return ParsedDocstring(summary, {name: words for name, one in found.items() if (words := _join(one))})


def _read_google(lines: Sequence[str], position: int, found: dict[str, list[str]]) -> int:
    """Reads the entries of a Google section and returns the position after it."""
    base: int | None = None
    current: list[str] | None = None
    while position < len(lines):
        line = lines[position]
        if not line.strip():
            if current is not None:
                current.append("")
            position += 1
            continue
        depth = _indent(line)
        if depth == 0 or (base is not None and depth < base):
            return position
        base = depth if base is None else base
        entry = re.match(_GOOGLE_ENTRY, line.strip()) if depth == base else None
        if entry:
            current = found.setdefault(entry["name"], [])
            current.append(entry["text"] or "")
        elif current is not None:
            current.append(line.strip())
        position += 1
    return position


def _read_numpy(lines: Sequence[str], position: int, found: dict[str, list[str]]) -> int:
    """Reads the entries of a numpy section and returns the position after it."""
    current: list[list[str]] = []
    while position < len(lines):
        line = lines[position]
        if position + 1 < len(lines) and line.strip() and re.match(_UNDERLINE, lines[position + 1]):
            return position
        if line.strip() and _indent(line) == 0:
            entry = re.match(_NUMPY_ENTRY, line)
            if not entry:
                return position
            names = [name.strip().lstrip("*") for name in entry["names"].split(",")]
            current = [found.setdefault(name, []) for name in names]
        else:
            for words in current:
                words.append(line.strip())
        position += 1
    return position


def _read_indented(lines: Sequence[str], position: int, depth: int) -> tuple[int, list[str]]:
    """Returns the lines that are indented deeper, and the position after them."""
    found: list[str] = []
    while position < len(lines) and lines[position].strip() and _indent(lines[position]) > depth:
        found.append(lines[position].strip())
        position += 1
    return position, found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _join(lines: Sequence[str]) -> str:
    """Joins the lines of a description; an empty line separates paragraphs."""
    paragraphs = re.split(r"\n{2,}", "\n".join(line.strip() for line in lines).strip())
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs)
