"""Where a turn waits for the disk: at input, before a call that may change something, and at the end of an answer."""

import pytest

from outrider import Engine, Tool
from outrider.sessions.memory_store import MemoryStore
from tests.scenario.stories import agent, call, scripted


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
