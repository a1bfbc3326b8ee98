"""Patterns that are compiled on first use."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import outrider
from outrider._lazy import LazyPattern, lazy_pattern

PACKAGE = Path(outrider.__file__).parent


def test_a_lazy_pattern_behaves_as_the_compiled_one():
    for pattern in (lazy_pattern(r"(?P<word>b+)", re.IGNORECASE), lazy_pattern(rb"(?P<word>b+)", re.IGNORECASE)):
        text = "aBBc" if isinstance(pattern.pattern, str) else b"aBBc"
        found = pattern.search(text)
        assert found and found["word"] == text[1:3]
        assert pattern.sub(text[:0], text) == text[:1] + text[3:]
        assert pattern.groups == 1


def test_a_lazy_pattern_is_compiled_on_first_use_only():
    pattern = lazy_pattern("(")
    with pytest.raises(re.error):
        pattern.search("")


def test_every_lazy_pattern_of_the_package_can_be_compiled():
    files = [path for path in PACKAGE.rglob("*.py") if "= lazy_pattern(" in path.read_text(encoding="utf-8")]
    names = [".".join(("outrider", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in files]
    values = [value for name in names for value in vars(import_module(name)).values()]
    tables = [value for table in values if isinstance(table, dict) for value in table.values()]
    patterns = [value for value in (*values, *tables) if isinstance(value, LazyPattern)]
    assert all(pattern.pattern for pattern in patterns) and len(patterns) >= 60
