"""Locations of Outrider's files on each platform."""

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from outrider.errors import ConfigurationError

APPLICATION = "outrider"
KEYS_FILE = "keys.json"
_PRIVATE = 0o700


class AppFolders(msgspec.Struct, frozen=True):
    """`config` holds files that users write, `data` files that Outrider writes, `home` is the user's home folder."""

    config: Path
    data: Path
    home: Path

    @property
    def config_file(self) -> Path:
        return self.config / "config.toml"

    @property
    def prompts_folder(self) -> Path:
        return self.config / "prompts"

    @property
    def skills_folder(self) -> Path:
        return self.config / "skills"

    @property
    def commands_folder(self) -> Path:
        return self.config / "commands"

    @property
    def servers_file(self) -> Path:
        """MCP servers that `outrider mcp add` has written, in the format of `.mcp.json`."""
        return self.config / "mcp.json"

    @property
    def logins_file(self) -> Path:
        return self.data / "mcp_logins.json"

    @property
    def hooks_file(self) -> Path:
        return self.config / "hooks.json"

    @property
    def instructions_file(self) -> Path:
        return self.config / "AGENTS.md"

    @property
    def keys_file(self) -> Path:
        return self.data / KEYS_FILE

    @property
    def store_file(self) -> Path:
        return self.data / "sessions.db"

    @property
    def runs_file(self) -> Path:
        return self.data / "runs.sqlite"

    @property
    def trust_file(self) -> Path:
        return self.data / "trust.json"


def find_app_folders(environ: Mapping[str, str] = os.environ, *, platform: str = sys.platform) -> AppFolders:
    """Returns the folders: `$OUTRIDER_HOME` for everything if it is set, else the platform's standard locations."""
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or Path.home())
    override = environ.get("OUTRIDER_HOME", "").strip()
    if override:
        folder = Path(override.replace("~", str(home), 1) if override.startswith("~/") else override)
        if not folder.is_absolute():
            raise ConfigurationError(
                f"OUTRIDER_HOME is {override!r}, a relative path that would differ for each workspace; "
                "set an absolute path"
            )
        return AppFolders(folder, folder, home)
    match platform:
        case "darwin":
            folder = home / "Library" / "Application Support" / APPLICATION
            return AppFolders(folder, folder, home)
        case "win32":
            roaming = _absolute_or_default(environ, "APPDATA", home / "AppData" / "Roaming")
            local = _absolute_or_default(environ, "LOCALAPPDATA", home / "AppData" / "Local")
            return AppFolders(roaming / APPLICATION, local / APPLICATION, home)
        case _:
            config = _absolute_or_default(environ, "XDG_CONFIG_HOME", home / ".config")
            data = _absolute_or_default(environ, "XDG_DATA_HOME", home / ".local" / "share")
            return AppFolders(config / APPLICATION, data / APPLICATION, home)


def make_private_folder(folder: Path) -> Path:
    """Creates the folder if necessary, readable by its owner only. A folder with the sticky bit, such as /tmp, is for
    all users and stays as it is. Raises ConfigurationError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
        mode = folder.stat().st_mode
        if mode & 0o077 and not mode & stat.S_ISVTX:
            folder.chmod(_PRIVATE)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"{folder} cannot be used ({reason}); set OUTRIDER_HOME to another folder") from error
    return folder


def _absolute_or_default(environ: Mapping[str, str], name: str, default: Path) -> Path:
    """Returns the path in a variable if it is absolute. The XDG specification ignores relative ones; they would depend
    on the current folder."""
    path = Path(environ.get(name, ""))
    return path if path.is_absolute() else default
