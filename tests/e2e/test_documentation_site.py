"""The documentation site builds without a warning, and its reference has every public name."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import outrider
from outrider import errors
from tests.architecture.repository import ROOT

pytest.importorskip("mkdocs", reason="mkdocs is not installed")


LOADED_FROM_OTHERS = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preload|icon))"""
    r"""[^>]*\bhref=["']?(?:https?:)?//""",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_public_name_is_in_the_reference_and_found_by_the_search(site: Path):
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    titles = {entry["title"] for entry in entries if entry["location"].startswith("reference/python/")}
    assert set(outrider.__all__) <= titles, sorted(set(outrider.__all__) - titles)


def test_the_site_loads_nothing_from_other_machines(site: Path):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = LOADED_FROM_OTHERS.search(text)
        assert loaded is None, f"{page.name}: {loaded}"


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_questions_of_engineers_are_answered_by_the_first_results_of_the_search(site: Path):
    """The search program of the site runs in node; a question passes if one of the first four pages answers it."""
    topics = tomllib.loads((ROOT / "tests" / "fixtures" / "site_questions.toml").read_text(encoding="utf-8"))
    expected = {question: pages for topic in topics.values() for question, pages in topic.items()}
    done = subprocess.run(
        ["node", str(ROOT / "scripts" / "search-site.mjs"), str(site)],
        input=json.dumps(list(expected)),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    missed: dict[str, list[str]] = {}
    for (question, pages), found in zip(expected.items(), json.loads(done.stdout), strict=True):
        first = [location.partition("#")[0].removesuffix(".html") for location in found[:4]]
        assert all((site / f"{page}.html").exists() for page in pages), pages
        if not set(first) & set(pages):
            missed[question] = first
    assert len(expected) >= 80
    assert missed == {}


def test_every_error_has_a_remedy_and_every_key_a_type(site: Path):
    remedies = (site / "reference" / "errors.html").read_text(encoding="utf-8").count("What to do:")
    leaves = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.OutriderError)]
    assert remedies >= len([one for one in leaves if not one.__subclasses__()])
    keys = (site / "reference" / "configuration.html").read_text(encoding="utf-8")
    assert "<code>parallel_calls</code>" in keys
    description = json.loads((site / "reference" / "openapi.json").read_text(encoding="utf-8"))
    assert description["openapi"] == "3.1.0"


def test_the_reference_shows_how_functions_and_classes_are_called(site: Path):
    runs = (site / "reference" / "python" / "outrider-runs-and-agents.html").read_text(encoding="utf-8")
    shown = re.sub(r"<[^>]+>", "", runs)
    assert "output_attempts: int = 3" in shown
    stores = re.sub(
        r"<[^>]+>", "", (site / "reference" / "python" / "outrider-stores.html").read_text(encoding="utf-8")
    )
    assert "path: str | Path" in stores
    for page in (site / "reference" / "python").glob("*.html"):
        assert not re.search(r" at 0x[0-9a-f]{6}", page.read_text(encoding="utf-8")), page.name


def test_diagrams_are_drawn_without_a_script(site: Path):
    page = (site / "concepts" / "index.html").read_text(encoding="utf-8")
    assert page.count('<div class="diagram"><svg') >= 7
    assert "unchanged so far" in page
