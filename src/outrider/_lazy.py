"""Deferred work of imports: names of package facades and regular expressions that are created on first use."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, AnyStr, Generic, cast

if TYPE_CHECKING:
    import re


def lazy_names(
    package: str, homes: dict[str, str], *, old_names: dict[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a package. `homes` maps a module to the names that it defines, separated
    by spaces. A name is imported on first access and then stored in the package. `old_names` maps deprecated names to
    the new ones; they are not listed."""
    module_of = {name: module for module, names in homes.items() for name in names.split()}

    def load_name(name: str) -> Any:
        if old_names and name in old_names:
            from outrider._deprecated import warn_of_old_name

            warn_of_old_name(f"{package}.{name}", f"{package}.{old_names[name]}")
            return getattr(sys.modules[package], old_names[name])
        module = module_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return load_name, list_names


def lazy_pattern(pattern: AnyStr, flags: int = 0) -> "re.Pattern[AnyStr]":
    """Returns a regular expression that is compiled when one of its methods is first used.

    Compiling takes about 0.1 ms. Use it at module level for a pattern that most runs of a program do not need."""
    return cast("re.Pattern[AnyStr]", LazyPattern(pattern, flags))


class LazyPattern(Generic[AnyStr]):
    """Represents a compiled pattern: each of its attributes is looked up once and then stored here."""

    def __init__(self, pattern: AnyStr, flags: int) -> None:
        self._pattern = pattern
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        import re

        value = getattr(re.compile(self._pattern, self._flags), name)
        setattr(self, name, value)
        return value
