"""Calls of built-in tools that never run, whatever the rules say: they could not do what they look like."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from outrider.permissions.decision import Mode
from outrider.permissions.texts.redact import HIDDEN
from outrider.permissions.tools import shape_of

CONFINED = ("plan", "background")  # modes in which nobody is asked about a command
_NO_SANDBOX = "commands run inside a sandbox only in {mode} mode, and none works on this machine"
_HOLDS_HIDDEN = f"its input holds {HIDDEN}, which stands for a secret that was not kept; it is not the secret itself"


def refusal(tool: str, given: Mapping[str, Any], mode: Mode, sandbox: Callable[[], bool]) -> str:
    """Why the call is refused; empty where it is not."""
    kind = shape_of(tool).kind
    if kind == "shell" and mode in CONFINED and not sandbox():
        return _NO_SANDBOX.format(mode=mode)
    if kind in ("write", "shell") and _holds(given, HIDDEN):
        return _HOLDS_HIDDEN
    return ""


def _holds(value: object, mark: str) -> bool:
    match value:
        case str():
            return mark in value
        case Mapping():
            return any(_holds(item, mark) for item in cast("Mapping[str, object]", value).values())
        case list():
            return any(_holds(item, mark) for item in cast("list[object]", value))
        case _:
            return False
