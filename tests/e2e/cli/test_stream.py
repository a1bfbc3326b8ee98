"""The stream formats of `outrider run`: every line follows the schema, and input lines are executed."""

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from outrider.testing.simulator_answers import SimulatedError
from tests.e2e.cli.program import SECONDS, Done, Program, answering, call, ended

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "stream-json.schema.json").read_text())
OUTPUT = Draft202012Validator(SCHEMA)
INPUT = Draft202012Validator({"$ref": "#/$defs/input", "$defs": SCHEMA["$defs"]})
EDITING = call("write", "call_w", file_path="made.txt", content="one\n")
AGAIN = call("write", "call_x", file_path="other.txt", content="two\n")
ASKING = call("question", "call_q", question="Which color?", options=["red", "blue"])
STREAM = ("run", "-o", "stream-json")
BOTH = (*STREAM, "--input-format", "stream-json")


def checked(lines: list[Any]) -> list[Any]:
    """The lines, after each was compared with the schema and the times with each other."""
    for line in lines:
        OUTPUT.validate(line)
    times = [line["time"] for line in lines]
    assert times == sorted(times)
    return lines


def of_type(lines: list[Any], kind: str) -> list[Any]:
    return [line for line in lines if line["type"] == kind]


class Conversation:
    """A running program that is written to and read line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[Any] = []

    def send(self, **line: Any) -> None:
        INPUT.validate(line)
        self.send_raw(json.dumps(line))

    def send_raw(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")

    async def until(self, kind: str, true: Callable[[Any], bool] = lambda _: True) -> Any:
        assert self.process.stdout is not None
        while True:
            text = await asyncio.wait_for(self.process.stdout.readline(), SECONDS)
            assert text, f"no {kind} in {self.lines}"
            self.lines.append(json.loads(text))
            if self.lines[-1]["type"] == kind and true(self.lines[-1]):
                return self.lines[-1]

    async def end(self) -> Done:
        done = await ended(self.process, "")
        self.lines += done.lines
        return Done(done.code, "", done.err)


@asynccontextmanager
async def talking(program: Program, *arguments: str) -> AsyncIterator[Conversation]:
    process = await program.start(*BOTH, *arguments, stdin=PIPE)
    try:
        yield Conversation(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_every_line_follows_the_schema_and_messages_are_complete(program: Program):
    script = [["I will ", "write.", EDITING], SimulatedError(500, "try again"), "Done."]
    async with answering(program, script):
        done = await program.run(*STREAM, "--allow", "write", "go")
    lines = checked(done.lines)
    assert done.code == 0
    start = lines[0]
    assert {"read", "shell"} <= set(start["tools"])
    assert (start["servers"], start["program_version"] != "") == ([], True)
    first, second = of_type(lines, "message")
    assert [part["type"] for part in first["parts"]] == ["text", "tool_call"]
    assert (first["parts"][0]["text"], second["parts"][0]["text"]) == ("I will write.", "Done.")
    (asked,), (result,) = of_type(lines, "tool_call"), of_type(lines, "tool_result")
    assert asked["message_id"] == result["message_id"] == first["message_id"]
    assert asked["part_id"] == first["parts"][1]["part_id"]
    assert "+one" in result["diff"]
    chunks = of_type(lines, "text")
    assert {chunk["message_id"] for chunk in chunks} == {first["message_id"], second["message_id"]}
    assert [step["stop_reason"] for step in of_type(lines, "step")] == ["tool_use", "stop"]
    assert of_type(lines, "retry")


async def test_without_deltas_there_are_messages_and_results_only(program: Program):
    async with answering(program, [["Look.", call("shell", command="echo out")], "Done."]):
        done = await program.run(*STREAM, "--no-deltas", "go")
    kinds = [line["type"] for line in checked(done.lines)]
    assert kinds == ["start", "tool_call", "message", "step", "tool_result", "message", "step", "result"]


async def test_a_failed_step_has_a_stable_stop_reason(program: Program):
    async with answering(program, lambda _: SimulatedError(401, "bad key", "invalid_request_error")):
        done = await program.run(*STREAM, "go")
    (step,) = of_type(checked(done.lines), "step")
    assert (done.code, step["stop_reason"], step["error_type"]) == (5, "error", "AuthenticationError")


async def test_lines_of_called_agents_name_the_call_that_opened_their_session(program: Program):
    def answer(request: Any) -> Any:
        texts = " ".join(request.texts)
        if "first part" in texts or "second part" in texts:
            return f"did {texts}"
        if "tool" in str(request.body["messages"][-1]):
            return "All done."
        return [
            call("task", "call_a", description="one", prompt="first part"),
            call("task", "call_b", description="two", prompt="second part"),
        ]

    async with answering(program, answer):
        done = await program.run(*STREAM, "delegate")
    lines = checked(done.lines)
    children = {line["child_session_id"]: line["call_id"] for line in of_type(lines, "agent_call")}
    assert set(children.values()) == {"call_a", "call_b"}
    answers = [line for line in of_type(lines, "message") if line["session_id"] in children]
    assert {line["parent_call_id"]: line["parts"][0]["text"] for line in answers} == {
        "call_a": "did first part",
        "call_b": "did second part",
    }
    assert {line["call_id"]: line["child_session_id"] for line in of_type(lines, "tool_result")} == {
        call_id: session for session, call_id in children.items()
    }
    assert all("parent_call_id" not in line for line in lines if line.get("session_id") == lines[0]["session_id"])


async def test_approvals_are_answered_over_stdin(program: Program):
    async with answering(program, [[EDITING], "Kept.", [AGAIN], "Not kept."]) as server, talking(program) as talk:
        talk.send(type="prompt", text="write it", id="first")
        asked = await talk.until("approval_request")
        assert (asked["tool"], "+one" in asked["diff"]) == ("write", True)
        talk.send(type="approval", approval_id=asked["approval_id"], choice="once")
        result = await talk.until("result")
        assert (result["output"], result["exit_code"], result["input_id"]) == ("Kept.", 0, "first")
        made = program.workspace / "made.txt"
        assert made.read_text() == "one\n"
        talk.send(type="prompt", text="and again")
        asked = await talk.until("approval_request")
        talk.send(type="approval", approval_id=asked["approval_id"], allow=False, reason="it is enough")
        result = await talk.until("result")
        assert (result["output"], result["turns"], len(result["refused_calls"])) == ("Not kept.", 2, 1)
        assert "it is enough" in str(server.requests[-1].body)
        done = await talk.end()
    assert (done.code, done.err, (program.workspace / "other.txt").exists()) == (0, "", False)
    checked(talk.lines)


async def test_questions_are_answered_over_stdin(program: Program):
    async with answering(program, [[ASKING], "Blue it is."]) as server, talking(program, "ask me") as talk:
        asked = await talk.until("question")
        assert (asked["text"], asked["options"]) == ("Which color?", ["red", "blue"])
        talk.send(type="answer", question_id=asked["question_id"], answers=["blue"])
        assert (await talk.until("result"))["output"] == "Blue it is."
        assert "The user answered: blue" in str(server.requests[-1].body)
        assert (await talk.end()).code == 0
    assert of_type(checked(talk.lines), "question_closed")


async def test_bad_lines_are_reported_and_nothing_is_lost(program: Program):
    async with answering(program, lambda request: f"answer to {request.texts[-1]}"), talking(program) as talk:
        talk.send(type="prompt", text="one", id="1")
        for bad in (
            "not json",
            '{"type": "dance"}',
            "[1]",
            '{"type": "prompt", "txt": "x"}',
            '{"type": "prompt", "text": " "}',
            '{"type": "approval", "approval_id": "none", "allow": true}',
            '{"type": "answer", "question_id": "none"}',
            '{"type": "prompt", "text": "x", "files": ["missing.png"]}',
            "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
        ):
            talk.send_raw(bad)
        talk.send(type="prompt", text="two", id="2")
        talk.send(type="end")
        done = await ended(talk.process)
    lines = checked(done.lines)
    assert [line["output"] for line in of_type(lines, "result")] == ["answer to one", "answer to two"]
    problems = of_type(lines, "input_error")
    assert [line["line"] for line in problems] == list(range(2, 11))
    assert all(line["message"] for line in problems)
    assert done.code == 0


async def test_an_interrupt_ends_the_turn_and_the_next_prompt_is_processed(program: Program):
    never = asyncio.Event()
    async with answering(program, [["I was about", never], "Second."]), talking(program) as talk:
        talk.send(type="prompt", text="one")
        talk.send(type="prompt", text="two")
        await talk.until("text")
        talk.send(type="interrupt")
        assert (await talk.until("result"))["termination_reason"] == "aborted"
        assert (await talk.until("result"))["output"] == "Second."
        assert (await talk.end()).code == 0
    checked(talk.lines)


async def test_after_the_end_of_the_input_calls_that_need_an_answer_are_denied(program: Program):
    async with answering(program, [[EDITING], "I could not."]):
        done = await program.run(*BOTH, stdin=json.dumps({"type": "prompt", "text": "write it"}))
    assert (done.code, checked(done.lines)[-1]["output"]) == (3, "I could not.")
    assert not (program.workspace / "made.txt").exists()


async def test_an_input_stream_needs_an_output_stream(program: Program):
    program.url = "http://127.0.0.1:9"
    done = await program.run("run", "--input-format", "stream-json", stdin="")
    assert (done.code, done.out) == (2, "")
    assert "--output-format stream-json" in done.err


async def test_the_value_of_an_output_schema_is_printed_as_json(program: Program):
    schema = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
    (program.workspace / "schema.json").write_text(json.dumps(schema))
    wanted = ("--output-schema", "schema.json", "count the lines")
    async with answering(
        program, [["Let me look.", call("read", file_path="notes.txt")], '{"count": "x"}', '{"count": 1}']
    ):
        done = await program.run("run", *wanted)
    assert (done.code, json.loads(done.out), done.err) == (0, {"count": 1}, "")
    async with answering(program, lambda _: '{"count": 2}') as server:
        lines = checked((await program.run(*STREAM, *wanted)).lines)
    assert (lines[-1]["structured_output"], lines[-1]["output"]) == ({"count": 2}, '{"count": 2}')
    assert "count" in str(server.requests[0].body["response_format"])


async def test_without_a_value_stdout_is_empty_and_the_reason_is_reported(program: Program):
    (program.workspace / "schema.json").write_text('{"type": "object", "required": ["count"]}')
    async with answering(program, lambda _: "I count seven."):
        done = await program.run("run", "--output-schema", "schema.json", "count")
        assert (done.code, done.out) == (1, "")
        assert "not JSON" in done.err
        result = (await program.run("run", "-o", "json", "--output-schema", "schema.json", "count")).json
    assert (result["structured_output"], result["exit_code"]) == (None, 1)
    assert "not JSON" in result["structured_output_error"]
    for content, message in (("[]", "must be an object"), ("{", "not JSON")):
        (program.workspace / "schema.json").write_text(content)
        done = await program.run("run", "--output-schema", "schema.json", "count")
        assert (done.code, done.out, message in done.err) == (2, "", True)
