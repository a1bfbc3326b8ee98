"""Many machines on one Postgres server: one owner at a time, no lost and no repeated effect after failures."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any, TypeVar

import pytest

pytest.importorskip("psycopg", reason="SKIPPED: no tests against Postgres, since psycopg is not installed")

import psycopg

from outrider.errors import StoreUnavailableError, StoreVersionError
from outrider.sessions.postgres.connection import TransactionPool
from outrider.sessions.postgres.schema import MIGRATIONS, backup_schema_name, backup_tables, migrate_schema
from outrider.sessions.postgres.store import PostgresStore
from outrider.sessions.records import InboxItem, StoredSession
from outrider.types.ids import new_id, now_ms
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import TextPart
from tests.fault.processes import read_all_lines, read_line, worker
from tests.fixtures.postgres_proxy import postgres_proxy

T = TypeVar("T")
Record = Callable[[str, object], None]


@pytest.fixture
def schema() -> str:
    return f"test_{new_id().replace('-', '')}"


@pytest.fixture
async def store(postgres_url: str, schema: str) -> AsyncIterator[PostgresStore]:
    async with PostgresStore(postgres_url, schema=schema) as opened:
        yield opened


def text_message(session_id: str, text: str) -> Message:
    message = Message("user", [TextPart(text)], time=MessageTime(now_ms()))
    message.join(session_id)
    return message


@pytest.mark.slow
async def test_sf_029_sixty_four_runners_share_eight_sessions_while_some_are_killed(
    store: PostgresStore, postgres_url: str, schema: str, record_property: Record
):
    sessions = [(await store.create(StoredSession())).id for _ in range(8)]
    acknowledged: list[str] = []
    kills = 0
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(worker("runners", postgres_url, schema, *sessions)) for _ in range(8)]
        while kills < 7:
            victim = children.pop(random.randrange(len(children)))
            acknowledged.append((await asyncio.to_thread(read_line, victim))["message"])
            await asyncio.sleep(random.uniform(0, 1))
            victim.kill()
            kills += 1
            acknowledged += [line["message"] for line in await asyncio.to_thread(read_all_lines, victim)]
            children.append(stack.enter_context(worker("runners", postgres_url, schema, *sessions)))
        for child in children:
            acknowledged.append((await asyncio.to_thread(read_line, child))["message"])
            child.kill()
            acknowledged += [line["message"] for line in await asyncio.to_thread(read_all_lines, child)]
    stored: set[str] = set()
    for session_id in sessions:
        loaded = await store.load(session_id)
        stored |= {message.id for message in loaded.messages}
        marks = [tuple(map(int, message.get_text_content().split())) for message in loaded.messages]
        assert all(left < right for left, right in pairwise(marks)), "two owners wrote at the same time"
        seqs = [change.seq async for change in store.changes(session_id, follow=False)]
        assert len(seqs) == len(set(seqs))
        assert loaded.session.seq == 1 + 2 * len(loaded.messages)
    lost = set(acknowledged) - stored
    numbers = f"{kills + 8} kills, {len(acknowledged)} messages acknowledged, {len(lost)} lost, 0 interleaved owners"
    record_property("figures", f"Postgres, 64 runners on 8 sessions: {numbers}")
    assert not lost


async def test_sf_030_when_the_answer_to_a_commit_is_lost_everything_is_there_exactly_once(
    store: PostgresStore, postgres_url: str, schema: str
):
    session = await store.create(StoredSession())
    item = await store.put_inbox(InboxItem(session_id=session.id, message=text_message(session.id, "from the inbox")))
    async with postgres_proxy(postgres_url) as (proxy, url), PostgresStore(url, schema=schema) as cut_store:

        async def unlucky(work: Callable[[], Any]) -> Any:
            proxy.losses = 2
            result = await work()
            assert proxy.losses == 0
            return result

        await unlucky(lambda: cut_store.append(session.id, [item.message], takes=[item.id]))
        other = StoredSession(title="made once")
        await unlucky(lambda: cut_store.create(other))
        fork = await unlucky(lambda: cut_store.fork(session.id))
        await unlucky(lambda: cut_store.delete(other.id))
    loaded = await store.load(session.id)
    assert [message.id for message in loaded.messages] == [item.message.id]
    assert await store.inbox(session.id) == []
    assert {one.id for one in (await store.list()).sessions} == {session.id, fork.id}
    seqs = [change.seq async for change in store.changes(session.id, follow=False)]
    assert len(seqs) == len(set(seqs))


async def test_a_server_that_ends_our_connections_is_reached_again(store: PostgresStore, postgres_url: str):
    session = await store.create(StoredSession())
    async with contextlib.aclosing(store.changes(session.id, after=1)) as feed:
        waiting = asyncio.create_task(anext(feed))
        await asyncio.sleep(0.2)
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as admin:
            await admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                "AND backend_type = 'client backend'"
            )
        await store.append(session.id, [text_message(session.id, "after the cut")])
        change = await asyncio.wait_for(waiting, 30)
    assert change.seq == 2


async def test_a_server_that_is_not_there_is_reported_clearly(tmp_path: object):
    with pytest.raises(StoreUnavailableError):
        await PostgresStore("postgresql://nobody@127.0.0.1:1/nothing").open()


async def test_sf_047_tables_of_a_newer_version_are_refused(store: PostgresStore, postgres_url: str, schema: str):
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as admin:
        await admin.execute(f"INSERT INTO {schema}.outrider_version VALUES (99)")
    with pytest.raises(StoreVersionError):
        await PostgresStore(postgres_url, schema=schema).open()


LATER = (*MIGRATIONS, "ALTER TABLE sessions ADD COLUMN colour text;\nUPDATE sessions SET colour = 'red'")


async def test_a_migration_leaves_a_backup_that_the_older_version_opens_as_a_store(
    store: PostgresStore, postgres_url: str, schema: str
):
    stored = await store.create(StoredSession(title="before"))
    await store.append(stored.id, [text_message(stored.id, "kept in both"), text_message(stored.id, "x" * 300_000)])
    async with await TransactionPool(postgres_url, schema).connect() as db:
        backup = await migrate_schema(db, schema, LATER)
        assert backup == backup_schema_name(schema, len(MIGRATIONS))
        assert await (await db.execute("SELECT colour FROM sessions")).fetchall() == [("red",)]
        assert await migrate_schema(db, schema, LATER) is None
    with pytest.raises(StoreVersionError):
        await PostgresStore(postgres_url, schema=schema).open()
    async with PostgresStore(postgres_url, schema=backup) as older:
        texts = [message.get_text_content() for message in (await older.load(stored.id)).messages]
        assert texts == ["kept in both", "x" * 300_000]
        assert [hit.session_id for hit in await older.search("both")] == [stored.id]
        added = await older.create(StoredSession(title="goes on"))
        await older.append(added.id, [text_message(added.id, "in the copy only")])
        await older.append(stored.id, [text_message(stored.id, "one more")])
        await older.delete(stored.id)
        assert [one.id for one in (await older.list()).sessions] == [added.id]
    async with await TransactionPool(postgres_url, backup).connect() as db:
        for table in ("messages", "parts"):
            assert await (await db.execute(f"SELECT count(*) FROM {table}".encode())).fetchone() == (1,)
    async with await TransactionPool(postgres_url, schema).connect() as db:
        assert await (await db.execute("SELECT count(*) FROM messages")).fetchone() == (2,)


async def test_a_backup_copies_in_batches_while_others_write(store: PostgresStore, postgres_url: str, schema: str):
    stored = await store.create(StoredSession(title="before"))
    await store.append(stored.id, [text_message(stored.id, f"{number} " + "x" * 2_000) for number in range(60)])
    async with await TransactionPool(postgres_url, schema).connect() as db:
        async with db.transaction():
            backup = await backup_tables(db, schema, len(MIGRATIONS), batch_pages=2)
            # The copy is not committed yet, and a writer does not wait for it.
            async with asyncio.timeout(10):
                await store.append(stored.id, [text_message(stored.id, "written meanwhile")])
        copied = await db.execute(f"SELECT count(*), count(DISTINCT id) FROM {backup}.messages".encode())
        assert await copied.fetchone() == (60, 60)
        await db.execute(f"DROP SCHEMA {backup} CASCADE".encode())
    assert len((await store.load(stored.id)).messages) == 61


async def test_sf_008_a_migration_that_fails_leaves_the_tables_as_they_were_and_no_half_backup(
    store: PostgresStore, postgres_url: str, schema: str
):
    stored = await store.create(StoredSession(title="before"))
    async with await TransactionPool(postgres_url, schema).connect() as db:
        with pytest.raises(psycopg.Error):
            await migrate_schema(db, schema, (*LATER, "SELECT nothing_of_this_name()"))
        query = "SELECT count(*) FROM information_schema.schemata WHERE schema_name = %s"
        assert await (await db.execute(query, (backup_schema_name(schema, len(MIGRATIONS)),))).fetchone() == (0,)
    async with PostgresStore(postgres_url, schema=schema) as again:
        assert (await again.get(stored.id)).title == "before"


async def test_sf_023_many_that_start_at_once_all_start(postgres_url: str, schema: str):
    stores = [PostgresStore(postgres_url, schema=schema) for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(store.create(StoredSession()) for store in stores))
    assert len((await stores[0].list()).sessions) == 8
    for store in stores:
        await store.close()


async def test_reading_a_session_keeps_the_prepared_statements_of_the_connection(postgres_url: str, schema: str):
    async with (
        postgres_proxy(postgres_url) as (proxy, url),
        PostgresStore(url, schema=schema, max_connections=1) as store,
    ):
        session = await store.create(StoredSession())
        await store.append(session.id, [text_message(session.id, "hello")])
        for _ in range(8):
            proxy.queries.clear()
            await store.load(session.id)
            sent_queries = list(proxy.queries)
        assert not any(b"FROM messages" in query for query in sent_queries)
