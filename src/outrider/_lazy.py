"""Values that are created on first use: names of package facades, which are imported; deprecated names, which warn and
name the new one; and regular expressions, which are compiled."""

import sys
import warnings
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, AnyStr, Generic, TypeVar, cast

if TYPE_CHECKING:
    import re

Method = TypeVar("Method", bound=Callable[..., Any])


def lazy_names(
    package: str, homes: dict[str, str], *, old_names: dict[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a package. `homes` maps a module to the names that it defines, separated
    by spaces. A name is imported on first access and then stored in the package. `old_names` maps deprecated names to
    the new ones; they are not listed."""
    module_of = {name: module for module, names in homes.items() for name in names.split()}

    def load_name(name: str) -> Any:
        if old_names and name in old_names:
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


def warn_of_old_name(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Emits a deprecation warning, by default for the caller of the function that calls this one."""
    warnings.warn(f"{old} is deprecated, use {new}", DeprecationWarning, stacklevel=stacklevel)


def deprecated_method(name: str, method: Method) -> Method:
    """Returns the method under an old name. Calling it emits a warning that names the new one."""
    owner = method.__qualname__.rpartition(".")[0]

    @wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        warn_of_old_name(f"{owner}.{name}", method.__qualname__)
        return method(*arguments, **options)

    return cast(Method, call)


def deprecated_names(
    old_module: str, names: dict[str, tuple[str, str]], *, new_module: str = "outrider"
) -> Callable[[str], Any]:
    """Returns `__getattr__` for a module that has only aliases. `names` maps an old name to the module that defines the
    value and its name there. The warning recommends that name in `new_module`."""

    def load_name(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {old_module!r} has no attribute {name!r}")
        module, new = names[name]
        warn_of_old_name(f"{old_module}.{name}", f"{new_module}.{new}")
        return getattr(import_module(module), new)

    return load_name


def lazy_pattern(pattern: AnyStr, flags: int = 0) -> "re.Pattern[AnyStr]":
    """Returns a regular expression that is compiled when one of its methods is first used.

    Compiling takes about 0.1 ms. This is for patterns at module level that most runs of a program do not need."""
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
