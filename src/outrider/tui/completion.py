"""Completion in the composer: slash commands after `/`, workspace files after `@`; attachments of mentioned files."""

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from shlex import split
from time import monotonic
from typing import Any
from urllib.parse import unquote

import msgspec
from rich.text import Text
from textual.widgets import Static

from outrider.presentation.formats import clean_line
from outrider.tui.widgets.status import widget_palette
from outrider.types.parts import FilePart, TextRange

MAX_CHOICES = 8


class CompletionChoice(msgspec.Struct, frozen=True):
    """One completion: `text` replaces the word at the cursor, `note` describes it. With `is_open`, the user continues
    the word."""

    text: str
    note: str = ""
    is_open: bool = False


class CompletionResult(msgspec.Struct, frozen=True):
    """The choices for the word that starts at column `start` of the line. With `is_hint`, Enter sends the text as it
    is, unless the user has selected a choice."""

    start: int
    choices: tuple[CompletionChoice, ...]
    is_hint: bool = False


def word_before(line: str, column: int) -> tuple[int, str]:
    """Returns the start column and text of the word that ends at the cursor."""
    head = line[:column]
    start = max(head.rfind(" "), head.rfind("\t")) + 1
    return start, head[start:]


def complete_word(
    line: str,
    column: int,
    *,
    is_first_line: bool,
    commands: Sequence[CompletionChoice],
    files: Sequence[str],
    templates: Mapping[str, str] | None = None,
) -> CompletionResult | None:
    """Completes the word at the cursor, or returns None. Commands complete only at the start of the first line.
    `templates` maps a name in `files` that has placeholders to the text before its first placeholder."""
    start, word = word_before(line, column)
    if is_first_line and start == 0 and word.startswith("/"):
        command_choices = tuple(choice for choice in commands if choice.text.startswith(word))
        return CompletionResult(0, command_choices) if command_choices else None
    if word.startswith("@"):
        from outrider.engine.frontend import match_names  # lazy: the first screen does not need the engine

        matches = match_names(word[1:], files, MAX_CHOICES)
        choices = tuple(_name_choice(name, (templates or {}).get(name)) for name in matches)
        return CompletionResult(start, choices) if choices else None
    return None


def _name_choice(name: str, prefix: str | None) -> CompletionChoice:
    if prefix is None:
        return CompletionChoice(f"@{_quote_name(name)}")
    return CompletionChoice(f"@{prefix}", clean_line(name, 80), is_open=True)


def _quote_name(name: str) -> str:
    return f'"{name}"' if " " in name else name


class CompletionList(Static):
    """The list of completions below the composer, with the selected one highlighted."""

    DEFAULT_CSS = """
    CompletionList {
        height: auto; max-height: 8; padding: 0 3; display: none; text-wrap: nowrap; text-overflow: ellipsis;
    }
    """

    def __init__(self) -> None:
        super().__init__(id="completions", markup=False)
        self._choices: Sequence[CompletionChoice] = ()
        self._index = 0
        self.has_moved = False  # the user has selected a choice

    @property
    def selected_choice(self) -> CompletionChoice | None:
        return self._choices[self._index] if self._choices else None

    def set_choices(self, choices: Sequence[CompletionChoice]) -> None:
        if not choices and not self._choices:
            return  # with every key; an update would lay out the screen
        if choices != self._choices:
            self._choices, self._index, self.has_moved = choices, 0, False
        self.display = bool(choices)
        self._draw_choices()

    def move_selection(self, by: int) -> None:
        self._index, self.has_moved = (self._index + by) % len(self._choices), True
        self._draw_choices()

    def _draw_choices(self) -> None:
        palette = widget_palette(self)
        first = max(0, min(self._index - MAX_CHOICES // 2, len(self._choices) - MAX_CHOICES))
        visible = self._choices[first : first + MAX_CHOICES]
        text = Text()
        for number, choice in enumerate(visible, first):
            selected = number == self._index
            text.append("› " if selected else "  ", palette.style("accent"))
            text.append(
                f"{clean_line(choice.text, 60):<14}", palette.style("accent" if selected else "text", bold=selected)
            )
            text.append(f"  {choice.note}" if choice.note else "", palette.style("quiet"))
            text.append("\n" if number < first + len(visible) - 1 else "")
        self.update(text)


REFRESH_SECONDS = 10.0  # seconds


class WorkspaceFileNames:
    """Caches the file names of the workspace and refreshes them in the background; calls `changed` after a change."""

    def __init__(
        self, workspace: Path, start: Callable[[Coroutine[Any, Any, None]], None], changed: Callable[[], None]
    ) -> None:
        self._workspace = workspace
        self._start = start
        self._changed = changed
        self._names: Sequence[str] = ()
        self._refreshed_at = float("-inf")

    def known_names(self) -> Sequence[str]:
        """Returns the cached names, and starts a refresh if they are stale; never blocks typing."""
        if monotonic() - self._refreshed_at > REFRESH_SECONDS:
            self._refreshed_at = monotonic()
            self._start(self._refresh_names())
        return self._names

    async def _refresh_names(self) -> None:
        from outrider.engine.frontend import workspace_files  # lazy: the first screen does not need the engine

        names = await workspace_files(self._workspace)
        if names != self._names:
            self._names = names
            self._changed()


_MENTION = re.compile(r"(?:^|(?<=\s))@(\"[^\"]+\"|\S+)")
_TRAILING = ".,;:!?)]}'\""


def find_attachments(text: str, workspace: Path, deny: Sequence[str] = ()) -> tuple[list[FilePart], list[str]]:
    """Returns the mentioned images and documents as parts, and an error message for each one that cannot be read or
    that a deny rule hides."""
    from outrider.engine.frontend import attach_file

    files: list[FilePart] = []
    complaints: list[str] = []
    for path, mention in _mentioned_paths(text, workspace).items():
        try:
            files.append(attach_file(path, deny, workspace, mention))
        except (OSError, ValueError) as error:
            complaints.append(str(error))
    return files, complaints


def dropped_paths(text: str) -> list[Path]:
    """Returns the paths if a pasted text consists of paths of attachable files; terminals paste them on drag and
    drop."""
    from outrider.engine.frontend import is_attachable

    text = text.strip()
    if not text or "\n" in text or "\r" in text or len(text) > 4096:
        return []
    try:
        names = [unquote(name.removeprefix("file://")) if name.startswith("file://") else name for name in split(text)]
    except ValueError:
        return []
    paths = [Path(name).expanduser() for name in names]
    return paths if all(path.is_absolute() and is_attachable(path) for path in paths) else []


def _mentioned_paths(text: str, workspace: Path) -> dict[Path, TextRange]:
    """Returns the attachable files that the text mentions as `@path`, with the first mention; a trailing punctuation
    mark is not part of the name."""
    from outrider.engine.frontend import is_attachable

    mentions: dict[Path, TextRange] = {}
    for match in _MENTION.finditer(text):
        name = match[1].strip('"')
        for candidate in (name, name.rstrip(_TRAILING)):
            path = workspace / Path(candidate).expanduser()
            if is_attachable(path):
                mentions.setdefault(path, TextRange(match[0], match.start(), match.end()))
                break
    return mentions
