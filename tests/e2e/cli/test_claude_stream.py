"""`claude-stream-json`: what programs that read and write the lines of Claude Code depend on."""

import asyncio
import json
from asyncio.subprocess import PIPE
from typing import Any

from tests.e2e.cli.program import SECONDS, Program, answering, call, ended

CLAUDE = ("run", "-o", "claude-stream-json")
BOTH = (*CLAUDE, "--input-format", "stream-json")
READING = call("read", "call_r", file_path="notes.txt")
WRITING = call("write", "call_w", file_path="made.txt", content="one\n")
ASKING = call("question", "call_q", question="Which color?", options=["red", "blue"])
# The fields that the public SDKs of Claude Code require of each line, and those that they document.
REQUIRED = {
    "system": {"subtype", "session_id", "uuid"},
    "assistant": {"message", "parent_tool_use_id", "session_id", "uuid"},
    "user": {"message", "parent_tool_use_id", "session_id", "uuid"},
    "stream_event": {"event", "parent_tool_use_id", "session_id", "uuid"},
    "result": {
        "subtype",
        "duration_ms",
        "duration_api_ms",
        "is_error",
        "num_turns",
        "session_id",
        "total_cost_usd",
        "usage",
        "modelUsage",
        "permission_denials",
        "result",
        "uuid",
    },
    "control_request": {"request_id", "request"},
    "control_response": {"response"},
    "control_cancel_request": {"request_id"},
}
INIT = {"cwd", "tools", "mcp_servers", "model", "permissionMode", "slash_commands", "apiKeySource", "output_style"}


def checked(lines: list[Any]) -> list[Any]:
    for line in lines:
        assert REQUIRED[line["type"]] <= line.keys(), line
    return lines


def user(text: str) -> str:
    line = {"type": "user", "message": {"role": "user", "content": text}, "parent_tool_use_id": None}
    return json.dumps({**line, "session_id": "default"})


async def read_until(process: asyncio.subprocess.Process, kind: str) -> Any:
    assert process.stdout is not None
    while True:
        line = json.loads(await asyncio.wait_for(process.stdout.readline(), SECONDS))
        checked([line])
        if line["type"] == kind:
            return line


def write(process: asyncio.subprocess.Process, *lines: Any) -> None:
    assert process.stdin is not None
    for line in lines:
        process.stdin.write((line if isinstance(line, str) else json.dumps(line)).encode() + b"\n")


def response(request: Any, **answer: Any) -> Any:
    inner = {"subtype": "success", "request_id": request["request_id"], "response": answer}
    return {"type": "control_response", "response": inner}


async def test_a_run_has_the_lines_of_claude_code(program: Program):
    async with answering(program, [["Let me look.", READING], "Milk."]):
        done = await program.run(*CLAUDE, "go")
    lines = checked(done.lines)
    assert done.code == 0
    assert [line["type"] for line in lines] == ["system", "assistant", "user", "assistant", "result"]
    init, asked, result_line, _, result = lines
    assert (init["subtype"], init.keys() >= INIT) == ("init", True)
    assert {"Bash", "Read", "Task"} <= set(init["tools"])
    text, use = asked["message"]["content"]
    assert text == {"type": "text", "text": "Let me look."}
    assert use == {"type": "tool_use", "id": "call_r", "name": "Read", "input": {"file_path": "notes.txt"}}
    assert (asked["message"]["stop_reason"], asked["message"]["role"]) == ("tool_use", "assistant")
    (block,) = result_line["message"]["content"]
    assert (block["tool_use_id"], block["is_error"], "milk" in block["content"]) == ("call_r", False, True)
    assert (result["subtype"], result["is_error"], result["result"]) == ("success", False, "Milk.")
    assert result["num_turns"] == 2
    assert result["usage"]["input_tokens"] == 40


async def test_chunks_are_events_of_the_messages_api(program: Program):
    async with answering(program, ["Hello."]):
        done = await program.run(*CLAUDE, "--include-partial-messages", "go")
    events = [line["event"] for line in checked(done.lines) if line["type"] == "stream_event"]
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "content_block_start", "content_block_delta"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(deltas) == "Hello."


async def test_a_refused_call_and_a_limit_are_reported_as_claude_code_does(program: Program):
    async with answering(program, [[WRITING], "I could not."]):
        result = checked((await program.run(*CLAUDE, "go")).lines)[-1]
    (denial,) = result["permission_denials"]
    assert (denial["tool_name"], denial["tool_use_id"]) == ("Write", "call_w")
    async with answering(program, lambda _: [READING]):
        result = checked((await program.run(*CLAUDE, "--max-turns", "1", "go")).lines)[-1]
    assert (result["subtype"], result["is_error"], len(result["errors"])) == ("error_max_turns", True, 1)


async def test_the_control_protocol_answers_permissions_questions_and_interrupts(program: Program):
    never = asyncio.Event()
    script = [[WRITING], "Kept.", [ASKING], "Blue.", ["I was about", never], "After."]
    async with answering(program, script) as server:
        process = await program.start(*BOTH, stdin=PIPE)
        hello = {"type": "control_request", "request_id": "r1", "request": {"subtype": "initialize", "hooks": None}}
        write(process, hello)
        greeted = (await read_until(process, "control_response"))["response"]
        assert (greeted["subtype"], greeted["request_id"]) == ("success", "r1")
        write(process, user("write it"))
        asked = await read_until(process, "control_request")
        assert (asked["request"]["subtype"], asked["request"]["tool_name"]) == ("can_use_tool", "Write")
        write(process, response(asked, behavior="allow", updatedInput=asked["request"]["input"]))
        assert (await read_until(process, "result"))["result"] == "Kept."
        assert (program.workspace / "made.txt").read_text() == "one\n"
        write(process, user("ask me"))
        asked = await read_until(process, "control_request")
        given = {"questions": asked["request"]["input"]["questions"], "answers": {"Which color?": "blue"}}
        write(process, response(asked, behavior="allow", updatedInput=given))
        assert (await read_until(process, "result"))["result"] == "Blue."
        assert "The user answered: blue" in str(server.requests[-1].body)
        write(process, user("never end"), user("and then"))
        while len(server.requests) < 5:
            await asyncio.sleep(0.02)
        write(process, {"type": "control_request", "request_id": "r2", "request": {"subtype": "interrupt"}})
        assert (await read_until(process, "result"))["subtype"] == "error_during_execution"
        assert (await read_until(process, "result"))["result"] == "After."
        done = await ended(process, "")
    assert (done.code, done.err) == (0, "")


async def test_a_denial_reaches_the_model_and_bad_lines_are_reported(program: Program):
    async with answering(program, [[WRITING], "Not kept."]) as server:
        process = await program.start(*BOTH, stdin=PIPE)
        unknown = {"type": "control_request", "request_id": "r1", "request": {"subtype": "dance"}}
        write(process, "nonsense", unknown, user("write it"))
        assert (await read_until(process, "system"))["subtype"] == "init"
        assert (await read_until(process, "system"))["subtype"] == "input_error"
        refused = (await read_until(process, "control_response"))["response"]
        assert (refused["subtype"], refused["request_id"]) == ("error", "r1")
        asked = await read_until(process, "control_request")
        write(process, response(asked, behavior="deny", message="use another file"))
        assert (await read_until(process, "result"))["result"] == "Not kept."
        await ended(process, "")
    assert "use another file" in str(server.requests[-1].body)
    assert not (program.workspace / "made.txt").exists()
