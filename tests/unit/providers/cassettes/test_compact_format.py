"""A compact cassette returns every body unchanged and stores repeated content once."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigurationError, ContextOverflowError, ProviderError
from outrider.providers.cassettes.cassette import Cassette, RecordedCall, RecordedExchange
from outrider.providers.cassettes.record import NonHttpWire, RecordingClient
from outrider.providers.cassettes.replay import ReplayTransport
from outrider.providers.client import WireClient
from outrider.providers.scripted import ScriptedClient, call
from tests.fixtures.plain_wire import plain_request

values = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3), st.lists, max_leaves=6)
bodies = st.dictionaries(st.sampled_from(["messages", "tools", "model", "n"]), values, max_size=4) | st.text(max_size=3)


def exchange(body: object) -> RecordedExchange:
    return RecordedExchange(RecordedCall("http://host/v1", body), status=200)


@given(st.lists(bodies, max_size=8))
def test_every_body_comes_back_as_it_was(tmp_path_factory, given):
    tape = Cassette(tmp_path_factory.mktemp("tapes") / "one.jsonl", compact=True)
    tape.erase()
    for body in given:
        tape.add(exchange(body))
    assert [one.call.body for one in Cassette(tape.path).read_exchanges()] == given


def test_conversations_that_continue_side_by_side_are_each_written_once(tmp_path: Path):
    tape = Cassette(tmp_path / "one.jsonl", compact=True)
    texts: dict[str, list[str]] = {"a": ["first"], "b": ["second"]}
    for turn in range(20):
        for name, messages in texts.items():
            messages.append(f"{name}{turn}" * 100)
            tape.add(exchange({"model": name, "messages": list(messages)}))
    assert tape.path.stat().st_size < 40 * 600
    assert Cassette(tape.path).read_exchanges()[-1].call.body == {"model": "b", "messages": texts["b"]}


def test_a_cassette_continues_after_its_process_was_torn_off_in_a_line(tmp_path: Path):
    path = tmp_path / "one.jsonl"
    first = Cassette(path, compact=True)
    first.add(exchange({"messages": ["a"]}))
    with path.open("ab") as file:
        file.write(b'{"call":{"url":"http')
    assert len(Cassette(path).read_exchanges()) == 1
    second = Cassette(path, compact=True)
    second.add(exchange({"messages": ["a", "b"]}))
    second.add(exchange({"messages": ["a", "b", "c"]}))
    assert [one.call.body["messages"] for one in Cassette(path).read_exchanges()] == [
        ["a"],
        ["a", "b"],
        ["a", "b", "c"],
    ]


def test_growth_from_nowhere_is_damage(tmp_path: Path):
    path = tmp_path / "one.jsonl"
    Cassette(path).erase()
    with path.open("ab") as file:
        file.write(b'{"call":{"url":"http://host","growth":{"after":3}}}\n')
    with pytest.raises(ConfigurationError, match="exchange 3"):
        Cassette(path).read_exchanges()


async def test_a_model_without_a_wire_is_played_delta_for_delta(tmp_path: Path):
    tape = Cassette(tmp_path / "one.jsonl")
    script = [["Let me see.", call("add", "c1", a=1)], "It is 3."]
    client = RecordingClient(ScriptedClient(script), tape)
    live = [[delta async for delta in client.stream(plain_request())] for _ in script]
    player = WireClient("scripted", NonHttpWire("scripted", "scripted"), ReplayTransport(tape))
    assert [[delta async for delta in player.stream(plain_request())] for _ in script] == live


async def test_a_refusal_without_a_wire_has_its_kind_and_message(tmp_path: Path):
    tape = Cassette(tmp_path / "one.jsonl")
    client = RecordingClient(ScriptedClient([ContextOverflowError("too long", status=413, type="full")]), tape)
    with pytest.raises(ContextOverflowError):
        [delta async for delta in client.stream(plain_request())]
    player = WireClient("scripted", NonHttpWire("scripted", "scripted"), ReplayTransport(tape))
    with pytest.raises(ContextOverflowError) as raised:
        [delta async for delta in player.stream(plain_request())]
    assert (raised.value.message, raised.value.status, raised.value.type) == ("too long", 413, "full")


async def test_an_answer_that_was_let_go_ends_there_and_is_not_asked_for_again(tmp_path: Path):
    tape = Cassette(tmp_path / "one.jsonl")
    stream = RecordingClient(ScriptedClient(["a long answer that nobody hears out"]), tape).stream(plain_request())
    await anext(stream)
    await stream.aclose()
    player = WireClient("scripted", NonHttpWire("scripted", "scripted"), ReplayTransport(tape))
    with pytest.raises(ProviderError, match="its reader closed the response"):
        [delta async for delta in player.stream(plain_request())]
    assert tape.read_exchanges()[0].cut
