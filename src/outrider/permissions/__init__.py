"""Permission checks for tool calls: modes, rules, shell analysis, path containment, trust and secret redaction.

The public names load on first use, because the shell grammar is slow to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.permissions.modes import Decision
    from outrider.permissions.paths.containment import Containment, contain
    from outrider.permissions.policy import decide

__all__ = ["Containment", "Decision", "contain", "decide"]

_MODULE_OF_NAME = {
    "Containment": "paths.containment",
    "Decision": "modes",
    "contain": "paths.containment",
    "decide": "policy",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF_NAME[name]}"), name)
    globals()[name] = value
    return value
