"""Helpers of the architecture tests: paths of the repository, parsed modules, and exemptions."""

import ast
import subprocess
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "outrider"
EXEMPTIONS = Path(__file__).with_name("exemptions.toml")
# Made by the targets of the Makefile; git ignores them.
LOCAL_FOLDERS = {".cache", ".hypothesis", ".pytest_cache", ".ruff_cache", "build", "dist", "htmlcov"}


def modules_under(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


class Outline(NamedTuple):
    """What the tests need of a parsed module. Trees are not stored: they are a million objects."""

    docstring: str
    imports: tuple[str, ...]


@cache
def outline(path: Path) -> Outline:
    """Returns the docstring of a module, and every dotted name that it imports, also inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    names: list[str] = []
    for statement in statements(tree.body):
        if isinstance(statement, ast.Import):
            names += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            names += [f"{statement.module}.{alias.name}" for alias in statement.names]
    return Outline(ast.get_docstring(tree) or "", tuple(names))


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def statements(body: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    """The statements of a body and of all bodies in them. Expressions, most of a tree, contain no statement."""
    for node in body:
        if isinstance(node, ast.stmt):
            yield node
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            yield from statements(getattr(node, field, ()))


def tracked_files() -> list[Path]:
    """The files that a commit holds or would hold; in an unpacked source distribution, all that it was packed with."""
    if not (ROOT / ".git").exists():
        tops = [path for path in ROOT.iterdir() if path.name not in LOCAL_FOLDERS and not path.name.startswith(".venv")]
        found = [path for top in tops for path in (top.rglob("*") if top.is_dir() else [top])]
        return [path for path in found if path.is_file() and not {"__pycache__", "node_modules"} & set(path.parts)]
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [path for name in listing.split("\0") if name and (path := ROOT / name).is_file()]


@cache
def exemptions(rule: str) -> dict[str, dict[str, object]]:
    """The exemptions of one rule, keyed by what they exempt."""
    entries = tomllib.loads(EXEMPTIONS.read_text(encoding="utf-8")).get(rule, [])
    return {entry["what"]: entry for entry in entries}
