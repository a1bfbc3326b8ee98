"""Where a pattern stands in the files of a folder."""

import asyncio
import os
import re
import shutil
import stat
import sys
import sysconfig
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec

from outrider.errors import ToolFailure
from outrider.permissions.paths.gitignore import IGNORE_FILES, REPOSITORIES, Rules, parse
from outrider.tools.text.encoding import detect
from outrider.tools.threads import Threads
from outrider.tools.workspace_files import FILE

MOST_HITS = 20_000
LONGEST_LINE = 500

OutputMode = Literal["content", "files_with_matches", "count"]


class Query(msgspec.Struct, frozen=True):
    pattern: str
    mode: OutputMode
    glob: str | None = None
    type: str | None = None
    ignore_case: bool = False
    context: int = 0
    multiline: bool = False


class Scope(msgspec.Struct, frozen=True):
    """Where to search: below `target` in an open folder, whose path is `path`; only in files that are `wanted`."""

    folder: int
    path: str
    target: str
    wanted: Callable[[str], bool]


class Hit(msgspec.Struct, frozen=True):
    """`line` is 0 for a whole file; then `text` is the count of its matching lines, or empty."""

    path: str
    line: int
    text: str
    matches: bool


_NAMES = (*IGNORE_FILES, ".rgignore")
_LARGEST_IGNORE = 1024 * 1024


def walk(folder: int) -> Iterator[str]:
    """Relative paths of regular files."""
    known: dict[str, Rules | None] = {".": None}
    for root, folders, names, descriptor in os.fwalk(".", dir_fd=folder):
        base = "" if root == "." else f"{root[2:]}/"
        here = _rules(descriptor, base, names, known.pop(root, None))
        folders[:] = sorted(
            name for name in folders if name not in REPOSITORIES and not _ignored(here, base + name, is_folder=True)
        )
        for name in folders:
            known[f"{root}/{name}"] = here
        for name in sorted(names):
            if not _ignored(here, base + name, is_folder=False) and _is_file(descriptor, name):
                yield base + name


def _ignored(rules: Rules | None, path: str, *, is_folder: bool) -> bool:
    return rules is not None and rules.ignores(path, is_folder=is_folder)


def _rules(folder: int, base: str, names: list[str], above: Rules | None) -> Rules | None:
    lines = [line for name in _NAMES if name in names for line in _lines(folder, name)]
    return Rules(base, parse(lines), above) if lines else above


