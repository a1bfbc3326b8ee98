"""The documentation site builds without a warning, and its reference has every public name."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import outrider
from tests.architecture.house import ROOT

pytest.importorskip("mkdocs", reason="mkdocs is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_public_name_is_in_the_reference_and_found_by_the_search(site: Path):
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    titles = {entry["title"] for entry in entries if entry["location"].startswith("reference/python/")}
    assert set(outrider.__all__) <= titles, sorted(set(outrider.__all__) - titles)


def test_the_site_loads_nothing_from_other_machines(site: Path):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for attribute in ('<script src="http', '<link rel="stylesheet" href="http', '<img src="http'):
            assert attribute not in text, f"{page.name}: {attribute}"
