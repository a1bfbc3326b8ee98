"""Requests to the embedded model: what it is sent, what comes back, and how it is shared, given up and closed."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from outrider.errors import (
    ContextOverflowError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    ServerError,
    WeightsError,
)
from outrider.providers.local.client import REPETITION_NOTE, LocalClient, TextRepetitionDetector
from outrider.providers.local.model_pool import LoadedModel
from outrider.providers.local.prompt import CompactTool, CompactToolPrompt, NoFileNames, files_hint, request_reminder
from outrider.providers.provider import AnswerAssembler
from outrider.types.parts import FilePart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import (
    ModelMessage,
    ModelSettings,
    OutputSchema,
    Prompt,
    RemoteEvent,
    Request,
    TextDelta,
    ToolSpec,
)
from outrider.types.tool_state import ToolPending
from tests.fixtures.cases import for_each
from tests.fixtures.local_runtime import FakeRuntime

READ = ToolSpec(
    "read", "Reads a file. Long ones in pieces.", {"type": "object", "properties": {"path": {"type": "string"}}}
)
HELLO = '{"tool": "answer", "text": "Hello there."}'


class ObservedModel(LoadedModel):
    """Counts started and waiting requests. The first starts immediately and blocks the others."""

    asked = 0

    async def stream(self, *given: Any) -> AsyncGenerator[str, None]:
        self.asked += 1
        async with aclosing(super().stream(*given)) as chunks:
            async for chunk in chunks:
                yield chunk


class OneModel:
    """Returns one model for every name, and counts its users."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self.runtime = runtime
        self.model = ObservedModel(runtime, None)
        self.users = 0

    def acquire(self, name: str) -> LoadedModel:
        if name == "missing":
            raise WeightsError("download them with: outrider models pull missing")
        self.users += 1
        return self.model

    def release(self, name: str) -> None:
        self.users -= 1
        self.model.close()


class Names(NoFileNames):
    def list_files(self, request):
        return ["a.txt", "b.txt"]

    def match_files(self, request, text):
        return ["a.txt"] if "first" in text else []

    suggest_files = match_files


@pytest.fixture
def models(request):
    made = []

    def make(answer=HELLO, **options) -> OneModel:
        made.append(OneModel(FakeRuntime(answer if callable(answer) else lambda _: answer, **options)))
        return made[-1]

    yield make
    for one in made:
        if not one.runtime.closed:
            one.model.close()


def client(models: OneModel, **options) -> LocalClient:
    return LocalClient("local", models, options.pop("primer", CompactToolPrompt()), **options)


def asking(*messages: ModelMessage, **fields) -> Request:
    question = messages or (ModelMessage("user", (TextPart("Hello."),)),)
    return Request("tiny", Prompt(question), fields.pop("system", "Be short."), fields.pop("tools", (READ,)), **fields)


def schema_of(body: dict) -> dict:
    return json.loads(body["grammar"].partition("%json ")[2])


async def folded(held: LocalClient, request: Request) -> AnswerAssembler:
    assembler = AnswerAssembler("local")
    async for delta in held.stream(request):
        assembler.add(delta)
    return assembler


async def test_an_answer_is_text_with_what_it_used(models):
    answer = await folded(client(models()), asking())
    (text,) = answer.list_parts()
    assert text.text == "Hello there."
    assert (answer.finish, answer.model) == ("stop", "tiny")
    assert (answer.tokens.input, answer.tokens.cache.read, answer.tokens.output) == (5, 4, 7)


async def test_the_model_is_informed_of_its_tools_briefly_and_constrained_to_them(models):
    one = models()
    await folded(client(one), asking())
    (body,) = one.runtime.bodies
    system = body["messages"][0]["content"]
    assert system.startswith("Be short.")
    assert '{"tool": "read", "path": "…"} Reads a file\n' in system
    assert [branch["properties"]["tool"]["const"] for branch in schema_of(body)["anyOf"]] == ["read", "answer"]
    assert (body["temperature"], body["stream"]) == (0.0, True)


async def test_without_tools_the_model_is_left_to_speak(models):
    one = models("Plain words.")
    (text,) = (await folded(client(one), asking(tools=()))).list_parts()
    assert text.text == "Plain words."
    assert "grammar" not in one.runtime.bodies[0]


async def test_a_value_that_was_asked_for_is_held_to_its_schema(models):
    one = models('{"n": 4}')
    wanted = OutputSchema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    request = asking(tools=(), settings=ModelSettings(output=wanted))
    (text,) = (await folded(client(one), request)).list_parts()
    assert text.text == '{"n": 4}'
    assert schema_of(one.runtime.bodies[0])["required"] == ["n"]


