"""Files, classes, functions and folders stay small enough to be read in one sitting."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.house import PACKAGE, exemptions, imported_names, modules_under, parse, short

MODULE_LINES, CLASS_LINES, FUNCTION_LINES, FOLDER_MODULES = 400, 200, 50, 12
LOOP, LOOP_LINES, LOOP_IMPORTS = PACKAGE / "agents" / "turn.py", 150, 15


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
    """Name, length and limit of every class and function, nested ones included."""
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}{'.' if '::' in prefix else '::'}{child.name}"
            limit = CLASS_LINES if isinstance(child, ast.ClassDef) else FUNCTION_LINES
            yield name, (child.end_lineno or child.lineno) - child.lineno + 1, limit
        yield from definitions(child, name)


def sizes() -> Iterator[tuple[str, int, int]]:
    """Name, size and limit of everything that has one."""
    modules = modules_under(PACKAGE)
    for path in modules:
        yield short(path), lines_of(path), LOOP_LINES if path == LOOP else MODULE_LINES
        yield from definitions(parse(path), short(path))
    for folder in sorted({path.parent for path in modules}):
        inside = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        yield short(folder), len(inside), FOLDER_MODULES


def test_nothing_is_larger_than_its_limit():
    allowed = exemptions("shape")
    too_large = [
        f"{name}: {size}, limit {limit}"
        for name, size, limit in sizes()
        if size > (allowed[name]["limit"] if name in allowed else limit)
    ]
    assert not too_large, "split these, or exempt them with a reason:\n  " + "\n  ".join(too_large)


def test_no_exemption_outlives_its_need():
    found = {name: (size, limit) for name, size, limit in sizes()}
    stale = [name for name in exemptions("shape") if name not in found or found[name][0] <= found[name][1]]
    assert not stale, f"these fit their limits again; remove the exemptions: {stale}"


def test_the_loop_knows_few_modules():
    if LOOP.exists():
        internal = {name.rpartition(".")[0] for name in imported_names(LOOP) if name.startswith("outrider.")}
        assert len(internal) <= LOOP_IMPORTS, f"{short(LOOP)} imports {len(internal)}: {sorted(internal)}"
