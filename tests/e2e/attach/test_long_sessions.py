"""Long sessions of a server: opened with their end, which is enough to continue; the rest comes when it is wanted."""

from decimal import Decimal

import pytest

from outrider.remote.engine import RemoteArchive
from outrider.remote.followed_session import RECENT_MESSAGES
from outrider.remote.mirror import StoredChange
from outrider.sessions.records import PartChange, StoredSession
from outrider.sessions.sqlite.store import SqliteStore
from outrider.types.events import Event, MessageAddedEvent
from outrider.types.ids import now_ms
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import TextPart, Tokens
from tests.e2e.attach.socket_server import Serving, until
from tests.e2e.attach.test_tui_over_server import Screen, screens

__all__ = ["screens"]

EXCHANGES = 200


async def keep_long_session(serving: Serving) -> str:
    async with SqliteStore(serving.home / "sessions.db") as store:
        place = str(serving.workspace)
        session = await store.create(StoredSession(title="long", workspace_directory=place, agent="outrider"))
        for number in range(EXCHANGES):
            now = MessageTime(now_ms(), now_ms())
            used = {"tokens": Tokens(5, 5), "cost": Decimal("0.01"), "finish": "stop"}
            pair = [
                Message("user", [TextPart("the needle" if number == 42 else f"question {number}")], time=now),
                Message("assistant", [TextPart(f"answer {number}")], time=now, **used),
            ]
            for message in pair:
                message.join(session.id)
            await store.append(session.id, pair)
    return session.id


async def test_the_end_is_enough_to_continue_and_what_changes_before_it_is_left_alone(serving: Serving):
    session_id = await keep_long_session(serving)
    serving.script("It goes on.")
    await serving.begin()
    async with serving.client() as engine:
        session = await engine.open(session_id)
        assert [message.get_text_content() for message in session.messages][-2:] == ["question 199", "answer 199"]
        assert (len(session.messages), engine.live[session_id].has_all_messages) == (RECENT_MESSAGES, False)
        archive = RemoteArchive(engine.client)
        whole = (await archive.load(session_id)).messages
        assert len(whole) == 2 * EXCHANGES
        events: list[Event] = []
        engine.bus.subscribe_all(events.append)
        mirror, first = engine.live[session_id].mirror, whole[0]
        change = PartChange(seq=mirror.seq, part=first.parts[0])
        assert await mirror.apply_change(StoredChange(mirror.seq, change)) == []
        assert (await engine.prompt(session_id, "and?")).output == "It goes on."
        await until(lambda: len(session.messages) == RECENT_MESSAGES + 2)
        assert [event.role for event in events if isinstance(event, MessageAddedEvent)] == ["user", "assistant"]
        assert session.messages[-1].get_text_content() == "It goes on."


async def test_the_screen_sums_up_and_forks_all_of_it(serving: Serving, screens: list[Screen]):
    pytest.importorskip("textual", reason="the extra `terminal` is not installed")
    session_id = await keep_long_session(serving)
    serving.script("unused")
    await serving.begin()
    screen = Screen(serving, "--session", session_id[-8:])
    screens.append(screen)
    await screen.shows("question 199", "answer 199", "$2.00")
    await screen.say("/fork")
    await screen.shows("Fork: what the copy holds")
    await screen.say("needle")
    await screen.shows("forked;", "answer 41", "the needle", without="answer 42")
