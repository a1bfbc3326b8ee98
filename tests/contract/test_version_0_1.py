"""Data that version 0.1 wrote is opened, replayed and resumed: databases, exports, cassettes, jobs, prompts.

The files are in `tests/fixtures/v0_1`; `generate.py` there shows how they were made. They are never made anew."""

import asyncio
import gzip
import hashlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import tarfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outrider import (
    Agent,
    Engine,
    Limits,
    Message,
    Provider,
    ProviderError,
    Session,
    SessionInUseError,
    Tool,
    ToolPart,
    UnknownPart,
    async_complete,
    lower,
    replay,
)
from tests.fixtures.v0_1.internals import approves, open_store, trusts

FILES = Path(__file__).parents[1] / "fixtures" / "v0_1"
ROOT = Path(__file__).parents[2]
INDEX: dict[str, Any] = json.loads((FILES / "index.json").read_bytes())
SESSIONS: dict[str, str] = INDEX["sessions"]
JOBS: dict[str, str] = INDEX["jobs"]
EXPORTS: dict[str, Any] = json.loads(gzip.decompress((FILES / "exports.json.gz").read_bytes()))
PROMPTS: dict[str, Any] = json.loads(gzip.decompress((FILES / "prompts.json.gz").read_bytes()))
OLD_PLACE = "/tmp/outrider-v01/demo"
MODELS = {
    "anthropic": "claude-sonnet-4-5", "openai": "gpt-4.1", "openai-responses": "gpt-5", "google": "gemini-2.5-pro",
}  # fmt: skip
SECONDS = 60