@pytest.mark.parametrize("shows", ["", "facts"])
async def test_calls_and_results_are_written_as_the_model_writes_them(models, shows):
    one = models()
    primer = CompactToolPrompt(
        tools={
            "read": CompactTool(
                description="reads",
                parameters=("path",),
                file_parameter="path",
                subject_parameter="path",
                shows=shows,
                render_result=str.upper,
            )
        },
        max_result_characters=200,
    )
    question = ModelMessage("user", (TextPart("What is in the first one?"),))
    called = ModelMessage("assistant", (ToolUsePart("1", "read", {"path": "a.txt"}),))
    result = ModelMessage("user", (ToolResultPart("1", "milk " * 100),))
    await folded(client(one, primer=primer, file_names=Names()), asking(question, called, result))
    _, first, call, gave = one.runtime.bodies[0]["messages"]
    assert first["content"].endswith(files_hint(["a.txt"]))
    assert call == {"role": "assistant", "content": '{"tool": "read", "path": "a.txt"}'}
    assert gave["content"].startswith("read gave:\nMILK MILK")
    assert "characters left out" in gave["content"]
    assert gave["content"].endswith(request_reminder("What is in the first one?", shows))
    (answer,) = schema_of(one.runtime.bodies[0])["anyOf"]  # nothing speaks of another file that could be read
    assert answer["properties"]["tool"] == {"const": "answer"}


async def test_what_was_sent_is_sent_again_byte_for_byte(models):
    one = models()
    held, prompt = client(one, file_names=Names()), Prompt([ModelMessage("user", (TextPart("The first."),))])
    for text in ("one", "two", "three"):
        await folded(held, Request("tiny", prompt, "Be short.", (READ,)))
        prompt.append(ModelMessage("assistant", (TextPart(text),)))
        prompt.append(ModelMessage("user", (TextPart(f"And {text}?"),)))
    sent = [json.dumps(body["messages"])[:-1] for body in one.runtime.bodies]
    assert sent[1].startswith(sent[0])
    assert sent[2].startswith(sent[1])


async def test_the_description_of_the_workspace_is_in_the_first_input_so_that_workspaces_share_the_prefix(models):
    one = models()
    primer = CompactToolPrompt(examples=(("Hi!", {"tool": "answer", "text": "Hello!"}), ("Go!", {"tool": "run"})))
    for place in ("/a", "/b"):
        await folded(client(one, primer=primer), asking(system=f"Be short.\n\nThe workspace is {place}."))
    first, second = (
        [(message["role"], message["content"]) for message in body["messages"]] for body in one.runtime.bodies
    )
    assert first[1:3] == [("user", "Hi!"), ("assistant", '{"tool": "answer", "text": "Hello!"}')]
    assert first[3] == ("user", "The workspace is /a.\n\nHello.")
    assert first[:3] == second[:3]


async def test_instructions_that_would_fill_the_context_are_cut(models):
    one = models()
    await folded(client(one), asking(system="Be short.\n\n" + "rules " * 5000))
    assert len(one.runtime.bodies[0]["messages"][1]["content"]) < 7000


async def test_a_file_that_a_small_model_cannot_see_is_mentioned(models):
    one = models()
    await folded(
        client(one), asking(ModelMessage("user", (FilePart("image/png", "data:image/png;base64,AA", "x.png"),)))
    )
    assert "x.png" in one.runtime.bodies[0]["messages"][1]["content"]


async def test_a_call_that_reaches_the_limit_is_not_whole(models):
    answer = await folded(client(models('{"tool": "read", "path": "a.t', finish="length")), asking())
    (called,) = answer.list_parts()
    assert isinstance(called.state, ToolPending)
    assert (called.state.phase, answer.finish) == ("streaming", "length")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(ValueError("no such schema"), InvalidRequestError), (RuntimeError("out of memory"), ServerError)],
)
async def test_what_the_runtime_raises_is_a_typed_error_of_this_provider(models, raised, expected):
    def fail(_):
        raise raised

    held = client(models(fail))
    for _ in range(2):  # and the next request is served
        with pytest.raises(expected, match=str(raised)) as found:
            await folded(held, asking())
    assert found.value.provider == "local"


async def test_a_prompt_that_is_too_long_overflows_the_context(models):
    one = models()
    refusal = {"code": 400, "type": "exceed_context_size_error", "message": "request (9030 tokens) exceeds …"}
    one.runtime.chat = lambda body, on_chunk: on_chunk(json.dumps({"error": refusal}))
    with pytest.raises(ContextOverflowError, match="9030"):
        await folded(client(one), asking())


async def test_missing_weights_are_reported_with_the_remedy(models):
    held = client(models())
    with pytest.raises(NotFoundError, match="outrider models pull") as found:
        await folded(held, Request("missing", Prompt([ModelMessage("user", (TextPart("Hello."),))])))
    assert found.value.provider == "local"


async def test_giving_an_answer_up_stops_the_model_at_once(models):
    one = models('{"tool": "answer", "text": "' + "on and on " * 200 + '"}', gate=threading.Event(), free=20)
    held = client(one)
    async with asyncio.timeout(30), aclosing(held.stream(asking())) as deltas:
        while not isinstance(await anext(deltas), TextDelta):
            pass
    async with asyncio.timeout(30):
        while not one.runtime.given_up:
            await asyncio.sleep(0.01)


