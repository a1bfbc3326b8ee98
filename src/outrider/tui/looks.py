"""Dark or light: what the user chose, kept between starts, else what the terminal says of itself."""

from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from outrider.app.config.terminal import has_light_background
from outrider.tui.rendering.palette import DARK, LIGHT, Palette

Look = Literal["dark", "light", "auto"]


class _Kept(msgspec.Struct, frozen=True):
    theme: Look = "auto"


class Looks:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._chosen = self._read()

    @property
    def palette(self) -> Palette:
        light = has_light_background() if self._chosen == "auto" else self._chosen == "light"
        return LIGHT if light else DARK

    def choose(self, look: Look) -> None:
        """A look that cannot be kept is worth no complaint."""
        self._chosen = look
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file.write_bytes(msgspec.json.encode(_Kept(look)))

    def _read(self) -> Look:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=_Kept).theme
        except (OSError, msgspec.MsgspecError):
            return "auto"
