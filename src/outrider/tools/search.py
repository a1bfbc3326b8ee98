"""Searches file contents and lists files, with ripgrep if it is installed, else in Python."""

import asyncio
import os
import re
import stat
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec

from outrider._sync import ThreadPool
from outrider.errors import ToolFailure
from outrider.permissions.paths.gitignore import (
    IGNORE_FILES,
    IgnoreRules,
    extend_rules,
    is_excluded,
    read_ignore_file,
)
from outrider.tools.text.encoding import detect_encoding
from outrider.tools.workspace_files import OPEN_FILE_FLAGS

MAX_MATCHES = 20_000
MAX_LINE_LENGTH = 500

OutputMode = Literal["content", "files_with_matches", "count"]


class SearchRequest(msgspec.Struct, frozen=True):
    pattern: str
    mode: OutputMode
    glob: str | None = None
    type: str | None = None
    ignore_case: bool = False
    context: int = 0
    multiline: bool = False


class SearchScope(msgspec.Struct, frozen=True):
    """Where to search: `target` in the open folder descriptor `folder` with the path `path`; the callback `accepts`
    filters paths."""

    folder: int
    path: str
    target: str
    accepts: Callable[[str], bool]


class FileMatch(msgspec.Struct, frozen=True):
    """A matching line. `line` is 0 for a whole file; `text` is then the number of matching lines, or empty."""

    path: str
    line: int
    text: str
    matches: bool


_IGNORE_FILE_NAMES = (*IGNORE_FILES, ".rgignore")


def walk_files(folder: int) -> Iterator[str]:
    """Yields the relative paths of regular files that no ignore file excludes."""
    rules_of_folder: dict[str, IgnoreRules | None] = {".": None}
    for root, folders, names, descriptor in os.fwalk(".", dir_fd=folder):
        base = "" if root == "." else f"{root[2:]}/"
        rules = _ignore_rules(descriptor, base, names, rules_of_folder.pop(root, None))
        folders[:] = sorted(name for name in folders if not is_excluded(rules, base + name, is_folder=True))
        for name in folders:
            rules_of_folder[f"{root}/{name}"] = rules
        for name in sorted(names):
            if not is_excluded(rules, base + name, is_folder=False) and _is_file(descriptor, name):
                yield base + name


def _ignore_rules(folder: int, base: str, names: list[str], above: IgnoreRules | None) -> IgnoreRules | None:
    lines = [line for name in _IGNORE_FILE_NAMES if name in names for line in read_ignore_file(name, folder)]
    return extend_rules(base, lines, above)


