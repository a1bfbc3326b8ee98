"""Every Python block of the README and of the guides runs unchanged in a new interpreter."""

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.architecture.repository import ROOT

README = ROOT / "README.md"
# A block that needs a network, a key or another library has the comment <!-- no-run --> on the line before it.
# Blocks in tabs are indented.
BLOCK = re.compile(
    r"(?P<skip>^[ ]*<!-- no-run -->\s*\n)?^(?P<indent>[ ]*)```python\n(?P<code>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)


def snippets(page: Path) -> list[object]:
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    return [
        pytest.param(dedent(block["code"]), id=f"{page.name}, line {text.count(chr(10), 0, block.start('code')) + 1}")
        for block in BLOCK.finditer(text)
        if not block["skip"]
    ]


def test_the_readme_has_an_example_that_can_be_run():
    assert README.exists(), "README.md is missing"
    assert snippets(README), "README.md has no ```python block without <!-- no-run -->"


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/tutorials/*.md")), ids=lambda page: page.stem)
def test_a_tutorial_includes_its_program(page: Path):
    included = re.findall(r'^--8<-- "(.+)"$', page.read_text(encoding="utf-8"), re.MULTILINE)
    assert included, 'a program is included by a line such as --8<-- "examples/mcp_tools.py"'
    assert [name for name in included if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_linked_file_exists(page: str):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", text)
    assert [target for target in targets if not (ROOT / target).exists()] == []


@pytest.mark.parametrize("code", snippets(README))
def test_an_example_of_the_readme_runs(code: str, tmp_path: Path):
    run_snippet(code, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("code", [one for page in sorted(ROOT.glob("docs/**/*.md")) for one in snippets(page)])
def test_an_example_of_a_guide_runs(code: str, tmp_path: Path):
    run_snippet(code, tmp_path)


def run_snippet(code: str, tmp_path: Path) -> None:
    python = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{code}\n{done.stderr}"


def test_what_the_pages_count_and_list_is_there():
    programs = len(list((ROOT / "examples").glob("*.py")))
    assert f"{programs} programs in [`examples/`]" in README.read_text(encoding="utf-8")
    listed = (ROOT / "docs" / "internals" / "benchmarks.md").read_text(encoding="utf-8")
    names = [path.stem.removeprefix("bench_") for path in (ROOT / "benchmarks").glob("bench_*.py")]
    assert [name for name in names if f"| `{name}` |" not in listed] == []
    commands = re.findall(r"^  ([a-z-]+) +[a-z]", _help_of_the_program().partition("Commands:")[2], re.MULTILINE)
    guides = "\n".join(page.read_text(encoding="utf-8") for page in ROOT.glob("docs/**/*.md"))
    assert len(commands) >= 25
    assert [name for name in commands if f"outrider {name}" not in guides] == []


def _help_of_the_program() -> str:
    command = [sys.executable, "-m", "outrider", "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
