"""The `grep` tool: searches file contents for a regular expression."""

import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from outrider._sync import ThreadPool
from outrider.errors import ToolFailure
from outrider.permissions.paths.protected import find_protected_name
from outrider.tools.definitions import argument_aliases, load_prompt
from outrider.tools.text.encoding import displayable_text
from outrider.tools.tool import Tool, ToolResult
from outrider.tools.workspace_files import FileLocation, WorkspaceFiles, printable_path

if TYPE_CHECKING:
    from outrider.tools.search import FileMatch, SearchRequest

MAX_RESULT_CHARACTERS = 26_000  # stays below the runner's output cap, which would cut the middle
_MAX_PATTERN_LENGTH = 10_000
_MAX_CONTEXT = 20
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
_threads = ThreadPool(4)


def grep_tool(files: WorkspaceFiles) -> Tool:
    async def grep(  # parameters that models already know
        pattern: str,
        path: str = "",
        glob: str | None = None,
        type: Annotated[str | None, "e.g. `py`"] = None,
        output_mode: Literal["content", "files_with_matches", "count"] = "content",
        ignore_case: bool = False,  # noqa: FBT001, FBT002  models pass it by name
        context: Annotated[int, "lines around"] = 0,
        multiline: bool = False,  # noqa: FBT001, FBT002
        limit: int = 200,
    ) -> ToolResult:
        from outrider.tools.search import SearchRequest  # lazy: loaded with the first search

        glob = f"{{{glob}}}" if glob and "," in glob and "{" not in glob else glob
        query = SearchRequest(pattern, output_mode, glob, type, ignore_case, context, multiline)
        _check_request(query, limit)
        target: _SearchTarget = await _threads.run(lambda: _locate_target(files, path or "."))
        return _format_matches(_with_workspace_paths(await _run_search(files, target, query), target), query, limit)

    return Tool(
        grep,
        description=load_prompt(__file__, "grep"),
        read_only=True,
        repeatable=True,
        path_parameters=("path",),
        path_operation="search",
        display="search",
        timeout=60,
        preprocess_args=_normalize_arguments,
        unsaid=("type", "multiline", "limit"),
    )


