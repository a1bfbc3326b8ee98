"""Old public names that still work, with a DeprecationWarning that names the new one."""

import warnings
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., Any])


def warn_of_old_name(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Emits the warning; by default for the caller of the function that calls this."""
    warnings.warn(f"{old} is deprecated, use {new}", DeprecationWarning, stacklevel=stacklevel)


def deprecated_method(name: str, method: Method) -> Method:
    """Returns the method under an old name, with a warning that names the new one."""
    owner = method.__qualname__.rpartition(".")[0]

    @wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        warn_of_old_name(f"{owner}.{name}", method.__qualname__)
        return method(*arguments, **options)

    return cast(Method, call)


def deprecated_names(old_module: str, names: dict[str, tuple[str, str]]) -> Callable[[str], Any]:
    """Returns `__getattr__` for a module that has only aliases. `names` maps an old name to the module and the name
    that has the value, and the name that the warning recommends is `outrider.NAME`."""

    def load_name(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {old_module!r} has no attribute {name!r}")
        module, new = names[name]
        warn_of_old_name(f"{old_module}.{name}", f"outrider.{new}")
        return getattr(import_module(module), new)

    return load_name
