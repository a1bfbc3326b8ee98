"""Searches the contents of files for a regular expression."""

import os
import stat
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from outrider.errors import ToolFailure
from outrider.permissions.paths.protected import protecting
from outrider.tools import search
from outrider.tools.search import Hit, OutputMode, Query, Scope
from outrider.tools.text.encoding import shown
from outrider.tools.threads import Threads
from outrider.tools.tool import Tool, ToolResult, argument_aliases, prompt_beside
from outrider.tools.workspace_files import Files, Place, printable

ROOM = 26_000  # characters of an answer; the runner would cut a longer one in its middle
_LONGEST_PATTERN = 10_000
_MOST_CONTEXT = 20
_ALIASES = {
    "regex": "pattern",
    "query": "pattern",
    "include": "glob",
    "-i": "ignore_case",
    "case_insensitive": "ignore_case",
    "-C": "context",
    "head_limit": "limit",
    "file_path": "path",
    "mode": "output_mode",
}
_threads = Threads(4)


def grep_tool(files: Files) -> Tool:
    async def grep(  # noqa: PLR0913  what models know to ask for
        pattern: str,
        path: Annotated[str, "file or folder"] = ".",
        glob: Annotated[str | None, "e.g. `*.py`"] = None,
        type: Annotated[str | None, "e.g. `py`"] = None,
        output_mode: OutputMode = "content",
        ignore_case: bool = False,  # noqa: FBT001, FBT002  as models write it
        context: Annotated[int, "lines around"] = 0,
        multiline: bool = False,  # noqa: FBT001, FBT002
        limit: int = 200,
    ) -> ToolResult:
        glob = f"{{{glob}}}" if glob and "," in glob and "{" not in glob else glob
        query = Query(pattern, output_mode, glob, type, ignore_case, context, multiline)
        _require_sane(query, limit)
        target: _Target = await _threads.run(lambda: _target(files, path))
        return _told(_from_workspace(await _search(files, target, query), target), query, limit)

    return Tool(
        grep,
        description=prompt_beside(__file__),
        read_only=True,
        repeatable=True,
        timeout=60,
        preprocess_args=_understood,
        unsaid=("type", "multiline", "limit"),
    )


def _understood(arguments: dict[str, Any]) -> dict[str, Any]:
    """`-A` and `-B` become lines on both sides, and `-n` is what happens anyway."""
    arguments = argument_aliases(_ALIASES, drop=frozenset({"-n"}))(arguments)
    around = [arguments.pop(name) for name in ("-A", "-B") if name in arguments]
    if around and "context" not in arguments:
        numbers = [lines for lines in around if isinstance(lines, int)]
        arguments["context"] = max(numbers, default=around[0])
    if arguments.get("output_mode") == "files":
        arguments["output_mode"] = "files_with_matches"
    return arguments


def _require_sane(query: Query, limit: int) -> None:
    if not query.pattern or len(query.pattern) > _LONGEST_PATTERN:
        raise ToolFailure(f"`pattern` has 1 to {_LONGEST_PATTERN:,} characters")
    if any("\0" in (word or "") for word in (query.pattern, query.glob, query.type)):
        raise ToolFailure("a NUL character cannot be searched for")
    if not 0 <= query.context <= _MOST_CONTEXT:
        raise ToolFailure(f"`context` is from 0 to {_MOST_CONTEXT}, got {query.context}")
    if limit < 1:
        raise ToolFailure(f"`limit` is at least 1, got {limit}")


class _Target(msgspec.Struct, frozen=True):
    """A folder, or one file in it."""

    folder: Place
    name: str


def _target(files: Files, path: str) -> _Target:
    place = files.locate(path, "search")
    if not place.parts or os.path.isdir(place.real):  # noqa: PTH112
        return _Target(place, ".")
    real, shown = os.path.dirname(place.real), os.path.dirname(place.shown)  # noqa: PTH120
    return _Target(Place(real, place.home, shown or "."), place.parts[-1])


def _from_workspace(hits: list[Hit], target: _Target) -> list[Hit]:
    """Paths that can be read as they are told."""
    folder = target.folder.shown
    return hits if folder == "." else [msgspec.structs.replace(hit, path=f"{folder}/{hit.path}") for hit in hits]


async def _search(files: Files, target: _Target, query: Query) -> list[Hit]:
    """A single file was named, so it is wanted whatever it holds."""
    single = target.name != "."
    with files.folder(target.folder) as folder:
        if single and not _regular(folder, target.name):
            raise ToolFailure(f"{printable(target.name)} does not exist or is not a regular file")
        scope = Scope(folder, target.folder.real, target.name, (lambda _: True) if single else _filter(query.glob))
        found = await search.find_hits(query, scope)
        if query.mode == "files_with_matches":
            return await _threads.run(lambda: sorted(found, key=lambda hit: _age(folder, hit.path)))
    return sorted(found, key=lambda hit: (hit.path, hit.line))


def _regular(folder: int, name: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _filter(glob: str | None) -> Callable[[str], bool]:
    """Files that hold secrets are read only when they are named, and then asked about."""
    regex = search.path_pattern(glob.removeprefix("!")) if glob else None
    negated = bool(glob) and glob.startswith("!")

    def wanted(path: str) -> bool:
        if regex is not None and bool(regex.match(path)) == negated:
            return False
        return protecting(path.split("/"), "read") is None

    return wanted


def _age(folder: int, path: str) -> tuple[int, str]:
    try:
        return -os.stat(path, dir_fd=folder, follow_symlinks=False).st_mtime_ns, path
    except OSError:
        return 0, path


def _told(hits: list[Hit], query: Query, limit: int) -> ToolResult:
    matching = sum(hit.matches for hit in hits)
    metadata = {"matches": matching, "files": len({hit.path for hit in hits})}
    if not hits:
        return ToolResult("No matches.", title=query.pattern[:100], metadata=metadata)
    lines: list[str] = []
    room, left = ROOM, limit
    last: Hit | None = None
    for hit in hits:
        line = _line(hit, last, query)
        left -= hit.matches
        room -= len(line) + 1
        if left < 0 or room < 0:
            unit = "matches" if query.mode == "content" else "files"
            lines.append(f"\n({matching:,} {unit} in all; narrow the pattern, the path or the glob)")
            break
        lines.append(line)
        last = hit
    return ToolResult("\n".join(lines), title=query.pattern[:100], metadata=metadata)


def _line(hit: Hit, last: Hit | None, query: Query) -> str:
    """The path once per file, as a heading; a gap between pieces of one file."""
    if query.mode == "files_with_matches":
        return printable(hit.path)
    if query.mode == "count":
        return f"{printable(hit.path)}: {hit.text}"
    heading = "" if last and last.path == hit.path else f"{chr(10) if last else ''}{printable(hit.path)}\n"
    gap = "--\n" if query.context and last and last.path == hit.path and hit.line > last.line + 1 else ""
    return f"{heading}{gap}{hit.line}{':' if hit.matches else '-'}{shown(hit.text)}"
