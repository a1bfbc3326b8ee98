"""Over any client, a model without native tool calls gets and makes calls as text."""

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import NetworkError
from outrider.providers.provider import AnswerAssembler
from outrider.providers.scripted import ScriptedClient, check_messages
from outrider.providers.text_tool_calls import (
    TextCallScanner,
    TextToolsClient,
    render_call,
    render_tools_as_text,
)
from outrider.types.parts import FilePart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import Answer, Delta, ModelMessage, ModelSettings, Prompt, Request, ToolChoice, ToolSpec
from outrider.types.tool_state import Attachment
from tests.unit.providers.stream_filters.run_filter import ThinkingClient, parts_of

READ = ToolSpec(
    "read", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}, "line": {"type": "integer"}}}
)
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'


def user(*parts: object) -> ModelMessage:
    return ModelMessage("user", parts)


def assistant(*parts: object) -> ModelMessage:
    return ModelMessage("assistant", parts)


def use(call_id: str, **given: object) -> ToolUsePart:
    return ToolUsePart(tool_id=call_id, tool_name="read", tool_input=given)


def ask(*messages: ModelMessage, **fields: object) -> Request:
    return Request("demo", Prompt(messages or [user(TextPart("Read a."))]), tools=(READ,), **fields)


async def fold(deltas: AsyncIterator[Delta]) -> Answer:
    assembler = AnswerAssembler("test")
    async for delta in deltas:
        assembler.add(delta)
    return assembler.build_answer()


async def test_a_written_call_becomes_a_call():
    scripted = ScriptedClient([f"I look.\n{CALL}"], chunk=3)
    answer = await fold(TextToolsClient(scripted).stream(ask()))
    text, call = answer.message.parts
    assert (text.text, call.tool, call.state.input) == ("I look.\n", "read", {"path": "a"})
    assert answer.finish == "tool_use"


async def test_the_client_below_sees_no_tools_but_a_description_of_them():
    scripted = ScriptedClient(["Hello"])
    request = ask(system="You are kind.", settings=ModelSettings(tool_choice=ToolChoice("required")))
    await fold(TextToolsClient(scripted).stream(request))
    [sent] = scripted.requests
    assert sent.tools == () and sent.settings.tool_choice == ToolChoice()
    assert sent.system is not None and sent.system.startswith("You are kind.\n\n# Tools")
    assert "## read\n\nReads a file." in sent.system and '"integer"' in sent.system
    assert sent.system.endswith("you must call at least one tool.")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (ToolChoice("tool", "read"), "you must call the tool read."),
        (ToolChoice("none"), "you must not call any tool."),
        (ToolChoice(parallel=False), "Make one call at a time."),
    ],
)
def test_the_choice_of_tools_is_described_as_text(choice: ToolChoice, expected: str):
    system = render_tools_as_text(ask(settings=ModelSettings(tool_choice=choice))).system
    assert system is not None and system.endswith(expected)


async def test_without_tools_nothing_is_looked_for_and_nothing_is_explained():
    scripted = ScriptedClient([CALL, CALL])
    client = TextToolsClient(scripted)
    plain = Request("demo", Prompt([user(TextPart("Hi"))]))
    assert (await fold(client.stream(plain))).message.get_text_content() == CALL
    assert scripted.requests[0].system is None
    forbidden = ask(settings=ModelSettings(tool_choice=ToolChoice("none")))
    assert (await fold(client.stream(forbidden))).message.get_text_content() == CALL


HISTORY = (
    user(TextPart("Read them.")),
    assistant(ReasoningPart("Hm."), TextPart("Yes."), use("1", path="a"), use("2", path="b")),
    user(
        ToolResultPart(tool_use_id="1", content="A", attachments=(Attachment("image/png", data="eA=="),)),
        ToolResultPart(tool_use_id="2", content="no such file", is_error=True),
        TextPart("And?"),
    ),
)


def test_calls_and_results_of_the_past_become_text_that_every_api_takes():
    prompt = render_tools_as_text(ask(*HISTORY)).prompt
    for kind in ("anthropic", "openai", "openai-responses", "google"):
        check_messages(kind, prompt)
    reasoning, text = prompt[1].content
    assert reasoning == HISTORY[1].content[0]
    assert text.text == (
        'Yes.\n\n<tool_call>\n{"name":"read","arguments":{"path":"a"}}\n</tool_call>\n\n'
        '<tool_call>\n{"name":"read","arguments":{"path":"b"}}\n</tool_call>'
    )
    first, file, second = prompt[2].content
    assert first.text == '<tool_result name="read">\nA\n</tool_result>'
    assert isinstance(file, FilePart) and file.url == "data:image/png;base64,eA=="
    assert second.text == '<tool_result name="read" error="true">\nno such file\n</tool_result>\n\nAnd?'


