"""Who may do what: modes, rules, shell analysis, paths, trust; the public names are loaded when they are first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.permissions.modes import Decision
    from outrider.permissions.paths.containment import Containment, contain
    from outrider.permissions.policy import decide

__all__ = ["Containment", "Decision", "contain", "decide"]

_HOMES = {"Containment": "paths.containment", "Decision": "modes", "contain": "paths.containment", "decide": "policy"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
