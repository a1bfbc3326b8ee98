"""Lazy attribute loading for package facades, so that importing a package does not import its modules."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: dict[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a package. `homes` maps a module to the names that it defines, separated
    by spaces. A name is imported on first access and then stored in the package."""
    module_of = {name: module for module, names in homes.items() for name in names.split()}

    def load_name(name: str) -> Any:
        module = module_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return load_name, list_names
