"""A slow client of a feed loses deltas, and never stored values."""

import asyncio

from outrider.server.event_stream import FeedListener, FrameBatch, SseFrame


def shown(word: str) -> FrameBatch:
    return FrameBatch.from_frames([SseFrame(word.encode())])


def stored_batch(*numbers: int) -> FrameBatch:
    return FrameBatch.from_frames(
        [frame for number in numbers for frame in (SseFrame(b"~"), SseFrame(b"%d" % number, number))]
    )


async def received_frames(listener: FeedListener) -> list[bytes]:
    listener.close()
    return [batch.body async for batch in _all_of(listener)]


async def _all_of(listener: FeedListener):
    while (batch := await listener.next_batch()) is not None:
        yield batch


async def test_what_fits_comes_whole_and_in_order():
    listener = FeedListener()
    for batch in (shown("a"), stored_batch(1, 2), shown("b")):
        listener.put_batch(batch)
    assert await received_frames(listener) == [b"a", b"~1~2", b"b"]


async def test_a_slow_client_gets_only_what_is_stored():
    listener = FeedListener(3)
    for batch in (shown("a"), stored_batch(1), shown("b"), shown("c"), stored_batch(2), shown("d")):
        listener.put_batch(batch)
    assert await received_frames(listener) == [b"1", b"~2", b"d"]


async def test_a_client_that_is_too_slow_is_disconnected_after_its_buffered_frames():
    listener = FeedListener(2)
    for number in range(1, 6):
        listener.put_batch(stored_batch(number))
    assert listener.closed
    assert await received_frames(listener) == [b"1", b"2", b"~3"]


async def test_who_has_seen_a_change_does_not_get_it_again():
    batch = stored_batch(4, 5, 6)
    assert batch.newer_than(3) is batch
    assert batch.newer_than(5).body == b"~~~6"
    assert (batch.first_seq, batch.last_seq) == (4, 6)
    assert shown("a").newer_than(9).body == b"a"


async def test_waiting_ends_when_something_comes_or_the_feed_closes():
    listener = FeedListener()
    waiting = asyncio.create_task(listener.next_batch())
    await asyncio.sleep(0)
    listener.put_batch(shown("a"))
    assert (await waiting).body == b"a"
    waiting = asyncio.create_task(listener.next_batch())
    await asyncio.sleep(0)
    listener.close()
    assert await waiting is None
