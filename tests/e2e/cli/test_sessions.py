"""Commands about what is stored: sessions, traces, figures, files; all on one session that really happened."""

import asyncio
import json
import re
import subprocess
import time
from pathlib import Path

from tests.e2e.cli.program import Program, answering, call

SCRIPT = [
    ["I will look.", call("read", "call_a", file_path="notes.txt")],
    [call("write", "call_b", file_path="notes.txt", content="remember the milk\nbuy tea\n")],
    "Milk and tea \x1b[31mare\x1b[0m needed.",
]


async def lived(program: Program) -> str:
    async with answering(program, SCRIPT):
        done = await program.run("run", "-o", "json", "--allow", "write", "what is needed?")
    assert done.code == 0, done.err
    return done.json["session_id"]


async def test_sessions_are_listed_shown_found_renamed_forked_and_deleted(program: Program):
    session = await lived(program)
    short = session[-8:]
    listed = await program.run("sessions", "list")
    assert short in listed.out
    assert "what is needed?" in listed.out
    shown = await program.run("sessions", "show", short)
    for text in ("what is needed?", "I will look.", "▸ read", "remember the milk", "Milk and tea"):
        assert text in shown.out
    found = await program.run("sessions", "search", "tea needed")
    assert (found.code, short in found.out) == (0, True)
    assert (await program.run("sessions", "search", "coffee")).code == 1
    assert (await program.run("sessions", "rename", short, "Shopping")).code == 0
    forked = (await program.run("sessions", "fork", short, "--title", "Another way")).out.strip()
    lines = (await program.run("sessions", "list", "--json", "--here")).lines
    assert {(line["id"], line["title"]) for line in lines} == {(session, "Shopping"), (forked, "Another way")}
    refused = await program.run("sessions", "delete", short)
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert (await program.run("sessions", "delete", short, "--yes")).code == 0
    assert [line["id"] for line in (await program.run("sessions", "list", "--json")).lines] == [forked]
    assert (await program.run("sessions", "clear", "-y")).code == 0
    empty = await program.run("sessions", "list")
    assert (empty.code, empty.out) == (0, "")
    assert "no sessions yet" in empty.err


async def test_a_session_travels_as_json_and_as_a_page(program: Program, tmp_path: Path):
    session = await lived(program)
    exported = await program.run("sessions", "export", session)
    assert json.loads(exported.out)["outrider_export"] == 1
    other_home = Program(tmp_path / "home2", program.workspace)
    other_home.home.mkdir()
    assert (await other_home.run("sessions", "import", "-", stdin=exported.out)).out.strip() == session
    assert "Milk and tea" in (await other_home.run("sessions", "show", session)).out
    page = tmp_path / "page.html"
    assert (await program.run("sessions", "share", session, "-o", str(page))).code == 0
    html = page.read_text()
    assert "Milk and tea" in html
    assert "<script" not in html


async def test_the_text_and_the_calls_of_a_failed_attempt_are_struck_out(program: Program):
    session = await lived(program)
    exported = json.loads((await program.run("sessions", "export", session)).out)
    for message in exported["sessions"][0]["messages"]:
        for part in message["parts"]:
            if part["type"] == "tool" or part.get("text") == "I will look.":
                part["metadata"] = {"withdrawn": True}
    other_home = Program(program.home.parent / "home2", program.workspace)
    other_home.home.mkdir()
    await other_home.run("sessions", "import", "-", stdin=json.dumps(exported))
    lines = (await other_home.run("sessions", "show", session)).out.splitlines()
    assert "~~I will look.~~" in lines
    assert any(line.startswith("~~▸ read") for line in lines)
    assert any("Milk and tea" in line and "~~" not in line for line in lines)


async def test_a_session_is_imported_from_a_url(program: Program, tmp_path: Path):
    session = await lived(program)
    exported = tmp_path / "session.json"
    assert (await program.run("sessions", "export", session, "-o", str(exported))).code == 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = exported.read_bytes()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    other_home = Program(tmp_path / "home2", program.workspace)
    other_home.home.mkdir()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        done = await other_home.run("sessions", "import", f"http://127.0.0.1:{port}/session.json")
    assert (done.code, done.out.strip()) == (0, session), done.err
    assert "Milk and tea" in (await other_home.run("sessions", "show", session)).out


