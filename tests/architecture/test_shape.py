"""The package stays easy to enter: cohesive modules, few joints between them, and a loop that fits on a page.

There is no limit on the length of classes and functions, on the size of folders or on keyword parameters. The limits
here stop decay; they do not decide where a module ends.
"""

import ast
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.architecture.repository import PACKAGE, exemptions, modules_under, outline, short

MODULE_WARNS, MODULE_FAILS = 500, 800
SMALL_MODULE, IMPORTERS_OF_A_SMALL_MODULE = 60, 3
# One module for each tool, command, vendor and store, however short it is. Their number grows with the features.
ONE_PER_THING = ("tools/builtin/*.py", "cli/commands/*.py", "providers/*/*.py", "sessions/*_store.py")
FOLDER_MODULES = 3
EDGES_PER_1000_LINES = 30
# ruff does not limit complexity in these; see [tool.ruff.lint.per-file-ignores] in pyproject.toml.
MATCHES_EVERY_KIND = (
    *(PACKAGE / "presentation").glob("*.py"),
    *((PACKAGE / "cli" / "commands" / name) for name in ("run_output.py", "run_stream.py")),
)
MAX_COMPLEXITY = 10
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
        for imported in outline(path).imports:
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


def is_one_per_thing(path: Path) -> bool:
    return any(path.relative_to(PACKAGE).match(pattern) for pattern in ONE_PER_THING)


def small_modules() -> dict[str, int]:
    """Modules that are too small for the number of modules that import them."""
    return {
        short(path): len(importers()[dotted_name(path)])
        for path in plain_modules()
        if not is_one_per_thing(path)
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


def test_no_module_imports_its_own_names():
    own = {dotted_name(path): path for path in modules_under(PACKAGE) if path.name != "__init__.py"}
    found = [short(path) for name, path in own.items() if any(i.startswith(name + ".") for i in outline(path).imports)]
    assert not found, "these modules import names that they define"


def test_modules_have_few_joints():
    """Leaves out modules of which there is one per tool, vendor or command: a new one adds imports without coupling
    others."""
    counted = {dotted_name(path): path for path in modules_under(PACKAGE) if not is_one_per_thing(path)}
    edges = sum(len(import_graph()[name] & counted.keys()) for name in counted)
    density = 1000 * edges / sum(map(lines_of, counted.values()))
    assert density <= EDGES_PER_1000_LINES, f"{density:.1f} import edges per 1,000 lines, limit {EDGES_PER_1000_LINES}"


def complexity(function: ast.AST) -> int:
    """Returns the complexity as ruff computes it, except that a `match` that ends in `assert_never` adds one."""
    branches = 1
    for node in ast.walk(function):
        branches += isinstance(node, ast.If | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler)
        if isinstance(node, ast.Match):
            closed = "assert_never" in ast.unparse(node.cases[-1])
            branches += 1 if closed else len(node.cases)
    return branches


def test_functions_with_a_case_for_each_kind_are_simple_apart_from_these_cases():
    complex_functions = {
        f"{short(path)}:{node.name}": complexity(node)
        for path in MATCHES_EVERY_KIND
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and complexity(node) > MAX_COMPLEXITY
    }
    assert not complex_functions, f"split these functions, limit {MAX_COMPLEXITY}: {complex_functions}"


def test_the_loop_fits_on_a_page_and_imports_few_modules():
    assert lines_of(LOOP) <= LOOP_LINES, f"{short(LOOP)} has {lines_of(LOOP)} lines, limit {LOOP_LINES}"
    internal = import_graph()[dotted_name(LOOP)]
    assert len(internal) <= LOOP_IMPORTS, f"{short(LOOP)} imports {len(internal)} modules: {sorted(internal)}"