def _is_file(folder: int, name: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


_MAX_SEARCHED_FILE = 10 * 1024 * 1024
_EXTENSIONS_BY_TYPE = {
    "js": "js,jsx,mjs,cjs", "ts": "ts,tsx,mts,cts", "rust": "rs", "python": "py,pyi", "py": "py,pyi", "ruby": "rb",
    "md": "md,markdown", "markdown": "md,markdown", "cpp": "cpp,cc,cxx,hpp,hh,h", "c": "c,h", "yaml": "yml,yaml",
    "sh": "sh,bash,zsh",
    "html": "html,htm", "kotlin": "kt,kts", "csharp": "cs",
}  # fmt: skip


def search_in_python(query: SearchRequest, scope: SearchScope) -> list[FileMatch]:
    try:
        regex = re.compile(query.pattern, _regex_flags(query))
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolFailure(f"not a regular expression: {error}") from error
    matches: list[FileMatch] = []
    for path in [scope.target] if scope.target != "." else _candidate_paths(query, scope):
        text = _read_text(scope.folder, path)
        matches += _matches_in_text(query, regex, path, text) if text is not None else []
        if len(matches) >= MAX_MATCHES:
            break
    return matches


def _regex_flags(query: SearchRequest) -> int:
    return re.MULTILINE | (re.IGNORECASE if query.ignore_case else 0) | (re.DOTALL if query.multiline else 0)


def _candidate_paths(query: SearchRequest, scope: SearchScope) -> Iterator[str]:
    endings = tuple(
        f".{ending}" for ending in _EXTENSIONS_BY_TYPE.get(query.type or "", query.type or "").split(",") if ending
    )
    return (
        path for path in walk_files(scope.folder) if scope.accepts(path) and (not endings or path.endswith(endings))
    )


def _read_text(folder: int, path: str) -> str | None:
    """Returns the text of a file; None if it is binary, too large or missing."""
    try:
        descriptor = os.open(path, OPEN_FILE_FLAGS, dir_fd=folder)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_SEARCHED_FILE:
            return None
        raw = file.read(_MAX_SEARCHED_FILE)
    encoding = detect_encoding(raw)
    return encoding.decode(raw) if encoding else None


def _matches_in_text(query: SearchRequest, regex: "re.Pattern[str]", path: str, text: str) -> Iterator[FileMatch]:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()  # no line follows the last line break
    matching = (
        _multiline_matches(regex, text)
        if query.multiline
        else [n for n, line in enumerate(lines) if regex.search(line)]
    )
    if not matching:
        return
    if query.mode != "content":
        yield FileMatch(path, 0, str(len(matching)) if query.mode == "count" else "", matches=True)
        return
    around = range(-query.context, query.context + 1)
    visible = {index + offset for index in matching for offset in around if 0 <= index + offset < len(lines)}
    matching_lines = set(matching)
    for index in sorted(visible):
        text_of_line = lines[index].rstrip("\r")[:MAX_LINE_LENGTH]
        yield FileMatch(path, index + 1, text_of_line, matches=index in matching_lines)


def _multiline_matches(regex: "re.Pattern[str]", text: str) -> list[int]:
    lines: set[int] = set()
    for match in regex.finditer(text):
        first_line = text.count("\n", 0, match.start())
        lines.update(range(first_line, first_line + match.group().count("\n") + 1))
    return sorted(lines)


MAX_PATTERN_LENGTH = 1_000
_MAX_BRACE_EXPANSIONS = 64


@lru_cache(maxsize=256)
def compile_glob(pattern: str) -> "re.Pattern[str]":
    """Compiles a glob pattern to a regular expression for relative paths. A pattern without a slash matches the file
    name in any folder."""
    if len(pattern) > MAX_PATTERN_LENGTH or "\0" in pattern:
        raise ToolFailure(f"a pattern has at most {MAX_PATTERN_LENGTH} characters, and no NUL")
    pattern = pattern.removeprefix("./").strip("/") or "**"
    rooted = (expanded if "/" in expanded else f"**/{expanded}" for expanded in _expand_braces(pattern))
    try:
        return re.compile("|".join(map(glob_to_regex, rooted)), re.DOTALL)
    except re.error as error:
        raise ToolFailure(f"not a pattern for paths: {pattern!r} ({error})") from error


def glob_to_regex(pattern: str) -> str:
    """Converts one pattern without braces to a regular expression."""
    result: list[str] = []
    position = 0
    while position < len(pattern):
        regex, position = _glob_token(pattern, position)
        result.append(regex)
    return "".join([r"\A", *result, r"\Z"])


def _glob_token(pattern: str, position: int) -> tuple[str, int]:
    """Returns the regular expression of the token at an index, and the index after it."""
    if pattern.startswith("**/", position) and (position == 0 or pattern[position - 1] == "/"):
        return "(?:[^/]+/)*", position + 3
    if (
        pattern.startswith("**", position)
        and position + 2 == len(pattern)
        and (position == 0 or pattern[position - 1] == "/")
    ):
        return ".+", position + 2
    char = pattern[position]
    if char == "*":
        end = position
        while end < len(pattern) and pattern[end] == "*":
            end += 1
        return "[^/]*", end
    if char == "?":
        return "[^/]", position + 1
    if char == "[":
        return _glob_character_class(pattern, position)
    if char == "\\" and position + 1 < len(pattern):
        return re.escape(pattern[position + 1]), position + 2
    return re.escape(char), position + 1


def _glob_character_class(pattern: str, position: int) -> tuple[str, int]:
    end = pattern.find("]", position + 2 + (pattern[position + 1 : position + 2] in {"!", "^"}))
    if end < 0:
        return r"\[", position + 1
    inner = pattern[position + 1 : end]
    negated = inner[0] in "!^"
    chars = (inner[1:] if negated else inner).replace("\\", r"\\").replace("[", r"\[").replace("]", r"\]")
    return f"(?!/)[{'^' if negated else ''}{chars.replace('^', chr(92) + '^')}]", end + 1


def _expand_braces(pattern: str) -> list[str]:
    """Expands braces to a list of patterns. Raises ToolFailure if there are too many."""
    pending = [pattern]
    expanded: list[str] = []
    while pending:
        if len(pending) + len(expanded) > _MAX_BRACE_EXPANSIONS:
            raise ToolFailure(f"the braces of the pattern expand to more than {_MAX_BRACE_EXPANSIONS} patterns")
        candidate = pending.pop()
        match = re.search(r"(?<!\\)\{([^{}]*,[^{}]*)\}", candidate)
        if match is None:
            expanded.append(candidate)
            continue
        pending += [candidate[: match.start()] + choice + candidate[match.end() :] for choice in match[1].split(",")]
    return expanded


_BLOCK_SIZE = 256 * 1024
_MAX_RECORD = 1024 * 1024
# Makes the result independent of the user's ripgrep configuration; includes hidden files, excludes repository
# internals.
RIPGREP_OPTIONS = (
    "--no-config", "--no-messages", "--color=never", "--hidden", "--no-require-git", "--no-ignore-global",
    "--glob=!.git", "--glob=!.hg", "--glob=!.svn", "--glob=!.jj", "--glob=!.bzr",
)  # fmt: skip


@cache
def find_ripgrep() -> str | None:
    """Returns the ripgrep executable installed with the package, else from PATH. A relative PATH entry is not
    trusted."""
    import shutil  # both are loaded late: the first search is after the first request
    import sysconfig

    installed = Path(sysconfig.get_path("scripts")) / ("rg.exe" if os.name == "nt" else "rg")
    if installed.is_file():
        return str(installed)
    on_path = shutil.which("rg")
    return on_path if on_path and os.path.isabs(on_path) else None  # noqa: PTH117


# Ripgrep waits for a pipe in place of an ignore file. The walk in Python does not open pipes.
RIPGREP_SECONDS = 20.0
_READ_BY_RIPGREP = (*_IGNORE_FILE_NAMES, ".git/info/exclude")


def _choose_ripgrep(folder: int) -> str | None:
    """Returns the ripgrep executable, or None if there is none or if it would wait for a pipe in this folder."""
    exists = (name for name in _READ_BY_RIPGREP if _exists(folder, name))
    return find_ripgrep() if all(_is_file(folder, name) for name in exists) else None


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder)
    except OSError:
        return False
    return True


