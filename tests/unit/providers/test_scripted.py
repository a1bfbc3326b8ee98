"""A scripted client returns its script as a real client would."""

import asyncio

import pytest

from outrider.errors import ConfigurationError, InvalidRequestError, NetworkError, ProviderError, RateLimitError
from outrider.providers.provider import AnswerAssembler
from outrider.providers.scripted import ScriptedClient, call, scripted_client
from outrider.types.agents import Provider
from outrider.types.parts import FilePart, ReasoningPart, TextPart, Tokens, ToolPart, ToolResultPart, ToolUsePart
from outrider.types.request import Answer, Delta, Finish, InputDelta, ModelMessage, Prompt, Request, TextDelta
from outrider.types.tool_state import ToolPending


def ask(*content: object) -> Request:
    return Request("demo", Prompt([ModelMessage("user", content or (TextPart("Hello?"),))]))


async def collect(client: ScriptedClient, request: Request) -> tuple[Answer, list[Delta]]:
    assembler, deltas = AnswerAssembler(client.model_family(request.model)), []
    async for delta in client.stream(request):
        assembler.add(delta)
        deltas.append(delta)
    return assembler.build_answer(), deltas


async def test_a_string_is_streamed_in_small_deltas():
    answer, deltas = await collect(ScriptedClient(["Hello there, how are you?"], chunk=5), ask())
    assert answer.message.get_text_content() == "Hello there, how are you?"
    assert [delta.text for delta in deltas if isinstance(delta, TextDelta)] == [
        "Hello",
        " ther",
        "e, ho",
        "w are",
        " you?",
    ]
    assert answer.finish == "stop"
    assert answer.tokens.input > 0 and answer.tokens.output > 0


async def test_parts_keep_their_order_and_kinds():
    script = [
        [ReasoningPart("Hm."), "Let me look.", call("read_file", "c1", path="a.txt"), FilePart("image/png", "data:,x")]
    ]
    answer, deltas = await collect(ScriptedClient(script, chunk=4), ask())
    assert [part.type for part in answer.message.parts] == ["reasoning", "text", "tool", "file"]
    tool = answer.message.parts[2]
    assert (tool.call_id, tool.tool, tool.state) == (
        "c1",
        "read_file",
        ToolPending({"path": "a.txt"}, '{"path":"a.txt"}', "ready"),
    )
    assert sum(isinstance(delta, InputDelta) for delta in deltas) == 4
    assert answer.finish == "tool_use"


async def test_answers_come_in_order_and_functions_see_the_request():
    client = ScriptedClient(["one", lambda request: f"you said {request.prompt[0].content[0].text}"])
    assert [(await collect(client, ask()))[0].message.get_text_content() for _ in range(2)] == [
        "one",
        "you said Hello?",
    ]


async def test_one_function_may_be_the_whole_script():
    client = ScriptedClient(lambda request: [call("echo", n=len(client.requests))])
    inputs = [(await collect(client, ask()))[0].message.parts[0].state.input for _ in range(3)]
    assert inputs == [{"n": 1}, {"n": 2}, {"n": 3}]


async def test_an_exhausted_script_is_reported():
    client = ScriptedClient(["one"])
    await collect(client, ask())
    with pytest.raises(InvalidRequestError, match="the script has 1 answers, this is request 2"):
        await collect(client, ask())


async def test_an_error_is_raised_before_anything_is_reported():
    client = ScriptedClient([RateLimitError("slow down", status=429), "better"])
    deltas: list[Delta] = []
    with pytest.raises(RateLimitError):
        deltas.extend([delta async for delta in client.stream(ask())])
    assert deltas == []
    assert (await collect(client, ask()))[0].message.get_text_content() == "better"


