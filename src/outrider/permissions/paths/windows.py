"""Containment of Windows paths, judged by their text alone: it can be tested anywhere and touches no share."""

import ntpath
import re
from typing import Literal

from outrider.permissions.paths.protected import Access, protecting

_NAMESPACE = re.compile(r"^[\\/]{2}|^\\\?\?\\|^\\\\[.?]\\")
_DEVICES = re.compile(r"^(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)\s*(?:[.:].*)?$", re.IGNORECASE)
_HOME = re.compile(r"^~(?:[\\/]|$)")
_ONLY_DOTS = re.compile(r"^(?!\.{1,2}$)[. ]+$")
_FORBIDDEN = re.compile(r'[<>"|?*\x00-\x1f]')


def contain_on_windows(
    path: str, *, root: str, cwd: str, access: Access
) -> tuple[Literal["inside", "outside", "protected", "reject"], str | None]:
    if _NAMESPACE.match(path) or _FORBIDDEN.search(path):
        return "reject", None
    if _HOME.match(path):
        return "outside", None
    drive, rest = ntpath.splitdrive(path)
    if (drive and not rest.startswith(("\\", "/"))) or ":" in rest:
        return "reject", None  # relative to a drive, or a stream of a file
    if any(_ONLY_DOTS.match(part) for part in re.split(r"[\\/]", rest)):
        return "reject", None  # dots and blanks at the end of a name are left out, and what remains is another name
    full = ntpath.normpath(ntpath.join(cwd, path))
    if any(_DEVICES.match(part) for part in full.split("\\")[1:]):
        return "reject", None
    home = ntpath.normpath(root)
    if not _below(full, home):
        return "outside", full
    parts = [part.rstrip(" .") for part in full[len(home) :].strip("\\").split("\\")]
    return ("protected" if protecting(parts, access) else "inside"), full


def _below(path: str, root: str) -> bool:
    path, root = ntpath.normcase(path), ntpath.normcase(root)
    return path == root or path.startswith(root.rstrip("\\") + "\\")
