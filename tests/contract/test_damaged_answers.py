"""An answer with damaged bytes ends complete or in a typed error, and never contains an invalid call."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import ProviderError
from outrider.providers.anthropic.client import AnthropicWire
from outrider.providers.client import WireClient
from outrider.providers.google.client import GoogleWire
from outrider.providers.openai.chat_client import ChatWire
from outrider.providers.openai.responses_client import ResponsesWire
from outrider.providers.provider import AnswerAssembler, WireFormat
from outrider.types.agents import Provider
from outrider.types.parts import ToolPart
from outrider.types.request import RetryPolicy
from tests.contract.test_model_client import ANTHROPIC, CHAT, GOOGLE, REQUEST, RESPONSES
from tests.fixtures.cases import for_each
from tests.fixtures.memory_transport import Player
from tests.fixtures.soak import examples

WIRES: dict[str, tuple[Callable[[], WireFormat], list[bytes]]] = {
    "anthropic": (lambda: AnthropicWire(Provider("p", "anthropic", "k")), ANTHROPIC),
    "openai": (lambda: ChatWire(Provider("p", "openai", "k")), CHAT),
    "openai-responses": (lambda: ResponsesWire(Provider("p", "openai-responses", "k")), RESPONSES),
    "google": (lambda: GoogleWire(Provider("p", "google", "k")), GOOGLE),
}
junk = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [b"null", b"[]", b"{}", b'""', b"0", b"true", b'"\\ud800"', b"\n\n", b"\r", b"data: ", b"\xff", b"1e999"]
    ),
)
places = st.floats(0, 1)


async def read(name: str, stream: bytes, size: int) -> tuple[AnswerAssembler, Exception | None]:
    wire, _ = WIRES[name]
    chunks = [stream[start : start + size] for start in range(0, len(stream), size)]
    client = WireClient("p", wire(), Player(chunks), retry=RetryPolicy(attempts=1))
    assembler = AnswerAssembler(client.model_family("m"))
    try:
        async for delta in client.stream(REQUEST):
            assembler.add(delta)
    except ProviderError as error:
        return assembler, error
    return assembler, None


@pytest.mark.parametrize("name", WIRES)
@settings(max_examples=examples(75))
@given(place=places, length=st.integers(0, 60), put=junk, size=st.sampled_from([1, 7, 64, 4096]))
def test_damage_ends_in_an_answer_or_in_a_typed_error(name: str, place: float, length: int, put: bytes, size: int):
    whole = b"".join(WIRES[name][1])
    start = int(place * len(whole))
    damaged = whole[:start] + put + whole[start + length :]
    assembler, error = asyncio.run(read(name, damaged, size))
    calls = [part for part in assembler.list_parts() if isinstance(part, ToolPart)]
    assert len({call.call_id for call in calls}) == len(calls)
    assert error is not None or assembler.finish is not None


@pytest.mark.parametrize("name", WIRES)
@settings(max_examples=examples(30))
@given(order=st.randoms(use_true_random=False), doubled=places)
def test_events_out_of_order_or_twice_end_the_same_way(name: str, order, doubled: float):
    events = list(WIRES[name][1])
    events.insert(int(doubled * len(events)), events[int(doubled * (len(events) - 1))])
    order.shuffle(events)
    assembler, error = asyncio.run(read(name, b"".join(events), 4096))
    assert error is not None or assembler.finish is not None


@for_each("name", WIRES)
@for_each("size", [1, 2, 3, 5, 7, 11, 64])
def test_the_size_of_the_pieces_changes_nothing(name: str, size: int):
    whole = b"".join(WIRES[name][1])
    expected, _ = asyncio.run(read(name, whole, len(whole)))
    assembler, error = asyncio.run(read(name, whole, size))
    assert error is None
    assert [summary(part) for part in assembler.list_parts()] == [summary(part) for part in expected.list_parts()]
    assert (assembler.finish, assembler.tokens) == (expected.finish, expected.tokens)


def summary(part: object) -> object:
    """Returns a part without ids and times, which differ between runs."""
    return (part.tool, part.state) if isinstance(part, ToolPart) else getattr(part, "text", None)
