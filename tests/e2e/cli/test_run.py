"""`outrider run`: sources of prompts, three output formats, and exit codes."""

import asyncio
import base64
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from outrider.testing.simulator_answers import SIMULATED_APIS, MaxTokens, SimulatedError
from tests.e2e.cli.program import Program, answering, call, ended
from tests.fixtures.http_server import Reply, serving

READING = call("read", file_path="notes.txt")
CHATTER = ["Let me look.", READING]
TOUCHING = call("shell", command="touch made.txt")


async def test_an_answer_is_printed_and_nothing_else(program: Program):
    async with answering(program, ["Hello ", "never"]) as server:
        done = await program.run("run", "say", "hello")
    assert (done.code, done.out, done.err) == (0, "Hello \n", "")
    assert server.requests[0].texts == ["say hello"]


async def test_the_final_answer_is_printed_and_neither_calls_nor_text_before_them(program: Program):
    async with answering(program, lambda body: "Milk." if "tool" in str(body.body["messages"][-1]) else CHATTER):
        for options in ((), ("-q",)):
            done = await program.run("run", *options, "what do I need?")
            assert (done.code, done.out, done.err) == (0, "Milk.\n", ""), options
        done = await program.run("run", "-v", "what do I need?")
        assert (done.code, done.out, done.err.splitlines()[:2]) == (0, "Milk.\n", ["Let me look.", "▸ read notes.txt"])


async def test_verbose_states_on_stderr_what_happens(program: Program):
    async with answering(program, [READING, "Milk."]):
        done = await program.run("run", "-v", "what do I need?")
    assert done.out == "Milk.\n"
    assert "▸ read notes.txt" in done.err


async def test_debug_prints_every_event_to_stderr(program: Program):
    async with answering(program, [READING, "Milk."]):
        done = await program.run("run", "--debug", "what do I need?")
    assert (done.code, done.out) == (0, "Milk.\n")
    for text in ("what do I need?", "read", "notes.txt", "remember the milk"):
        assert text in done.err


async def test_json_is_one_object_with_all_that_happened(program: Program):
    async with answering(program, [[READING], [TOUCHING], "Done."]):
        done = await program.run("run", "-o", "json", "--max-turns", "9", "go")
    assert done.code == 3
    result = done.json
    assert result["output"] == "Done."
    assert (result["termination_reason"], result["exit_code"], result["error"]) == ("completed", 3, None)
    assert (result["turns"], result["agent"], result["mode"]) == (3, "outrider", "agent")
    assert result["usage"]["input_tokens"] == 60
    assert result["cost"] == pytest.approx(60 * 2e-6 + 30 * 8e-6)  # gpt-4.1
    (refused,) = result["refused_calls"]
    assert (refused["tool"], refused["input"], refused["reason"]) == ("shell", {"command": "touch made.txt"}, "denied")
    shown = await program.run("sessions", "show", result["session_id"])
    assert "remember the milk" in shown.out


async def test_a_command_that_is_asked_about_before_it_starts_is_reported_as_denied(program: Program):
    pushing = call("shell", command="git push --force origin main")
    async with answering(program, [[pushing], "Done."]):
        done = await program.run("run", "go")
    assert done.code == 3
    assert "denied, because approval is needed: git push --force origin main" in done.err


async def test_a_discarded_outcome_is_reported_with_the_ways_to_keep_it(program: Program):
    made = program.workspace / "made.txt"
    async with answering(program, lambda body: "Done." if "tool" in str(body.body["messages"][-1]) else TOUCHING):
        done = await program.run("run", "go")
        assert (done.code, made.exists()) == (3, False)
        assert "denied, because approval is needed" in done.err
        assert "touch made.txt" in done.err
        assert "--approval edits" in done.err
        assert "--allow RULE" in done.err
        edited = await program.run("run", "--approval", "edits", "go")
        assert (edited.code, edited.err, made.exists()) == (0, "", True)
        made.unlink()
        allowed = await program.run("run", "--allow", "shell(touch *)", "go")
        assert (allowed.code, allowed.err, made.exists()) == (0, "", True)


