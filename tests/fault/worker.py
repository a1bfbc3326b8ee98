"""Programs that fault tests start in separate processes, to kill, pause and race them."""

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from outrider.errors import LeaseLostError, OutriderError, SessionInUseError
from outrider.event_bus import EventBus
from outrider.project.trust import TrustList
from outrider.sessions.database_files import FairFileLock
from outrider.sessions.failpoints import failpoint
from outrider.sessions.journal import Journal, create_journal, resume_journal
from outrider.sessions.leases import LeaseOwner, current_process
from outrider.sessions.records import Approval, StoredSession
from outrider.sessions.session import Session
from outrider.sessions.sqlite.connection import MIGRATIONS, connect_writer, migrate_schema
from outrider.sessions.sqlite.store import SqliteStore
from outrider.sessions.store import Store
from outrider.types.events import PartDeltaEvent
from outrider.types.ids import new_id, now_ms
from outrider.types.messages import Message, MessageTime, text_message
from outrider.types.parts import CompactionPart, TextPart, ToolPart
from outrider.types.tool_state import ToolPending


def say(**fields: object) -> None:
    """Prints one line for the test and flushes it; what was printed was acknowledged."""
    os.write(1, msgspec.json.encode(fields) + b"\n")


async def turns(path: str, effects: str) -> None:
    """Turn after turn until killed: text that streams, a call that asks, has an effect and ends, a compaction."""
    store = SqliteStore(path)
    journal = await create_journal(Session(), store, EventBus(), lease_owner=LeaseOwner(store, current_process()))
    say(session=journal.session.id)
    while True:
        await turn(journal, store, Path(effects))


async def turn(journal: Journal, store: SqliteStore, effects: Path) -> None:
    question = await journal.add_message(text_message("user", "go"))
    say(part=question.parts[0].id, status="text")
    message = await journal.add_message(Message("assistant"))
    await stream(journal, message)
    call = await journal.put_part(ToolPart(new_id(), "write", ToolPending({"n": 1}, "", "ready")), message)
    say(part=call.id, status="pending")
    asking = await journal.put_part(call.update_state(call.state.await_approval()), message)
    asked = await store.ask(Approval(session_id=journal.session.id, call_id=call.call_id, tool="write", input={"n": 1}))
    failpoint("FP-mid-approval")
    await store.answer(asked.id, "allowed")
    running = await journal.put_part(asking.with_state(asking.state.start(now_ms())), message)
    say(part=call.id, status="running")
    with effects.open("a") as file:
        file.write(f"{call.id}\n")
    ended = await journal.put_part(running.with_state(running.state.complete("written", now_ms())), message)
    say(part=ended.id, status="completed")
    await journal.add_message(Message("user", [CompactionPart(summary="so far", tail_start_id=message.id)]))


async def answer(path: str) -> None:
    """Stores one answer without calls, then waits to be killed."""
    store = SqliteStore(path)
    journal = await create_journal(Session(), store, EventBus(), lease_owner=LeaseOwner(store, current_process()))
    message = await journal.add_message(Message("assistant"))
    part = await journal.put_part(TextPart("said"), message)
    say(session=journal.session.id, part=part.id)
    await asyncio.sleep(60)


async def stream(journal: Journal, message: Message) -> None:
    text, part_id = "", new_id()
    for number in range(4):
        text += f"{number} " * 400

        def current(text: str = text) -> TextPart:
            part = TextPart(text, id=part_id)
            part.adopt(message.id, journal.session.id)
            return part

        journal.publish_delta(PartDeltaEvent(message_id=message.id, part_id=part_id, delta=f"{number} " * 400), current)
        await asyncio.sleep(0.001)
    await journal.flush_drafts()
    say(part=part_id, status="draft", characters=len(text))
    await journal.put_part(TextPart(text, id=part_id), message)
    say(part=part_id, status="text")


