"""What users can import is decided on purpose, resolves, and costs little to load."""

import json
import subprocess
import sys
from pathlib import Path

import outrider

PINNED = Path(__file__).with_name("public_names.txt")
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
        f"if that is meant, change {PINNED.name} and CHANGELOG.md in the same commit"
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
