"""`outrider eval`: suites, reports, recordings, comparisons, and cases from sessions."""

import asyncio
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.e2e.cli.program import Program, answering, call, ended, interrupt

SUITE = """
name = "greetings"
repeat = 5
concurrency = 3

[matrix.prompts]
good = "You write greetings. Be polite and check your work."
weak = "You write greetings."

[[cases]]
name = "hello"
prompt = "Write hello to a.txt"
[[cases.checks]]
type = "file"
path = "a.txt"
contains = "hello"

[[cases]]
name = "answer"
prompt = "Say hello"
[[cases.checks]]
type = "answer"
matches = "done"
"""


def obeys(request: Any) -> Any:
    """A model that writes the correct text only if its instructions ask it to check its work."""
    text = json.dumps(request.body)
    if '"role": "tool"' in text:
        return "done"
    if "Say hello" in text:
        return "done"
    return call("write", file_path="a.txt", content="hello" if "check your work" in text else "bye")


def write_suite(program: Program, text: str = SUITE) -> Path:
    file = program.workspace / "greetings.toml"
    file.write_text(text)
    return file


async def test_a_suite_is_run_reported_and_compared(program: Program, tmp_path: Path):
    write_suite(program)
    good, weak = tmp_path / "good", tmp_path / "weak"
    only = SUITE.replace('weak = "You write greetings."\n', "")
    async with answering(program, obeys):
        write_suite(program, only)
        first = await program.run("eval", "greetings.toml", "-o", str(good), "--repeat", "6")
        assert first.code == 0, first.err
        write_suite(program, only.replace(" Be polite and check your work.", ""))
        second = await program.run("eval", "greetings.toml", "-o", str(weak), "--repeat", "6", "--baseline", str(good))
    assert "hello   6/6 100% (61%–100%)" in first.out
    assert "report: " in first.err
    assert second.code == 1
    assert "failed: hello (good, 1): file a.txt: it does not contain 'hello'" in second.err
    assert "regression" in second.out
    results = json.loads((weak / "results.json").read_text())
    assert len(results["attempts"]) == 12
    page = (weak / "report.html").read_text()
    assert "regression" in page
    assert all(f"href='{one['trace']}'" in page and (weak / one["trace"]).exists() for one in results["attempts"])
    assert ElementTree.parse(weak / "junit.xml").getroot()[0].get("failures") == "6"
    compared = await program.run("eval", "compare", str(good), str(weak))
    assert (compared.code, compared.out.splitlines()[0]) == (1, "regression")
    assert "hello: 6/6 100% (61%–100%) -> 0/6 0% (0%–39%), -100 points" in compared.out
    same = await program.run("eval", "compare", str(good), str(good), "--json")
    assert (same.code, same.json["verdict"]) == (0, "no significant change")


async def test_variants_of_one_run_are_compared(program: Program, tmp_path: Path):
    write_suite(program)
    async with answering(program, obeys):
        done = await program.run("eval", "greetings.toml", "-o", str(tmp_path / "run"), "--case", "hello", "--json")
    assert done.code == 1, done.err
    assert {(one["variant"], one["status"]) for one in done.json["attempts"]} == {
        ("good", "passed"),
        ("weak", "failed"),
    }
    folder = tmp_path / "run"
    found = await program.run("eval", "compare", f"{folder}:good", f"{folder}:weak")
    assert found.out.startswith("regression\n\ngood -> weak: regression")


async def test_results_that_cannot_be_written_are_reported_before_the_run(program: Program):
    write_suite(program)
    program.url = "http://127.0.0.1:9/v1"  # no server: nothing is sent
    for options, message in (
        (("-o", "greetings.toml"), "the results cannot be written to "),
        (("--predictions", "all.jsonl"), "--predictions needs a run with one variant; this one has good; weak"),
    ):
        done = await program.run("eval", "greetings.toml", *options)
        assert (done.code, message in done.err) == (2, True), done.err
        assert "Traceback" not in done.err


async def test_a_recorded_suite_needs_no_model(program: Program):
    write_suite(program)
    options = ("--repeat", "1", "--min-pass", "75", "-m", "openai/gpt-4.1")
    async with answering(program, obeys):
        recorded = await program.run("eval", "greetings.toml", "--cassettes", "record", *options)
    assert recorded.code == 0, recorded.err
    assert len(list((program.workspace / "cassettes").rglob("*.jsonl"))) == 4
    address, program.url = program.url, ""
    unsent = await program.run("eval", "greetings.toml", *options)
    assert (unsent.code, "OPENAI_API_KEY" in unsent.err) == (2, True), unsent.err
    program.extra = {"OPENAI_BASE_URL": address}  # no key, and no server
    again = await program.run("eval", "greetings.toml", "--cassettes", "replay", *options)
    assert again.code == 0, again.err
    assert again.out.splitlines()[0:3] == recorded.out.splitlines()[0:3]


async def test_an_interrupted_run_has_a_report_of_what_was_done(program: Program, tmp_path: Path):
    write_suite(program, SUITE.replace("concurrency = 3", "concurrency = 1"))
    folder, asked = tmp_path / "run", asyncio.Event()

    def answer(request: Any) -> Any:
        if "Say hello" in json.dumps(request.body):
            asked.set()
            return ["done", 60.0, "late"]
        return obeys(request)

    async with answering(program, answer):
        process = await program.start("eval", "greetings.toml", "-o", str(folder))
        await asyncio.wait_for(asked.wait(), 60)
        interrupt(process)
        done = await ended(process)
    assert done.code == 130, done.err
    assert "interrupted; the attempts so far: " in done.err
    assert {one["case"] for one in json.loads((folder / "results.json").read_text())["attempts"]} == {"hello"}
    assert "hello" in (folder / "report.html").read_text()


async def test_a_session_becomes_a_case(program: Program):
    script = [call("write", "c1", file_path="tea.txt", content="green\n"), "Written."]
    async with answering(program, script):
        done = await program.run("run", "--allow", "write", "note my tea")
        assert done.code == 0, done.err
    added = await program.run("eval", "add", "last", "--to", "evals/suite.toml", "--name", "tea")
    assert added.code == 0, added.err
    assert added.out.startswith("added tea to ")
    fixture = program.workspace / "evals" / "fixtures" / "tea"
    assert sorted(path.name for path in fixture.iterdir()) == ["notes.txt"]
    valid = await program.run("eval", "validate", "evals/suite.toml")
    assert (valid.code, valid.out) == (0, "ok    tea\n")
    again = await program.run("eval", "evals", "--cassettes", "replay")
    assert again.code == 0, again.err


async def test_mistakes_are_usage_errors(program: Program, tmp_path: Path):
    unknown = await program.run("eval", "nothing.toml")
    assert (unknown.code, "is not a suite" in unknown.err) == (2, True)
    write_suite(program, "casse = 3")
    wrong = await program.run("eval", "greetings.toml")
    assert (wrong.code, "unknown field `casse`" in wrong.err) == (2, True)
    (program.workspace / "empty.toml").write_text('name = "empty"\n')
    empty = await program.run("eval", "empty.toml")
    assert (empty.code, "'empty' has no cases" in empty.err) == (2, True)
    missing = await program.run("eval", "compare", str(tmp_path), str(tmp_path))
    assert (missing.code, "is not a run" in missing.err) == (2, True)
    assert (await program.run("eval", "list")).out.split()[2:4] == ["coding", "41"]
