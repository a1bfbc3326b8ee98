"""Color palettes and themes, and the stored choices of the user. The theme `auto` follows the terminal's background."""

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from rich.style import Style
from textual.theme import Theme

from outrider.config.providers import has_light_background
from outrider.types.modes import ApprovalLevel, Mode, ReasoningEffort


class Palette(msgspec.Struct, frozen=True, kw_only=True):
    """Colors by purpose: `quiet` for secondary text, `faint` for lines and marks."""

    dark: bool
    background: str
    surface: str
    panel: str
    selection: str
    text: str
    quiet: str
    faint: str
    accent: str
    link: str
    good: str
    bad: str
    warn: str
    added: str
    removed: str
    keyword: str
    string: str
    number: str
    name: str

    def style(
        self, colour: str, *, bold: bool | None = None, italic: bool | None = None, underline: bool | None = None
    ) -> Style:
        return Style(color=getattr(self, colour), bold=bold, italic=italic, underline=underline)

    def style_on(self, background: str, colour: str = "text", *, bold: bool | None = None) -> Style:
        return Style(color=getattr(self, colour), bgcolor=getattr(self, background), bold=bold)


DARK = Palette(
    dark=True,
    background="#15171c",
    surface="#1b1e25",
    panel="#242833",
    selection="#35506e",
    text="#d8dbe2",
    quiet="#868d9b",
    faint="#474d5a",
    accent="#d9a864",
    link="#82aad4",
    good="#8fbb7c",
    bad="#e0787a",
    warn="#d9bf6a",
    added="#1d2f25",
    removed="#3a2228",
    keyword="#c39ac9",
    string="#9dbb86",
    number="#d19a78",
    name="#82aad4",
)
LIGHT = Palette(
    dark=False,
    background="#fbfaf7",
    surface="#f3f1ec",
    panel="#e9e6df",
    selection="#b9d3ee",
    text="#2a2d34",
    quiet="#6c717c",
    faint="#b9b5ab",
    accent="#9a6412",
    link="#25609c",
    good="#3f7a2c",
    bad="#b3373c",
    warn="#8a6a00",
    added="#dcefdc",
    removed="#f8dfdf",
    keyword="#82408d",
    string="#47752c",
    number="#a2552a",
    name="#25609c",
)


def build_theme(palette: Palette) -> Theme:
    """Converts a palette to a Textual theme, so that widgets and rendered lines use the same colors."""
    return Theme(
        name=theme_name(palette),
        primary=palette.accent,
        secondary=palette.link,
        accent=palette.accent,
        warning=palette.warn,
        error=palette.bad,
        success=palette.good,
        foreground=palette.text,
        background=palette.background,
        surface=palette.surface,
        panel=palette.panel,
        dark=palette.dark,
        variables={
            "quiet": palette.quiet,
            "faint": palette.faint,
            "border": palette.accent,
            "border-blurred": palette.faint,
            "input-selection-background": f"{palette.link} 35%",
            "scrollbar": palette.panel,
            "scrollbar-hover": palette.faint,
            "scrollbar-active": palette.quiet,
            "scrollbar-background": palette.background,
            "scrollbar-background-hover": palette.background,
            "scrollbar-background-active": palette.background,
            "scrollbar-corner-color": palette.background,
        },
    )


def theme_name(palette: Palette) -> str:
    """Returns the name of the palette's Textual theme."""
    return "outrider-dark" if palette.dark else "outrider-light"


def find_palette(name: str) -> Palette:
    """Returns the palette of a Textual theme name; DARK is the default."""
    return LIGHT if name == theme_name(LIGHT) else DARK


ThemeChoice = Literal["dark", "light", "auto"]


class StoredPreferences(msgspec.Struct, frozen=True):
    """What the user has chosen in the terminal application. `print_on_exit` prints the conversation after leaving."""

    theme: ThemeChoice = "auto"
    vim: bool = False
    notify: bool = True
    print_on_exit: bool = False


class TerminalPreferences:
    """The user's choices for the terminal application, stored as JSON in the data folder."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.stored = self._read_file()

    @property
    def palette(self) -> Palette:
        light = has_light_background() if self.stored.theme == "auto" else self.stored.theme == "light"
        return LIGHT if light else DARK

    def update(self, **choices: Any) -> None:
        """Sets and stores choices. If they cannot be written, they last until exit."""
        self.stored = msgspec.structs.replace(self.stored, **choices)
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file.write_bytes(msgspec.json.encode(self.stored))

    def _read_file(self) -> StoredPreferences:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=StoredPreferences)
        except (OSError, msgspec.MsgspecError):
            return StoredPreferences()


class FolderChoices(msgspec.Struct, frozen=True):
    """What the user has chosen in one folder, for its next sessions. None means the default.

    - `model`: the model of the first agent, as PROVIDER/MODEL.
    - `effort`: the reasoning effort.
    - `mode`: the mode of a new session.
    - `approval`: the approval level of agent mode.
    - `agent`: the name of the agent.
    """

    model: str | None = None
    effort: ReasoningEffort | None = None
    mode: Mode | None = None
    approval: ApprovalLevel | None = None
    agent: str | None = None


class FolderMemory:
    """The user's choices for one folder, stored in the data folder. Choices of `overridden` come from the command line
    or the environment: they are not read. Read and write errors are ignored."""

    def __init__(self, folder: Path, workspace: Path, overridden: frozenset[str] = frozenset()) -> None:
        self._file = folder / f"{hashlib.sha256(str(workspace).encode()).hexdigest()[:16]}.json"
        self._stored = self._read_file()
        if overridden & {"model", "agent"}:
            overridden |= {
                "model",
                "agent",
            }  # an agent has a model, and a model that is named is that of the first agent
        self.choices = msgspec.structs.replace(self._stored, **dict.fromkeys(overridden))

    def remember(self, **choices: str | None) -> None:
        self._stored = msgspec.structs.replace(self._stored, **choices)
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file.write_bytes(msgspec.json.encode(self._stored))

    def _read_file(self) -> FolderChoices:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=FolderChoices)
        except (OSError, msgspec.MsgspecError):
            return FolderChoices()
