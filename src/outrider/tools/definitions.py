"""What the definitions of the built-in tools share: their prompt files and the argument names that models use."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def load_prompt(module: str, tool: str, **values: str) -> str:
    """Loads a tool's prompt file next to a module and replaces `{name}` placeholders with `values`, such as the list
    of agents."""
    text = Path(module).with_name(f"{tool}.md").read_text(encoding="utf-8").strip()
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


def argument_aliases(
    names: Mapping[str, str], *, drop: frozenset[str] = frozenset()
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Returns a function for `preprocess_args` that renames arguments. An argument that already has the target name
    takes precedence."""

    def rename(arguments: dict[str, Any]) -> dict[str, Any]:
        for other, ours in names.items():
            if other in arguments and ours not in arguments:
                arguments[ours] = arguments.pop(other)
        return {name: value for name, value in arguments.items() if name not in drop}

    return rename
