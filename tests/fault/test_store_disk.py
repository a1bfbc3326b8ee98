"""Full, broken and read-only disks: stored data stays intact, and errors are reported."""

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outrider.errors import StorageFullError, StoreDamagedError, StoreError, StoreUnavailableError, StoreVersionError
from outrider.sessions.database_files import file_system_type, journal_mode
from outrider.sessions.records import StoredSession
from outrider.sessions.sqlite import recovery as doctor
from outrider.sessions.sqlite.connection import MIGRATIONS
from outrider.sessions.sqlite.store import SqliteStore
from outrider.types.codec import UnknownPart
from outrider.types.ids import new_id, now_ms
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import TextPart, ToolPart
from outrider.types.tool_state import EndedTime, ToolCompleted

Record = Callable[[str, object], None]


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs `mount` to make a small disk")
    if done.returncode:
        pytest.skip(f"may not mount a small disk here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def text_message(session_id: str, text: str = "") -> Message:
    message = Message("user", [TextPart(text)] if text else [], time=MessageTime(now_ms()))
    message.join(session_id)
    return message


async def store_with(path: Path, sessions: int, messages: int, text: str = "word " * 100) -> list[str]:
    async with SqliteStore(path) as store:
        made = [await store.create(StoredSession(title=f"session {number}")) for number in range(sessions)]
        for session in made:
            await store.append(session.id, [text_message(session.id, f"{text} {number}") for number in range(messages)])
    return [session.id for session in made]


def execute(path: Path, statement: str, *values: object) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(statement, values)
    db.close()


async def fill_up(store: SqliteStore, session_id: str, stored: list[str]) -> None:
    while True:
        message = text_message(session_id, os.urandom(6000).hex())
        await store.append(session_id, [message])
        stored.append(message.id)


async def test_sf_040_a_full_disk_is_reported_at_once_and_loses_nothing_that_was_preserved(
    tmp_path: Path, record_property: Record
):
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(small_disk(tmp_path / "small", 3))
        async with SqliteStore(disk / "sessions.db") as store:
            session = await store.create(StoredSession())
            ballast = disk / "ballast"
            ballast.write_bytes(b"x" * 700_000)
            stored: list[str] = []
            with pytest.raises(StorageFullError):
                await fill_up(store, session.id, stored)
            with pytest.raises(StorageFullError):
                await store.append(session.id, [text_message(session.id, os.urandom(60_000).hex())])
            with pytest.raises(StorageFullError):
                await store.append(session.id, [text_message(session.id, os.urandom(60_000).hex())])
            assert [message.id for message in (await store.load(session.id)).messages] == stored
            ballast.unlink()
            message = text_message(session.id, "there is space again")
            await store.append(session.id, [message])
            loaded = await store.load(session.id)
            assert [one.id for one in loaded.messages] == [*stored, message.id]
        assert doctor.check_file(disk / "sessions.db").is_healthy
        record_property("figures", f"disk full on a 3 MiB tmpfs: {len(stored)} parts acknowledged before, 0 lost")


async def test_sf_048_a_read_only_directory_is_reported_clearly(tmp_path: Path):
    with small_disk(tmp_path / "small", 3) as disk:
        (disk / "data").mkdir()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(StoreUnavailableError, match=r"[Rr]ead-only"):
            SqliteStore(disk / "data" / "sessions.db")


async def test_sf_043_a_broken_page_hurts_one_session_only(tmp_path: Path):
    path = tmp_path / "sessions.db"
    ids = await store_with(path, 3, 60)
    db = sqlite3.connect(path)
    (page, size) = db.execute(
        "SELECT pageno, (SELECT page_size FROM pragma_page_size) FROM dbstat WHERE name = 'parts' AND pagetype = 'leaf'"
        " ORDER BY pageno DESC LIMIT 1"
    ).fetchone()
    db.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    async with SqliteStore(path) as store:
        assert len((await store.list()).sessions) == 3
        assert len((await store.load(ids[0])).messages) == 60
        assert len((await store.load(ids[1])).messages) == 60
        with pytest.raises(StoreDamagedError):
            await store.load(ids[2])
    assert doctor.check_file(path).problems
    repaired = doctor.repair_file(path)
    assert repaired.problems == ()
    assert repaired.rows["sessions"] == 3
    assert repaired.rows["messages"] == 180
    assert repaired.rows["parts"] > 120
    async with SqliteStore(path) as store:
        assert len((await store.load(ids[2])).messages) == 60
    assert list(tmp_path.glob("sessions.db.damaged-*"))


async def test_sf_044_a_truncated_file_is_set_aside_and_what_is_readable_is_recovered(
    tmp_path: Path, record_property: Record
):
    path = tmp_path / "sessions.db"
    ids = await store_with(path, 4, 400)
    os.truncate(path, path.stat().st_size // 2)
    damaged = path.read_bytes()
    assert doctor.check_file(path).problems
    async with SqliteStore(path) as store:
        (notice,) = store.notices
        assert "damaged" in notice
        (aside,) = [file for file in tmp_path.glob("sessions.db.damaged-*") if not file.name.endswith(("-wal", "-shm"))]
        assert str(aside) in notice
        assert aside.read_bytes()[: len(damaged)] == damaged
        listed = (await store.list()).sessions
        assert {session.id for session in listed} <= set(ids)
        loaded = [await store.load(session.id) for session in listed]
        saved = sum(len(message.parts) for one in loaded for message in one.messages)
        await store.append(listed[0].id, [text_message(listed[0].id, "life goes on")])
    assert doctor.check_file(path).problems == ()
    record_property("figures", f"file cut to half: {saved} of 1,600 parts recovered, the store opened")
    assert saved > 400


@pytest.mark.parametrize("missing", [1, 10, 4096, 5000])
async def test_sf_044_a_file_that_lacks_a_piece_of_its_end_is_found_out(tmp_path: Path, missing: int):
    path = tmp_path / "sessions.db"
    await store_with(path, 1, 20)
    os.truncate(path, path.stat().st_size - missing)
    assert doctor.check_file(path).problems
    async with SqliteStore(path) as store:
        assert "damaged" in store.notices[0]


async def test_sf_044_of_a_file_that_was_cut_to_a_byte_it_is_reported_that_something_was_there(tmp_path: Path):
    path = tmp_path / "sessions.db"
    await store_with(path, 1, 1)
    os.truncate(path, 1)
    async with SqliteStore(path) as store:
        assert "damaged" in store.notices[0]


async def test_a_store_that_is_no_database_any_more_is_set_aside(tmp_path: Path):
    path = tmp_path / "sessions.db"
    await store_with(path, 1, 1)
    path.write_bytes(b"this is not a database, " * 1000)
    async with SqliteStore(path) as store:
        assert "nothing" in store.notices[0]
        await store.create(StoredSession())


async def test_a_file_that_never_was_a_store_is_not_touched(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("my notes")
    path.chmod(0o644)
    with pytest.raises(StoreError, match=r"notes\.txt is not a database.*choose another path"):
        await SqliteStore(path).__aenter__()
    assert path.read_text() == "my notes"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


async def test_sf_045_a_store_without_its_log_opens_with_an_older_state(tmp_path: Path):
    path, copy = tmp_path / "sessions.db", tmp_path / "copy.db"
    ids = await store_with(path, 1, 3)
    async with SqliteStore(path) as store:
        await store.append(ids[0], [text_message(ids[0], "in the log only")])
        assert Path(f"{path}-wal").stat().st_size > 0
        shutil.copy(path, copy)
    async with SqliteStore(copy) as store:
        assert len((await store.load(ids[0])).messages) == 3
    assert doctor.check_file(copy).is_healthy


async def test_sf_046_rows_that_cannot_be_read_are_reported_and_the_rest_loads(tmp_path: Path):
    path = tmp_path / "sessions.db"
    (id,) = await store_with(path, 1, 0)
    async with SqliteStore(path) as store:
        message = text_message(id, "fine")
        broken, newer, wrong = TextPart("broken"), UnknownPart({"type": "hologram", "id": new_id()}), TextPart("wrong")
        for part in (broken, newer, wrong):
            message.add_part(part)
        await store.append(id, [message, text_message(id, "also fine")])
    execute(path, "UPDATE parts SET body = ? WHERE id = ?", b'{"type": "text", "te', broken.id)
    execute(path, "UPDATE parts SET body = ? WHERE id = ?", b'{"type": "text", "text": 7, "x": 1}', wrong.id)
    async with SqliteStore(path) as store:
        loaded = await store.load(id)
        fine, opaque, strange = loaded.messages[0].parts
        assert fine.text == "fine"
        assert opaque == newer
        assert (strange.raw["text"], strange.raw["x"], strange.id) == (7, 1, wrong.id)
        assert loaded.messages[1].get_text_content() == "also fine"
        assert {row.id for row in loaded.damaged} == {broken.id, wrong.id}
        assert loaded.damaged[0].raw == b'{"type": "text", "te'
        fork = await store.fork(id)
        assert len((await store.load(fork.id)).damaged) == 2
        await store.delete(fork.id)
    assert len(doctor.check_file(path).damaged) >= 2
    assert len(doctor.repair_file(path).damaged) >= 2


async def test_a_message_that_cannot_be_read_still_holds_its_parts(tmp_path: Path):
    path = tmp_path / "sessions.db"
    (id,) = await store_with(path, 1, 2)
    execute(path, "UPDATE messages SET body = ? WHERE key = 1", b"{")
    async with SqliteStore(path) as store:
        loaded = await store.load(id)
        assert [len(message.parts) for message in loaded.messages] == [1, 1]
        assert [row.kind for row in loaded.damaged] == ["message"]
        assert loaded.messages[0].role == "user"


async def test_sf_047_a_newer_schema_is_refused_and_the_file_left_as_it_is(tmp_path: Path):
    path = tmp_path / "sessions.db"
    await store_with(path, 1, 1)
    execute(path, "PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(StoreVersionError, match="newer version") as refused:
        SqliteStore(path)
    assert refused.value.details == {"found": 99, "supported": len(MIGRATIONS)}
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir() if "backup" in file.name or "damaged" in file.name) == []


async def test_sf_027_on_a_network_file_system_there_is_no_write_ahead_log(tmp_path: Path):
    path = tmp_path / "sessions.db"
    for kind in ("nfs4", "cifs", "9p", "fuse.sshfs"):
        assert journal_mode(path, lambda _, kind=kind: kind) == "delete"
    for kind in ("ext4", "tmpfs", "overlay", ""):
        assert journal_mode(path, lambda _, kind=kind: kind) == "wal"
    async with SqliteStore(path, file_system=lambda _: "nfs4") as store:
        session = await store.create(StoredSession())
        await store.append(session.id, [text_message(session.id, "hello")])
        assert len(await store.search("hello")) == 1
        assert not Path(f"{path}-wal").exists()


async def test_sf_027_without_a_log_a_write_waits_for_the_readers(tmp_path: Path):
    path = tmp_path / "sessions.db"
    async with SqliteStore(path, file_system=lambda _: "nfs4") as store:
        await store.create(StoredSession())
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sessions").fetchone()
        writing = asyncio.create_task(store.create(StoredSession(title="later")))
        await asyncio.sleep(0.05)
        assert not writing.done()
        reader.close()
        assert (await writing).title == "later"


def test_the_file_system_of_a_path_is_known(tmp_path: Path):
    with small_disk(tmp_path / "small disk", 1) as disk:
        assert file_system_type(disk) == "tmpfs"


async def test_sf_049_large_outputs_are_stored_once_and_the_log_stays_small(tmp_path: Path, record_property: Record):
    path = tmp_path / "sessions.db"
    largest = 0
    async with SqliteStore(path) as store:
        session = await store.create(StoredSession())
        message = text_message(session.id)
        await store.append(session.id, [message])
        outputs = [os.urandom(512 * 1024).hex() for _ in range(10)]
        for number in range(60):
            part = ToolPart(
                call_id=new_id(), tool="shell", state=ToolCompleted({}, outputs[number % 10], EndedTime(1, 2))
            )
            part.adopt(message.id, session.id)
            await store.append(session.id, [part])
            largest = max(largest, Path(f"{path}-wal").stat().st_size)
        loaded = await store.load(session.id)
        assert [part.state.output for part in loaded.messages[0].parts] == [
            outputs[number % 10] for number in range(60)
        ]
        once = path.stat().st_size + Path(f"{path}-wal").stat().st_size
        await store.delete(session.id)
    doctor.compact_file(path)
    payload = 10 * 1024 * 1024
    record_property(
        "figures",
        f"60 x 1 MiB of tool output, 10 different: file and log {once / 2**20:.0f} MiB, log at most "
        f"{largest / 2**20:.0f} MiB, {path.stat().st_size / 2**20:.1f} MiB after delete and compact",
    )
    assert once < 3.1 * payload
    assert largest < 64 * 1024 * 1024
    assert path.stat().st_size < 1024 * 1024


async def test_a_text_that_grows_while_it_streams_is_preserved_once(tmp_path: Path):
    path = tmp_path / "sessions.db"
    noise = os.urandom(300_000).hex()
    async with SqliteStore(path) as store:
        session = await store.create(StoredSession())
        message = text_message(session.id)
        await store.append(session.id, [message])
        id = new_id()
        for end in range(20_000, len(noise), 20_000):
            part = TextPart(noise[:end], id=id)
            part.adopt(message.id, session.id)
            await store.append(session.id, [part], draft=end % 40_000 > 0)
        loaded = await store.load(session.id)
        assert loaded.messages[0].get_text_content() == noise[:end]
    assert path.stat().st_size < 3 * len(noise)
    health = doctor.check_file(path)
    assert health.is_healthy
    assert health.rows["blobs"] <= 1


async def test_sf_050_files_are_private_with_any_umask(tmp_path: Path):
    old = os.umask(0)
    try:
        path = tmp_path / "one" / "two" / "sessions.db"
        await store_with(path, 1, 1)
        async with SqliteStore(path) as store:
            await store.create(StoredSession())
            modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    finally:
        os.umask(old)
    assert set(modes.values()) == {0o600}
    assert {"sessions.db", "sessions.db-wal", "sessions.db-shm"} <= set(modes)
    assert path.parent.stat().st_mode & 0o777 == path.parent.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("before", "after"), [(0o1777, 0o1777), (0o777, 0o755), (0o775, 0o755), (0o750, 0o750)], ids=oct
)
async def test_sf_050_a_folder_of_others_stays_usable_for_them(tmp_path: Path, before: int, after: int):
    (folder := tmp_path / "shared").mkdir()
    folder.chmod(before)
    async with SqliteStore(folder / "sessions.db"):
        assert folder.stat().st_mode & 0o7777 == after


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal", "-queue", "-gate"])
async def test_sf_050_a_planted_link_is_refused_and_its_target_left_alone(tmp_path: Path, suffix: str):
    target = tmp_path / "precious"
    target.write_text("mine")
    folder = tmp_path / "data"
    folder.mkdir()
    Path(f"{folder / 'sessions.db'}{suffix}").symlink_to(target)
    with pytest.raises(StoreUnavailableError):
        SqliteStore(folder / "sessions.db")
    assert target.read_text() == "mine"
    assert target.stat().st_mode & 0o777 == 0o644 & ~_umask()


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value


async def test_sf_051_a_data_directory_may_have_any_name(tmp_path: Path):
    await store_with(tmp_path / "Daten ü 数据 %20?#" / "sessions.db", 1, 1)


async def test_an_unreachable_place_is_reported_clearly(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "sessions.db", tmp_path / "x\0y" / "sessions.db"):
        with pytest.raises(StoreUnavailableError):
            SqliteStore(path)