async def test_a_command_that_the_sandbox_blocks_from_the_network_is_reported(program: Program):
    fetching = call("shell", command="echo 'curl: (6) Could not resolve host: example.org' >&2; exit 6")
    async with answering(program, [[fetching], "Done."]) as server:
        done = await program.run("run", "go")
    assert done.code == 3
    assert "approval is needed" in done.err
    assert "blocked its access to example.org" in str(server.requests[-1].body)


async def test_stream_json_is_one_event_a_line_from_start_to_result(program: Program):
    async with answering(program, [["Look: ", READING], "Milk."]):
        done = await program.run("run", "-o", "stream-json", "go")
    lines = done.lines
    kinds = [line["type"] for line in lines]
    assert (kinds[0], kinds[-1], kinds.count("result")) == ("start", "result", 1)
    assert lines[0]["version"] == 1
    assert "".join(line["text"] for line in lines if line["type"] == "text") == "Look: Milk."
    (asked,) = [line for line in lines if line["type"] == "tool_call"]
    (result,) = [line for line in lines if line["type"] == "tool_result"]
    assert (asked["tool"], asked["input"], asked["call_id"]) == ("read", {"file_path": "notes.txt"}, result["call_id"])
    assert "remember the milk" in result["output"]
    assert not result["is_error"]
    assert kinds.count("step") == 2
    assert {line["session_id"] for line in lines} == {lines[0]["session_id"]}
    documented = (Path(__file__).parents[3] / "docs" / "stream-json.md").read_text()
    assert [kind for kind in set(kinds) if f"| `{kind}` |" not in documented] == []
    assert [name for name in lines[-1] if f"`{name}`" not in documented] == []


async def test_a_prompt_comes_from_stdin_and_from_files(program: Program):
    (program.workspace / "task.md").write_text("do this")
    async with answering(program, lambda _: "ok") as server:
        assert (await program.run("run", stdin="all of it\n")).code == 0
        assert (await program.run("run", "review", "-", stdin="a diff")).code == 0
        assert (await program.run("run", "@task.md", "@me first of all")).code == 0
    texts = [body.texts[0] for body in server.requests if len(body.texts) == 1]
    assert texts == ["all of it\n", "review\n\na diff", "do this\n\n@me first of all"]


async def test_piped_input_that_the_prompt_does_not_include_is_mentioned(program: Program):
    async with answering(program, lambda _: "ok"):
        ignored = await program.run("run", "review", stdin="a diff")
        assert (ignored.code, ignored.out) == (0, "ok\n")
        assert ignored.err == "outrider: stdin was not read; pass - to include it in the prompt\n"
        for arguments, stdin in ((("review", "-"), "a diff"), (("review",), ""), (("-q", "review"), "a diff")):
            assert (await program.run("run", *arguments, stdin=stdin)).err == ""


async def test_a_locale_that_knows_no_utf_8_takes_nothing_away(program: Program):
    program.extra = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    async with answering(program, ["ok ✓"]) as server:
        done = await program.run("run", "grüße ✓")
    assert (done.code, done.out) == (0, "ok \\u2713\n")
    assert server.requests[0].texts == ["grüße ✓"]
    assert (await program.run("serve", "--help")).code == 0


async def test_a_folder_that_is_gone_is_reported(program: Program):
    script = 'mkdir gone && cd gone && rmdir "$PWD" && exec "$0" -m outrider "$@"'
    for arguments in (["run", "hi"], ["undo"]):
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", script, sys.executable, *arguments, cwd=program.workspace, env=program.environ, stderr=PIPE
        )
        done = await ended(process)
        assert (done.code, done.err[:48]) == (2, "outrider: the current folder no longer exists. C"), arguments