def test_a_rewritten_prompt_is_append_only():
    request = ask(*HISTORY[:2])
    first = render_tools_as_text(request).prompt
    before = list(first)
    assert render_tools_as_text(request).prompt is first
    request.prompt.append(HISTORY[2])
    second = render_tools_as_text(request).prompt
    assert second is first and [id(message) for message in list(second)[:2]] == [id(message) for message in before]
    written = bytes(second.encoded("test", lambda message: repr(message.to_api_format()).encode()))
    assert written.startswith(repr(before[0].to_api_format()).encode())


async def test_calls_in_reasoning_are_never_found():
    scripted = ScriptedClient([[ReasoningPart(f"I could say {CALL}"), f"<think>\nor {CALL}\n</think>\nDone."]])
    answer = await fold(TextToolsClient(ThinkingClient(scripted)).stream(ask()))
    assert [part.type for part in answer.message.parts] == ["reasoning", "reasoning", "text"]
    assert answer.finish == "stop"


async def test_text_that_turns_out_to_be_reasoning_starts_again_through_both_stages():
    scripted = ScriptedClient([f"Let me think.\n</think>\n{CALL}"], chunk=4)
    answer = await fold(TextToolsClient(ThinkingClient(scripted)).stream(ask()))
    assert [part.type for part in answer.message.parts] == ["reasoning", "tool"]


async def test_what_was_held_back_is_given_when_the_connection_breaks():
    assembler = AnswerAssembler("test")
    client = TextToolsClient(ScriptedClient([["So <tool_c", NetworkError("gone")]]))
    with pytest.raises(NetworkError):
        async for delta in client.stream(ask()):
            assembler.add(delta)
    assert [part.text for part in assembler.list_parts()] == ["So <tool_c"]


async def test_a_call_that_broke_off_with_the_connection_stays_unfinished():
    assembler = AnswerAssembler("test")
    client = TextToolsClient(ScriptedClient([['<tool_call>{"name":"read","arguments":{"pa', NetworkError("gone")]]))
    with pytest.raises(NetworkError):
        async for delta in client.stream(ask()):
            assembler.add(delta)
    [call] = assembler.list_parts()
    assert call.state.phase == "streaming"


async def test_closing_the_stream_closes_the_one_below():
    closed = []

    class Endless(ScriptedClient):
        async def stream(self, request: Request) -> AsyncIterator[Delta]:
            try:
                async for delta in super().stream(request):
                    yield delta
            finally:
                closed.append(True)

    stream = TextToolsClient(Endless(["a long answer"], chunk=1)).stream(ask())
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    assert closed == [True]


@given(
    st.dictionaries(
        st.text(max_size=8), st.text(max_size=20) | st.integers(-9, 9) | st.lists(st.booleans()), max_size=4
    )
)
def test_what_we_write_for_a_call_is_what_we_read(value: dict[str, object]):
    made = ToolUsePart(tool_id="1", tool_name="read", tool_input=value)
    assert parts_of(TextCallScanner, list(render_call(made))) == [("tool", "read", value)]


KINDS = {
    "line": ({"type": "integer"}, "5", 5),
    "optional": ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
    "several": ({"type": ["number", "null"]}, "5", 5),
    "text": ({"type": "string"}, "5", "5"),
    "text or number": ({"type": ["string", "number"]}, "5", "5"),
    "chosen": ({"enum": ["5", "6"]}, "5", "5"),
    "list": ({"type": "array"}, "[5]", [5]),
}


@pytest.mark.parametrize(("schema", "written", "meant"), KINDS.values(), ids=KINDS)
async def test_values_in_markup_follow_the_schema(schema: dict[str, object], written: str, meant: object):
    scripted = ScriptedClient([f"<function=read><parameter=v>{written}</parameter></function>"])
    tool = ToolSpec("read", "", {"type": "object", "properties": {"v": schema}})
    request = Request("demo", Prompt([user(TextPart("Go."))]), tools=(tool,))
    [call] = (await fold(TextToolsClient(scripted).stream(request))).message.parts
    assert call.state.input == {"v": meant}
