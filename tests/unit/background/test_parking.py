"""A run is left by its worker when it only waits, and at no other moment."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.background.executor import is_waiting_for_approval
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import Approval, StoredSession
from outrider.types.messages import Message
from outrider.types.parts import SubtaskPart, ToolPart
from outrider.types.tool_state import ToolPending


async def test_a_run_whose_agent_has_no_session_yet_works_while_another_run_waits_for_an_answer():
    store = MemoryStore()
    await store.ask(Approval(session_id=(await store.create(StoredSession())).id, call_id="other", tool="shell"))
    called = ToolPart("call_1", "call_agent", ToolPending({}).start(1))
    part = SubtaskPart("reviewer", "", "look", None, StoredSession().id)
    session = SimpleNamespace(messages=[Message("assistant", [called, part])])
    live = {"run-1": SimpleNamespace(journal=SimpleNamespace(session=session))}
    engine: Any = SimpleNamespace(live=live, store=store)
    assert not await is_waiting_for_approval(engine, "run-1")