def unpack(name: str, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    with tarfile.open(FILES / name) as tar:
        tar.extractall(folder, filter="data")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy of $OUTRIDER_HOME as version 0.1 left it."""
    return unpack("home.tar.gz", tmp_path / "home")


@pytest.fixture
def workspace(home: Path, tmp_path: Path) -> Path:
    """A copy of the folder that was worked in; the home folder knows it at its new place."""
    folder = unpack("demo.tar.gz", tmp_path / "demo")
    with closing(sqlite3.connect(home / "sessions.db")) as db, db:
        db.execute("UPDATE sessions SET workspace = ? WHERE workspace = ?", (str(folder), OLD_PLACE))
    (home / "undo" / folder_name(OLD_PLACE)).rename(home / "undo" / folder_name(str(folder.resolve())))
    return folder


def folder_name(workspace: str) -> str:
    """Where the changes of a workspace are stored, below $OUTRIDER_HOME/undo."""
    return hashlib.sha256(os.fsencode(workspace)).hexdigest()[:16]


def environment(home: Path) -> dict[str, str]:
    known = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    own = {"HOME": str(home.parent), "OUTRIDER_HOME": str(home), "TERM": "dumb", "TZ": "UTC"}
    return known | own | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def run(home: Path, *arguments: str, program: tuple[str, ...] = ("-m", "outrider"), cwd: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *program, *arguments],
        capture_output=True,
        text=True,
        env=environment(home),
        cwd=cwd or home,
        check=False,
        timeout=SECONDS * 2,
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
    return done.stdout


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


@Tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@Tool(policy="ask")
def risky(name: str = "") -> str:
    """Needs an approval."""
    return f"risky {name} is done"


@Tool
def effect(name: str) -> str:
    """Has an effect."""
    return f"effect {name}"


@Tool(repeatable=True)
def look(name: str) -> str:
    """Looks; safe to repeat."""
    return f"seen {name}"


@asynccontextmanager
async def engine(home: Path, script: Any, *agents: Agent) -> AsyncIterator[Engine]:
    provider = Provider("scripted", "scripted", options={"script": script})
    given = agents or (Agent("writer", "You write.", "model-1", "scripted"),)
    async with (
        open_store(home / "sessions.db") as store,
        Engine(given, [provider], [add, risky, effect, look], store=store) as held,
    ):
        yield held


def calls(session: Session) -> dict[str, Any]:
    parts = [part for message in session.messages for part in message.get_parts_by_type(ToolPart)]
    return {part.call_id: part.state for part in parts}


def as_today(session: dict[str, Any]) -> dict[str, Any]:
    """A session of version 0.1 as it is today: the approval level, where old sessions ask, and the owner were added."""
    assert "approval" not in session
    return {**session, "approval": "ask", "owner": ""}


# ------------------------------------------------------------------------------------------------ sessions


async def test_every_stored_session_is_read_with_the_values_that_were_written(home: Path):
    async with open_store(home / "sessions.db") as store:
        for name, export in EXPORTS.items():
            for written in export["sessions"]:
                loaded = await store.load(written["session"]["id"])
                assert msgspec.to_builtins(loaded.session) == as_today(written["session"]), name
                assert [message.to_dict() for message in loaded.messages] == written["messages"], name
                assert sorted(loaded.drafts) == written["drafts"], name
                assert loaded.damaged == (), name


@pytest.mark.slow
def test_the_command_line_lists_finds_counts_and_exports_them(home: Path):
    listed = lines(run(home, "sessions", "list", "--json", "--children", "-n", "200"))
    assert listed == [as_today(session) for session in INDEX["listed"]]
    for query, hits in INDEX["searches"].items():
        found = lines(run(home, "sessions", "search", *query.split(), "--json", "-n", "100"))
        assert sorted({(hit["session_id"], hit["kind"]) for hit in found}) == [tuple(hit) for hit in hits], query
    assert json.loads(run(home, "stats", "--json")) == INDEX["stats"]
    exported = run(home, "sessions", "export", SESSIONS["family"])
    assert re.sub(r',\s+"approval": "ask",\s+"owner": ""', "", exported) == (FILES / "export.json").read_text()


def test_a_migration_is_reported_once_on_stderr_with_the_backup(home: Path):
    command = [sys.executable, "-m", "outrider", "sessions", "list", "--json", "-n", "1"]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, env=environment(home), timeout=SECONDS, check=True)
        for _ in range(2)
    )
    (line,) = first.stderr.splitlines()
    assert Path(line.rpartition(" ")[2]).is_file()
    assert line.startswith(f"{home / 'sessions.db'} was migrated; older versions cannot open it any more.")
    assert not second.stderr
    assert json.loads(first.stdout) == json.loads(second.stdout)


def test_a_shared_page_holds_what_it_held(home: Path):
    page, earlier = run(home, "sessions", "share", SESSIONS["talk"]), (FILES / "shared.html").read_text()
    for text in ("Colours of the zebra crossing", "Blue, like a kingfisher.", "Nothing else, thank you.", "dot.png"):
        assert text in earlier
        assert text in page


@pytest.mark.slow
@pytest.mark.parametrize("name", ["family", "talk", "calls", "every part", "own kinds", "streaming", "compacted"])
def test_an_export_is_imported_and_exported_again_without_a_change(name: str, tmp_path: Path):
    home = tmp_path / "empty"
    home.mkdir()
    document = tmp_path / "export.json"
    document.write_text(json.dumps(EXPORTS[name]))
    run(home, "sessions", "import", str(document))
    again = json.loads(run(home, "sessions", "export", SESSIONS[name]))
    earlier = [{**one, "session": as_today(one["session"])} for one in EXPORTS[name]["sessions"]]
    assert without_order(again) == without_order({**EXPORTS[name], "sessions": earlier})


def without_order(export: dict[str, Any]) -> dict[str, Any]:
    """Leaves out the last sequence number and the time of the last activity, which an import sets again."""
    sessions = [
        {**one, "session": {k: v for k, v in one["session"].items() if k not in ("seq", "time")}}
        for one in export["sessions"]
    ]
    return {**export, "sessions": sessions}


def test_a_session_in_memory_is_read_and_written_without_a_change():
    written = json.loads((FILES / "session.json").read_bytes())
    assert Session.from_dict(written).to_dict() == written


def test_the_anthropic_format_is_written_and_read_as_before():
    written = json.loads((FILES / "anthropic.json").read_bytes())
    session = Session.from_dict({"messages": EXPORTS["calls"]["sessions"][0]["messages"]})
    assert session.to_api_format() == written
    session.set_messages(written)
    assert session.to_api_format() == written


def test_a_part_kind_that_was_registered_is_preserved_as_it_is_where_it_is_not_registered():
    (message,) = EXPORTS["own kinds"]["sessions"][0]["messages"]
    _, note, plain = Message.from_dict(message).parts
    assert isinstance(note, UnknownPart)
    assert isinstance(plain, UnknownPart)
    assert (note.raw["note"], note.raw["stars"], plain.raw["word"]) == ("remember", 3, "plain")


def test_a_part_kind_that_was_registered_is_read_by_its_class_where_it_is_registered_again(tmp_path: Path):
    program = """
import json, sys
from typing import ClassVar
from outrider import Message, PartBase, register_part_type
class DemoNote(PartBase, frozen=True, tag_field="type", tag="demo-note"):
    type: ClassVar[str] = "demo-note"
    note: str
    stars: int = 0
register_part_type("demo-note", DemoNote)
message = json.load(open(sys.argv[1]))
(note,) = Message.from_dict(message).get_parts_by_type(DemoNote)
assert (note.note, note.stars) == ("remember", 3)
assert Message.from_dict(message).to_dict() == message
"""
    file = tmp_path / "message.json"
    file.write_text(json.dumps(EXPORTS["own kinds"]["sessions"][0]["messages"][0]))
    run(tmp_path, str(file), program=("-c", program))


# ------------------------------------------------------------------------------------------------ sessions continued


async def test_calls_that_a_crash_left_running_are_interrupted_and_the_input_that_waited_is_answered(home: Path):
    session_id, seen = SESSIONS["crashed"], list[str]()

    def answer(request: Any) -> str:
        seen.extend(part.text for part in request.prompt[-1].content if part.type == "text")
        return "Rested."

    async with engine(home, answer) as held:
        with pytest.raises(SessionInUseError, match="demo"):
            await held.open(session_id)
        assert [item.id for item in await held.queued(session_id)] == ["crashed-queued", "crashed-steers"]
        session = await held.open(session_id, take_over=True)
        async with asyncio.timeout(SECONDS):
            while await held.queued(session_id) or session.messages[-1].get_text_content() != "Rested.":
                await asyncio.sleep(0.02)
    ended = calls(session)
    assert (ended["crashed-effect"].status, ended["crashed-effect"].reason) == ("error", "interrupted")
    assert ended["crashed-look"].status in ("completed", "error")
    assert "After that, rest." in seen
    assert "Hurry." in seen


async def test_a_turn_that_a_crash_cut_off_continues_and_repeats_what_may_be_repeated(home: Path):
    """`interrupted` was opened once by version 0.1 after its crash."""
    async with engine(home, lambda _: "Went on.") as held:
        session = await held.open(SESSIONS["interrupted"], take_over=True)
        states = calls(session)
        assert states["interrupted-effect"].reason == "interrupted"
        end = await held.resume(SESSIONS["interrupted"])
        assert (end.reason, end.output) == ("completed", "Went on.")


async def test_a_draft_that_a_crash_cut_off_is_preserved_and_the_turn_can_continue(home: Path):
    async with engine(home, lambda _: "The end.") as held:
        session = await held.open(SESSIONS["streaming"], take_over=True)
        assert "A sentence that never ends" in "".join(message.get_text_content() for message in session.messages)
        assert (await held.resume(SESSIONS["streaming"])).output == "The end."


@pytest.mark.parametrize(("allow", "status"), [(True, "completed"), (False, "error")])
async def test_an_approval_that_was_pending_can_be_answered(home: Path, allow: bool, status: str):
    session_id = SESSIONS["asking"]
    async with engine(home, lambda _: "Danced or not.") as held:
        (question,) = await held.approvals(session_id)
        assert (question.tool, question.input, question.answer) == ("risky", {"name": "dance"}, "open")
        await held.open(session_id, take_over=True)
        await held.answer(question.id, allow=allow, by="the test", words="" if allow else "no")
        end = await asyncio.wait_for(held.resume(session_id), SECONDS)
        assert end.output == "Danced or not."
        session = await held.open(session_id)
        state = calls(session)["asking-risky"]
    assert state.status == status
    assert state.text.startswith("risky dance is done") if allow else state.reason == "rejected"


CAST = [Agent(name, f"You are the {name}.", "model-1", "scripted") for name in ("boss", "clerk")]


async def test_an_approval_of_a_called_agent_can_be_answered_and_both_agents_continue(home: Path):
    def answer(request: Any) -> str:
        return "Boss is done." if request.system.startswith("You are the boss") else "Clerk is done."

    session_id = SESSIONS["left"]
    async with engine(home, answer, *CAST) as held:
        (question,) = [one for one in await held.approvals() if one.call_id == "left-risky"]
        await held.answer(question.id, allow=True)
        end = await asyncio.wait_for(held.resume(session_id), SECONDS)
        state = calls(await held.open(session_id))["left-call"]
    assert end.output == "Boss is done."
    assert (state.status, state.text) == ("completed", "Clerk is done.")


async def test_a_call_of_an_agent_that_a_crash_cut_off_is_interrupted(home: Path):
    session_id = SESSIONS["delegated"]
    async with engine(home, lambda _: "Boss is done.", *CAST) as held:
        await held.open(session_id, take_over=True)
        end = await asyncio.wait_for(held.resume(session_id), SECONDS)
        state = calls(await held.open(session_id))["delegated-call"]
    assert end.output == "Boss is done."
    assert (state.status, state.reason) == ("error", "interrupted")


async def test_a_plan_that_waits_is_found_and_accepted(home: Path):
    session_id = SESSIONS["planned"]
    planner = Agent("writer", "You write.", "model-1", "scripted", mode="plan")
    async with engine(home, lambda _: "Carried out.", planner) as held:
        plan = await held.plan(session_id)
        assert plan is not None
        assert plan.text == "1. touch it\n2. look at it"
        assert (await held.accept_plan(session_id, by="the test")).output == "Carried out."
        assert await held.plan(SESSIONS["plan accepted"]) is None


async def test_a_todo_list_is_found(home: Path):
    async with engine(home, []) as held:
        todos = [(one.content, one.status) for one in await held.todos(SESSIONS["undone"])]
    assert todos == [("paint", "completed"), ("sing", "pending")]


def test_the_command_line_continues_a_session_with_the_settings_of_version_0_1(home: Path, workspace: Path):
    answer = run(home, "run", "--session", SESSIONS["command line"], "And now?", cwd=workspace)
    assert answer.strip() == "Good morning from the configuration."
    messages = lines(run(home, "sessions", "show", SESSIONS["command line"], "--json"))
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2


@pytest.mark.slow
def test_changes_of_files_are_undone_and_redone(home: Path, workspace: Path):
    third, poem = workspace / "notes" / "third.txt", workspace / "poem.txt"
    assert third.exists()
    run(home, "undo", "--session", SESSIONS["undone"], cwd=workspace)
    assert (third.exists(), poem.read_text()) == (False, "one\ntwo\n")
    run(home, "redo", "--session", SESSIONS["undone"], cwd=workspace)
    assert third.read_text() == "third\n"
    run(home, "undo", "--session", SESSIONS["undone"], cwd=workspace)
    run(home, "undo", "--session", SESSIONS["undone"], cwd=workspace)
    assert not poem.exists()
    assert (workspace / "readme.md").read_text() == "# demo\n\nA folder to work in.\n"


def test_what_a_crash_left_half_written_is_found_when_its_session_is_opened(home: Path, workspace: Path):
    """The lease of the killed process is removed first: it belongs to another host."""
    with closing(sqlite3.connect(home / "sessions.db")) as db, db:
        db.execute("UPDATE sessions SET lease = NULL WHERE id = ?", (SESSIONS["writing"],))
    run(home, "run", "--session", SESSIONS["writing"], "What happened?", cwd=workspace)
    messages = lines(run(home, "sessions", "show", SESSIONS["writing"], "--json"))
    changed = [part["files"] for message in messages for part in message["parts"] if part["type"] == "patch"]
    assert changed == [["cut.txt"]]


# ------------------------------------------------------------------------------------------------ permissions, trust


def test_answers_that_hold_for_longer_are_listed_and_revoked(home: Path, workspace: Path):
    found = _answers(run(home, "permissions", "list", cwd=workspace))
    assert found == _answers(INDEX["permissions"])
    assert [(scope, rule) for _, scope, rule in found] == [
        ("session", "shell(touch a.txt)"), ("project", "shell(touch b.txt)"), ("always", "shell(touch c.txt)"),
    ]  # fmt: skip
    run(home, "permissions", "revoke", found[2][0], cwd=workspace)
    assert _answers(run(home, "permissions", "list", cwd=workspace)) == found[:2]


def _answers(listed: str) -> list[tuple[str, ...]]:
    return re.findall(r"^([0-9a-f]{8})\s+(session|project|always)\s+(\S.*?)\s*$", listed, re.MULTILINE)


def test_trusted_folders_and_approved_contents_are_still_trusted(home: Path):
    file = home / "trust.json"
    assert trusts(file, OLD_PLACE)
    assert not trusts(file, "/tmp/outrider-v01")
    server = b'{"args":["--utc"],"command":"clock"}'
    assert approves(file, "/tmp/outrider-v01/other", ".mcp.json: clock", server)
    assert not approves(file, "/tmp/outrider-v01/other", ".mcp.json: clock", b"{}")


# ------------------------------------------------------------------------------------------------ cassettes


@pytest.mark.parametrize("name", sorted(INDEX["cassettes"]))
async def test_a_cassette_is_replayed_without_a_difference(name: str, home: Path):
    recorded = INDEX["cassettes"][name]
    agents = [msgspec.convert(one, Agent) for one in recorded["agents"]]
    providers = [
        Provider(one["name"], one["kind"], "key-of-the-demo", one["base_url"], options={"script": []})
        if one["kind"] == "scripted"
        else Provider(one["name"], one["kind"], "key-of-the-demo", one["base_url"], options=retries(name))
        for one in recorded["providers"]
    ]
    tools = [] if name == "outrider" else [add]
    async with open_store(home / "sessions.db") as store:
        held = Engine(agents, providers, tools, store=store, limits=Limits(turns=20))
        again = await replay(held, recorded["session"], cassette=FILES / "cassettes" / f"{name}.jsonl")
    assert again.same, again.text()
    assert again.unused_exchanges == 0
    errors = [message.error.type for message in again.session.messages if message.error]
    assert errors == FAILURES.get(name, ["InvalidRequestError"])


def retries(name: str) -> dict[str, Any]:
    """Returns the retry settings with which the cassette was recorded."""
    return {"retry": {"attempts": 2 if name == "broken-off" else 3, "first_window": 0.01}}


FAILURES = {"scripted": ["RateLimitError", "ProviderError"], "broken-off": ["NetworkError"], "outrider": []}


# ------------------------------------------------------------------------------------------------ prompts


def histories() -> Iterator[tuple[str, list[Message]]]:
    for name, export in EXPORTS.items():
        for one in export["sessions"]:
            key = f"{name} {one['session']['id']}"
            if key in PROMPTS["sessions"]:
                yield key, [Message.from_dict(message) for message in one["messages"]]


def prompt(history: list[Message], family: str) -> Any:
    return [message.to_api_format() for message in lower(history, family=family)]


def test_the_prompts_of_stored_sessions_are_the_same():
    seen = set()
    for key, history in histories():
        seen.add(key)
        for family, expected in PROMPTS["sessions"][key]["lowered"].items():
            assert json.dumps(prompt(history, family)) == json.dumps(expected), (key, family)
    assert seen == set(PROMPTS["sessions"])


def test_the_prompts_of_manually_written_conversations_are_the_same():
    for one in PROMPTS["loose"]:
        history = [Message.from_dict(message) for message in one["messages"]]
        assert json.dumps(prompt(history, one["family"])) == json.dumps(one["prompt"])


def test_the_texts_that_lowering_inserts_are_all_in_the_fixtures():
    """So that a reworded one is noticed above."""
    texts = json.dumps(PROMPTS)
    for query in (
        "(The conversation begins with the assistant.)",
        "This call did not finish, and its result is unknown",
        "(The output of this old call was removed to save space.",
        "Summary of the conversation so far; the messages it stands for were removed:",
        "(result of a call that is not in this conversation)",
        "(ran shell)",
        "(file: image/png)",
        "(no output)",
        "call_add_2",
        "a_tool_with_spaces",
    ):
        assert query in texts, query


@pytest.fixture
def capture() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The address of a vendor that refuses everything, and what it was asked."""
    asked: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            asked.append({"path": self.path, "body": body.decode()})
            answer = b'{"error": {"message": "no", "type": "invalid_request_error"}}'
            self.send_response(400)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("kind", sorted(MODELS))
async def test_the_bytes_that_a_vendor_is_sent_for_a_stored_session_are_the_same(kind: Any, capture: Any):
    address, asked = capture
    provider = Provider("vendor", kind, "key", address + ("/v1" if "openai" in kind else ""))
    for key, history in histories():
        with pytest.raises(ProviderError):
            await async_complete(provider, MODELS[kind], history, system="You write.", tools=[add])
        assert asked.pop() == PROMPTS["sessions"][key]["sent"][kind], key


# ------------------------------------------------------------------------------------------------ jobs


def with_new_fields(job: dict[str, Any]) -> dict[str, Any]:
    """A listed job of version 0.1 with the fields that were added since."""
    outcome = job["outcome"] and {**job["outcome"], "retry_at": None, "provider": ""}
    return {**job, "outcome": outcome, "waiting_for": ""}


def test_jobs_and_schedules_are_listed(home: Path):
    pytest.importorskip("dbos")
    assert lines(run(home, "jobs", "list", "--json", "-n", "50")) == [with_new_fields(one) for one in INDEX["job list"]]
    found = {one["id"]: one for one in lines(run(home, "jobs", "schedules", "--json"))}
    for written in INDEX["schedule list"]:
        one = found[written["id"]]
        if written["paused"]:
            one["due"] = written["due"]  # reckoned from now
        assert one == written


@pytest.mark.slow
def test_a_worker_resumes_and_ends_the_jobs_that_version_0_1_left(home: Path, workspace: Path, tmp_path: Path):
    """Stored jobs: queued, running when its worker was killed, waiting for an approval, waiting for another job, with
    overrides, and started by a schedule."""
    pytest.importorskip("dbos")
    with closing(sqlite3.connect(home / "runs.sqlite")) as db, db:
        db.execute("UPDATE outrider_schedules SET due = 1 WHERE id = ?", (INDEX["schedules"]["active"],))
    run(home, "jobs", "approve", JOBS["waiting"], "--no-worker")
    names = ("finished", "queued", "running", "waiting", "after", "terms")
    steps = tmp_path / "steps"
    program = (str(FILES / "worker.py"), str(home), str(steps))
    done = json.loads(run(home, *(JOBS[name] for name in names), program=program))
    failed = done.pop(JOBS["terms"])
    assert failed["state"] == "failed"  # its limit is in dollars, and the price of this model is not known
    assert {one["state"] for one in done.values()} == {"done"}
    assert {name: done[JOBS[name]]["summary"] for name in names if name != "terms"} == {
        "finished": "finish at once: done after 0 calls",
        "queued": "count slowly: done after 2 calls",
        "running": "hang in the middle: done after 2 calls",
        "waiting": "ask before the call: done after 1 calls",
        "after": "finish afterwards: done after 0 calls",
    }
    assert done[JOBS["running"]]["calls"] == {"hang-0": "completed", "hang-1": "interrupted"}
    assert sorted(steps.read_text().split()) == ["ask-0", "count-0", "count-1"]
    left = {one["id"]: one for one in lines(run(home, "jobs", "list", "--json", "-n", "50"))}
    assert (left[JOBS["delayed"]]["state"], left[JOBS["canceled"]]["state"]) == ("delayed", "canceled")
    made = [one for one in left.values() if one["prompt"] == "finish every new year"]
    assert [(one["queue"], one["priority"]) for one in made] == [("nightly", 9)]
    (schedule,) = [
        s for s in lines(run(home, "jobs", "schedules", "--json")) if s["id"] == INDEX["schedules"]["active"]
    ]
    assert schedule["due"] > 1
