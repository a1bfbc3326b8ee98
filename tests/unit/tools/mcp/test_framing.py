"""What a server writes, cut into lines and slowed down."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.tools.mcp.config import ServerLimits
from outrider.tools.mcp.connection import ServerFault
from outrider.tools.mcp.sdk_stdio import GarbageCounter, LineBuffer, TailBuffer, TokenBucket


@given(st.lists(st.binary(max_size=20)))
def test_lines_come_out_whole_however_they_are_cut(chunks):
    lines = LineBuffer(ServerLimits())
    found = [line for chunk in chunks for line in lines.feed(chunk)]
    *expected, unfinished = b"".join(chunks).split(b"\n")
    assert found == expected
    assert lines.feed(b"\n") == [unfinished]


def test_a_line_without_end_is_a_fault_before_it_fills_memory():
    lines = LineBuffer(ServerLimits(message=1000))
    lines.feed(b"x" * 1000)
    with pytest.raises(ServerFault, match="1,000 bytes"):
        lines.feed(b"x")


def test_a_message_of_exactly_the_limit_passes():
    assert LineBuffer(ServerLimits(message=1000)).feed(b"x" * 1000 + b"\n") == [b"x" * 1000]


def test_a_banner_is_borne_and_nothing_but_garbage_is_not():
    garbage = GarbageCounter(ServerLimits(garbage_lines=10))
    for _ in range(10):
        garbage.add(b"loading")
    garbage.reset()
    for _ in range(10):
        garbage.add(b"loading")
    with pytest.raises(ServerFault, match="not MCP, for example 'loading'"):
        garbage.add(b"loading")


def test_garbage_is_bounded_in_bytes_too():
    with pytest.raises(ServerFault):
        GarbageCounter(ServerLimits(garbage=100)).add(b"x" * 100)


async def test_who_spends_more_than_the_pace_waits():
    pace, loop = TokenBucket(1000), asyncio.get_running_loop()
    started = loop.time()
    with pytest.raises(StopIteration):  # it ends without a pause
        pace.spend(1000).send(None)
    await pace.spend(100)
    assert loop.time() - started > 0.08


@given(st.lists(st.binary(max_size=10)))
def test_of_a_log_the_end_is_preserved(chunks):
    tail = TailBuffer(15)
    for chunk in chunks:
        tail.add(chunk)
    assert tail.text == b"".join(chunks)[-15:].decode("utf-8", "replace").strip()
