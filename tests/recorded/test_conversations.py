"""Recorded conversations with tools, driven through the whole library: what leaves is what the API had accepted, and
the last answer is the recorded one."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from outrider.sessions.memory_store import MemoryStore
from tests.fixtures.soak import SOAK
from tests.recorded.conversation_checks import cannot_be_driven, judge
from tests.recorded.conversation_driver import Driven, Stage, through_engine, through_run
from tests.recorded.exchanges import load
from tests.recorded.request_chains import Conversation, Reel, conversations

APIS = {
    "anthropic": ("anthropic-messages", "anthropic-compatible"),
    "openai": ("openai-chat", "openai-compatible"),
    "openai-responses": ("openai-responses", "openai-responses-compatible"),
    "google": ("gemini",),
}
Drive = Callable[[Stage], Awaitable[Driven]]
Record = Callable[[str, object], None]
SESSIONS = count()


@pytest.fixture(scope="module")
def server(shared_dir: Path) -> Iterator[Any]:
    with load(shared_dir, "replay_server").ReplayServer(Reel(conversations(shared_dir))).thread() as running:
        yield running


class Tally:
    """What became of the conversations of one API."""

    def __init__(self) -> None:
        self.wrong: dict[str, list[str]] = {}
        self.same = Counter[str]()
        self.excused = Counter[str]()

    @property
    def judged(self) -> int:
        return self.same.total()

    def lines(self, title: str) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in sorted(self.same.items()))
        head = f"{title}: {self.judged} as recorded ({counts}), {self.excused.total()} not comparable"
        return "\n".join([head, *(f"    {count} × {why}" for why, count in self.excused.most_common())])


async def tally(recorded: list[Conversation], server: Any, drive: Drive) -> Tally:
    found = Tally()
    for conversation in recorded:
        if reason := cannot_be_driven(conversation):
            found.excused[reason] += 1
            continue
        session = f"s{next(SESSIONS)}"
        driven = await drive(Stage(conversation, server.url(conversation.id, session=session)))
        # By session, not by position: the server thread may log a cancelled request after the next conversation began.
        verdict = judge(conversation, driven, [entry["body"] for entry in server.log if entry["session"] == session])
        if verdict.problems:
            found.wrong[conversation.id] = verdict.problems
        elif verdict.excuse:
            found.excused[verdict.excuse] += 1
        else:
            streamed = "streamed" if conversation.first["streaming"] else "whole"
            found.same[streamed if verdict.settings else f"{streamed}, by messages only"] += 1
    return found


def conversations_of(shared: Path, api: str) -> list[Conversation]:
    return [recorded for recorded in conversations(shared) if recorded.api in APIS[api]]


@pytest.mark.parametrize("api", APIS)
async def test_a_conversation_through_an_engine_goes_as_recorded(
    api: str, shared_dir: Path, server: Any, record_property: Record
):
    store = MemoryStore()

    async def drive(stage: Stage) -> Driven:
        return await through_engine(stage, store)

    found = await tally(conversations_of(shared_dir, api)[:: 1 if SOAK else 2], server, drive)
    record_property("figures", found.lines(f"conversations through an engine, {api}"))
    assert not found.wrong
    assert found.judged > max(4 * found.excused.total(), 50)


@pytest.mark.parametrize("api", APIS)
async def test_a_conversation_through_a_run_goes_as_recorded(
    api: str, shared_dir: Path, server: Any, record_property: Record
):
    """Without those with user input next to results: a run accepts no input before its end."""
    drivable = [recorded for recorded in conversations_of(shared_dir, api)[::3] if not cannot_be_driven(recorded)]
    uninterrupted = [recorded for recorded in drivable if not Stage(recorded, "").book.interrupts]
    found = await tally(uninterrupted, server, through_run)
    record_property("figures", found.lines(f"conversations through runs, {api}"))
    assert not found.wrong
    assert found.judged > 25
