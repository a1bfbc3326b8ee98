"""Every public name has a docstring, and so have the public methods and properties of public classes; the guide to the
configuration names every key."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any, get_args

import msgspec
import pytest

from outrider.config.file import ConfigFile
from outrider.engine.runtime import EngineOptions
from outrider.stores import Store
from outrider.tools.definitions import ToolOptions
from tests.architecture.repository import ROOT

MODULES = (
    "outrider", "outrider.events", "outrider.stores", "outrider.workspace", "outrider.mcp", "outrider.providers",
    "outrider.permissions", "outrider.testing", "outrider.evals",
)  # fmt: skip


def public_values(module: str) -> Iterator[tuple[str, Any]]:
    """The classes and functions of Outrider that a public module exports; aliases of types have no docstring."""
    loaded = import_module(module)
    for name in getattr(loaded, "__all__", ()):
        value = getattr(loaded, name)
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith("outrider"):
            yield name, value


def members(cls: type) -> Iterator[tuple[str, list[Any]]]:
    """The public functions and properties of a class, each with all definitions of it: its own, those of the base
    classes, and for stores that of the protocol."""
    sources = [*(base for base in cls.__mro__ if base.__module__.startswith("outrider")), Store]
    for name in sorted({name for base in sources[:-1] for name in vars(base) if not name.startswith("_")}):
        found = [vars(base)[name] for base in sources if name in vars(base)]
        functions = [getattr(one, "__func__", None) or getattr(one, "fget", None) or one for one in found]
        if inspect.isfunction(functions[0]):
            yield f"{cls.__qualname__}.{name}", functions


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_docstring(module: str):
    values = dict(public_values(module))
    without = [name for name, value in values.items() if not vars(value).get("__doc__", value.__doc__)]
    for value in filter(inspect.isclass, values.values()):
        without += [name for name, found in members(value) if not any(one.__doc__ for one in found)]
    assert without == []


@pytest.mark.parametrize("options", [EngineOptions, ToolOptions])
def test_every_option_of_a_public_class_is_described(options: type[msgspec.Struct]):
    text = inspect.getdoc(options) or ""
    assert [name for name in options.__struct_fields__ if f"`{name}" not in text] == []


def config_keys(struct: type[msgspec.Struct], path: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        yield f"{path}{field.encode_name}"
        for table in tables(field.type):
            yield from config_keys(table, f"{path}{field.encode_name}.")


def tables(hint: Any) -> Iterator[type[msgspec.Struct]]:
    if inspect.isclass(hint) and issubclass(hint, msgspec.Struct):
        yield hint
    for argument in get_args(hint):
        yield from tables(argument)


def test_the_guide_names_every_key_of_the_configuration():
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    missing = [key for key in config_keys(ConfigFile) if not re.search(rf"\b{key.rpartition('.')[2]}\b", text)]
    assert missing == []
