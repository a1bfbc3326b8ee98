"""Imports point down, have no cycles, and concrete stores, vendors and tools are imported by few packages only."""

import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from graphlib import CycleError, TopologicalSorter

import grimp

from tests.architecture.repository import ROOT

Edge = tuple[str, str]

FRONT_ENDS = ("outrider.cli", "outrider.tui", "outrider.server", "outrider.acp")
# Front ends hold an engine and read values; `background` is the layer between them and the engine.
COMPOSITION = (
    "outrider.engine",
    "outrider.config",
    "outrider.project",
    "outrider.models",
    "outrider.remote",
    "outrider.session_replay",
    "outrider.testing",
)
SEEN_BY_FRONT_ENDS = (
    *COMPOSITION,
    "outrider.background",
    "outrider.evals",
    "outrider.presentation",
    "outrider.types",
    "outrider.errors",
    "outrider._sync",
)
FACADES = (
    "outrider", "outrider.events", "outrider.stores", "outrider.testing", "outrider.evals", "outrider.mcp",
    "outrider.workspace", "outrider.providers",
)  # fmt: skip
VENDOR_FREE = ("outrider.errors", "outrider.types", "outrider.event_bus", "outrider.context", "outrider.agents")
CORE_LIBRARIES = {"msgspec", "typing_extensions"}
SHARED_BY_VENDORS = tuple(f"outrider.providers.{name}" for name in ("cassettes", "stream_filters", "transport"))
STORES = tuple(f"outrider.sessions.{name}" for name in ("sqlite", "postgres", "memory_store"))
SHARED_BY_TOOLS = ("outrider.tools.text",)
UNFOLDERED_PROVIDERS = ("outrider.providers.local", "outrider.providers.scripted")
EFFECTS = {"http", "shutil", "socket", "sqlite3", "ssl", "subprocess", "tempfile"}


@cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("outrider", include_external_packages=True, cache_dir=None)


def edges() -> list[Edge]:
    """Every import as (importer, imported), lazy and type-only ones included."""
    return sorted((importer, found) for importer in graph().modules for found in imports_of(importer))


def imports_of(module: str) -> Iterable[str]:
    if graph().is_module_squashed(module):
        return ()
    return graph().find_modules_directly_imported_by(module)


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def members(package: str) -> list[str]:
    return sorted(graph().find_children(package)) if package in graph().modules else []


def folders(package: str) -> list[str]:
    return [member for member in members(package) if graph().find_children(member)]


def vendors() -> list[str]:
    return [folder for folder in folders("outrider.providers") if folder not in SHARED_BY_VENDORS]


def assert_none(broken: Iterable[Edge], rule: str) -> None:
    listed = [f"{importer} imports {imported}" for importer, imported in broken]
    assert not listed, f"{rule}:\n  " + "\n  ".join(listed)


def assert_independent(siblings: list[str], rule: str) -> None:
    home = {importer: sibling for importer, _ in edges() for sibling in siblings if within(importer, sibling)}
    broken = [
        (importer, imported)
        for importer, imported in edges()
        if importer in home and within(imported, *(s for s in siblings if s != home[importer]))
    ]
    assert_none(broken, rule)


def test_the_import_contracts_are_preserved():
    lint = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as lint; lint()"]
    done = subprocess.run([*lint, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_module_imports_itself_through_others():
    modules = [module for module in graph().modules if within(module, "outrider")]
    try:
        TopologicalSorter({module: set(imports_of(module)) - {module} for module in modules}).prepare()
    except CycleError as error:
        raise AssertionError("import cycle: " + " -> ".join(reversed(error.args[1]))) from None


def test_nothing_inside_imports_a_public_facade():
    broken = [edge for edge in edges() if edge[1] in FACADES and edge[0] not in FACADES]
    assert_none(broken, "facades are for users; import the module that defines the name")


def test_vendors_do_not_know_each_other():
    assert_independent(vendors(), "what vendors share belongs beside their contract")


def test_built_in_tools_do_not_know_each_other():
    assert_independent(members("outrider.tools.builtin"), "built-in tools are independent")


def test_only_the_composition_root_names_concrete_stores_vendors_and_tools():
    tools = [folder for folder in folders("outrider.tools") if folder not in SHARED_BY_TOOLS]
    concrete = [*STORES, *vendors(), *UNFOLDERED_PROVIDERS, *tools]
    broken = [
        (importer, imported)
        for importer, imported in edges()
        for home in concrete
        if within(imported, home) and not within(importer, home, *COMPOSITION) and importer not in FACADES
    ]
    assert_none(broken, "only the composition packages choose implementations")


def test_the_lower_packages_import_no_library_but_the_core_ones():
    known = (set(sys.stdlib_module_names) | CORE_LIBRARIES) - EFFECTS
    broken = [
        (importer, imported)
        for importer, imported in edges()
        if within(importer, *VENDOR_FREE)
        and not within(imported, "outrider")
        and imported.partition(".")[0] not in known
    ]
    assert_none(broken, f"no SDK, HTTP client, database or console library in {', '.join(VENDOR_FREE)}")


def test_front_ends_see_the_engine_and_values_only():
    broken = [
        (importer, imported)
        for importer, imported in edges()
        for home in FRONT_ENDS
        if within(importer, home) and within(imported, "outrider") and not within(imported, home, *SEEN_BY_FRONT_ENDS)
    ]
    assert_none(broken, f"front ends import {', '.join(SEEN_BY_FRONT_ENDS)} and themselves")