def _normalize_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Maps `-A` and `-B` to `context`, drops `-n` (line numbers are always shown) and resolves aliases."""
    arguments = argument_aliases(_ALIASES, drop=frozenset({"-n"}))(arguments)
    around = [arguments.pop(name) for name in ("-A", "-B") if name in arguments]
    if around and "context" not in arguments:
        numbers = [lines for lines in around if isinstance(lines, int)]
        arguments["context"] = max(numbers, default=around[0])
    if arguments.get("output_mode") == "files":
        arguments["output_mode"] = "files_with_matches"
    return arguments


def _check_request(query: "SearchRequest", limit: int) -> None:
    if not query.pattern or len(query.pattern) > _MAX_PATTERN_LENGTH:
        raise ToolFailure(f"`pattern` has 1 to {_MAX_PATTERN_LENGTH:,} characters")
    if any("\0" in (word or "") for word in (query.pattern, query.glob, query.type)):
        raise ToolFailure("a NUL character cannot be searched for")
    if not 0 <= query.context <= _MAX_CONTEXT:
        raise ToolFailure(f"`context` is from 0 to {_MAX_CONTEXT}, got {query.context}")
    if limit < 1:
        raise ToolFailure(f"`limit` is at least 1, got {limit}")


class _SearchTarget(msgspec.Struct, frozen=True):
    """A folder, or one file in a folder."""

    folder: FileLocation
    name: str


def _locate_target(files: WorkspaceFiles, path: str) -> _SearchTarget:
    location = files.locate(path, "search")
    if not location.parts or os.path.isdir(location.real):  # noqa: PTH112
        return _SearchTarget(location, ".")
    real, display_folder = os.path.dirname(location.real), os.path.dirname(location.display)  # noqa: PTH120
    return _SearchTarget(FileLocation(real, location.base, display_folder or "."), location.parts[-1])


def _with_workspace_paths(hits: "list[FileMatch]", target: _SearchTarget) -> "list[FileMatch]":
    """Prefixes the paths with the searched folder, so that the model can pass them to other tools."""
    folder = target.folder.display
    return hits if folder == "." else [msgspec.structs.replace(hit, path=f"{folder}/{hit.path}") for hit in hits]


async def _run_search(files: WorkspaceFiles, target: _SearchTarget, query: "SearchRequest") -> "list[FileMatch]":
    """Runs the search. A file that is named explicitly is searched without the path filter."""
    from outrider.tools.search import SearchScope, search_files

    single = target.name != "."
    with files.open_folder(target.folder) as folder:
        if single and not _is_regular_file(folder, target.name):
            raise ToolFailure(f"{printable_path(target.name)} does not exist or is not a regular file")
        real = target.folder.real
        accepts = _path_filter(query.glob, lambda path: files.is_denied(f"{real}/{path}"))
        scope = SearchScope(folder, real, target.name, (lambda _: True) if single else accepts)
        matches = await search_files(query, scope)
        if query.mode == "files_with_matches":
            return await _threads.run(lambda: sorted(matches, key=lambda hit: _recency_key(folder, hit.path)))
    return sorted(matches, key=lambda hit: (hit.path, hit.line))


def _is_regular_file(folder: int, name: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _path_filter(glob: str | None, is_denied: Callable[[str], bool]) -> Callable[[str], bool]:
    """Returns a filter for paths. It excludes files that a rule forbids reading, and files with secrets, because
    reading those requires an explicit path and an approval."""
    from outrider.tools.search import compile_glob

    regex = compile_glob(glob.removeprefix("!")) if glob else None
    negated = bool(glob) and glob.startswith("!")

    def is_accepted(path: str) -> bool:
        if regex is not None and bool(regex.match(path)) == negated:
            return False
        return find_protected_name(path.split("/"), "read") is None and not is_denied(path.removeprefix("./"))

    return is_accepted


def _recency_key(folder: int, path: str) -> tuple[int, str]:
    try:
        return -os.stat(path, dir_fd=folder, follow_symlinks=False).st_mtime_ns, path
    except OSError:
        return 0, path


def _format_matches(hits: "list[FileMatch]", query: "SearchRequest", limit: int) -> ToolResult:
    matching = sum(hit.matches for hit in hits)
    metadata = {"matches": matching, "files": len({hit.path for hit in hits})}
    if not hits:
        return ToolResult("No matches.", title=query.pattern[:100], metadata=metadata)
    lines: list[str] = []
    room, remaining = MAX_RESULT_CHARACTERS, limit
    previous: FileMatch | None = None
    for hit in hits:
        line = _format_match(hit, previous, query)
        remaining -= hit.matches
        room -= len(line) + 1
        if remaining < 0 or room < 0:
            unit = "matches" if query.mode == "content" else "files"
            lines.append(f"\n({matching:,} {unit} in all; narrow the pattern, the path or the glob)")
            break
        lines.append(line)
        previous = hit
    return ToolResult("\n".join(lines), title=query.pattern[:100], metadata=metadata)


def _format_match(hit: "FileMatch", previous: "FileMatch | None", query: "SearchRequest") -> str:
    """Formats one match: the path as a heading once per file, and `--` between separate line ranges."""
    if query.mode == "files_with_matches":
        return printable_path(hit.path)
    if query.mode == "count":
        return f"{printable_path(hit.path)}: {hit.text}"
    heading = (
        "" if previous and previous.path == hit.path else f"{chr(10) if previous else ''}{printable_path(hit.path)}\n"
    )
    gap = "--\n" if query.context and previous and previous.path == hit.path and hit.line > previous.line + 1 else ""
    return f"{heading}{gap}{hit.line}{':' if hit.matches else '-'}{displayable_text(hit.text)}"
