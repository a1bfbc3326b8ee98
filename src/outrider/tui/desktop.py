"""The desktop around the terminal: clipboards, the user's editor, and notifications."""

import asyncio
import base64
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from outrider.presentation.formats import clean_line
from outrider.types.ids import new_id

_SECONDS = 3.0  # a clipboard program that does not answer, e.g. without a display, is ended
MAX_OSC52_BYTES = 100_000  # terminals ignore longer sequences
MAX_IMAGE_BYTES = 20 * 1024 * 1024


def osc52_sequence(text: str) -> str:
    """Returns the sequence that sets the terminal's clipboard, also over SSH; "" if the text is too long for it."""
    encoded = base64.b64encode(text.encode("utf-8", "replace")).decode()
    return f"\x1b]52;c;{encoded}\x07" if len(encoded) <= MAX_OSC52_BYTES else ""


async def copy_natively(text: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Sets the clipboard of the desktop with one of its programs; returns whether one of them has succeeded."""
    for command in _copy_commands(environ):
        if await asyncio.to_thread(_run, command, text.encode()) is not None:
            return True
    return False


def _copy_commands(environ: Mapping[str, str]) -> Iterator[list[str]]:
    if sys.platform == "darwin":
        yield ["pbcopy"]
    if environ.get("WAYLAND_DISPLAY"):
        yield ["wl-copy"]
    if environ.get("DISPLAY"):
        yield ["xclip", "-selection", "clipboard"]
        yield ["xsel", "--clipboard", "--input"]
    if environ.get("WSL_DISTRO_NAME"):
        yield ["clip.exe"]


async def paste_image(folder: Path, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Stores the image of the clipboard as a PNG file in `folder`; returns its path, or None without an image."""
    for command in _image_commands(environ):
        data = await asyncio.to_thread(_run, command, b"")
        if data and data.startswith(b"\x89PNG") and len(data) <= MAX_IMAGE_BYTES:
            return await asyncio.to_thread(_store_image, folder, data)
    return None


def _store_image(folder: Path, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"clipboard-{new_id()[-8:]}.png"
    path.write_bytes(data)
    return path


def _image_commands(environ: Mapping[str, str]) -> Iterator[list[str]]:
    if sys.platform == "darwin":
        yield ["pngpaste", "-"]
    if environ.get("WAYLAND_DISPLAY"):
        yield ["wl-paste", "--type", "image/png"]
    if environ.get("DISPLAY"):
        yield ["xclip", "-selection", "clipboard", "-target", "image/png", "-o"]


async def paste_text(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the text of the desktop's clipboard, or None."""
    for command in _text_commands(environ):
        data = await asyncio.to_thread(_run, command, b"")
        if data is not None:
            return data.decode("utf-8", "replace")
    return None


def _text_commands(environ: Mapping[str, str]) -> Iterator[list[str]]:
    if sys.platform == "darwin":
        yield ["pbpaste"]
    if environ.get("WAYLAND_DISPLAY"):
        yield ["wl-paste", "--no-newline"]
    if environ.get("DISPLAY"):
        yield ["xclip", "-selection", "clipboard", "-o"]
        yield ["xsel", "--clipboard", "--output"]


def _run(command: list[str], data: bytes) -> bytes | None:
    """Runs a clipboard program and returns its output; None if it is not installed or fails.

    Programs that set a clipboard leave a process behind that serves it; it must not hold our pipes open.
    """
    if shutil.which(command[0]) is None:
        return None
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.run(
                command, input=data, stdout=output, stderr=subprocess.DEVNULL, timeout=_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        output.seek(0)
        return output.read() if process.returncode == 0 else None


def editor_command(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the user's editor: `$VISUAL`, `$EDITOR`, or the first of nano and vi that is installed."""
    chosen = environ.get("VISUAL") or environ.get("EDITOR") or ""
    try:
        command = shlex.split(chosen)
    except ValueError:
        command = []
    return command or [next((name for name in ("nano", "vi") if shutil.which(name)), "vi")]


async def edit_in_editor(text: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Lets the user edit a text in the editor, which has the terminal meanwhile. Returns None if the editor cannot be
    started or fails.

    The event loop continues: the engine has leases to renew and events to store.
    """
    with tempfile.TemporaryDirectory(prefix="outrider-") as folder:
        path = Path(folder) / "message.md"
        await asyncio.to_thread(path.write_text, text, encoding="utf-8")
        try:
            process = await asyncio.create_subprocess_exec(*editor_command(environ), str(path))
        except OSError:
            return None
        if await process.wait():
            return None
        edited = await asyncio.to_thread(path.read_text, encoding="utf-8", errors="replace")
        return edited.removesuffix("\n")


def title_sequence(title: str) -> str:
    """Returns the sequence that sets the title of the terminal's window."""
    return f"\x1b]0;{clean_line(title, 120)}\x07"


def notification_sequence(text: str) -> str:
    """Returns a bell and desktop notifications: OSC 9 (iTerm2, WezTerm, Windows Terminal) and OSC 777 (VTE, foot)."""
    line = clean_line(text, 200).replace(";", ",")
    return f"\x07\x1b]9;{line}\x07\x1b]777;notify;outrider;{line}\x07"
