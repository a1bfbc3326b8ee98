"""A search with ripgrep: the query as its arguments, its output as hits."""

import os
from collections.abc import Iterator
from contextlib import aclosing

from outrider.tools.search.query import LONGEST_LINE, MOST_HITS, Hit, Query, Scope
from outrider.tools.search.ripgrep import records, ripgrep


async def rg_search(program: str, query: Query, scope: Scope) -> list[Hit]:
    """Files in no order, lines of one file in order."""
    blocks = ripgrep(program, [*_arguments(query), "--", query.pattern, _named(scope.target)], scope.folder, scope.path)
    lines = records(blocks, b"\0" if query.mode == "files_with_matches" else b"\n")
    found: list[Hit] = []
    async with aclosing(lines):
        async for some in lines:
            hits = (
                hit
                for line in (some if query.mode == "files_with_matches" else _joined(some))
                if (hit := _hit(line, query)) is not None
            )
            found += [hit for hit in hits if scope.wanted(hit.path)]
            if len(found) >= MOST_HITS:
                break
    return found


def _named(target: str) -> str:
    """A name that begins with a dash is no option."""
    return target if target == "." else f"./{target}"


def _joined(lines: list[bytes]) -> Iterator[bytes]:
    """A name may hold a line feed; then its first half has no NUL, and is not the mark between two pieces."""
    half = b""
    for line in lines:
        if b"\0" in line or line == b"--":
            yield half + line
            half = b""
        elif line:
            half += line + b"\n"


def _arguments(query: Query) -> list[str]:
    modes = {
        "content": ["--line-number", "--no-heading", "--with-filename", f"--max-columns={LONGEST_LINE * 4}",
                    "--max-columns-preview"],
        "files_with_matches": ["--files-with-matches"],
        "count": ["--count", "--with-filename"],
    }  # fmt: skip
    arguments = ["--null", *modes[query.mode]]
    arguments += [f"--context={query.context}"] if query.context and query.mode == "content" else []
    arguments += [f"--type={query.type}"] if query.type else _hint(query.glob)
    arguments += ["--ignore-case"] if query.ignore_case else []
    arguments += ["--multiline", "--multiline-dotall"] if query.multiline else []
    return arguments


def _hint(glob: str | None) -> list[str]:
    """Spares ripgrep files that are not wanted. As a type, for its `--glob` would bring ignored files back."""
    if not glob or "/" in glob or glob.startswith("!"):
        return []
    return [f"--type-add=wanted:{glob}", "--type=wanted"]


def _hit(line: bytes, query: Query) -> Hit | None:
    """`path NUL 12:text` for a match, `path NUL 12-text` for a line of context."""
    raw_path, zero, rest = line.partition(b"\0")
    path = os.fsdecode(raw_path).removeprefix("./")
    if query.mode == "files_with_matches":
        return Hit(path, 0, "", matches=True) if path else None
    if not zero:
        return None  # the mark between two pieces
    if query.mode == "count":
        return Hit(path, 0, rest.decode("utf-8", "replace"), matches=True)
    digits = len(rest) - len(rest.lstrip(b"0123456789"))
    text = rest[digits + 1 :].decode("utf-8", "replace").rstrip("\r")
    return Hit(path, int(rest[:digits] or 0), text[:LONGEST_LINE], matches=rest[digits : digits + 1] == b":")
