"""Targets of the Makefile install what they need, and nothing else."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def recipe_of(*arguments: str) -> str:
    """Returns the commands that `make` would run if the programs for tests had not been installed yet."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "PYTEST")}
    command = ["make", "--dry-run", "--what-if=scripts/test-setup", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_only_the_complete_suite_installs_the_programs_that_tests_need():
    assert "scripts/test-setup" in recipe_of("test")
    assert "scripts/test-setup" in recipe_of(".cache/test-setup"), ".ci/run installs them on its own"
    for target in (("test", "PYTEST=tests/unit -k bus"), ("test-fast",)):
        assert "scripts/test-setup" not in recipe_of(*target)
