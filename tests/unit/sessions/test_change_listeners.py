"""`SessionListeners`: a listener reads each change of its session once, and is not woken for other sessions."""

import asyncio
from contextlib import aclosing
from pathlib import Path

from outrider.sessions.records import Change, SessionChange, SessionUpdate, StoredSession
from outrider.sessions.rows.session_rows import CHANGES_LIMIT, SessionListeners
from outrider.sessions.sqlite.store import ChangePoller, SqliteStore


def change(seq: int) -> Change:
    return SessionChange(seq, StoredSession(id="s"))


async def test_changes_are_read_once_for_each_notification():
    listeners, stored, reads = SessionListeners(), [change(1), change(2)], list[int]()

    async def read(after: int) -> list[Change]:
        reads.append(after)
        return [one for one in stored if one.seq > after]

    async with aclosing(listeners.iterate_changes("s", read, 0, follow=True)) as changes:
        assert [(await anext(changes)).seq for _ in range(2)] == [1, 2]
        following = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        assert reads == [0]
        stored.append(change(3))
        listeners.notify_session("s")
        assert (await following).seq == 3
        assert reads == [0, 2]


async def test_more_changes_than_one_read_returns_are_all_delivered():
    stored = [change(seq) for seq in range(1, 2 * CHANGES_LIMIT + 2)]

    async def read(after: int) -> list[Change]:
        return [one for one in stored if one.seq > after][:CHANGES_LIMIT]

    found = [one.seq async for one in SessionListeners().iterate_changes("s", read, 0, follow=False)]
    assert found == [one.seq for one in stored]


async def test_a_change_during_a_read_is_read_afterwards():
    listeners, stored = SessionListeners(), [change(1)]

    async def read(after: int) -> list[Change]:
        found = [one for one in stored if one.seq > after]
        if len(stored) == 1:
            stored.append(change(2))
            listeners.notify_session("s")
        return found

    async with aclosing(listeners.iterate_changes("s", read, 0, follow=True)) as changes, asyncio.timeout(5):
        assert [(await anext(changes)).seq for _ in range(2)] == [1, 2]


async def test_a_commit_of_another_process_wakes_the_listeners_of_its_session_only(tmp_path: Path):
    path = tmp_path / "sessions.db"
    async with SqliteStore(path) as store, SqliteStore(path) as other, asyncio.timeout(10):
        for name in ("changed", "unchanged", "deleted"):
            await store.create(StoredSession(id=name))
        poller = ChangePoller(path)
        listen = poller.listen
        with listen("changed") as changed, listen("unchanged") as unchanged, listen("deleted") as deleted:
            for event in (changed, unchanged, deleted):
                await event.wait()  # the first look
                event.clear()
            await other.update("changed", SessionUpdate(title="a title"))
            await other.delete("deleted")
            await asyncio.gather(changed.wait(), deleted.wait())
            assert not unchanged.is_set()
        await poller.close()


async def test_a_listener_that_follows_the_last_one_at_once_is_notified(tmp_path: Path):
    path = tmp_path / "sessions.db"
    async with SqliteStore(path) as store, asyncio.timeout(10):
        await store.create(StoredSession(id="s"))
        poller = ChangePoller(path)
        with poller.listen("s") as changed:
            await changed.wait()
        with poller.listen("s") as changed:
            await store.update("s", SessionUpdate(title="a title"))
            await changed.wait()
        await poller.close()


async def test_polling_continues_after_an_error(tmp_path: Path):
    path = tmp_path / "sessions.db"
    path.mkdir()  # cannot be opened
    poller = ChangePoller(path)
    async with asyncio.timeout(10):
        with poller.listen("s") as changed:
            await changed.wait()  # the listener reads the error
            path.rmdir()
            await change_twice(path, changed)
        await poller.close()


async def change_twice(path: Path, changed: asyncio.Event) -> None:
    async with SqliteStore(path) as store:
        await store.create(StoredSession(id="s"))
        for title in ("first", "second"):
            changed.clear()
            await store.update("s", SessionUpdate(title=title))
            await changed.wait()
