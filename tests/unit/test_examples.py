"""The examples run as they are, with their scripted models."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NO_PROGRAMS = {"example_model"}  # imported by others
PRINTED = {
    "agents_as_tools": "front → user: Bonjour, Hola\nBonjour. Hola.",
    "background_run": "There are three words. (completed after 2 steps)",
    "bank_support": "Advice(text='You have $123.45, John.', block_card=False, risk=1)\nAdvice(",
    "batch_runs": "praise   you are great",
    "crash_test": "after an effect, before its result is stored, visit 1: exact",
    "custom_provider": "Pieces of eight!  0.002000 2",
    "custom_store": "Hello.\nMessage\nMessage\nStepStartPart\nTextPart",
    "data_analyst": "February was best, with 340 of 550 in total.\nchart: chart-1.svg True",
    "dependencies": "You have 2 orders.",
    "evaluation": "before -> after: improvement\nafter, twice: no significant change",
    "first_conversation": "Saved and loaded again: 3 messages, equal: True",
    "flight_booking": "date=datetime.date(2027, 1, 10)), Seat(row=1, seat='A'))",
    "hooks_audit": "audit: find_customer Ada, card (hidden)\nFound.",
    "human_in_the_loop": "temperature {'city': 'Oakland'}\nSunny, 20 °C.",
    "mcp_tools": "['reorder', 'stock']\nThere are 12.",
    "nightly_maintenance": "app.py | 2 +-",
    "page_agent": "There are 12.",
    "pull_request_reviewer": "- **high** `shop.py:2` average([]) raises ZeroDivisionError",
    "recorded_test": "['test_helper.test_a_question_is_answered.jsonl']",
    "research_team": "reader → chief: It says: A heat pump costs 11000.",
    "roulette_wheel": "I bet five is the winner: False",
    "stream_values": "so far: City(name='Bern', people=134000)\nall: [",
    "support_desk": "19.00 are on their way back to you.\nada A-1 1900 arrived broken",
    "telemetry": "Take an umbrella.\nchat demo 6\nexecute_tool weather",
    "trace_demo": "written to",
    "typed_output": "lines=[Line(text='tea', cents=400), Line(text='milk', cents=150)], total=550)",
    "web_stream": 'data: "Hello from t"',
    "what_if_model": "Take a hat.",
    "worker_pool": "It has 3 letters. completed\n" * 3,
    "workspace_plan": "after: the end\nundone: teh end",
    "writer_and_critic": "checker → writer: Wrong: tea comes from China.",
}


def test_every_example_is_run():
    programs = {path.stem for path in EXAMPLES.glob("*.py")} - NO_PROGRAMS
    assert programs == set(PRINTED)
    assert len(programs) >= 25


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_should(name: str, tmp_path: Path):
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OUTRIDER_", "EXAMPLE_"))}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert PRINTED[name] in done.stdout