async def test_sessions_take_turns(models):
    gate = threading.Event()
    one = models(lambda body: HELLO, gate=gate)
    held = client(one)

    async def ask(conversation: str, text: str) -> None:
        question = ModelMessage("user", (TextPart(text),))
        await folded(held, asking(question, conversation=conversation))

    async with asyncio.TaskGroup() as group:
        for conversation, text in [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1")]:
            asked = one.model.asked
            group.create_task(ask(conversation, text))
            while one.model.asked == asked:
                await asyncio.sleep(0.005)
        gate.set()
    assert [body["messages"][1]["content"] for body in one.runtime.bodies] == ["a1", "b1", "a2", "a3"]


async def test_a_request_that_is_given_up_while_it_waits_is_never_computed(models):
    gate = threading.Event()
    one = models(gate=gate)
    held = client(one)
    first = asyncio.ensure_future(folded(held, asking(conversation="a")))
    await asyncio.sleep(0.05)
    second = asyncio.ensure_future(folded(held, asking(conversation="b")))
    await asyncio.sleep(0.05)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.set()
    await first
    assert len(one.runtime.bodies) == 1


async def test_a_model_that_was_given_up_while_it_loaded_is_there_for_the_next_request(models):
    one, go = models(), threading.Event()
    acquire = one.acquire

    def take_slowly(name: str) -> LoadedModel:
        go.wait(60)
        return acquire(name)

    one.acquire = take_slowly
    held = client(one)
    first = asyncio.ensure_future(folded(held, asking()))
    await asyncio.sleep(0.02)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    go.set()
    assert (await folded(held, asking())).finish == "stop"
    assert one.users == 1
    await held.aclose()
    assert one.users == 0


async def test_a_client_gives_back_what_it_took(models):
    one = models()
    held = client(one)
    await folded(held, asking())
    await folded(held, asking())
    assert one.users == 1
    await held.aclose()
    assert (one.users, one.runtime.closed) == (0, True)
    with pytest.raises(OverloadedError):
        await folded(held, asking())


SENTENCES = "The project is put together by a team. It uses Flask for its pages. Docker runs it in a container. "


@for_each(
    "text, repeats",
    [
        (SENTENCES * 4, True),
        ("It begins well, with other words. " + "This function adds two numbers. " * 12, True),
        (SENTENCES + SENTENCES, False),
        ("- a short item that differs\n".join(f"{number}" for number in range(40)), False),
        ("-" * 500, False),
        ("| 1 | 2 |\n" * 60, False),
        ("".join(f"def f{number}(a, b):\n    return a + b + {number}\n\n" for number in range(60)), False),
    ],
)
def test_an_endless_repetition_is_recognised_and_regular_text_is_not(text, repeats):
    detector = TextRepetitionDetector()
    assert any([detector.add(text[start : start + 7]) for start in range(0, len(text), 7)]) is repeats


async def test_an_answer_that_repeats_itself_is_stopped_with_a_note():
    answer = json.dumps({"tool": "answer", "text": SENTENCES * 30})
    local = client(OneModel(FakeRuntime(lambda _: answer)))
    assembler = AnswerAssembler("local")
    async with aclosing(local.stream(Request("tiny", Prompt([ModelMessage("user", (TextPart("Hi."),))])))) as deltas:
        async for delta in deltas:
            assembler.add(delta)
    await local.aclose()
    text = "".join(part.text for part in assembler.list_parts() if isinstance(part, TextPart))
    assert text.endswith(REPETITION_NOTE)
    assert text.count("uses Flask") < 8
    assert assembler.finish == "stop"


async def test_a_checked_answer_that_repeats_itself_is_stopped_and_has_each_sentence_once(models):
    class Workspace(NoFileNames):
        def refers_to_workspace(self, request, text):
            return True

    sentences = SENTENCES.replace("Flask", "forms")
    one = models(json.dumps({"tool": "answer", "text": sentences * 30}))
    assembler = await folded(client(one, file_names=Workspace()), asking())
    (part,) = assembler.list_parts()
    assert isinstance(part, TextPart)
    assert part.text == sentences.strip()
    assert assembler.finish == "stop"


async def test_loading_and_reading_the_prompt_are_reported(models):
    local = client(models())
    events = []
    async with aclosing(local.stream(asking())) as deltas:
        async for delta in deltas:
            if isinstance(delta, RemoteEvent):
                events.append(delta.event)
    assert [(event.stage, event.done, event.total) for event in events] == [("loading", 0, 0), ("reading", 9, 9)]
    async with aclosing(local.stream(asking())) as deltas:
        stages = [delta.event.stage async for delta in deltas if isinstance(delta, RemoteEvent)]
    assert stages == ["reading"], "the model is loaded once"
