"""A restarted server asks open questions again, and the turn continues with the answer."""

import asyncio

from outrider.remote.engine import RemoteEngine
from outrider.types.events import Event, SessionUpdatedEvent
from outrider.types.parts import ToolPart
from tests.e2e.attach.socket_server import SECONDS, Serving, call, until

ASKS = call("question", question="Which colour?", options=["red", "blue"])


def questions_of(client: RemoteEngine) -> list[dict[str, str]]:
    """Collects the questions that the client receives, in order."""
    questions: list[dict[str, str]] = []

    def receive(event: Event) -> None:
        if isinstance(event, SessionUpdatedEvent) and "question" in event.changes:
            questions.append(event.changes["question"])

    client.bus.subscribe_all(receive)
    return questions


async def until_there(client: RemoteEngine, path: str) -> list[dict[str, str]]:
    async with asyncio.timeout(SECONDS):
        while not (found := await client.client.get(path)):
            await asyncio.sleep(0.02)
    return found


async def answer(client: RemoteEngine, question_id: str) -> None:
    await client.client.send_request("POST", f"/api/questions/{question_id}", {"answers": ["blue"]})


def outputs(client: RemoteEngine, session_id: str) -> list[str]:
    messages = client.live[session_id].session.messages
    return [part.state.output for message in messages for part in message.get_parts_by_type(ToolPart)]


async def test_a_waiting_client_is_asked_again_by_the_restarted_server(serving: Serving):
    serving.script(ASKS)
    await serving.begin()
    async with serving.client() as client:
        questions = questions_of(client)
        session_id = await client.create()
        painting = asyncio.create_task(client.prompt(session_id, "paint it"))
        await until(lambda: questions)
        serving.script("Painted.")
        await serving.kill()
        await serving.begin()
        await until(lambda: len(questions) > 1)
        assert questions[1]["text"] == "Which colour?"
        await answer(client, questions[1]["id"])
        assert (await painting).output == "Painted."
        assert outputs(client, session_id) == ["The user answered: blue"]


async def test_who_opens_the_session_later_is_asked_and_its_turn_continues(serving: Serving):
    serving.script(ASKS)
    await serving.begin()
    async with serving.client() as client:
        questions = questions_of(client)
        session_id = await client.create()
        await client.client.post(f"/api/sessions/{session_id}/prompt", {"text": "paint it"})
        await until(lambda: questions)
    await serving.kill()
    serving.script("Painted.")
    await serving.begin()
    async with serving.client() as client:
        assert await client.client.get("/api/questions") == []
        await client.open(session_id)
        (question,) = await until_there(client, "/api/questions")
        await answer(client, question["id"])
        await until(lambda: client.live[session_id].session.messages[-1].get_text_content() == "Painted.")
        assert outputs(client, session_id) == ["The user answered: blue"]


async def test_a_call_that_was_asked_about_continues_with_an_answer_to_the_next_server(serving: Serving):
    serving.script(call("shell", command="touch painted"))
    await serving.begin()
    async with serving.client() as client:
        session_id = await client.create()
        await client.client.post(f"/api/sessions/{session_id}/prompt", {"text": "paint it"})
        await until_there(client, "/api/approvals")
    await serving.kill()
    serving.script("Painted.")
    await serving.begin()
    async with serving.client() as client:
        (approval,) = await until_there(client, "/api/approvals")
        await client.client.post(f"/api/approvals/{approval['id']}", {"allow": True})
        await until((serving.workspace / "painted").exists)
        await client.open(session_id)
        await until(lambda: client.live[session_id].session.messages[-1].get_text_content() == "Painted.")
