"""Tests use the package as its callers do: they read and replace no private attribute of its objects."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.repository import ROOT, modules_under, short

# Names of other libraries, which have no public name for it.
OF_OTHERS = {
    "_compositor": "Textual: the compositor of a screen",
    "_execute_child": "subprocess.Popen: tests fork programs from a process that is warm",
    "_exit": "os: a forked child ends without cleanup",
    "_render_chops": "Textual: the method that LineCompositor replaces is compared with the original",
    "_replace": "named tuples",
    "_run_exitfuncs": "atexit: a forked child runs them itself",
    "_scheduled": "asyncio: the timers of a loop",
    "_shutdown": "threading: a forked child waits for its threads",
    "_transport": "asyncio.subprocess.Process: closes the pipe of a reader",
}
SETTERS = ("getattr", "setattr", "delattr", "monkeypatch.setattr", "monkeypatch.delattr")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def is_own(value: ast.expr) -> bool:
    """Whether it is `self`, `cls` or `super()`: a class of the tests may have private attributes."""
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name) if not is_own(value):
                names = [name]
            case ast.ImportFrom(module=str(module), names=aliases) if module.partition(".")[0] == "outrider":
                names = [alias.name for alias in aliases if alias.name not in ("_lazy", "_posix", "_sync")]
            case ast.Call(func=function, args=[_, ast.Constant(value=str(name)), *_]) if (
                ast.unparse(function) in SETTERS
            ):
                names = [name]
            case _:
                continue
        yield from ((node.lineno, name) for name in names if is_private(name))


def uses() -> Iterator[tuple[Path, int, str]]:
    for file in modules_under(ROOT / "tests"):
        for line, name in private_names(ast.parse(file.read_text(encoding="utf-8"))):
            yield file, line, name


def test_tests_use_no_private_name_of_the_package():
    found = list(uses())
    private = [f"{short(file)}:{line}: {name}" for file, line, name in found if name not in OF_OTHERS]
    assert not private, "pass what the test needs as an argument, or give the attribute a public name: " + str(private)
    assert {name for _, _, name in found} == OF_OTHERS.keys()


def test_private_names_are_found_where_they_are_read_imported_and_replaced():
    source = """
from outrider.engine.engine import _helper, Engine
engine._store.get()
monkeypatch.setattr(engine, "_clock", 1)
self._own, engine.__class__, engine.store
"""
    assert [name for _, name in private_names(ast.parse(source))] == ["_helper", "_clock", "_store"]
