"""Requested notices about the end of a run are sent once, and a limited number of times more after errors."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.background.database import RunDatabase
from outrider.background.jobs import open_job_client
from outrider.background.records import RunOutcome
from outrider.background.reports import JobReport, ReportTable, WebhookTarget
from outrider.background.webhooks import (
    CLAIM_MS,
    FIRST_RETRY_MS,
    MAX_ATTEMPTS,
    TIMEOUT_SECONDS,
    post_notice,
    sign_notice,
)
from outrider.errors import ToolFailure
from outrider.sessions.memory_store import MemoryStore
from outrider.types.ids import now_ms

REPORT = JobReport(outcome=RunOutcome(reason="completed", output="Done."))
FAILED = JobReport(outcome=RunOutcome(reason="error", error="It broke."))
HOOK = WebhookTarget("https://example.org/hook", "look")
LATE = now_ms() + 10**12


class Listener:
    """Answers with the given statuses, and records what it received."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.event_classes: list[tuple[str, Any]] = []
        self.first = asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        key = head.partition("idempotency-key: ")[2].partition("\r\n")[0]
        self.event_classes.append((key, msgspec.json.decode(await reader.readexactly(length))))
        self.first.set()
        await self.answers.wait()
        status = self.statuses.pop(0) if self.statuses else 200
        where = "Location: http://127.0.0.1:1/\r\n" if status == 302 else ""
        writer.write(f"HTTP/1.1 {status} x\r\n{where}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@pytest.fixture
async def reports(tmp_path: Path) -> AsyncIterator[ReportTable]:
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    database.migrate()
    yield ReportTable(database)
    database.close()


async def post_notices(reports: ReportTable, listener: Listener, times: int) -> None:
    """Stores the end of a run twice, as two workers may, and tries to send the notice each time."""
    async with await asyncio.start_server(listener.answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for _ in range(2):
            reports.store_report("run-1", REPORT, WebhookTarget(f"http://127.0.0.1:{port}/hook", "look"))
        for attempt in range(times):
            for notice in reports.outbox.claim_due(LATE + attempt * FIRST_RETRY_MS * 4**MAX_ATTEMPTS):
                await reports.outbox.deliver_notice(notice, [f"127.0.0.1:{port}"])


async def test_an_end_is_reported_once_when_it_is_accepted(reports: ReportTable):
    listener = Listener()
    await post_notices(reports, listener, times=3)
    ((key, body),) = listener.event_classes
    assert (key, body["notice"]) == ("run-1:1", "run-1:1")
    assert (body["run"], body["state"], body["outcome"]["output"]) == ("run-1", "done", "Done.")
    assert body["prompt"] == "look"


async def test_an_end_that_is_not_accepted_is_reported_again_later_and_not_for_ever(reports: ReportTable):
    again = Listener(500, 302)
    await post_notices(reports, again, times=5)
    assert [key for key, _ in again.event_classes] == ["run-1:1"] * 3


async def test_a_notice_is_dropped_after_many_attempts(reports: ReportTable):
    deaf = Listener(*[500] * 20)
    await post_notices(reports, deaf, times=MAX_ATTEMPTS + 3)
    assert len(deaf.event_classes) == MAX_ATTEMPTS


def test_a_notice_is_claimed_by_one_worker_for_longer_than_an_attempt_may_take(reports: ReportTable):
    reports.store_report("run-1", REPORT, HOOK)
    now = now_ms()
    assert len(reports.outbox.claim_due(now)) == 1
    assert not reports.outbox.claim_due(now + round(TIMEOUT_SECONDS * 1000))
    assert len(reports.outbox.claim_due(now + CLAIM_MS)) == 1


async def test_a_notice_that_was_not_accepted_is_due_again_soon_and_before_a_claim_would_end(reports: ReportTable):
    reports.store_report("run-1", REPORT, WebhookTarget("http://127.0.0.1:1/", "look"))
    (notice,) = reports.outbox.claim_due(now_ms())
    await reports.outbox.deliver_notice(notice, [])
    (again,) = reports.outbox.claim_due(now_ms() + FIRST_RETRY_MS)
    assert (again.id, again.tries) == ("run-1:1", 2)


async def test_a_notice_that_was_accepted_late_is_not_sent_again_by_a_later_claimant(reports: ReportTable):
    listener = Listener()
    async with await asyncio.start_server(listener.answer, "127.0.0.1", 0) as server:
        host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        reports.store_report("run-1", REPORT, WebhookTarget(f"http://{host}/", "look"))
        (late,) = reports.outbox.claim_due(now_ms())
        assert len(reports.outbox.claim_due(LATE)) == 1
        await reports.outbox.deliver_notice(late, [host])
    assert not reports.outbox.claim_due(2 * LATE)


async def test_a_worker_that_leaves_waits_for_the_answer_to_what_it_has_posted(reports: ReportTable):
    listener = Listener()
    listener.answers.clear()
    async with await asyncio.start_server(listener.answer, "127.0.0.1", 0) as server:
        host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        reports.store_report("run-1", REPORT, WebhookTarget(f"http://{host}/", "look"))
        posting = asyncio.create_task(reports.outbox.post_due([host]))
        await listener.first.wait()
        for _ in range(2):
            posting.cancel()
            await asyncio.wait([posting], timeout=0.05)
            assert not posting.done()
        listener.answers.set()
        with pytest.raises(asyncio.CancelledError):
            await posting
    assert len(listener.event_classes) == 1
    assert not reports.outbox.claim_due(LATE)


async def test_a_worker_has_work_while_a_notice_is_unsent(tmp_path: Path):
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    async with MemoryStore() as store, open_job_client(database, store) as jobs:
        assert not await jobs.has_work()
        reports = ReportTable(database)
        reports.store_report("run-1", REPORT, WebhookTarget("http://127.0.0.1:1/", "look"))
        for attempt in range(MAX_ATTEMPTS):
            assert await jobs.has_work()
            (notice,) = reports.outbox.claim_due(LATE + attempt)
            await reports.outbox.deliver_notice(notice, [])
        assert not await jobs.has_work()
    database.close()


def notified_ids(reports: ReportTable) -> list[str]:
    return sorted(notice.id for notice in reports.outbox.claim_due(LATE))


async def test_a_run_that_was_retried_and_ends_as_before_is_reported_again(tmp_path: Path, reports: ReportTable):
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    async with open_job_client(database, MemoryStore()) as jobs:
        run = await jobs.submit_run("look")
        await jobs.cancel_run(run.id)
        for _ in range(2):
            reports.store_report(run.id, FAILED, HOOK)
        await jobs.retry_run(run.id)
    database.close()
    assert reports.get_report(run.id) is None
    for _ in range(2):
        reports.store_report(run.id, FAILED, HOOK)
    reports.store_report("run-2", REPORT, WebhookTarget("", "nobody wants to know"))
    assert notified_ids(reports) == [f"{run.id}:1", f"{run.id}:2"]


def test_another_end_of_a_run_is_another_notice(reports: ReportTable):
    reports.store_report("run-1", FAILED, HOOK)
    reports.store_report("run-1", REPORT, HOOK)
    assert notified_ids(reports) == ["run-1:1", "run-1:2"]


async def test_an_inner_address_is_not_called_unless_the_user_named_it():
    listener = Listener()
    async with await asyncio.start_server(listener.answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for hosts in ([], [f"127.0.0.1:{port + 1}"]):
            with pytest.raises(ToolFailure, match="not a public address"):
                await post_notice(f"http://127.0.0.1:{port}/", "{}", "key", hosts)
    assert not listener.event_classes


def test_a_signature_is_that_of_the_specification():
    """The example of the Standard Webhooks specification."""
    secret, key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek"
    headers = sign_notice(secret, key, '{"test": 2432232314}', 1614265330)
    assert headers == {
        "webhook-id": key,
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


async def test_a_notice_is_signed_with_the_secret_and_only_then():
    heads: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await post_notice(f"http://{host}/", "{}", "run-1:1", [host], "a secret")
        await post_notice(f"http://{host}/", "{}", "run-1:1", [host])
        with pytest.raises(ToolFailure):
            await post_notice(f"http://{host}/", "{}", "run-1:1", [host], "whsec_no base64")
    fields = dict(line.split(": ", 1) for line in heads[0].split("\r\n") if ": " in line)
    sent = {name.lower(): value for name, value in fields.items()}
    expected = sign_notice("a secret", "run-1:1", "{}", int(sent["webhook-timestamp"]))
    assert {name: sent[name] for name in expected} == expected
    assert "webhook-signature" not in heads[1].lower()
    assert len(heads) == 2
