"""A demo for the embedded model: `python scripts/local_demo.py [1.5b | 0.5b | PATH.gguf [STEPS]]`.

It creates a small workspace with a bug, lets the agent read, fix and test it, and prints the conversation and the
trace.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from time import monotonic
from typing import TextIO

from outrider.config.paths import find_app_folders
from outrider.config.settings import CommandFlags, read_settings
from outrider.engine.factory import standard_engine
from outrider.errors import OutriderError
from outrider.event_bus import EventBus
from outrider.models.local_download import ProgressLine, pull_weights
from outrider.permissions.redaction.terminal import sanitize_for_terminal
from outrider.tracing.event_log import EventLog
from outrider.tracing.trace import Trace
from outrider.types.events import PartDeltaEvent, ToolExecutionCompletedEvent, ToolExecutionStartedEvent

FILES = {
    "README.md": "# Tea\n\nPrices of a tea shop. The test is run with `python -m unittest -q`.\n",
    "prices.py": "def average(prices):\n    return sum(prices) / len(prices)\n",
    "test_prices.py": (
        "import unittest\n\nfrom prices import average\n\n\nclass Prices(unittest.TestCase):\n"
        "    def test_average(self):\n        self.assertEqual(average([4.0, 10.0]), 7.0)\n\n"
        "    def test_average_of_nothing(self):\n        self.assertEqual(average([]), 0)\n"
    ),
}
TASK = (
    "Look at prices.py: average([]) raises ZeroDivisionError. It should return 0 for an empty list. "
    "Mend it, then run the test with: python -m unittest -q"
)
# No user answers approval requests here. The workspace is temporary, so exactly what the task needs is allowed.
ALLOWED_CALLS = ("write(*)", "shell(python -m unittest *)", "shell(python3 -m unittest *)", "shell(python -m pytest *)")
MAX_STEPS = 12
MAX_SECONDS = 270  # a small model may loop, and the demo must end
MAX_RESULT_LINES = 12


class ConsoleProgress:
    """Prints text and tool calls as they arrive."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def attach(self, bus: EventBus) -> None:
        bus.subscribe(PartDeltaEvent, lambda event: self.write(event.delta))
        bus.subscribe(ToolExecutionStartedEvent, self._on_tool_started)
        bus.subscribe(ToolExecutionCompletedEvent, self._on_tool_completed)

    def write(self, text: str) -> None:
        self._output.write(sanitize_for_terminal(text))
        self._output.flush()

    def _on_tool_started(self, event: ToolExecutionStartedEvent) -> None:
        arguments = " ".join(str(value) for value in event.tool_input.values())
        self.write(f"\n> {event.tool_name} {_truncate_lines(arguments).lstrip()}\n")

    def _on_tool_completed(self, event: ToolExecutionCompletedEvent) -> None:
        self.write(f"{_truncate_lines(event.output_preview)}\n")


async def run_demo(model: str, steps: int, output: TextIO) -> bool:
    """Return whether the test passes at the end."""
    progress, log, bus = ConsoleProgress(output), EventLog(), EventBus()
    log.attach(bus)
    progress.attach(bus)
    with tempfile.TemporaryDirectory(prefix="outrider-tea-") as folder:
        workspace = Path(folder)
        for name, text in FILES.items():
            (workspace / name).write_text(text, encoding="utf-8")
        flags = CommandFlags(model=f"local/{model}", allow=ALLOWED_CALLS, max_turns=steps, max_seconds=MAX_SECONDS)
        settings = read_settings(cwd=workspace, flags=flags)
        progress.write(f"The task: {TASK}\n")
        started = monotonic()
        async with standard_engine(settings, workspace=workspace, attended=False, bus=bus) as engine:
            session = await engine.create(workspace=workspace, title="A first task")
            end = await engine.prompt(session, TASK)
        if end.reason == "error" and end.error is not None:
            raise end.error
        why = f" ({end.error or end.output})" if end.reason != "completed" else ""
        progress.write(f"\n\nThe end, after {monotonic() - started:.0f} s{why}. What happened:\n")
        progress.write(Trace(log).format_tree())
        return await asyncio.to_thread(_tests_pass, workspace)


def main() -> int:
    model = sys.argv[1] if len(sys.argv) > 1 else ""
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else MAX_STEPS
    # Commands of the agent use the same Python as this process.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    try:
        if not model.endswith(".gguf"):
            pull_weights(model, find_app_folders(os.environ).data, ProgressLine(sys.stderr))
        passed = asyncio.run(run_demo(model, steps, sys.stdout))
    except OutriderError as error:
        sys.stderr.write(f"{sanitize_for_terminal(error.message)}\n")
        return 1
    sys.stdout.write(f"\nThe test of the workspace {'passes now' if passed else 'still fails: small models err'}.\n")
    return 0


def _tests_pass(workspace: Path) -> bool:
    from subprocess import run

    command = [sys.executable, "-m", "unittest", "-q"]
    return run(command, cwd=workspace, capture_output=True, timeout=60, check=False).returncode == 0


def _truncate_lines(text: str) -> str:
    lines = text.rstrip().splitlines()
    more = f"\n  … {len(lines) - MAX_RESULT_LINES} more lines" if len(lines) > MAX_RESULT_LINES else ""
    return "\n".join(f"  {line}" for line in lines[:MAX_RESULT_LINES]) + more


if __name__ == "__main__":
    sys.exit(main())