async def test_an_error_in_the_middle_preserves_what_arrived_and_ends_no_part():
    assembler = AnswerAssembler("scripted")
    with pytest.raises(NetworkError):
        async for delta in ScriptedClient([["Hel", NetworkError("gone"), "lo"]]).stream(ask()):
            assembler.add(delta)
    assert [part.text for part in assembler.list_parts()] == ["Hel"]
    assert assembler.finish is None


async def test_a_pause_lasts_until_its_event_is_set_and_does_not_split_the_text():
    gate, seen = asyncio.Event(), []

    async def listen() -> None:
        async for delta in ScriptedClient([["before", gate, " after"]]).stream(ask()):
            if isinstance(delta, TextDelta):
                seen.append((delta.index, delta.text))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(listen())
        while not seen:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert seen == [(0, "before")]
        gate.set()
    assert seen == [(0, "before"), (0, " after")]


async def test_usage_and_finish_may_be_scripted():
    script = [["cut of", Tokens(input=7, output=3), Finish("length", "max_tokens")]]
    answer, _ = await collect(ScriptedClient(script), ask())
    assert (answer.tokens, answer.finish, answer.finish_raw) == (Tokens(input=7, output=3), "length", "max_tokens")


async def test_a_call_may_be_damaged_or_cut_off():
    damaged = ToolPart("c1", "read_file", ToolPending(raw='{"path": ', phase="ready"))
    cut = ToolPart("c2", "read_file", ToolPending(raw='{"pa'))
    answer, _ = await collect(ScriptedClient([[damaged, cut]]), ask())
    first, second = answer.message.parts
    assert "not valid JSON" in first.metadata["input_error"]
    assert second.state == ToolPending(raw='{"pa', phase="streaming")


async def test_requests_are_preserved_as_they_were_sent():
    client, request = ScriptedClient(["a", "b"]), ask()
    await collect(client, request)
    request.prompt.append(ModelMessage("assistant", (TextPart("a"),)))
    await collect(client, request)
    assert [len(stored.prompt) for stored in client.requests] == [1, 2]


async def test_rules_refuse_what_the_real_api_would():
    client = ScriptedClient(["never"], rules="anthropic")
    with pytest.raises(InvalidRequestError, match="unexpected `tool_use_id`") as caught:
        await collect(client, ask(ToolResultPart(tool_use_id="c9", content="x")))
    assert caught.value.status == 400


async def test_a_provider_of_kind_scripted_takes_its_script_from_the_options():
    script = [
        [{"reasoning": "Hm."}, {"text": "Look: "}, {"tool": "read_file", "input": {"path": "a"}}],
        {"error": "no more"},
    ]
    client = scripted_client(Provider("demo", "scripted", options={"script": script, "rules": "google"}))
    answer, _ = await collect(client, ask())
    assert [part.type for part in answer.message.parts] == ["reasoning", "text", "tool"]
    assert client.name == "demo"
    with pytest.raises(ProviderError, match="no more"):
        await collect(client, ask())


@pytest.mark.parametrize("options", [{"script": [], "speed": 3}, {"script": [], "rules": "nobody's"}])
def test_options_that_cannot_work_are_refused(options: dict[str, object]):
    with pytest.raises(ConfigurationError):
        scripted_client(Provider("demo", "scripted", options=options))


@pytest.mark.parametrize("piece", [{"txt": "x"}, {"text": "x", "more": 1}, 42])
async def test_an_impossible_chunk_is_refused(piece: object):
    with pytest.raises(ConfigurationError, match="a script"):
        await collect(ScriptedClient([[piece]]), ask())


def test_a_call_for_a_script_has_a_unique_id():
    made = call("echo", text="x")
    assert isinstance(made, ToolUsePart) and made.tool_id != call("echo").tool_id


async def test_a_function_of_a_script_may_be_async():
    async def answer(request: Request) -> str:
        await asyncio.sleep(0)
        return f"for {request.model}"

    for script in (answer, [answer], lambda request: answer):
        found, _ = await collect(ScriptedClient(script), ask())
        assert found.message.get_text_content() == "for demo"