async def test_files_are_attached(program: Program):
    picture = base64.b64decode("iVBORw0KGgo=")
    (program.workspace / "shot.png").write_bytes(picture)
    (program.workspace / "main.ts").write_text("const three = 3")  # the name is registered as video
    async with answering(program, ["A picture, and milk."]) as server:
        done = await program.run("run", "-f", "shot.png", "--file", "notes.txt", "-f", "main.ts", "what is it?")
    assert done.code == 0
    content = json.dumps(server.requests[0].body["messages"][-1]["content"])
    assert "data:image/png;base64,iVBORw0KGgo=" in content
    assert "remember the milk" in content and "const three = 3" in content


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run"], "the prompt is empty"),
        (["run", "x", "-f", "missing.png"], "missing.png"),
        (["run", "@missing.md"], "missing.md"),
        (["run", "x", "--cwd", "nowhere"], "not a folder"),
        (["run", "x", "--max-turns", "none"], "not a whole number"),
        (["run", "x", "--max-cost", "-1"], "amount of dollars"),
        (["run", "x", "--mode", "mad"], "mad"),
        (["run", "x", "--session", "ffffffff"], "no session"),
        (["run", "x", "--no-such-flag"], "--no-such-flag"),
        (["runn", "x"], "Did you mean `outrider run`?"),
    ],
)
async def test_what_cannot_be_meant_is_reported_before_anything_runs(program: Program, arguments: list[str], text: str):
    program.url = "http://127.0.0.1:9"
    done = await program.run(*arguments)
    assert done.code in ((1,) if "ffffffff" in arguments else (2,))
    assert text in done.err
    assert done.out == ""
    assert "Traceback" not in done.err


