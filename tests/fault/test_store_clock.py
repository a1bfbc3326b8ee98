"""Clocks that jump change no order, end no lease and no approval, and count in UTC."""

import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from outrider.errors import SessionInUseError
from outrider.sessions.leases import boot_clock_ms, current_process
from outrider.sessions.records import Approval, StoredSession
from outrider.sessions.rows.session_rows import utc_day
from outrider.sessions.sqlite.store import SqliteStore
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import TextPart

START = 1_700_000_000_000
HOUR = 3_600_000


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


@pytest.mark.parametrize("jump", [-HOUR, 10 * 24 * HOUR], ids=["sf_062_back_one_hour", "sf_063_forward_ten_days"])
async def test_sf_062_and_063_a_clock_that_jumps_changes_neither_order_nor_owner_nor_question(
    tmp_path: Path, jump: int
):
    clock = Clock()
    async with SqliteStore(tmp_path / "sessions.db", clock=clock) as store:
        session = await store.create(StoredSession())
        lease = await store.acquire(session.id, current_process())
        asked = await store.ask(Approval(session_id=session.id, call_id="c", tool="shell"))
        for number in range(6):
            if number == 3:
                clock.now += jump
            message = Message("user", [TextPart(str(number))], time=MessageTime(clock.now))
            message.join(session.id)
            await store.append(session.id, [message], token=lease.token)
        loaded = await store.load(session.id)
        assert [message.get_text_content() for message in loaded.messages] == list("012345")
        seqs = [change.seq async for change in store.changes(session.id, follow=False)]
        assert all(left < right for left, right in pairwise(seqs))
        assert loaded.session.time.updated >= loaded.session.time.created
        with pytest.raises(SessionInUseError):
            await store.acquire(session.id, current_process())
        assert [one.id for one in await store.approvals(only_open=True)] == [asked.id]
        assert len(await store.search("5")) == 1


@pytest.fixture(params=[None, "Asia/Kolkata", "America/New_York"])
def time_zone(request: pytest.FixtureRequest) -> Iterator[str | None]:
    before = os.environ.get("TZ")
    set_time_zone(request.param)
    yield request.param
    set_time_zone(before)


def set_time_zone(name: str | None) -> None:
    os.environ.pop("TZ", None)
    if name:
        os.environ["TZ"] = name
    time.tzset()


def test_sf_064_days_are_counted_in_utc_wherever_the_machine_is(time_zone: str | None):
    assert utc_day(1_699_999_999_999) == "2023-11-14"
    assert utc_day(1_710_054_000_000) == "2024-03-10"


def test_the_machines_clock_only_goes_forward():
    first = boot_clock_ms()
    time.sleep(0.005)
    assert boot_clock_ms() > first
