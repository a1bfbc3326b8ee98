"""Helpers of the architecture tests: paths of the repository, parsed modules, and exemptions."""

import ast
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "outrider"
EXEMPTIONS = Path(__file__).with_name("exemptions.toml")
# Made by the targets of the Makefile; git ignores them.
LOCAL_FOLDERS = {".cache", ".hypothesis", ".pytest_cache", ".ruff_cache", "build", "dist", "htmlcov"}


def modules_under(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported_names(path: Path) -> Iterator[str]:
    """Every dotted name that the file imports, wherever the import stands."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


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
