"""After a power loss the disk holds what was synced: every call that may have run, and all that came before it."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.sessions.sqlite import recovery as doctor
from outrider.sessions.sqlite.store import SqliteStore
from tests.fault.processes import read_all_lines, read_line, worker

SOURCE = Path(__file__).with_name("power_loss.c")


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler to see what is synced")
    library = tmp_path_factory.mktemp("shim") / "power_loss.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


async def test_sf_017_a_call_that_may_have_run_and_all_before_it_survive_the_loss_of_what_was_not_synced(
    shim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
):
    acknowledged = lost = rounds = 0
    for number in range(4):
        path, shadow = tmp_path / f"{number}" / "sessions.db", tmp_path / f"shadow-{number}"
        shadow.mkdir(mode=0o700)
        monkeypatch.setenv("LD_PRELOAD", str(shim))
        monkeypatch.setenv("OUTRIDER_SHADOW", str(shadow))
        with worker("turns", path, tmp_path / f"effects-{number}") as child:
            reported = [read_line(child)]
            while "session" not in reported[-1]:
                reported.append(read_line(child))
            time.sleep(0.3 + 0.3 * number)
            child.kill()
            reported += read_all_lines(child)
        monkeypatch.delenv("LD_PRELOAD")
        session_id = next(line["session"] for line in reported if "session" in line)
        rounds += 1
        running = max((place for place, line in enumerate(reported) if line.get("status") == "running"), default=-1)
        final = [line["part"] for line in reported[: running + 1] if line.get("status") not in (None, "draft")]
        async with SqliteStore(shadow / "sessions.db") as store:
            assert store.notices == ()
            loaded = await store.load(session_id)
        stored = {part.id for message in loaded.messages for part in message.parts if part.id not in loaded.drafts}
        acknowledged += len(set(final))
        lost += len(set(final) - stored)
        assert doctor.check_file(shadow / "sessions.db").is_healthy
    numbers = f"{rounds} rounds, {acknowledged} parts until the last call that ran, {lost} lost, all stores opened"
    record_property("figures", f"power loss (only what was synced remains): {numbers}")
    assert acknowledged > 0
    assert lost == 0


async def test_sf_017_what_need_not_be_synced_reaches_the_disk_by_itself_when_nothing_follows(
    shim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shadow = tmp_path / "shadow"
    shadow.mkdir(mode=0o700)
    monkeypatch.setenv("LD_PRELOAD", str(shim))
    monkeypatch.setenv("OUTRIDER_SHADOW", str(shadow))
    with worker("answer", tmp_path / "home" / "sessions.db") as child:
        reported = read_line(child)
        monkeypatch.delenv("LD_PRELOAD")
        async with asyncio.timeout(30):
            while reported["part"] not in await _parts_on_disk(shadow, tmp_path / "copy", reported["session"]):
                await asyncio.sleep(0.05)


async def _parts_on_disk(shadow: Path, copy: Path, session_id: str) -> set[str]:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(shadow, copy)
    async with SqliteStore(copy / "sessions.db") as store:
        loaded = await store.load(session_id)
        return {part.id for message in loaded.messages for part in message.parts}
