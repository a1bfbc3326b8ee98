"""The OpenAI SDK uses agents as models: Chat Completions and Responses, streamed or not, with an approval."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from outrider import Tool
from outrider.providers.scripted import call
from tests.e2e.server.http_server import TOKEN, Client, served

if TYPE_CHECKING:  # each worker collects this module, and the SDK takes a second to load
    from openai import AsyncOpenAI

APPROVAL_TOOL: Any = {"type": "function", "function": {"name": "outrider_approval"}}


@Tool(policy="ask")
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


PAYING = [["I will pay.", call("pay", amount=5)], "It is paid."]


@asynccontextmanager
async def speaking(tmp_path: Path, script: Any, **options: Any) -> AsyncIterator[tuple["AsyncOpenAI", Client]]:
    from openai import AsyncOpenAI

    async with served(tmp_path, script, [pay], **options) as client:
        url = f"{client.address.url}/v1"
        async with AsyncOpenAI(base_url=url, api_key=TOKEN, max_retries=0) as openai:
            yield openai, client


def user(text: str) -> Any:
    return {"role": "user", "content": text}


async def test_agents_are_models(tmp_path: Path):
    from openai import NotFoundError

    async with speaking(tmp_path, ["hi"]) as (openai, _):
        assert [model.id async for model in openai.models.list()] == ["writer"]
        assert (await openai.models.retrieve("writer")).id == "writer"
        with pytest.raises(NotFoundError, match="the agents are writer"):
            await openai.models.retrieve("gpt-0")
        with pytest.raises(NotFoundError, match="no model"):
            await openai.chat.completions.create(model="gpt-0", messages=[user("hi")])


async def test_chat_answers_with_history_instructions_and_usage(tmp_path: Path):
    async with speaking(tmp_path, ["Hello Ada."]) as (openai, client):
        done = await openai.chat.completions.create(
            model="writer",
            temperature=0.2,
            messages=[
                {"role": "system", "content": "Be short."},
                user("I am Ada."),
                {"role": "assistant", "content": "Noted."},
                user("Who am I?"),
            ],
        )
        assert (done.choices[0].message.content, done.choices[0].finish_reason) == ("Hello Ada.", "stop")
        assert done.usage and done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens > 0
        messages = (await client.engine.store.load(done.session_id)).messages  # type: ignore[attr-defined]
        assert [(one.role, one.get_text_content()) for one in messages][:3] == [
            ("user", "I am Ada."),
            ("assistant", "Noted."),
            ("user", "Who am I?"),
        ]
        assert "Be short." in str(messages[2].to_dict())


async def test_a_session_continues_when_it_is_named(tmp_path: Path):
    async with speaking(tmp_path, ["one", "two"]) as (openai, client):
        first = await openai.chat.completions.create(model="writer", messages=[user("a")])
        session: str = first.session_id  # type: ignore[attr-defined]
        again = await openai.chat.completions.create(
            model="writer", messages=[user("a"), user("b")], extra_body={"session_id": session}
        )
        assert again.choices[0].message.content == "two"
        messages = (await client.engine.store.load(session)).messages
        assert [one.get_text_content() for one in messages] == ["a", "one", "b", "two"]


async def test_a_streamed_chat_has_the_same_text_and_the_usage(tmp_path: Path):
    async with speaking(tmp_path, ["Hello there, Ada."]) as (openai, _):
        stream = await openai.chat.completions.create(
            model="writer", messages=[user("hi")], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
        assert "".join(one.delta.content or "" for one in deltas) == "Hello there, Ada."
        assert deltas[0].delta.role == "assistant"
        assert deltas[-1].finish_reason == "stop"
        assert chunks[-1].usage and chunks[-1].usage.total_tokens > 0


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_approval_is_a_function_call_in_chat(tmp_path: Path, *, streamed: bool):
    async with speaking(tmp_path, PAYING) as (openai, client):
        messages: list[Any] = [user("Pay 5.")]
        asked = await chat(openai, messages, streamed=streamed)
        assert (asked["finish"], asked["text"]) == ("tool_calls", "I will pay.")
        (wanted,) = asked["calls"]
        assert wanted["name"] == "outrider_approval"
        assert '"tool":"pay"' in wanted["arguments"]
        assert '"amount":5' in wanted["arguments"]
        function = {"name": wanted["name"], "arguments": wanted["arguments"]}
        messages += [
            {"role": "assistant", "tool_calls": [{"id": wanted["id"], "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": wanted["id"], "content": "allow"},
        ]
        done = await chat(openai, messages, streamed=streamed)
        assert (done["finish"], done["text"], done["session"]) == ("stop", "It is paid.", asked["session"])
        assert "paid 5" in str((await client.engine.store.load(asked["session"])).messages)


async def chat(openai: "AsyncOpenAI", messages: list[Any], *, streamed: bool) -> dict[str, Any]:
    given: Any = {"model": "writer", "messages": messages, "tools": [APPROVAL_TOOL]}
    if not streamed:
        done = await openai.chat.completions.create(**given)
        message, calls = done.choices[0].message, done.choices[0].message.tool_calls or []
        text, finish, session = message.content, done.choices[0].finish_reason, done.session_id  # type: ignore[attr-defined]
    else:
        chunks = [chunk async for chunk in await openai.chat.completions.create(**given, stream=True)]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        calls = [one for chunk in chunks for one in chunk.choices[0].delta.tool_calls or []]
        finish, session = chunks[-1].choices[0].finish_reason, chunks[0].session_id
    found = [{"id": one.id, "name": one.function.name, "arguments": one.function.arguments} for one in calls]
    return {"text": text, "finish": finish, "calls": found, "session": session}


async def test_a_reason_denies_and_reaches_the_model(tmp_path: Path):
    async with speaking(tmp_path, [call("pay", amount=5), "Then not."]) as (openai, client):
        asked = await chat(openai, [user("Pay 5.")], streamed=False)
        reply = {"role": "tool", "tool_call_id": asked["calls"][0]["id"], "content": "That is too much."}
        done = await chat(openai, [user("Pay 5."), reply], streamed=False)
        assert done["text"] == "Then not."
        assert "That is too much." in str((await client.engine.store.load(asked["session"])).messages)


async def test_without_the_function_the_answer_waits_for_a_user(tmp_path: Path):
    async with speaking(tmp_path, PAYING) as (openai, client):
        waiting = asyncio.create_task(openai.chat.completions.create(model="writer", messages=[user("Pay 5.")]))
        async with asyncio.timeout(30):
            while not (found := await client.engine.approvals()):
                await asyncio.sleep(0.01)
        assert not waiting.done()
        await client.ask("POST", f"/api/approvals/{found[0].id}", {"allow": True})
        assert (await waiting).choices[0].message.content == "I will pay.\n\nIt is paid."


async def test_tools_of_the_client_and_wrong_messages_are_rejected(tmp_path: Path):
    from openai import BadRequestError, NotFoundError

    async with speaking(tmp_path, ["hi"]) as (openai, _):
        weather: Any = {"type": "function", "function": {"name": "weather", "parameters": {}}}
        with pytest.raises(BadRequestError, match="its own tools"):
            await openai.chat.completions.create(model="writer", messages=[user("hi")], tools=[weather])
        with pytest.raises(BadRequestError, match="must be a user message"):
            await openai.chat.completions.create(model="writer", messages=[{"role": "assistant", "content": "x"}])
        with pytest.raises(NotFoundError, match="no approval"):
            reply: Any = {"role": "tool", "tool_call_id": "unknown", "content": "allow"}
            await openai.chat.completions.create(model="writer", messages=[user("hi"), reply])


async def test_a_failed_turn_is_an_error_in_both_forms(tmp_path: Path):
    from openai import APIError

    async with speaking(tmp_path, [], delay=0) as (openai, _):
        with pytest.raises(APIError):
            await openai.chat.completions.create(model="writer", messages=[user("hi")])
        with pytest.raises(APIError):
            async for _chunk in await openai.chat.completions.create(
                model="writer", messages=[user("hi")], stream=True
            ):
                pass
        failed = await openai.responses.create(model="writer", input="hi")
        assert failed.status == "failed" and failed.error


async def test_a_response_continues_the_one_before(tmp_path: Path):
    from openai import BadRequestError

    async with speaking(tmp_path, ["one", "two"]) as (openai, client):
        first = await openai.responses.create(model="writer", input="a", instructions="Be short.")
        assert (first.output_text, first.status) == ("one", "completed")
        assert first.usage and first.usage.total_tokens > 0
        second = await openai.responses.create(model="writer", input="b", previous_response_id=first.id)
        assert second.output_text == "two"
        messages = (await client.engine.store.load(first.id.split("_")[1])).messages
        assert [one.get_text_content() for one in messages if one.role == "assistant"] == ["one", "two"]
        with pytest.raises(BadRequestError, match="not the id of a response"):
            await openai.responses.create(model="writer", input="b", previous_response_id="else")


async def test_an_approval_is_an_item_of_a_response(tmp_path: Path):
    async with speaking(tmp_path, PAYING) as (openai, _):
        asked = await openai.responses.create(model="writer", input=[user("Pay 5.")])
        text, approval = asked.output
        assert (asked.output_text, text.type) == ("I will pay.", "message")
        assert approval.type == "mcp_approval_request"
        assert (approval.name, approval.arguments) == ("pay", '{"amount":5}')
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": approval.id, "approve": True}
        done = await openai.responses.create(model="writer", input=[answer], previous_response_id=asked.id)
        assert [item.type for item in done.output] == ["mcp_call", "message"]
        assert (done.output[0].output, done.output_text) == ("paid 5", "It is paid.")  # type: ignore[union-attr]


async def test_a_streamed_response_with_an_approval_can_be_accumulated_by_the_sdk(tmp_path: Path):
    async with speaking(tmp_path, PAYING) as (openai, _):
        async with openai.responses.stream(model="writer", input="Pay 5.") as stream:
            kinds = [event.type async for event in stream]
            asked = await stream.get_final_response()
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        assert asked.output_text == "I will pay."
        answer: Any = {
            "type": "mcp_approval_response",
            "approval_request_id": asked.output[-1].id,
            "approve": False,
            "reason": "no",
        }
        async with openai.responses.stream(model="writer", input=[answer], previous_response_id=asked.id) as stream:
            texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            done = await stream.get_final_response()
        assert "".join(texts) == done.output_text == "It is paid."
        assert done.output[0].status == "failed"  # type: ignore[union-attr]


async def test_a_turn_ends_when_its_client_disconnects(tmp_path: Path):
    async with speaking(tmp_path, PAYING) as (openai, client):
        stream = await openai.chat.completions.create(model="writer", messages=[user("Pay 5.")], stream=True)
        while (await anext(stream)).choices[0].delta.content != "I will pay.":
            pass
        (live,) = client.engine.live.values()
        assert live.in_turn
        await stream.close()
        async with asyncio.timeout(30):
            while live.in_turn:
                await asyncio.sleep(0.01)
