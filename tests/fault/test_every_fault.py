"""Every fault of the shared list has a test with its id in the name, somewhere in the tests."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
NAME = re.compile(r"def test_sf_(\d{3})(?:_(?:to|and)_(\d{3}))?")


def tried() -> set[int]:
    found = [match for path in TESTS.rglob("test_*.py") for match in NAME.finditer(path.read_text())]
    return {number for match in found for number in range(int(match[1]), int(match[2] or match[1]) + 1)}


def test_every_fault_of_the_list_is_tried(shared_dir: Path):
    listed = re.findall(r"^\| SF-(\d{3}) ", (shared_dir / "corpora" / "session_faults.md").read_text(), re.MULTILINE)
    assert len(listed) >= 60
    missing = sorted({int(number) for number in listed} - tried())
    assert not missing, f"no test is named after {missing}"
