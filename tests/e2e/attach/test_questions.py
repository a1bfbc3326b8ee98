"""Questions of a model on a server are sent to all attached clients and answered by one of them."""

import asyncio

import pytest

from outrider.types.events import Event, SessionUpdatedEvent
from tests.e2e.attach.socket_server import Serving, call, until

pytest.importorskip("textual", reason="the extra `terminal` is not installed")
pytest.importorskip("pyte", reason="pyte is not installed")

from tests.e2e.attach.test_tui_over_server import Screen, screens

__all__ = ["screens"]


def parts_of(events: list[Event], word: str) -> list[object]:
    return [event.changes[word] for event in events if isinstance(event, SessionUpdatedEvent) and word in event.changes]


async def test_a_question_is_answered_on_one_screen_and_goes_from_the_others(serving: Serving, screens: list[Screen]):
    colour = call("question", question="Which colour?", options=["red", "blue"])
    size = call("question", question="Which size?", options=["large", "small"])
    serving.script(colour, size, "Painted.")
    await serving.begin()
    async with serving.client() as client:
        events: list[Event] = []
        client.bus.subscribe_all(events.append)
        session_id = await client.create()
        painting = asyncio.create_task(client.prompt(session_id, "paint it"))
        await until(lambda: parts_of(events, "question"))
        screen = Screen(serving, "--session", session_id[-8:])
        screens.append(screen)
        await screen.shows("A question", "Which colour?", "blue")
        await screen.answer("2")
        await until(lambda: len(parts_of(events, "question")) == 2)
        await screen.shows("Which size?", "large")
        (asked,) = await client.client.get("/api/questions", session_id=session_id)
        await client.client.send_request(
            "POST", f"/api/questions/{asked['id']}", {"answers": ["small", "but not tiny"]}
        )
        assert (await painting).output == "Painted."
        await screen.shows("Painted.", without="A question")
        outputs = [part.state.output for message in client.live[session_id].session.messages for part in message.parts
                if part.type == "tool"]  # fmt: skip
        assert outputs == ["The user answered: blue", "The user answered: small; but not tiny"]
        assert await client.client.get("/api/questions") == []
