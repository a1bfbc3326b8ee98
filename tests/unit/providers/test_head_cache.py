"""The head of a request is cached with a prompt, and never reused for a request with other settings."""

from collections.abc import Callable

import pytest

from outrider.providers.anthropic.client import AnthropicWire
from outrider.providers.google.client import GoogleWire
from outrider.providers.openai.chat_client import ChatWire
from outrider.providers.openai.responses_client import ResponsesWire
from outrider.providers.provider import WireFormat
from outrider.types.agents import Provider
from outrider.types.parts import TextPart
from outrider.types.request import ModelMessage, ModelSettings, Prompt, Request, ToolSpec

READ = ToolSpec("read", "Read a file.", {"type": "object", "properties": {}})
WRITE = ToolSpec("write", "Write a file.", {"type": "object", "properties": {}})
WIRES: list[Callable[[], WireFormat]] = [
    lambda: AnthropicWire(Provider("p", "anthropic", "key")),
    lambda: AnthropicWire(Provider("p", "anthropic", "key", options={"caching": "off"})),
    lambda: ChatWire(Provider("p", "openai", "key")),
    lambda: ChatWire(Provider("p", "openai", "key", options={"dialect": "deepseek"})),
    lambda: ResponsesWire(Provider("p", "openai-responses", "key")),
    lambda: GoogleWire(Provider("p", "google", "key")),
]


def asked() -> Prompt:
    return Prompt([ModelMessage("user", (TextPart("Hi"),))])


def requests(prompt: Prompt) -> list[Request]:
    """One conversation in which everything but the messages changes, and comes back."""
    changing = [
        Request("claude-sonnet-4-5", prompt, "Be kind.", (READ,), stream=False),
        Request("claude-sonnet-4-5", prompt, "Be brief.", (READ,), stream=False),
        Request("claude-sonnet-4-5", prompt, "Be brief.", (READ, WRITE), stream=False),
        Request("claude-sonnet-4-5", prompt, "Be brief.", (READ, WRITE), ModelSettings(temperature=0.5), stream=False),
        Request("claude-3-haiku", prompt, "Be brief.", (READ, WRITE), ModelSettings(reasoning=True), stream=False),
        Request("gpt-5", prompt, None, (), ModelSettings(max_output_tokens=9), stream=True, conversation="c"),
    ]
    return [*changing, changing[0]]


@pytest.mark.parametrize("wire", WIRES)
def test_a_request_of_a_long_conversation_reads_as_if_it_were_the_first(wire: Callable[[], WireFormat]):
    speaking = wire()
    remembered = [speaking.build_request(request).body for request in requests(asked())]
    fresh = [wire().build_request(requests(asked())[position]).body for position in range(len(remembered))]
    assert remembered == fresh
    assert len(set(remembered)) >= 5


def test_several_who_answer_one_prompt_in_turn_each_get_their_own():
    prompt = asked()
    request = Request("claude-sonnet-4-5", prompt, "Be kind.", (READ,), stream=False)
    for _ in range(2):
        for wire in WIRES:
            assert (
                wire().build_request(request).body
                == wire().build_request(Request("claude-sonnet-4-5", asked(), *_rest(request))).body
            )


def _rest(request: Request) -> tuple[str | None, tuple[ToolSpec, ...], ModelSettings, bool]:
    return request.system, request.tools, request.settings, request.stream


def test_sessions_with_the_same_agent_share_the_bytes_of_the_head():
    wire = ChatWire(Provider("p", "openai", "key", options={"dialect": "deepseek"}))
    first, second, other = (
        wire.build_request(Request("m", asked(), system, (READ,), conversation=conversation)).layout
        for system, conversation in (("Be kind.", "a"), ("Be kind.", "b"), ("Be brief.", "c"))
    )
    assert first and second and other
    assert second.head is first.head
    assert other.head != first.head


def test_a_head_with_the_id_of_its_conversation_is_not_shared():
    wire = ChatWire(Provider("p", "openai", "key"))
    bodies = [
        wire.build_request(Request("m", asked(), "Be kind.", (READ,), conversation=name)).body for name in ("a", "b")
    ]
    assert bodies[0] != bodies[1]