def _is_file(folder: int, name: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _lines(folder: int, name: str) -> list[str]:
    try:
        descriptor = os.open(name, FILE, dir_fd=folder)
    except OSError:
        return []
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return []
        return file.read(_LARGEST_IGNORE).decode("utf-8", "replace").splitlines()


_LARGEST = 10 * 1024 * 1024
_TYPES = {
    "js": "js,jsx,mjs,cjs", "ts": "ts,tsx,mts,cts", "rust": "rs", "python": "py,pyi", "py": "py,pyi", "ruby": "rb",
    "md": "md,markdown", "markdown": "md,markdown", "cpp": "cpp,cc,cxx,hpp,hh,h", "c": "c,h", "yaml": "yml,yaml",
    "sh": "sh,bash,zsh",
    "html": "html,htm", "kotlin": "kt,kts", "csharp": "cs",
}  # fmt: skip


def plain_search(query: Query, scope: Scope) -> list[Hit]:
    try:
        regex = re.compile(query.pattern, _flags(query))
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolFailure(f"not a regular expression: {error}") from error
    found: list[Hit] = []
    for path in [scope.target] if scope.target != "." else _wanted(query, scope):
        text = _text(scope.folder, path)
        found += _hits(query, regex, path, text) if text is not None else []
        if len(found) >= MOST_HITS:
            break
    return found


def _flags(query: Query) -> int:
    return re.MULTILINE | (re.IGNORECASE if query.ignore_case else 0) | (re.DOTALL if query.multiline else 0)


def _wanted(query: Query, scope: Scope) -> Iterator[str]:
    endings = tuple(f".{ending}" for ending in _TYPES.get(query.type or "", query.type or "").split(",") if ending)
    return (path for path in walk(scope.folder) if scope.wanted(path) and (not endings or path.endswith(endings)))


def _text(folder: int, path: str) -> str | None:
    """None for what is no text, too large, or gone."""
    try:
        descriptor = os.open(path, FILE, dir_fd=folder)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            return None
        raw = file.read(_LARGEST)
    encoding = detect(raw)
    return encoding.decode(raw) if encoding else None


def _hits(query: Query, regex: "re.Pattern[str]", path: str, text: str) -> Iterator[Hit]:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()  # after the last line ending there is no line
    matching = _across(regex, text) if query.multiline else [n for n, line in enumerate(lines) if regex.search(line)]
    if not matching:
        return
    if query.mode != "content":
        yield Hit(path, 0, str(len(matching)) if query.mode == "count" else "", matches=True)
        return
    around = range(-query.context, query.context + 1)
    shown = {n + by for n in matching for by in around if 0 <= n + by < len(lines)}
    found = set(matching)
    for n in sorted(shown):
        yield Hit(path, n + 1, lines[n].rstrip("\r")[:LONGEST_LINE], matches=n in found)


def _across(regex: "re.Pattern[str]", text: str) -> list[int]:
    found: set[int] = set()
    for match in regex.finditer(text):
        first = text.count("\n", 0, match.start())
        found.update(range(first, first + match.group().count("\n") + 1))
    return sorted(found)


LONGEST_PATTERN = 1_000
_MOST_BRACES = 64


@lru_cache(maxsize=256)
def path_pattern(pattern: str) -> "re.Pattern[str]":
    """Matches whole relative paths; a pattern without a slash is for the name alone, in any folder."""
    if len(pattern) > LONGEST_PATTERN or "\0" in pattern:
        raise ToolFailure(f"a pattern has at most {LONGEST_PATTERN} characters, and no NUL")
    pattern = pattern.removeprefix("./").strip("/") or "**"
    rooted = (one if "/" in one else f"**/{one}" for one in _alternatives(pattern))
    try:
        return re.compile("|".join(map(path_regex, rooted)), re.DOTALL)
    except re.error as error:
        raise ToolFailure(f"not a pattern for paths: {pattern!r} ({error})") from error


def path_regex(pattern: str) -> str:
    """One pattern without braces, as a regular expression for a whole path."""
    result: list[str] = []
    at = 0
    while at < len(pattern):
        piece, at = _piece(pattern, at)
        result.append(piece)
    return "".join([r"\A", *result, r"\Z"])


def _piece(pattern: str, at: int) -> tuple[str, int]:
    """The expression for what stands at a place, and the place after it."""
    if pattern.startswith("**/", at) and (at == 0 or pattern[at - 1] == "/"):
        return "(?:[^/]+/)*", at + 3
    if pattern.startswith("**", at) and at + 2 == len(pattern) and (at == 0 or pattern[at - 1] == "/"):
        return ".+", at + 2
    char = pattern[at]
    if char == "*":
        end = at
        while end < len(pattern) and pattern[end] == "*":
            end += 1
        return "[^/]*", end
    if char == "?":
        return "[^/]", at + 1
    if char == "[":
        return _set(pattern, at)
    if char == "\\" and at + 1 < len(pattern):
        return re.escape(pattern[at + 1]), at + 2
    return re.escape(char), at + 1


def _set(pattern: str, at: int) -> tuple[str, int]:
    end = pattern.find("]", at + 2 + (pattern[at + 1 : at + 2] in {"!", "^"}))
    if end < 0:
        return r"\[", at + 1
    inner = pattern[at + 1 : end]
    negated = inner[0] in "!^"
    chars = (inner[1:] if negated else inner).replace("\\", r"\\").replace("[", r"\[").replace("]", r"\]")
    return f"(?!/)[{'^' if negated else ''}{chars.replace('^', chr(92) + '^')}]", end + 1


def _alternatives(pattern: str) -> list[str]:
    """The patterns that braces stand for."""
    found = [pattern]
    done: list[str] = []
    while found:
        if len(found) + len(done) > _MOST_BRACES:
            raise ToolFailure(f"the braces of the pattern stand for more than {_MOST_BRACES} patterns")
        one = found.pop()
        match = re.search(r"(?<!\\)\{([^{}]*,[^{}]*)\}", one)
        if match is None:
            done.append(one)
            continue
        found += [one[: match.start()] + choice + one[match.end() :] for choice in match[1].split(",")]
    return done


_BLOCK = 256 * 1024
_LONGEST_RECORD = 1024 * 1024
# The same files whatever the user's own settings say; hidden ones too, repositories' insides never.
ALWAYS = (
    "--no-config", "--no-messages", "--color=never", "--hidden", "--no-require-git", "--no-ignore-global",
    "--glob=!.git", "--glob=!.hg", "--glob=!.svn", "--glob=!.jj", "--glob=!.bzr",
)  # fmt: skip


@cache
def find_ripgrep() -> str | None:
    """Installed with the package, else on the search path; a relative place there is not trusted."""
    beside = Path(sysconfig.get_path("scripts")) / ("rg.exe" if os.name == "nt" else "rg")
    if beside.is_file():
        return str(beside)
    found = shutil.which("rg")
    return found if found and os.path.isabs(found) else None  # noqa: PTH117


async def ripgrep(program: str, arguments: Sequence[str], folder: int, path: str) -> AsyncGenerator[bytes]:
    """Blocks of output. The process is gone when the iteration ends, however it ends; refusals raise ToolFailure."""
    process = await asyncio.create_subprocess_exec(
        program,
        *ALWAYS,
        *arguments,
        cwd=f"/proc/self/fd/{folder}" if sys.platform == "linux" else path,
        env={"PATH": os.defpath},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_BLOCK,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        while block := await process.stdout.read(_BLOCK):
            yield block
        complaint = (await process.stderr.read()).decode("utf-8", "replace").strip()
        # 1 is "nothing found"; 2 with matches only says that some file could not be read.
        if await process.wait() not in {0, 1} and complaint:
            raise ToolFailure(complaint.removeprefix("rg: ")[:2_000])
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def records(blocks: AsyncGenerator[bytes], end: bytes) -> AsyncGenerator[list[bytes]]:
    """The output cut at `end`, many records at a time; an endless one is cut short."""
    rest = b""
    async with aclosing(blocks):
        async for block in blocks:
            *whole, rest = (rest + block).split(end)
            if whole:
                yield whole
            rest = rest[:_LONGEST_RECORD]
    if rest:
        yield [rest]


MOST_FILES = 500_000
_threads_listing = Threads(4)


async def list_files(folder: int, path: str) -> list[str]:
    """Relative paths, at most MOST_FILES of them, in no order."""
    program = find_ripgrep()
    if program is None:
        return await _threads_listing.run(lambda: list(islice(walk(folder), MOST_FILES)))
    found: list[str] = []
    lists = records(ripgrep(program, ["--files", "--null"], folder, path), b"\0")
    async with aclosing(lists):
        async for names in lists:
            found += [os.fsdecode(name).removeprefix("./") for name in names]
            if len(found) >= MOST_FILES:
                break
    return found


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


_threads = Threads(4)


async def find_hits(query: Query, scope: Scope) -> list[Hit]:
    program = find_ripgrep()
    if program is None:
        return await _threads.run(lambda: plain_search(query, scope))
    return await rg_search(program, query, scope)
