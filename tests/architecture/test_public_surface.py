"""What users can import is decided on purpose, resolves, and costs little to load.

`python -m tests.architecture.test_public_surface` writes the pinned lists for the code as it is now."""

import inspect
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import outrider
from tests.architecture.repository import ROOT

PINNED = Path(__file__).with_name("public_names.txt")
# The modules of the public interface, besides `outrider` itself; everything else is internal (docs/versioning.md).
MODULES = ("errors", "evals", "events", "mcp", "permissions", "providers", "stores", "testing", "types", "workspace")
PINNED_MODULES = Path(__file__).with_name("public_modules.json")
# Paid for by those who use them, never by an import.
LIBRARIES = {
    "aiohttp", "anthropic", "dbos", "google", "httpx", "httpx2", "mcp", "openai", "opentelemetry",
    "prompt_toolkit", "psycopg", "pydantic", "requests", "rich", "starlette", "textual", "tree_sitter",
    "urllib3", "uvicorn", "xllamacpp",
}  # fmt: skip
STANDARD_BUT_SLOW = {"http", "sqlite3", "ssl", "subprocess"}
LOADED = """
import json, sys
before = set(sys.modules)
import outrider
{then}
print(json.dumps(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}})))
"""


def loaded_by_import(then: str = "") -> set[str]:
    """Top-level modules that a fresh interpreter loads for `import outrider` and what follows."""
    code = LOADED.format(then=then)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def pinned_names() -> list[str]:
    return PINNED.read_text(encoding="utf-8").split()


def test_the_public_names_are_the_pinned_ones():
    pinned, actual = set(pinned_names()), set(outrider.__all__)
    assert actual == pinned, (
        f"new: {sorted(actual - pinned)}, gone: {sorted(pinned - actual)}; "
        "if that is meant, run `make names` and change CHANGELOG.md in the same commit"
    )


def test_the_public_names_are_listed_once_and_in_order():
    assert pinned_names() == sorted(set(pinned_names()))
    assert len(outrider.__all__) == len(set(outrider.__all__))


def test_every_public_name_resolves():
    missing = [name for name in outrider.__all__ if getattr(outrider, name, None) is None]
    assert not missing


def test_every_public_name_is_offered_for_completion():
    assert set(outrider.__all__) <= set(dir(outrider))


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(outrider, "no_such_name")


def test_importing_outrider_loads_nothing_heavy():
    assert not loaded_by_import() & (LIBRARIES | STANDARD_BUT_SLOW)


def test_using_any_public_name_loads_no_library_before_it_is_called():
    assert not loaded_by_import("from outrider import *") & LIBRARIES


def signatures_of(module: ModuleType) -> dict[str, str]:
    """The public names of a module, with the parameters of functions and of the methods of classes."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return {name: describe(getattr(module, name)) for name in sorted(getattr(module, "__all__", own)) if name[0] != "_"}


def describe(value: object) -> str:
    if inspect.isclass(value):
        methods = [name for name in dir(value) if not name.startswith("_")]
        return f"class {parameters_of(value)} {' '.join(methods)}".strip()
    return f"function {parameters_of(value)}" if inspect.isfunction(value) else "value"


def parameters_of(value: object) -> str:
    try:
        found = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "()"
    return (
        "(" + ", ".join(str(one).partition(":")[0].partition("=")[0].strip() for one in found.parameters.values()) + ")"
    )


def all_signatures() -> dict[str, dict[str, str]]:
    names = ["outrider", *(f"outrider.{name}" for name in MODULES)]
    return {name: signatures_of(import_module(name)) for name in names}


def test_the_public_modules_and_signatures_are_the_pinned_ones():
    found = all_signatures()
    pinned = json.loads(PINNED_MODULES.read_text(encoding="utf-8"))
    changed = {
        f"{module}.{name}": (pinned.get(module, {}).get(name, "not there"), found.get(module, {}).get(name, "gone"))
        for module in {*pinned, *found}
        for name in {*pinned.get(module, {}), *found.get(module, {})}
        if pinned.get(module, {}).get(name) != found.get(module, {}).get(name)
    }
    assert not changed, (
        "the public interface has changed; see docs/versioning.md. If that is meant, run `make names` and change "
        f"CHANGELOG.md in the same commit: {changed}"
    )


def test_every_public_module_is_listed_in_the_policy():
    policy = (ROOT / "docs" / "versioning.md").read_text(encoding="utf-8")
    assert [name for name in MODULES if f"`outrider.{name}`" not in policy] == []


if __name__ == "__main__":
    PINNED.write_text("".join(f"{name}\n" for name in sorted(outrider.__all__)), encoding="utf-8")
    PINNED_MODULES.write_text(json.dumps(all_signatures(), indent=1) + "\n", encoding="utf-8")
