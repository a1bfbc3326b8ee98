"""The examples run as they are, with their scripted models."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTED = {
    "bank_support": "Advice(text='You have $123.45, John.', block_card=False, risk=1)",
    "roulette_wheel": "True",
    "flight_booking": "Seat(row=1, letter='A')",
    "agents_as_tools": "Hola, Bonjour",
    "human_in_the_loop": "Bob has the mail.",
}


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_should(name: str, tmp_path: Path):
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert PRINTED[name] in done.stdout