async def test_traces_and_statistics_show_what_was_done_and_what_it_cost(program: Program, tmp_path: Path):
    session = await lived(program)
    trace = await program.run("trace", session)
    for text in ("agent outrider", "tool read", "tool write", "3 model calls, 2 tool calls", "$0.0"):
        assert text in trace.out
    page = tmp_path / "trace.html"
    assert (await program.run("trace", "--html", str(page))).code == 0
    assert "outrider" in page.read_text()
    program.extra = {"COLUMNS": "40"}
    narrow = await program.run("stats")
    assert narrow.code == 0
    assert max(map(len, narrow.out.splitlines())) <= 40
    usage = (await program.run("stats", "--json")).json
    assert usage["model"][0]["messages"] == 3
    assert {row["key"]: row["calls"] for row in usage["tool"]} == {"read": 1, "write": 1}


async def test_the_context_of_a_session_is_shown_by_source(program: Program):
    async with answering(program, SCRIPT) as server:
        done = await program.run("run", "-o", "json", "--allow", "write", "what is needed?")
        assert done.code == 0, done.err
        sent = [request.raw.decode() for request in server.requests]
    shown = await program.run("context")
    assert shown.code == 0, shown.err
    for text in ("By step", "By source", "prompt file", "agent.md", "tool schema", "file read", "notes.txt"):
        assert text in shown.out
    for step in (1, 2, 3):
        raw = await program.run("context", "--step", str(step), "--raw")
        assert (raw.out, raw.err) == (sent[step - 1] + "\n", "")
    one = (await program.run("context", "last", "--step", "2", "--json")).json
    assert sum(share["bytes"] for share in one["sources"]) == one["bytes"] == len(sent[1].encode())
    compared = await program.run("context", "--diff", "1", "2")
    assert "file read" in compared.out
    assert f"The first {len(sent[0].encode()) - 2:,} bytes are equal" in compared.out
    page = await program.run("context", "--html", "-")
    assert "file read: notes.txt" in page.out
    month = time.strftime("%Y-%m", time.gmtime())
    assert "file read" in (await program.run("context", "--month", month)).out
    assert "No recorded requests" in (await program.run("context", "--month", "2020-01")).err
    assert (await program.run("stats", "--by", "cache")).code == 0
    missing = await program.run("context", "--step", "9")
    assert (missing.code, "there is no step 9" in missing.err) == (2, True)


async def test_what_a_turn_did_to_files_is_undone_and_done_again(program: Program):
    await lived(program)
    notes = program.workspace / "notes.txt"
    assert notes.read_text() == "remember the milk\nbuy tea\n"
    preview = await program.run("undo", "--preview")
    assert (preview.code, "-buy tea" in preview.out) == (0, True)
    assert "buy tea" in notes.read_text()
    assert (await program.run("undo")).code == 0
    assert notes.read_text() == "remember the milk\n"
    assert (await program.run("redo")).code == 0
    assert "buy tea" in notes.read_text()
    again = await program.run("redo")
    assert (again.code, "nothing to redo" in again.err) == (1, True)


async def test_the_undo_of_a_commit_names_the_repository_and_not_git_s_files(program: Program):
    for text in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "-qm", "first"],
    ):
        subprocess.run(["git", *text], cwd=program.workspace, check=True)
    commit = "echo 1 > new.txt; git add -A; git -c user.name=a -c user.email=a@b.example commit -qm second"
    async with answering(program, [[call("shell", "call_a", command=commit)], "done"]):
        assert (await program.run("run", "--approval", "auto", "commit")).code == 0
    undone = await program.run("undo")
    assert undone.code == 0, undone.err
    named, grouped = (
        "new.txt: deleted" in undone.out,
        re.findall(r"^\.git \(\d+ files\): \w+", undone.out, re.MULTILINE),
    )
    assert (named, bool(grouped), ".git/" in undone.out) == (True, True, False)


async def test_looking_makes_no_files(program: Program):
    for command in (["sessions", "list"], ["stats"], ["config"], ["permissions", "list"], ["doctor"]):
        await program.run(*command)
    assert not (program.home / "outrider" / "sessions.db").exists()


async def test_nothing_of_a_session_reaches_a_terminal_as_a_control_sequence(program: Program):
    session = await lived(program)
    shown = await program.on_a_terminal("sessions", "show", session, size=(40, 10))
    assert "are needed" in shown.out
    assert "\x1b[31mare" not in shown.out
