"""A word to whoever watched a run and looked elsewhere meanwhile: the terminal's bell, or a notice on the desktop."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from html import escape

from outrider.app.screen import for_terminal
from outrider.cli.console import Console

_SECONDS = 5
_APPLE = 'on run argv\ndisplay notification (item 1 of argv) with title "Outrider"\nend run'


def ring(words: str) -> None:
    """Only at a terminal: a script hears of the end by the exit code."""
    console = Console()
    if not console.err_is_terminal:
        return
    console.err.write("\a")
    console.err.flush()
    if argv := desktop_notice(for_terminal(words, keep_lines=False), os.environ, sys.platform):
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(argv, timeout=_SECONDS, check=False, capture_output=True, stdin=subprocess.DEVNULL)


def desktop_notice(words: str, environ: Mapping[str, str], platform: str) -> Sequence[str]:
    """The command that shows it; empty where there is no desktop, or nothing that shows notices on it."""
    if platform == "darwin" and (program := shutil.which("osascript", path=environ.get("PATH"))):
        return program, "-e", _APPLE, words
    has_desktop = environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")
    if has_desktop and (program := shutil.which("notify-send", path=environ.get("PATH"))):
        return program, "--app-name=outrider", "--", "Outrider", escape(words, quote=False)
    return ()
