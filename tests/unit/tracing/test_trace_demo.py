"""The example that people try first works."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "trace_demo.py"


def test_the_demo_prints_a_tree_and_writes_a_page(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), str(tmp_path)], capture_output=True, check=True, encoding="utf-8",
        env={"PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert "├─ agent researcher" in done.stdout
    assert "… unfinished" in done.stdout
    assert (tmp_path / "trace.html").read_text(encoding="utf-8").startswith("<!doctype html>")
