"""Product: a reviewer of pull requests. It reads a diff and the repository, and returns findings as data.

    git diff main | python examples/pull_request_reviewer.py --repository . -
    python examples/pull_request_reviewer.py                    # a demonstration

The agent is in plan mode: it reads files and runs commands in the sandbox, and changes nothing. The exit code is 1 if a
finding is severe, so that a pipeline can stop."""

import argparse
import asyncio
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from example_model import choose_model

from outrider import Agent, Limits
from outrider.workspace import Workspace

INSTRUCTIONS = """You review one change of a repository. Read the changed files and their callers before you judge.
Report defects only: wrong results, crashes, lost data, security holes, broken interfaces. No style, no praise."""
DEMO_DIFF = """--- a/shop.py
+++ b/shop.py
@@ -1,2 +1,2 @@
 def average(numbers):
-    return sum(numbers) / len(numbers) if numbers else 0
+    return sum(numbers) / len(numbers)
"""
DEMO_ANSWERS = [
    {"tool": "read", "input": {"file_path": "shop.py"}},
    '{"summary": "The guard for an empty list was removed.", "findings": [{"file": "shop.py", "line": 2, '
    '"severity": "high", "text": "average([]) raises ZeroDivisionError", "fix": "return 0 for an empty list"}]}',
]


@dataclass
class Finding:
    file: str
    line: int
    severity: Literal["low", "medium", "high"]
    text: str
    fix: str


@dataclass
class Review:
    summary: str
    findings: list[Finding]


async def review(diff: str, repository: Path) -> Review:
    provider, model = choose_model(DEMO_ANSWERS)
    reviewer = Agent("reviewer", INSTRUCTIONS, model=model, provider="model", mode="plan")
    limits = Limits(turns=30, seconds=600)
    async with Workspace(repository, reviewer, [provider], limits=limits) as workspace:
        return (await workspace.prompt(f"Review this change:\n\n{diff}", output_type=Review)).output


def as_markdown(found: Review) -> str:
    lines = [found.summary, ""]
    for finding in sorted(found.findings, key=lambda one: ("high", "medium", "low").index(one.severity)):
        lines.append(f"- **{finding.severity}** `{finding.file}:{finding.line}` {finding.text}. Fix: {finding.fix}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("diff", nargs="?", help="a file with the diff, or - for stdin")
    parser.add_argument("--repository", type=Path, default=None)
    arguments = parser.parse_args()
    if arguments.diff is None:
        folder = Path(tempfile.mkdtemp())
        (folder / "shop.py").write_text("def average(numbers):\n    return sum(numbers) / len(numbers)\n")
        found = asyncio.run(review(DEMO_DIFF, folder))
        print(as_markdown(found))
        return 0
    diff = sys.stdin.read() if arguments.diff == "-" else Path(arguments.diff).read_text(encoding="utf-8")
    found = asyncio.run(review(diff, arguments.repository or Path.cwd()))
    print(as_markdown(found))
    return int(any(finding.severity == "high" for finding in found.findings))


if __name__ == "__main__":
    sys.exit(main())
