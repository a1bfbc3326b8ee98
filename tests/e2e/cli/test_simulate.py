"""`outrider simulate`, used by `outrider` itself, and the replay of what was recorded there."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.e2e.cli.program import Program

SCRIPT = """
[[answers]]
text = "I look."
calls = [{tool = "read", arguments = {file_path = "notes.txt"}}]

[[answers]]
error = {status = 503, message = "busy", headers = {retry-after = "0"}}

[[answers]]
text = "The milk."

[[answers]]
text = "The bread."
"""


@asynccontextmanager
async def simulating(program: Program, *arguments: str) -> AsyncIterator[str]:
    """The address of the simulated OpenAI."""
    process = await program.start("simulate", *arguments)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            lines = [(await process.stdout.readline()).decode() for _ in range(7)]
        yield next(line.partition("=")[2].strip() for line in lines if line.startswith("export OPENAI_BASE_URL"))
    finally:
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.communicate(), 60)


async def test_a_recorded_session_is_replayed_compared_and_run_with_a_change(program: Program, tmp_path: Path):
    script, log = tmp_path / "script.toml", tmp_path / "log.jsonl"
    script.write_text(SCRIPT)
    config = program.home / "outrider" / "config.toml"
    config.parent.mkdir()
    config.write_text("[recording]\nenabled = true\n")
    async with simulating(program, str(script), "--log", str(log)) as url:
        program.url = url
        done = await program.run("run", "what is in the notes?")
        assert (done.code, done.out.strip()) == (0, "The milk."), done.err
        same = await program.run("replay", "last")
        assert (same.code, same.out.splitlines()[-1]) == (0, "2 steps, 0 differences"), same.err
        first = json.loads((await program.run("sessions", "list", "--json")).out.splitlines()[0])["id"]
        changed = await program.run("what-if", "last", "--at-step", "1", "--model", "gpt-4.1-mini")
        assert "The bread." in changed.out, changed.err
        unknown = await program.run("what-if", "last", "--at-step", "1", "--model", "opnai/gpt-4.1-mini")
        assert (unknown.code, "there is no provider 'opnai'" in unknown.err) == (2, True), unknown.err
        compared = await program.run("compare", first, "last")
        assert (compared.code, "after 1 shared steps" in compared.out) == (1, True), compared.err
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["status"] for line in lines] == [200, 503, 200, 200]
    (tmp_path / "home" / "outrider").joinpath("AGENTS.md").write_text("Answer in French.\n")
    differs = await program.run("replay", first)
    assert (differs.code, "differs" in differs.out) == (1, True), differs.err


async def test_mistakes_are_named(program: Program):
    (program.workspace / "wrong.py").write_text("def answer(:\n")
    for arguments, message in (
        (["--chaos", "cuts=0.5"], "there is no fault cuts"),
        (["--chaos", "often"], "is not a share"),
        (["missing.toml"], "there is no script missing.toml"),
        (["missing.py:answer"], "there is no script missing.py"),
        (["--certificate", "missing.pem"], "has no certificate"),
        (["--chaos", "3"], "pass a number from 0 to 1"),
        (["wrong.py"], "wrong.py:NAME"),
        (["wrong.py:answer"], "wrong.py cannot be loaded: SyntaxError"),
        (["--log", "missing/log.jsonl"], "the log missing/log.jsonl cannot be written: No such file"),
    ):
        done = await program.run("simulate", *arguments)
        assert done.code != 0
        assert message in done.err, done.err
    unrecorded = await program.run("replay", "last")
    assert unrecorded.code != 0


async def test_a_function_is_a_script_and_chaos_repeats_with_its_seed(program: Program, tmp_path: Path):
    (program.workspace / "model.py").write_text("def answer(request):\n    return f'{len(request.texts)} texts'\n")
    program.extra = {"OUTRIDER_MODEL": "openai/gpt-4.1"}
    async with simulating(program, "model.py:answer", "--chaos", "server_error=0.5", "--seed", "3") as url:
        program.url = url
        done = await program.run("run", "hello")
        assert "texts" in done.out, done.err
