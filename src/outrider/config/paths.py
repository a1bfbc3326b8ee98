"""Where Outrider's own things lie on this machine: the one place that knows platforms."""

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from outrider.errors import ConfigurationError

APPLICATION = "outrider"
_PRIVATE = 0o700


class Folders(msgspec.Struct, frozen=True):
    """`config` is what people write, `data` what Outrider keeps, `home` the user's own folder."""

    config: Path
    data: Path
    home: Path

    @property
    def config_file(self) -> Path:
        return self.config / "config.toml"

    @property
    def prompts(self) -> Path:
        return self.config / "prompts"

    @property
    def skills(self) -> Path:
        return self.config / "skills"

    @property
    def instructions(self) -> Path:
        return self.config / "AGENTS.md"

    @property
    def store(self) -> Path:
        return self.data / "sessions.db"

    @property
    def trust(self) -> Path:
        return self.data / "trust.json"


def find_folders(environ: Mapping[str, str], *, platform: str = sys.platform) -> Folders:
    """`$OUTRIDER_HOME` holds everything; else each platform's usual places count."""
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or Path.home())
    own = environ.get("OUTRIDER_HOME", "").strip()
    if own:
        folder = Path(own.replace("~", str(home), 1) if own.startswith("~/") else own)
        if not folder.is_absolute():
            raise ConfigurationError(
                f"OUTRIDER_HOME is {own!r}, which every workspace would fill for itself; write the whole path"
            )
        return Folders(folder, folder, home)
    match platform:
        case "darwin":
            folder = home / "Library" / "Application Support" / APPLICATION
            return Folders(folder, folder, home)
        case "win32":
            roaming = _place(environ, "APPDATA", home / "AppData" / "Roaming")
            local = _place(environ, "LOCALAPPDATA", home / "AppData" / "Local")
            return Folders(roaming / APPLICATION, local / APPLICATION, home)
        case _:
            config = _place(environ, "XDG_CONFIG_HOME", home / ".config")
            data = _place(environ, "XDG_DATA_HOME", home / ".local" / "share")
            return Folders(config / APPLICATION, data / APPLICATION, home)


def make_private(folder: Path) -> Path:
    """The folder, made where missing; nobody else may look into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
        if folder.stat().st_mode & 0o077:
            folder.chmod(_PRIVATE)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"{folder} cannot be used ({reason}); set OUTRIDER_HOME to another folder") from error
    return folder


def _place(environ: Mapping[str, str], name: str, otherwise: Path) -> Path:
    """Only an absolute path counts, as the XDG specification says: a relative one would be the workspace's."""
    given = Path(environ.get(name, ""))
    return given if given.is_absolute() else otherwise
