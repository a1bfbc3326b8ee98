"""A turn waits for fsync at input, before a call that may change something, and at the end of an answer."""

import pytest

from outrider import Engine, Tool
from outrider.errors import StorageFullError
from outrider.sessions.memory_store import MemoryStore
from tests.scenario.scripted_runs import agent, call, scripted


class Noting(MemoryStore):
    """Notes of each write whether it has to reach the disk."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[bool] = []

    async def append(self, session_id, values, *, synced=True, **options):
        self.synced.append(synced)
        return await super().append(session_id, values, synced=synced, **options)


@pytest.mark.parametrize(
    ("read_only", "waits"),
    [
        (True, 1),  # for the end of the last answer
        (False, 3),  # and before each call
    ],
)
async def test_a_step_waits_for_the_disk_only_before_something_happens(read_only: bool, waits: int):
    look = Tool(lambda: "seen", name="look", read_only=read_only)
    script = [[call("look")], [call("look")], "done"]
    async with Noting() as store, Engine([agent(stream=False)], [scripted(script)], [look], store=store) as engine:
        assert (await engine.prompt(await engine.create(title="one"), "go")).output == "done"
        assert store.synced[0] is False, "the input reached the disk as it came"
        assert store.synced[-1] is True
        assert sum(store.synced) == waits


class FullStore(MemoryStore):
    """Has no space for the release of a lease of the session `full`."""

    full = ""

    async def release(self, lease):
        if lease.session_id == self.full:
            raise StorageFullError("no space left on device")
        await super().release(lease)


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_a_full_disk_at_the_end_leaves_no_session_open(position: int):
    async with FullStore() as store:
        engine = Engine([agent()], [scripted(["done"] * 3)], store=store)
        await engine.__aenter__()
        sessions = [await engine.create(title=str(number)) for number in range(3)]
        store.full = sessions[position]
        with pytest.raises(StorageFullError):
            await engine.__aexit__(None, None, None)
        assert not engine.live
        assert not engine.runtime.is_open
        async with Engine([agent()], [scripted(["done"])], store=store) as other:
            for session in sessions[:position] + sessions[position + 1 :]:
                await other.open(session)  # raises if its lease was not released
