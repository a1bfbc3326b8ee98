"""The package stays easy to enter: cohesive modules, few joints between them, and a loop that fits on a page.

There is no limit on the length of classes and functions, on the size of folders or on keyword parameters. The limits
here stop decay; they do not decide where a module ends.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.architecture.house import PACKAGE, exemptions, imported_names, modules_under, short

MODULE_WARNS, MODULE_FAILS = 500, 800
SMALL_MODULE, IMPORTERS_OF_A_SMALL_MODULE = 60, 3
# Each of these has one module per tool or per command, loaded by name, however short it is.
ONE_PER_THING = (PACKAGE / "tools" / "builtin", PACKAGE / "cli" / "commands")
FOLDER_MODULES = 3
EDGES_PER_1000_LINES = 30
LOOP, LOOP_LINES, LOOP_IMPORTS = PACKAGE / "agents" / "turn.py", 150, 15


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def dotted_name(path: Path) -> str:
    parts = list(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def import_graph() -> dict[str, frozenset[str]]:
    """Which modules of the package each module imports, lazy and type-only imports included."""
    own = {dotted_name(path): path for path in modules_under(PACKAGE)}
    graph: dict[str, frozenset[str]] = {}
    for name, path in own.items():
        targets: set[str] = set()
        for imported in imported_names(path):
            target = imported
            while target and target not in own:
                target = target.rpartition(".")[0]
            if target and target != name:
                targets.add(target)
        graph[name] = frozenset(targets)
    return graph


@cache
def importers() -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for importer, targets in import_graph().items():
        for target in targets:
            found[target].add(importer)
    return found


def plain_modules() -> list[Path]:
    return [path for path in modules_under(PACKAGE) if path.name not in {"__init__.py", "__main__.py"}]


def test_no_module_is_too_long_to_read(record_property: Callable[[str, object], None]):
    sizes = {short(path): lines_of(path) for path in plain_modules()}
    long = {name: size for name, size in sizes.items() if size > MODULE_WARNS}
    for name, size in sorted(long.items()):
        record_property("figures", f"warning: {name} has {size} lines (over {MODULE_WARNS}; {MODULE_FAILS} fail)")
    too_long = {name: size for name, size in long.items() if size > MODULE_FAILS}
    assert not too_long, f"split these by topic: {too_long}"


def small_modules() -> dict[str, int]:
    """Modules that are too small for the number of modules that import them."""
    return {
        short(path): len(importers()[dotted_name(path)])
        for path in plain_modules()
        if path.parent not in ONE_PER_THING
        and lines_of(path) < SMALL_MODULE
        and len(importers()[dotted_name(path)]) < IMPORTERS_OF_A_SMALL_MODULE
    }


def test_a_small_module_has_several_importers_or_a_reason():
    without_reason = {name: count for name, count in small_modules().items() if name not in exemptions("small_module")}
    assert not without_reason, (
        f"modules under {SMALL_MODULE} lines with fewer than {IMPORTERS_OF_A_SMALL_MODULE} importers; merge them into "
        f"the module that uses them, or give a reason in exemptions.toml: {without_reason}"
    )


def small_folders() -> dict[str, int]:
    folders = defaultdict(int)
    for path in plain_modules():
        folders[short(path.parent)] += 1
    return {name: count for name, count in folders.items() if count < FOLDER_MODULES}


def test_a_folder_has_at_least_three_modules():
    without_reason = {name: count for name, count in small_folders().items() if name not in exemptions("small_folder")}
    assert not without_reason, f"move the modules of these folders up one level: {without_reason}"


def test_no_exemption_outlives_its_need():
    stale = [name for name in exemptions("small_module") if name not in small_modules()]
    stale += [name for name in exemptions("small_folder") if name not in small_folders()]
    assert not stale, f"these exemptions are no longer needed: {stale}"


def test_modules_have_few_joints():
    edges = sum(len(targets) for targets in import_graph().values())
    lines = sum(lines_of(path) for path in modules_under(PACKAGE))
    density = 1000 * edges / lines
    assert density <= EDGES_PER_1000_LINES, f"{density:.1f} import edges per 1,000 lines, limit {EDGES_PER_1000_LINES}"


def test_the_loop_fits_on_a_page_and_imports_few_modules():
    assert lines_of(LOOP) <= LOOP_LINES, f"{short(LOOP)} has {lines_of(LOOP)} lines, limit {LOOP_LINES}"
    internal = import_graph()[dotted_name(LOOP)]
    assert len(internal) <= LOOP_IMPORTS, f"{short(LOOP)} imports {len(internal)} modules: {sorted(internal)}"