async def test_without_a_provider_the_three_ways_to_get_one_are_reported(program: Program):
    done = await program.run("run", "hello")
    assert done.code == 2
    for way in ("ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "local"):
        assert way in done.err


async def test_what_is_allowed_runs_and_what_needs_approval_is_refused_with_code_3(program: Program):
    writing = call("write", file_path="new.txt", content="x")
    async with answering(program, [[writing], "I could not."]):
        refused = await program.run("run", "write it")
    assert refused.code == 3
    assert "approval is needed: write new.txt" in refused.err
    assert not (program.workspace / "new.txt").exists()
    async with answering(program, [[writing], "Done."]):
        allowed = await program.run("run", "--allow", "write(new.txt)", "write it")
    assert (allowed.code, allowed.out) == (0, "Done.\n")
    assert (program.workspace / "new.txt").read_text() == "x"
    async with answering(program, [[call("write", file_path="other.txt", content="x")], "No."]):
        denied = await program.run("run", "--allow", "write", "--deny", "write(other.txt)", "write it")
    assert denied.code == 0
    assert not (program.workspace / "other.txt").exists()


@pytest.mark.parametrize(
    "refused",
    [
        call("write", file_path="AGENTS.md", content="x"),
        call("read", file_path="/etc/hostname"),
        call("web_fetch", url="https://example.org/"),
        call("shell", command="echo x > AGENTS.md"),
        call("shell", command="echo 'curl: (6) Could not resolve host: example.org' >&2; exit 6"),
    ],
)
async def test_a_refused_call_of_background_mode_ends_with_code_3(program: Program, refused):
    async with answering(program, [[refused], "I could not."]):
        done = await program.run("run", "--mode", "background", "do it")
        assert (done.code, "approval is needed" in done.err) == (3, True)
    async with answering(program, [[call("write", file_path="other.txt", content="x")], "No."]):
        denied = await program.run("run", "--mode", "background", "--deny", "write(other.txt)", "write it")
        assert denied.code == 0
    assert not (program.workspace / "AGENTS.md").exists()


async def test_a_limit_ends_the_run_with_code_4_and_what_was_reported_is_preserved(program: Program):
    async with answering(program, lambda _: [f"Step {len(_.body['messages'])}.", READING]):
        done = await program.run("run", "--max-turns", "2", "-o", "json", "never stop")
    assert done.code == 4
    assert done.json["termination_reason"] == "limit"
    assert "2 turns" in done.err
    async with answering(program, [["cut off", MaxTokens()]]):
        assert (await program.run("run", "write a book")).code == 4


async def test_a_provider_that_refuses_is_code_5_with_its_message(program: Program):
    async with answering(program, [SimulatedError(401, "Incorrect API key provided", "invalid_request_error")]):
        done = await program.run("run", "-o", "json", "hello")
    assert done.code == 5
    assert "Incorrect API key provided" in done.err
    assert done.json["error"]["type"] == "AuthenticationError"


async def test_a_session_continues_by_id_by_its_end_and_by_continue(program: Program):
    async with answering(program, lambda body: f"answer {len(body.body['messages'])}") as server:
        first = (await program.run("run", "-o", "json", "my name is Ada")).json["session_id"]
        second = (await program.run("run", "-o", "json", "-s", first[-8:], "what is my name?")).json
        third = (await program.run("run", "-o", "json", "-c", "and again?")).json
    assert {first, second["session_id"], third["session_id"]} == {first}
    asked = [body for body in server.requests if body.texts[-1] == "and again?"]
    assert asked[0].texts == ["my name is Ada", "what is my name?", "and again?"]


async def test_plan_mode_reads_and_does_not_write(program: Program):
    script = [[READING], [call("write", file_path="new.txt", content="x")], "A plan."]
    async with answering(program, script):
        done = await program.run("run", "--mode", "plan", "plan it")
    assert done.code == 0
    assert done.out.endswith("A plan.\n")
    assert not (program.workspace / "new.txt").exists()


async def test_other_instructions_take_the_place_of_the_agents_own(program: Program):
    (program.workspace / "pirate.md").write_text("Talk like a pirate.")
    async with answering(program, ["Arr."]) as server:
        assert (await program.run("run", "--system", "@pirate.md", "hello")).code == 0
    assert "Talk like a pirate." in json.dumps(server.requests[0].body["messages"][0])


async def test_a_broken_answer_is_requested_again_and_a_pipe_reads_the_whole_one_only(program: Program):
    vendor = SIMULATED_APIS["openai"]
    frames = [frame for frame in vendor.stream(["It is a long answer."]) if isinstance(frame, bytes)]
    busy = Reply([b'{"error": {"message": "busy"}}'], 503, {"content-type": "application/json", "retry-after": "0.1"})
    async with serving(Reply(frames[:2], after="drop"), busy, Reply(frames)) as server:
        program.url = f"{server.url}{vendor.base}"
        done = await program.run("run", "hello")
    assert (done.code, done.out) == (0, "It is a long answer.\n")
    first, second = (line for line in done.err.splitlines() if "attempt" in line)
    assert "attempt 1 of 12 failed" in first
    assert "the text above is withdrawn" in first
    assert "attempt 2 of 12 failed: openai 503" in second


async def test_a_turn_that_an_outage_ended_is_continued_by_another_process(program: Program):
    vendor = SIMULATED_APIS["openai"]
    frames = [frame for frame in vendor.stream(["It is a long answer."]) if isinstance(frame, bytes)]
    async with serving(Reply(frames[:2], after="drop")) as server:
        program.url = f"{server.url}{vendor.base}"
        done = await program.run("run", "--retry-attempts", "1", "hello")
    assert done.code == 5
    assert 'send "continue" to try again, or choose another model' in done.err
    assert "continue this turn with: outrider run --session" in done.err
    async with answering(program, ["and it ends.", "More."]) as again:
        assert (await program.run("run", "--continue")).out == "and it ends.\n"
        assert (await program.run("run", "--continue")).out == "More.\n"  # the turn has ended, so the model is asked
    assert "cut off" in again.requests[0].texts[-1]
    assert again.requests[1].texts[-1] == "continue"
