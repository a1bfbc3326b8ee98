"""Random bit flips in the session database: no command ends with a traceback, and undamaged sessions stay readable."""

import asyncio
import itertools
import random
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from outrider import Agent, Engine, Message, Provider, Tool
from outrider.background.database import RunDatabase
from outrider.cli.main import main
from outrider.engine.diagnostics import check_store
from outrider.errors import OutriderError, StoreError
from outrider.providers.scripted import call
from outrider.sessions.records import StoredSession
from outrider.sessions.rows.codec import MessageRow, read_message
from outrider.sessions.sqlite import recovery
from outrider.stores import SqliteStore
from outrider.types.messages import MessageTime
from outrider.types.parts import TextPart
from tests.fixtures.soak import examples

FILES = examples(5)
FLIPS = (1, 1, 2, 5, 20, 100, 500)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("intact") / "sessions.db"
    asyncio.run(fill(path))
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    return path


async def fill(path: Path) -> None:
    """Stores sessions with calls and long outputs, and builds the search index."""

    def script(request):
        turn = len(request.prompt)
        text = f"answer {turn} with the words alpha beta {'text ' * 200}"
        return [text, call("look", path=f"file{turn}.py")] if turn % 4 == 1 else f"ready {turn}"

    provider = Provider("scripted", "scripted", options={"script": script})
    look = Tool(lambda path: f"content of {path} {'x' * (20_000 if '5' in path else 3_000)}", name="look")
    async with (
        SqliteStore(path) as store,
        Engine([Agent("writer", "", "m", "scripted")], [provider], store=store, tools=[look]) as engine,
    ):
        for number in range(4):
            session = await engine.create(title=f"title {number}")
            for turn in range(3):
                await engine.prompt(session, f"question {turn} about omega")
        await store.search("omega")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(FILES))
def test_commands_read_what_is_left(seed: int, intact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd):
    with sqlite3.connect(intact) as db:
        ids = [row[0] for row in db.execute("SELECT id FROM sessions")]
    db.close()
    content, rng = bytearray(intact.read_bytes()), random.Random(seed)
    for _ in range(rng.choice(FLIPS)):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    (tmp_path / "sessions.db").write_bytes(content)
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # `trace` writes a file
    commands = [["sessions", "list"], ["sessions", "search", "omega"], ["stats"], ["doctor"]]
    for session in ids:
        commands += [["sessions", "show", session], ["sessions", "export", session], ["trace", session]]
        commands += [["stats", "--session", session], ["undo", "--session", session, "--preview"]]
    commands += [["stats", "--by", "tool"], ["backup", str(tmp_path / "backup.tar.gz")]]
    asyncio.run(open_all(tmp_path / "sessions.db", ids))
    for command in [*commands, ["doctor", "--repair"], ["sessions", "list"]]:
        code = main(command)  # an exception fails the test
        error = capfd.readouterr().err
        assert "Traceback" not in error, command
        assert code == 0 or error or command[0] == "doctor", command


async def open_all(path: Path, ids: list[str]) -> None:
    """Opens sessions as an engine does; with a small limit, large texts are left in the store."""
    for session, text_bytes in itertools.product(ids, (0, 10**9)):
        with suppress(OutriderError):  # the session may be missing, and the file no database any more
            async with SqliteStore(path) as store:
                await store.load_abridged(session, text_bytes)


@pytest.mark.parametrize("column", ["body", "id", "title"])
async def test_one_damaged_byte_affects_one_row(column: str, intact: Path, tmp_path: Path):
    path = tmp_path / "sessions.db"
    path.write_bytes(intact.read_bytes())
    table = "sessions" if column == "title" else "parts"
    with sqlite3.connect(path) as db:
        value: bytes = db.execute(f"SELECT CAST({column} AS BLOB) FROM {table} WHERE key = 2").fetchone()[0]
        kind = "BLOB" if column == "body" else "TEXT"
        damaged = bytes([value[0] | 0x80]) + value[1:]
        db.execute(f"UPDATE {table} SET {column} = CAST(? AS {kind}) WHERE key = 2", (damaged,))
    db.close()
    async with SqliteStore(path) as store:
        sessions = (await store.list()).sessions
        assert len(sessions) == 4
        transcripts = [await store.load(session.id) for session in sessions]
        assert sum(len(transcript.damaged) for transcript in transcripts) == (column == "body")
        assert all(len(transcript.messages) >= 6 for transcript in transcripts)
        assert len(await store.search("omega")) >= 11
    assert len(recovery.check_file(path).damaged) == (column == "body")


def test_a_message_with_fields_of_a_newer_version_is_read():
    row = MessageRow("0" * 32, "user", 0, b'{"role": "user", "id": "x", "later": 1, "even_later": []}')
    message, damaged = read_message("", row)
    assert damaged is None
    assert isinstance(message, Message)
    assert message.session_id == ""


async def test_a_store_of_a_newer_version_is_not_repaired(intact: Path, tmp_path: Path):
    path = tmp_path / "sessions.db"
    path.write_bytes(intact.read_bytes())
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    before = path.read_bytes()
    assert recovery.repair_file(path).is_newer
    assert path.read_bytes() == before


def test_a_database_of_another_program_is_reported_and_not_changed(tmp_path: Path):
    path = tmp_path / "sessions.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
        db.execute("PRAGMA user_version = 77")
        db.commit()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        SqliteStore(path)
    assert recovery.repair_file(path).foreign == "bookmarks"
    assert [finding.status for finding in check_store(path, repair=True, compact=True)] == ["problem"]
    assert path.read_bytes() == before
    database = RunDatabase(f"sqlite:///{path}")
    with pytest.raises(StoreError, match="another program"):
        database.migrate()
    database.close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("bookmarks",)]


async def test_an_empty_file_is_reported(tmp_path: Path):
    path = tmp_path / "sessions.db"
    path.touch(mode=0o600)
    async with SqliteStore(path) as store:
        assert "was empty" in store.notices[0]


async def test_a_damaged_byte_in_a_part_with_a_large_text_affects_one_row(tmp_path: Path):
    async with SqliteStore(tmp_path / "sessions.db") as store:
        session = await store.create(StoredSession(title="large"))
        messages = [Message("user", [TextPart(f"omega {'x' * 20_000}")], time=MessageTime(1)) for _ in range(2)]
        for message in messages:
            message.join(session.id)
        await store.append(session.id, messages)
    with sqlite3.connect(tmp_path / "sessions.db") as db:
        body: bytes = db.execute("SELECT body FROM parts WHERE key = 1").fetchone()[0]
        damaged = body.replace(b'"text"', b'"te\xedt"', 1)
        db.execute("UPDATE parts SET body = ? WHERE key = 1", (damaged,))
        db.execute("INSERT INTO words (words) VALUES ('delete-all')")
        db.execute("UPDATE sessions SET indexed = 0")
    db.close()
    async with SqliteStore(tmp_path / "sessions.db") as store:
        for transcript in (await store.load(session.id), (await store.load_abridged(session.id, 0))[0]):
            assert [row.kind for row in transcript.damaged] == ["part"]
        assert [hit.message_id for hit in await store.search("omega")] == [messages[1].id]