async def run_ripgrep(program: str, arguments: Sequence[str], folder: int, path: str) -> AsyncGenerator[bytes]:
    """Yields blocks of output. The process is killed if the iteration stops early. Raises ToolFailure on a ripgrep
    error."""
    process = await asyncio.create_subprocess_exec(
        program,
        *RIPGREP_OPTIONS,
        *arguments,
        cwd=f"/proc/self/fd/{folder}" if sys.platform == "linux" else path,
        env={"PATH": os.defpath},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_BLOCK_SIZE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        while block := await process.stdout.read(_BLOCK_SIZE):
            yield block
        complaint = (await process.stderr.read()).decode("utf-8", "replace").strip()
        # Exit code 1 means no match; 2 together with matches means that some file was not readable.
        if await process.wait() not in {0, 1} and complaint:
            raise ToolFailure(complaint.removeprefix("rg: ")[:2_000])
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def split_records(blocks: AsyncGenerator[bytes], end: bytes) -> AsyncGenerator[list[bytes]]:
    """Splits the output at `end` and yields lists of records. Overlong records are truncated."""
    partial = b""
    async with aclosing(blocks):
        async for block in blocks:
            *complete, partial = (partial + block).split(end)
            if complete:
                yield complete
            partial = partial[:_MAX_RECORD]
    if partial:
        yield [partial]


MAX_FILES = 500_000
_threads_listing = ThreadPool(4)


async def list_files(folder: int, path: str, *, ripgrep_seconds: float = RIPGREP_SECONDS) -> list[str]:
    """Returns at most MAX_FILES relative paths, unordered."""
    program = _choose_ripgrep(folder)
    if program is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(ripgrep_seconds):
                return await _list_with_ripgrep(program, folder, path)
    return await _threads_listing.run(lambda: list(islice(walk_files(folder), MAX_FILES)))


async def _list_with_ripgrep(program: str, folder: int, path: str) -> list[str]:
    paths: list[str] = []
    lists = split_records(run_ripgrep(program, ["--files", "--null"], folder, path), b"\0")
    async with aclosing(lists):
        async for names in lists:
            paths += [os.fsdecode(name).removeprefix("./") for name in names]
            if len(paths) >= MAX_FILES:
                break
    return paths


async def search_with_ripgrep(program: str, query: SearchRequest, scope: SearchScope) -> list[FileMatch]:
    """Returns the matches; files are unordered, lines within a file are ordered."""
    blocks = run_ripgrep(
        program, [*_ripgrep_arguments(query), "--", query.pattern, _safe_target(scope.target)], scope.folder, scope.path
    )
    lines = split_records(blocks, b"\0" if query.mode == "files_with_matches" else b"\n")
    matches: list[FileMatch] = []
    async with aclosing(lines):
        async for records in lines:
            hits = (
                hit
                for line in (records if query.mode == "files_with_matches" else _rejoin_names(records))
                if (hit := _parse_match(line, query)) is not None
            )
            matches += [hit for hit in hits if scope.accepts(hit.path)]
            if len(matches) >= MAX_MATCHES:
                break
    return matches


def _safe_target(target: str) -> str:
    """Prefixes the path with `./`, so that a leading dash is not parsed as an option."""
    return target if target == "." else f"./{target}"


def _rejoin_names(lines: list[bytes]) -> Iterator[bytes]:
    """Joins lines of a path that contains a line feed: its first part has no NUL and is not the `--` separator."""
    half = b""
    for line in lines:
        if b"\0" in line or line == b"--":
            yield half + line
            half = b""
        elif line:
            half += line + b"\n"


def _ripgrep_arguments(query: SearchRequest) -> list[str]:
    modes = {
        "content": ["--line-number", "--no-heading", "--with-filename", f"--max-columns={MAX_LINE_LENGTH * 4}",
                    "--max-columns-preview"],
        "files_with_matches": ["--files-with-matches"],
        "count": ["--count", "--with-filename"],
    }  # fmt: skip
    arguments = ["--null", *modes[query.mode]]
    arguments += [f"--context={query.context}"] if query.context and query.mode == "content" else []
    arguments += [f"--type={query.type}"] if query.type else _type_filter(query.glob)
    arguments += ["--ignore-case"] if query.ignore_case else []
    arguments += ["--multiline", "--multiline-dotall"] if query.multiline else []
    return arguments


def _type_filter(glob: str | None) -> list[str]:
    """Returns options that make ripgrep skip other files. Uses a type, because `--glob` would include ignored files."""
    if not glob or "/" in glob or glob.startswith("!"):
        return []
    return [f"--type-add=wanted:{glob}", "--type=wanted"]


def _parse_match(line: bytes, query: SearchRequest) -> FileMatch | None:
    """Parses `path NUL 12:text` for a match and `path NUL 12-text` for a context line."""
    raw_path, zero, numbered_text = line.partition(b"\0")
    path = os.fsdecode(raw_path).removeprefix("./")
    if query.mode == "files_with_matches":
        return FileMatch(path, 0, "", matches=True) if path else None
    if not zero:
        return None  # the separator between line ranges
    if query.mode == "count":
        return FileMatch(path, 0, numbered_text.decode("utf-8", "replace"), matches=True)
    digits = len(numbered_text) - len(numbered_text.lstrip(b"0123456789"))
    text = numbered_text[digits + 1 :].decode("utf-8", "replace").rstrip("\r")
    return FileMatch(
        path,
        int(numbered_text[:digits] or 0),
        text[:MAX_LINE_LENGTH],
        matches=numbered_text[digits : digits + 1] == b":",
    )


_threads = ThreadPool(4)


async def search_files(
    query: SearchRequest, scope: SearchScope, *, ripgrep_seconds: float = RIPGREP_SECONDS
) -> list[FileMatch]:
    """Searches with ripgrep, or in Python if there is none or it takes longer than `ripgrep_seconds`."""
    program = _choose_ripgrep(scope.folder)
    if program is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(ripgrep_seconds):
                return await search_with_ripgrep(program, query, scope)
    return await _threads.run(lambda: search_in_python(query, scope))
