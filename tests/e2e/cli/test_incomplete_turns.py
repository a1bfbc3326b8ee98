"""After a limit, a denial, a full context or a network failure the next step is shown, and `continue` works."""

from typing import Any

import pytest

from outrider.testing.simulator_answers import SIMULATED_APIS, BrokenConnection, Refusal
from tests.e2e.cli.program import Program, answering, call

READING = call("read", file_path="notes.txt")
OVERFLOW = SIMULATED_APIS["openai"].overflow
ENDS: dict[str, tuple[tuple[str, ...], Any, int, str]] = {
    "limit": (("--max-turns", "1"), lambda _: [READING], 4, 'raise the limit, then send "continue"'),
    "refusal": ((), [["I would", Refusal()]], 1, "rephrase the request, or choose another model"),
    "overflow": ((), lambda _: OVERFLOW, 5, "compact the conversation"),
    "network": (("--retry-attempts", "1"), [["It is", BrokenConnection()]], 5, 'send "continue" to try again'),
}


@pytest.mark.parametrize("kind", ENDS)
async def test_the_next_step_is_named_and_the_turn_continues(program: Program, kind: str):
    options, script, code, message = ENDS[kind]
    program.workspace /= "a-folder-whose-name-makes-the-state-of-the-workspace-longer-than-the-input" * 3
    program.workspace.mkdir()
    async with answering(program, script):
        ended = await program.run("run", *options, "-o", "json", "what do I need?")
    assert (ended.code, message in ended.json["next_step"]) == (code, True)
    assert message in ended.err
    session = ended.json["session_id"]
    assert f"continue this turn with: outrider run --session {session[-8:]}" in ended.err
    async with answering(program, lambda _: "Milk.") as server:
        continued = await program.run("run", "--session", session[-8:])
    assert (continued.code, continued.out, continued.err) == (0, "Milk.\n", "")
    assert "what do I need?" in server.requests[0].texts


async def test_another_model_or_a_new_prompt_works_after_a_refusal(program: Program):
    async with answering(program, [["I would", Refusal()], "Milk."]) as server:
        await program.run("run", "what do I need?")
        again = await program.run("run", "--continue", "please look into notes.txt")
    assert (again.code, again.out) == (0, "Milk.\n")
    assert server.requests[-1].texts[-1] == "please look into notes.txt"
