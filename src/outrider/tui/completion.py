"""What could be meant by the word at the cursor: a command after `/`, a file after `@`."""

import re
import shlex
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
from rich.text import Text
from textual.widgets import Static

from outrider.engine.frontend import attached, is_attachable, workspace_files
from outrider.tui.rendering.text import clean_line
from outrider.tui.widgets.status import palette_of
from outrider.types.parts import FilePart

MOST = 8


class Choice(msgspec.Struct, frozen=True):
    """`text` takes the place of the word; `note` says what it is."""

    text: str
    note: str = ""


class Completion(msgspec.Struct, frozen=True):
    """Choices for the word that begins at column `start` of the line."""

    start: int
    choices: tuple[Choice, ...]


def word_before(line: str, column: int) -> tuple[int, str]:
    """The word that ends at the cursor, and where it begins."""
    head = line[:column]
    start = max(head.rfind(" "), head.rfind("\t")) + 1
    return start, head[start:]


def complete(
    line: str, column: int, *, first: bool, commands: Sequence[Choice], files: Sequence[str]
) -> Completion | None:
    """`first`: the line is the first one, where a command may stand."""
    start, word = word_before(line, column)
    if first and start == 0 and word.startswith("/"):
        found = tuple(choice for choice in commands if choice.text.startswith(word))
        return Completion(0, found) if found else None
    if word.startswith("@"):
        matches = matching(word[1:], files)
        return Completion(start, tuple(Choice(f"@{_quoted(name)}") for name in matches)) if matches else None
    return None


def matching(typed: str, names: Sequence[str]) -> list[str]:
    """Names that hold the letters in their order; a match in the file's own name goes before one in its folders."""
    typed = typed.strip('"').lower()
    if not typed:
        return list(names[:MOST])
    scored = ((score, name) for name in names if (score := _score(typed, name.lower())) is not None)
    return [name for _, name in sorted(scored)[:MOST]]


def _score(typed: str, name: str) -> tuple[int, int] | None:
    own = name.rpartition("/")[2]
    if own.startswith(typed):
        return 0, len(name)
    if typed in own:
        return 1, len(name)
    if typed in name:
        return 2, len(name)
    return (3, len(name)) if _holds(typed, name) else None


def _holds(typed: Iterable[str], name: str) -> bool:
    letters = iter(name)
    return all(letter in letters for letter in typed)


def _quoted(name: str) -> str:
    return f'"{name}"' if " " in name else name


class Completions(Static):
    DEFAULT_CSS = """
    Completions {
        height: auto; max-height: 8; padding: 0 3; display: none; text-wrap: nowrap; text-overflow: ellipsis;
    }
    """

    def __init__(self) -> None:
        super().__init__(id="completions", markup=False)
        self._choices: Sequence[Choice] = ()
        self._place = 0

    @property
    def chosen(self) -> Choice | None:
        return self._choices[self._place] if self._choices else None

    def offer(self, choices: Sequence[Choice]) -> None:
        if choices != self._choices:
            self._choices, self._place = choices, 0
        self.display = bool(choices)
        self._draw()

    def move(self, by: int) -> None:
        self._place = (self._place + by) % len(self._choices)
        self._draw()

    def _draw(self) -> None:
        palette = palette_of(self)
        first = max(0, min(self._place - MOST // 2, len(self._choices) - MOST))
        shown = self._choices[first : first + MOST]
        text = Text()
        for number, choice in enumerate(shown, first):
            here = number == self._place
            text.append("› " if here else "  ", palette.style("accent"))
            text.append(f"{clean_line(choice.text, 60):<14}", palette.style("accent" if here else "text", bold=here))
            text.append(f"  {choice.note}" if choice.note else "", palette.style("quiet"))
            text.append("\n" if number < first + len(shown) - 1 else "")
        self.update(text)


OLD_AFTER = 10.0  # seconds


class FileNames:
    """`found` is called when there are others than before."""

    def __init__(
        self, workspace: Path, start: Callable[[Coroutine[Any, Any, None]], None], found: Callable[[], None]
    ) -> None:
        self._workspace = workspace
        self._start = start
        self._found = found
        self._names: Sequence[str] = ()
        self._looked = float("-inf")

    def names(self) -> Sequence[str]:
        """Those that are known; typing never waits for the others."""
        if monotonic() - self._looked > OLD_AFTER:
            self._looked = monotonic()
            self._start(self._look())
        return self._names

    async def _look(self) -> None:
        names = await workspace_files(self._workspace)
        if names != self._names:
            self._names = names
            self._found()


_MENTION = re.compile(r"(?:^|(?<=\s))@(\"[^\"]+\"|\S+)")
_TRAILING = ".,;:!?)]}'\""


def attachments(text: str, workspace: Path) -> tuple[list[FilePart], list[str]]:
    """The images and documents that go along, and complaints about those that cannot."""
    files: list[FilePart] = []
    complaints: list[str] = []
    for path in dict.fromkeys(_paths(text, workspace)):
        try:
            files.append(attached(path))
        except (OSError, ValueError) as error:
            complaints.append(str(error))
    return files, complaints


def dropped_path(text: str) -> Path | None:
    """The file that a paste consists of, if it is one that can go along."""
    text = text.strip()
    if not text or "\n" in text or len(text) > 4096:
        return None
    try:
        words = shlex.split(text.removeprefix("file://"))
    except ValueError:
        return None
    path = Path(words[0]).expanduser() if len(words) == 1 else None
    return path if path is not None and path.is_absolute() and is_attachable(path) else None


def _paths(text: str, workspace: Path) -> list[Path]:
    found: list[Path] = []
    for match in _MENTION.finditer(text):
        name = match[1].strip('"')
        for candidate in (name, name.rstrip(_TRAILING)):
            path = workspace / Path(candidate).expanduser()
            if is_attachable(path):
                found.append(path)
                break
    return found