async def append(path: str, seconds: str) -> None:
    """Appends to a separate session, and reports how long each append took."""
    async with SqliteStore(path) as store:
        session = await store.create(StoredSession(title="writer"))
        message = Message("assistant", time=MessageTime(now_ms()))
        message.join(session.id)
        await store.append(session.id, [message])
        say(ready=session.id)
        sys.stdin.readline()
        took: list[float] = []
        end = time.perf_counter() + float(seconds)
        while (start := time.perf_counter()) < end:
            part = TextPart("x" * 1500)
            part.adopt(message.id, session.id)
            await store.append(session.id, [part])
            took.append(time.perf_counter() - start)
        say(session=session.id, took=took)


async def start(path: str, at: str) -> None:
    """Open the store at one moment with all the others, and use it."""
    while time.time() < float(at):
        pass
    async with SqliteStore(path) as store:
        say(session=(await store.create(StoredSession())).id)


async def hold_lock(path: str) -> None:
    """Die inside a transaction, with every lock held."""
    with FairFileLock(Path(path)):
        db = connect_writer(Path(path))
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE sessions SET title = 'never'")
        say(held=True)
        time.sleep(60)


async def own(path: str, session_id: str, ttl_ms: str = "600000") -> None:
    """Own a session for so long at a time, and write to it on every line that comes in."""
    async with SqliteStore(path) as store:
        lease = await store.acquire(session_id, current_process(), ttl_ms=int(ttl_ms))
        journal = Journal(
            (await resume_plain(store, session_id)),
            store,
            EventBus(),
            held=(LeaseOwner(store, current_process()), lease),
        )
        say(owner=True)
        while sys.stdin.readline():
            try:
                await journal.add_message(text_message("user", "from the first owner"))
                say(wrote=True)
            except LeaseLostError:
                say(wrote=False)
        await journal.close()


async def resume_plain(store: SqliteStore, session_id: str) -> Session:
    journal = await resume_journal(session_id, store, EventBus())
    await journal.close()
    return journal.session


async def upgrade(path: str) -> None:
    """A migration that a later version might bring."""

    def add_column(db: sqlite3.Connection) -> None:
        db.execute("ALTER TABLE sessions ADD COLUMN colour TEXT")
        db.execute("UPDATE sessions SET colour = 'red'")

    with FairFileLock(Path(path)):
        db = connect_writer(Path(path))
        backup = migrate_schema(db, Path(path), (*MIGRATIONS, add_column))
        db.close()
    say(backup=str(backup))


async def trusting(path: str, name: str) -> None:
    """Trust one folder after the other, in a list that others change as well."""
    trusted = TrustList(Path(path))
    say(ready=True)
    sys.stdin.readline()
    for number in range(20):
        trusted.trust(f"/projects/{name}/{number}", time=now_ms())
        trusted.approve(f"/projects/{name}/{number}", "item", b"content")
    say(done=True)


async def runners(url: str, schema: str, *sessions: str) -> None:
    """Eight runners that take whichever session is free, write a few numbered messages as its owner, and let go."""
    from outrider.sessions.postgres.store import PostgresStore

    async with PostgresStore(url, schema=schema) as store, asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(run_one(store, sessions))


async def run_one(store: Store, sessions: Sequence[str]) -> None:
    while True:
        session_id, owner = random.choice(sessions), current_process()
        try:
            lease = await store.acquire(session_id, owner, ttl_ms=300)
        except SessionInUseError:
            await asyncio.sleep(random.uniform(0, 0.02))
            continue
        with contextlib.suppress(LeaseLostError):
            for number in range(random.randint(1, 4)):
                message = text_message("user", f"{lease.token} {number}")
                message.time = MessageTime(now_ms())
                message.join(session_id)
                await store.append(session_id, [message], token=lease.token)
                say(message=message.id)
            await store.release(lease)


async def main() -> None:
    name, *arguments = sys.argv[1:]
    try:
        await globals()[name](*arguments)
    except OutriderError as error:
        say(error=type(error).__name__, message=error.message)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(main())
