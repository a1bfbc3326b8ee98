"""After a power loss the disk holds what was synced: everything acknowledged as final is in it."""

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.sessions.sqlite import doctor
from outrider.sessions.sqlite_store import SqliteStore
from tests.faults.processes import heard_all, worker

SOURCE = Path(__file__).with_name("power_loss.c")


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler to see what is synced")
    library = tmp_path_factory.mktemp("shim") / "power_loss.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


async def test_sf_017_what_was_acknowledged_as_final_survives_the_loss_of_all_that_was_not_synced(
    shim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
):
    acknowledged = lost = rounds = 0
    for number in range(4):
        path, shadow = tmp_path / f"{number}" / "sessions.db", tmp_path / f"shadow-{number}"
        shadow.mkdir(mode=0o700)
        monkeypatch.setenv("LD_PRELOAD", str(shim))
        monkeypatch.setenv("OUTRIDER_SHADOW", str(shadow))
        with worker("turns", path, tmp_path / f"effects-{number}") as child:
            time.sleep(0.8 + 0.3 * number)
            child.kill()
            said = heard_all(child)
        monkeypatch.delenv("LD_PRELOAD")
        session_id = next((line["session"] for line in said if "session" in line), None)
        if session_id is None:
            continue
        rounds += 1
        final = [line["part"] for line in said if line.get("status") not in (None, "draft")]
        async with SqliteStore(shadow / "sessions.db") as store:
            assert store.notices == ()
            loaded = await store.load(session_id)
        kept = {part.id for message in loaded.messages for part in message.parts if part.id not in loaded.drafts}
        acknowledged += len(set(final))
        lost += len(set(final) - kept)
        assert doctor.check(shadow / "sessions.db").healthy
    numbers = f"{rounds} rounds, {acknowledged} parts acknowledged as final, {lost} lost, 0 stores that did not open"
    record_property("figures", f"power loss (only what was synced remains): {numbers}")
    assert rounds > 0
    assert acknowledged > 0
    assert lost == 0
