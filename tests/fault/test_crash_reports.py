"""`outrider.testing.crash` reports what a user's tool did twice, and what was lost."""

import sys
from pathlib import Path

import pytest

from outrider.testing import crash
from outrider.testing.contracts import CRASH_POINTS

PROGRAM = """
import asyncio, os, pathlib
from outrider import Agent, Engine, Tool
from outrider.stores import SqliteStore
from outrider.testing import call, scripted_model

@Tool(repeatable=os.environ["MODEL"] == "repeatable")
def pay(bill: str) -> str:
    "Pay a bill."
    with open("paid.txt", "a") as file:
        file.write(bill + "\\n")
    return "paid " + bill

def answer(request):
    results = [part.content for m in request.prompt for part in m.content if part.type == "tool_result"]
    careless = os.environ["MODEL"] == "careless" and results and "paid" not in results[-1]
    return call("pay", bill="rent") if not results or careless else "done"

async def main():
    agent = Agent("payer", "You pay.", "demo", "demo")
    async with (
        SqliteStore("agent.db") as store,
        Engine([agent], [scripted_model(answer)], [pay], store=store) as engine,
    ):
        stored = (await store.list()).sessions
        session = stored[0].id if stored else await engine.create()
        began = bool((await store.load(session)).messages or await store.inbox(session))
        end = await (engine.resume(session) if began else engine.prompt(session, "Pay."))
        if end.error:
            raise end.error

asyncio.run(main())
"""
AROUND_THE_TOOL = ("before a tool starts", "after an effect, before its result is stored")


def paid(folder: Path) -> list[str]:
    file = folder / "paid.txt"
    return file.read_text().split() if file.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("careless", [({}, {}), ({"rent": 1}, {})]),  # calls again without a check of what the interrupted call did
        ("silent", [({}, {"rent": 1}), ({}, {})]),  # never calls again
        ("repeatable", [({}, {}), ({"rent": 1}, {})]),  # the engine repeats the call, as the tool allows wrongly
    ],
)
def test_a_crash_report_names_what_ran_twice_and_what_was_lost(
    model: str, expected: list[tuple[dict[str, int], dict[str, int]]], tmp_path: Path
):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    points = {point: CRASH_POINTS[point] for point in AROUND_THE_TOOL}
    report = crash([sys.executable, program], paid, points=points, visits=1, environment={"MODEL": model})
    assert report.expected == {"rent": 1}
    assert [(run.repeated_effects, run.missing_effects, run.error) for run in report.runs] == [
        (*pair, "") for pair in expected
    ]
    with pytest.raises(AssertionError, match=r"ran twice: rent|lost: rent"):
        report.check()
    if not report.runs_with_repeated_effects:
        report.check(may_lose=True)


def test_a_program_that_fails_without_a_crash_is_not_judged():
    with pytest.raises(AssertionError, match=r"exit code 3"):
        crash([sys.executable, "-c", "raise SystemExit(3)"], paid, visits=1)
