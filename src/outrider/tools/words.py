"""Names that models know from other agents, taken quietly for ours."""

from collections.abc import Callable, Mapping
from typing import Any


def renamed(
    names: Mapping[str, str], *, drop: frozenset[str] = frozenset()
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """For `preprocess_args`: an argument that has our name already wins over one to be renamed."""

    def rename(arguments: dict[str, Any]) -> dict[str, Any]:
        for other, ours in names.items():
            if other in arguments and ours not in arguments:
                arguments[ours] = arguments.pop(other)
        return {name: value for name, value in arguments.items() if name not in drop}

    return rename
