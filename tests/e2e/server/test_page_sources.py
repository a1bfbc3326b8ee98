"""The page's bundle is built from its sources. Node is needed to build it, and no Node to check that it is current."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WEB, BUNDLE = ROOT / "web", ROOT / "src" / "outrider" / "server" / "page"


def test_the_bundle_was_built_from_the_sources_in_the_repository():
    names = [f"src/{path.name}" for path in (WEB / "src").iterdir()]
    names += ["index.html", "style.css", "icon.svg", "icon-waiting.svg", "package-lock.json", "build.mjs"]
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(name.encode() + b"\0" + (WEB / name).read_bytes() + b"\0")
    assert (BUNDLE / "sources.txt").read_text().strip() == digest.hexdigest(), "run `make page`"


@pytest.mark.skipif(shutil.which("npm") is None, reason="SKIPPED: npm is not installed, so the page is not rebuilt")
@pytest.mark.timeout(300)
def test_types_tests_and_a_new_build_of_the_page_pass(tmp_path):
    work = tmp_path / "web"
    shutil.copytree(WEB, work, ignore=shutil.ignore_patterns("node_modules"))
    shutil.copytree(BUNDLE, tmp_path / "src" / "outrider" / "server" / "page")
    for command in (["ci", "--no-audit", "--no-fund"], ["run", "check"], ["test"], ["run", "verify"]):
        done = subprocess.run(["npm", *command], cwd=work, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
