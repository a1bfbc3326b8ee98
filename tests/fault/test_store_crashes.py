"""Killed processes lose no acknowledged data and repeat no effect."""

import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.event_bus import EventBus
from outrider.sessions.journal import resume_journal
from outrider.sessions.leases import LeaseOwner, current_process
from outrider.sessions.sqlite import recovery as doctor
from outrider.sessions.sqlite.connection import MIGRATIONS, schema_version
from outrider.sessions.sqlite.store import SqliteStore
from outrider.types.codec import AnyPart
from outrider.types.parts import CompactionPart, ToolPart
from tests.fault.processes import read_all_lines, worker

Record = Callable[[str, object], None]

FAULT_POINTS = (
    "FP-before-record-call",
    "FP-after-record-call",
    "FP-after-effect-before-result",
    "FP-after-result",
    "FP-mid-stream",
    "FP-mid-approval",
    "FP-mid-compaction",
    "FP-after-commit",
)
RANK = {"draft": 0, "text": 1, "pending": 1, "running": 2, "completed": 3, "error": 3}


async def judge(path: Path, effects: Path, reported: list[dict[str, Any]]) -> tuple[int, int]:
    """How many parts were acknowledged, and how many of them are not as they were; checks everything else."""
    session_id = next(line["session"] for line in reported if "session" in line)
    promised = {line["part"]: line for line in reported if "part" in line}
    async with SqliteStore(path) as store:
        assert store.notices == ()
        before = await store.load(session_id)
        parts = {part.id: part for message in before.messages for part in message.parts}
        lost = [line for id, line in promised.items() if not is_stored(parts.get(id), line, id in before.drafts)]
        journal = await resume_journal(session_id, store, EventBus(), lease_owner=LeaseOwner(store, current_process()))
        check_calls(journal.session.messages, effects)
        await journal.close()
        again = await store.load(session_id)
        assert again.messages == journal.session.messages
        seqs = [change.seq async for change in store.changes(session_id, follow=False)]
        assert len(seqs) == len(set(seqs))
        assert max(seqs) == again.session.seq
    return len(promised), len(lost)


def is_stored(part: AnyPart | None, line: dict[str, Any], draft: bool) -> bool:
    if part is None:
        return False
    if line["status"] == "draft":
        return len(part.text) == line["characters"]
    if isinstance(part, ToolPart):
        return RANK[part.state.status] >= RANK[line["status"]]
    return not draft


def check_calls(messages: list[Any], effects: Path) -> None:
    done = Counter(effects.read_text().split()) if effects.exists() else Counter()
    assert all(count == 1 for count in done.values())
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolPart):
                assert part.ended or part.state.phase == "awaiting_approval"
                assert not done[part.id] or part.state.status == "completed" or part.state.reason == "interrupted"
            if isinstance(part, CompactionPart):
                assert part.summary == "so far"


@pytest.mark.parametrize("point", FAULT_POINTS)
async def test_sf_001_to_007_killed_at_a_fault_point_nothing_acknowledged_is_lost(
    point: str, tmp_path: Path, record_property: Record
):
    acknowledged = lost = 0
    for visit in (9, 17, 40) if point == "FP-after-commit" else (1, 2, 5):
        path, effects = tmp_path / f"{visit}" / "sessions.db", tmp_path / f"effects-{visit}"
        with worker("turns", path, effects, fault=f"{point}@{visit}") as child:
            reported = read_all_lines(child)
            assert child.wait() == -signal.SIGKILL
        if not reported:
            continue  # killed before there was a session
        some, missing = await judge(path, effects, reported)
        acknowledged, lost = acknowledged + some, lost + missing
    numbers = f"3 rounds, {acknowledged} parts acknowledged, {lost} lost, 0 stores that did not open"
    record_property("figures", f"kill -9 at {point}: {numbers}")
    assert lost == 0


async def test_sf_012_killed_at_any_moment_nothing_acknowledged_is_lost(tmp_path: Path, record_property: Record):
    rounds, acknowledged, lost = 15, 0, 0
    path = tmp_path / "sessions.db"
    for number in range(rounds):
        effects = tmp_path / f"effects-{number}"
        with worker("turns", path, effects) as child:
            first = child.stdout.readline()
            time.sleep(random.uniform(0, 0.3))
            child.kill()
            reported = [*([{"session": first.decode().split('"')[3]}] if first else []), *read_all_lines(child)]
        some, missing = await judge(path, effects, reported)
        acknowledged, lost = acknowledged + some, lost + missing
    health = doctor.check_file(path)
    numbers = f"{rounds} rounds on one file, {acknowledged} parts acknowledged, {lost} lost,"
    numbers += f" 0 stores that did not open, {len(health.problems)} problems found"
    record_property("figures", f"kill -9 at random moments: {numbers}")
    assert (lost, health.problems, health.damaged) == (0, (), ())
    assert acknowledged > 0


async def test_sf_008_killed_during_a_migration_the_old_store_is_whole_and_the_next_start_finishes(tmp_path: Path):
    path = tmp_path / "sessions.db"
    with worker("start", path, 0) as child:
        session_id = read_all_lines(child)[0]["session"]
    with worker("upgrade", path, fault="FP-mid-migration") as child:
        assert child.wait() == -signal.SIGKILL
    async with SqliteStore(path) as store:
        assert (await store.get(session_id)).id == session_id
    with worker("upgrade", path) as child:
        backup = Path(read_all_lines(child)[0]["backup"])
    assert backup.stat().st_mode & 0o777 == 0o600
    for file, version in ((path, len(MIGRATIONS) + 1), (backup, len(MIGRATIONS))):
        db = sqlite3.connect(file)
        assert schema_version(db) == version
        assert db.execute("SELECT id FROM sessions").fetchall() == [(session_id,)]
        db.close()
