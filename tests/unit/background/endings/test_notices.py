"""Whoever asked for it is told of a run's end: once if all goes well, again within bounds if not, nobody else ever."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.background.database import Database
from outrider.background.endings.notices import ATTEMPTS, FIRST_PAUSE
from outrider.background.endings.posting import post
from outrider.background.endings.reports import Report, Reports, notice_of
from outrider.background.runs import Outcome
from outrider.errors import ToolFailure
from outrider.types.ids import now_ms

REPORT = Report(outcome=Outcome(reason="completed", output="Done."))
LATE = now_ms() + 10**12


class Listener:
    """Answers with the statuses it was given, and remembers what it heard."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.heard: list[tuple[str, Any]] = []
        self.first = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        key = head.partition("idempotency-key: ")[2].partition("\r\n")[0]
        self.heard.append((key, msgspec.json.decode(await reader.readexactly(length))))
        self.first.set()
        status = self.statuses.pop(0) if self.statuses else 200
        where = "Location: http://127.0.0.1:1/\r\n" if status == 302 else ""
        writer.write(f"HTTP/1.1 {status} x\r\n{where}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@pytest.fixture
async def reports(tmp_path: Path) -> AsyncIterator[Reports]:
    database = Database(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    database.prepare()
    yield Reports(database)
    database.close()


async def told(reports: Reports, listener: Listener, times: int) -> None:
    """Keep the end of a run twice, as two workers may, and try to tell of it so often."""
    async with await asyncio.start_server(listener.answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for _ in range(2):
            reports.keep("run-1", REPORT, notice_of("run-1", f"http://127.0.0.1:{port}/hook", "look", REPORT))
        for attempt in range(times):
            for notice in reports.notices.claim(LATE + attempt * FIRST_PAUSE * 4**ATTEMPTS):
                await reports.notices.deliver(notice, [f"127.0.0.1:{port}"])


async def test_an_end_is_told_once_when_it_is_taken(reports: Reports):
    listener = Listener()
    await told(reports, listener, times=3)
    ((key, body),) = listener.heard
    assert (key, body["notice"]) == ("run-1:0:completed", "run-1:0:completed")
    assert (body["state"], body["outcome"]["output"], body["prompt"]) == ("done", "Done.", "look")


async def test_an_end_that_is_not_taken_is_told_again_later_and_not_for_ever(reports: Reports):
    again = Listener(500, 302)
    await told(reports, again, times=5)
    assert [key for key, _ in again.heard] == ["run-1:0:completed"] * 3


async def test_after_many_attempts_it_is_given_up(reports: Reports):
    deaf = Listener(*[500] * 20)
    await told(reports, deaf, times=ATTEMPTS + 3)
    assert len(deaf.heard) == ATTEMPTS


def test_a_notice_is_claimed_by_one_worker_until_its_next_attempt(reports: Reports):
    reports.keep("run-1", REPORT, notice_of("run-1", "https://example.org/hook", "look", REPORT))
    now = now_ms()
    assert len(reports.notices.claim(now)) == 1
    assert not reports.notices.claim(now + FIRST_PAUSE - 1)
    assert len(reports.notices.claim(now + FIRST_PAUSE)) == 1


async def test_an_inner_address_is_not_called_unless_the_user_named_it():
    listener = Listener()
    async with await asyncio.start_server(listener.answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for hosts in ([], [f"127.0.0.1:{port + 1}"]):
            with pytest.raises(ToolFailure, match="not a public address"):
                await post(f"http://127.0.0.1:{port}/", "{}", "key", hosts)
    assert not listener.heard
