"""What was recorded over a real connection is played without one, and no secret is on the cassette."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigurationError, NetworkError, ProviderError, RateLimitError, StalledStreamError
from outrider.http.client import HttpClient
from outrider.http.transport import HttpRequest, HttpTimeouts, HttpTransport
from outrider.providers.cassettes.cassette import (
    Cassette,
    RecordedCall,
    RecordedChunk,
    RecordedExchange,
    SecretScrubber,
)
from outrider.providers.cassettes.record import RecordingTransport
from outrider.providers.cassettes.replay import CassetteOptions, CassetteTransportFactory, ReplayTransport
from outrider.providers.client import WireClient
from outrider.types.ids import new_id
from outrider.types.request import Delta, Retry, RetryPolicy, TextDelta
from tests.fixtures.cases import for_each
from tests.fixtures.http_server import Reply, Server, serving
from tests.fixtures.plain_wire import KEY, PlainWire, plain_request, text_stream

SHORT = HttpTimeouts(connect=1, first_byte=0.3, idle=0.2, quiet=0.5, total=2)
ONCE = RetryPolicy(attempts=1)
TWICE = RetryPolicy(attempts=2, first_window=0.01)
CHUNKS = [text_stream("Hello"), text_stream("wor")[:4], text_stream("wor")[4:], text_stream("ld", "[END]")]


@pytest.fixture
def cassette(tmp_path: Path) -> Cassette:
    return Cassette(tmp_path / "tapes" / "one.jsonl")


async def ask(transport: HttpTransport, url: str, retry: RetryPolicy = ONCE) -> list[Delta]:
    """The answer; how long was waited before a retry is chance."""
    client = WireClient("plain", PlainWire(url), transport, retry=retry)
    try:
        return [delta async for delta in client.stream(plain_request()) if not isinstance(delta, Retry)]
    finally:
        await client.aclose()


@asynccontextmanager
async def recording(cassette: Cassette, *replies: Reply) -> AsyncIterator[tuple[HttpTransport, Server]]:
    async with serving(*replies) as server:
        yield RecordingTransport(HttpClient(SHORT), cassette), server


async def test_a_recorded_answer_is_played_delta_for_delta(cassette: Cassette):
    async with recording(cassette, Reply(CHUNKS)) as (transport, server):
        recorded = await ask(transport, server.url)
    assert any(isinstance(delta, TextDelta) for delta in recorded)
    assert await ask(ReplayTransport(cassette), "http://elsewhere.invalid") == recorded


async def test_no_key_is_on_the_cassette(cassette: Cassette):
    async with recording(cassette, Reply(CHUNKS)) as (transport, server):
        await ask(transport, server.url)
        assert KEY in str(server.requests[0].headers)
    assert KEY not in cassette.path.read_text()


async def test_a_refusal_and_the_answer_after_it_are_played_in_order(cassette: Cassette):
    replies = [Reply([b'{"error": "slow down"}'], 429, {"retry-after": "0", "x-secret-org": "acme"}), Reply(CHUNKS)]
    async with recording(cassette, *replies) as (transport, server):
        recorded = await ask(transport, server.url, TWICE)
    first, second = cassette.read_exchanges()
    assert (first.status, second.status) == (429, 200)
    assert first.headers["retry-after"] == "0" and "x-secret-org" not in first.headers
    player = ReplayTransport(cassette)
    assert await ask(player, "http://elsewhere.invalid", TWICE) == recorded
    assert player.unplayed == []
    with pytest.raises(RateLimitError):
        await ask(ReplayTransport(cassette), "http://elsewhere.invalid", ONCE)


async def test_a_connection_that_broke_breaks_again(cassette: Cassette):
    async with recording(cassette, Reply([text_stream("Hello")], after="reset")) as (transport, server):
        with pytest.raises(NetworkError):
            await ask(transport, server.url)
    [exchange] = cassette.read_exchanges()
    assert exchange.failure is not None and exchange.chunks
    with pytest.raises(NetworkError, match="connection"):
        await ask(ReplayTransport(cassette), server.url)


@pytest.mark.parametrize("after", ["reset", "close"])
async def test_an_answer_that_broke_and_was_not_requested_again_is_not_now(cassette: Cassette, after: Any):
    """Version 0.1 did not repeat an answer that had been shown."""
    async with recording(cassette, Reply([text_stream("Hello")], after=after)) as (transport, server):
        with pytest.raises(NetworkError):
            await ask(transport, server.url, ONCE)
    player, got = ReplayTransport(cassette), list[Delta]()
    client = WireClient("plain", PlainWire(server.url), player, retry=RetryPolicy(first_window=0.0))
    with pytest.raises(NetworkError):
        got.extend([delta async for delta in client.stream(plain_request())])
    assert not [delta for delta in got if isinstance(delta, Retry)]
    assert player.unplayed == []


async def test_a_server_that_never_answered_does_not_answer_again(cassette: Cassette):
    async with recording(cassette, Reply(status=0, after="stall")) as (transport, server):
        with pytest.raises(StalledStreamError):
            await ask(transport, server.url)
    with pytest.raises(StalledStreamError, match="sent no response within"):
        await ask(ReplayTransport(cassette), server.url)


async def test_an_answer_that_its_reader_left_is_preserved_as_far_as_it_was_read(cassette: Cassette):
    async with recording(cassette, Reply([text_stream("Hello"), 30.0])) as (transport, server):
        client = WireClient("plain", PlainWire(server.url), transport)
        stream = client.stream(plain_request())
        while not isinstance(await anext(stream), TextDelta):
            pass
        await stream.aclose()
        await client.aclose()
    [exchange] = cassette.read_exchanges()
    assert exchange.failure is None and b"Hello" in exchange.chunks[0].to_bytes()


async def test_a_call_that_is_not_on_the_cassette_is_refused_with_the_first_difference(cassette: Cassette):
    async with recording(cassette, Reply(CHUNKS)) as (transport, server):
        await ask(transport, server.url)
    exchange = msgspec.structs.replace(
        cassette.read_exchanges()[0], call=msgspec.structs.replace(cassette.read_exchanges()[0].call, body={"other": 1})
    )
    cassette.erase()
    cassette.add(exchange)
    with pytest.raises(ProviderError, match="the next recorded request differs in") as caught:
        await ask(ReplayTransport(cassette), server.url)
    assert caught.value.type == "replay_mismatch" and not caught.value.retryable
    assert "other" in caught.value.message


async def test_one_call_too_many_is_refused(cassette: Cassette):
    async with recording(cassette, Reply(CHUNKS)) as (transport, server):
        await ask(transport, server.url)
    player = ReplayTransport(cassette)
    await ask(player, server.url)
    with pytest.raises(ProviderError, match="all its exchanges were replayed"):
        await ask(player, server.url)


async def call(transport: HttpTransport, body: bytes) -> bytes:
    answer = await transport.send(HttpRequest("https://x.invalid/v1/chat", {}, body))
    try:
        return await answer.read()
    finally:
        answer.close()


def tape(cassette: Cassette, *bodies: object) -> Cassette:
    for body in bodies:
        made = SecretScrubber().scrub_request(HttpRequest("https://y.invalid/v1/chat", {}, msgspec.json.encode(body)))
        cassette.add(RecordedExchange(made, 200, {}, (RecordedChunk.from_bytes(f"answer to {body}".encode(), 0),)))
    return cassette


async def test_calls_in_another_order_find_their_own_answers(cassette: Cassette):
    player = ReplayTransport(tape(cassette, {"q": 1}, {"q": 2}))
    assert await call(player, b'{"q": 2}') == b"answer to {'q': 2}"
    assert await call(player, b'{"q":1}') == b"answer to {'q': 1}"


async def test_fields_that_are_ignored_may_differ(cassette: Cassette):
    player = ReplayTransport(tape(cassette, {"q": 1, "user": {"id": "old"}}), ignore=("user.id",))
    assert await call(player, b'{"user": {"id": "new"}, "q": 1}')


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"system": "a", "messages": [1]}, {"messages": [1]}),
        ({"instructions": "a", "input": [1]}, {"instructions": "b", "input": [1]}),
        ({"systemInstruction": {"parts": []}, "contents": [1]}, {"systemInstruction": {"parts": [1]}, "contents": [1]}),
        (
            {"messages": [{"role": "system", "content": "a"}, 1]},
            {"messages": [{"role": "developer", "content": "b"}, 1]},
        ),
    ],
)
async def test_the_system_prompt_can_be_ignored_in_every_api(cassette: Cassette, old: Any, new: Any):
    player = ReplayTransport(tape(cassette, old), ignore=("system",))
    assert await call(player, msgspec.json.encode(new))


async def test_with_timing_chunks_arrive_as_slowly_as_they_did(cassette: Cassette):
    made = SecretScrubber().scrub_request(HttpRequest("https://y.invalid/v1/chat", {}, b"{}"))
    cassette.add(RecordedExchange(made, 200, {}, (RecordedChunk(60, "late"),)))
    before = asyncio.get_running_loop().time()
    await call(ReplayTransport(cassette, timing=True), b"{}")
    assert asyncio.get_running_loop().time() - before >= 0.05


async def test_a_deck_records_and_plays_and_shares_what_was_played(cassette: Cassette):
    tape(cassette, {"q": 1})
    deck = CassetteTransportFactory(CassetteOptions(path=str(cassette.path)))
    unused = HttpClient()
    assert await call(deck.wrap_transport(unused), b'{"q": 1}')
    with pytest.raises(ProviderError):
        await call(deck.wrap_transport(unused), b'{"q": 1}')
    assert isinstance(
        CassetteTransportFactory(CassetteOptions(path="x", mode="record")).wrap_transport(unused), RecordingTransport
    )


def test_a_cassette_that_is_missing_or_damaged_is_reported(cassette: Cassette):
    with pytest.raises(ConfigurationError, match="record it first"):
        cassette.read_exchanges()
    cassette.erase()
    cassette.path.write_text(cassette.path.read_text() + "{broken\n")
    with pytest.raises(ConfigurationError, match="line 2"):
        cassette.read_exchanges()
    cassette.path.write_text('{"cassette": 99}\n')
    with pytest.raises(ConfigurationError, match="version 1"):
        cassette.read_exchanges()


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=5))
def test_any_bytes_survive_the_cassette(pieces: list[bytes]):
    chunks = tuple(RecordedChunk.from_bytes(piece, 3) for piece in pieces)
    written = msgspec.json.encode(chunks)
    assert [chunk.to_bytes() for chunk in msgspec.json.decode(written, type=tuple[RecordedChunk, ...])] == pieces


SECRET = "correct-horse-battery"
CALL = HttpRequest(
    f"https://user:{SECRET}@api.example/v1/x?key={SECRET}&alt=sse",
    {"Authorization": f"Bearer {SECRET}", "x-goog-api-key": SECRET, "Content-Type": "application/json", "x-team": "t"},
    msgspec.json.encode({"text": f"my key is {SECRET} and my word is swordfish", "max_tokens": 5, "signature": "abc"}),
)


def test_a_call_is_preserved_without_its_secrets():
    scrubbed = SecretScrubber(["swordfish"]).scrub_request(CALL)
    assert SECRET not in str(scrubbed) and "swordfish" not in str(scrubbed)
    assert scrubbed.url.startswith("https://api.example/v1/x?key=") and scrubbed.url.endswith("&alt=sse")
    assert scrubbed.headers == {"content-type": "application/json"}
    assert scrubbed.body["max_tokens"] == 5 and scrubbed.body["signature"] == "abc"


def test_text_that_looks_like_a_key_is_hidden_at_any_position():
    looks = "sk-" + "made-up-4-tests-" * 2
    chunks = [RecordedChunk.from_bytes(f"Your key {looks} is wrong".encode(), 0)]
    assert looks not in str(SecretScrubber().scrub_chunks(chunks, CALL))


@for_each("cut", range(1, len(SECRET)))
def test_a_secret_across_two_chunks_is_hidden(cut: int):
    chunks = [
        RecordedChunk.from_bytes(f"a {SECRET[:cut]}".encode(), 1),
        RecordedChunk.from_bytes(f"{SECRET[cut:]} b".encode(), 2),
    ]
    scrubbed = SecretScrubber().scrub_chunks(chunks, CALL)
    assert b"".join(chunk.to_bytes() for chunk in scrubbed) == b"a [hidden secret] b"


def test_chunks_keep_their_borders_where_no_secret_is_cut():
    chunks = [
        RecordedChunk.from_bytes(b"one ", 1),
        RecordedChunk.from_bytes(SECRET.encode(), 2),
        RecordedChunk.from_bytes(b" two", 3),
    ]
    assert [chunk.to_bytes() for chunk in SecretScrubber().scrub_chunks(chunks, CALL)] == [
        b"one ",
        b"[hidden secret]",
        b" two",
    ]


def test_bytes_that_are_no_text_are_preserved_as_they_are():
    chunk = RecordedChunk.from_bytes(b"\xff\xfe", 0)
    assert base64.b64decode(chunk.base64) == b"\xff\xfe"
    assert SecretScrubber().scrub_chunks([chunk], CALL) == (chunk,)


async def test_ids_that_we_made_up_may_be_new_when_a_cassette_is_played(cassette: Cassette):
    player = ReplayTransport(tape(cassette, {"calls": [f"call_{new_id()}"]}))
    assert await call(player, msgspec.json.encode({"calls": [f"call_{new_id()}"]}))


@pytest.mark.parametrize("field", ["thinking", "reasoning", "reasoning_effort", "generationConfig"])
async def test_a_difference_to_a_cassette_of_0_1_names_the_default_that_changed(field: str, tmp_path: Path):
    cassette = Cassette(tmp_path / "old.jsonl")
    cassette.add(RecordedExchange(RecordedCall("http://host/v1/messages", {"model": "m"}), 200))
    sent = HttpRequest("http://host/v1/messages", {}, msgspec.json.encode({"model": "m", field: {"effort": "medium"}}))
    with pytest.raises(ProviderError, match=r"reasoning is on by default since 0\.2; reasoning=False sends what 0\.1"):
        await ReplayTransport(cassette).send(sent)
