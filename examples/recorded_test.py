"""Tests with cassettes: real traffic is recorded once, then the test runs offline. Here a simulator is the vendor."""

import subprocess
import sys
import tempfile
from pathlib import Path

from outrider.testing import Simulator

TEST = """
from outrider import Agent, run

helper = Agent("helper", "You help.", model="gpt-4.1", provider="openai")

def test_a_question_is_answered(outrider_cassette):
    openai = outrider_cassette.provider("openai", "openai", base_url="{url}", api_key="not-a-real-key")
    assert "4" in run(helper, "2 + 2?", providers=[openai]).output
"""


def run_tests(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip().splitlines()[-1]


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp())
    with Simulator(["It is 4."]) as simulator:
        (folder / "test_helper.py").write_text(TEST.format(url=simulator.url("openai")))
        print("recorded:", run_tests(folder, "--outrider-record"))  # with a real vendor: needs its key, once
    print("replayed:", run_tests(folder))  # the simulator is closed: nothing is reached
    print([path.name for path in folder.glob("cassettes/*")])
