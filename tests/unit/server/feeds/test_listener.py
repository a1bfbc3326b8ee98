"""A client of a feed that is slow loses what was only shown, never what is kept."""

import asyncio

from outrider.server.event_stream import Batch, Frame, Listener


def shown(word: str) -> Batch:
    return Batch.of([Frame(word.encode())])


def kept(*numbers: int) -> Batch:
    return Batch.of([frame for number in numbers for frame in (Frame(b"~"), Frame(b"%d" % number, number))])


async def taken(listener: Listener) -> list[bytes]:
    listener.close()
    return [batch.body async for batch in _all_of(listener)]


async def _all_of(listener: Listener):
    while (batch := await listener.take()) is not None:
        yield batch


async def test_what_fits_comes_whole_and_in_order():
    listener = Listener()
    for batch in (shown("a"), kept(1, 2), shown("b")):
        listener.put(batch)
    assert await taken(listener) == [b"a", b"~1~2", b"b"]


async def test_one_that_is_behind_gets_what_is_kept_only():
    listener = Listener(3)
    for batch in (shown("a"), kept(1), shown("b"), shown("c"), kept(2), shown("d")):
        listener.put(batch)
    assert await taken(listener) == [b"1", b"~2", b"d"]


async def test_one_that_is_hopelessly_behind_is_let_go_after_what_it_holds():
    listener = Listener(2)
    for number in range(1, 6):
        listener.put(kept(number))
    assert listener.closed
    assert await taken(listener) == [b"1", b"2", b"~3"]


async def test_who_has_seen_a_change_does_not_get_it_again():
    batch = kept(4, 5, 6)
    assert batch.after(3) is batch
    assert batch.after(5).body == b"~~~6"
    assert (batch.first, batch.last) == (4, 6)
    assert shown("a").after(9).body == b"a"


async def test_waiting_ends_when_something_comes_or_the_feed_closes():
    listener = Listener()
    waiting = asyncio.create_task(listener.take())
    await asyncio.sleep(0)
    listener.put(shown("a"))
    assert (await waiting).body == b"a"
    waiting = asyncio.create_task(listener.take())
    await asyncio.sleep(0)
    listener.close()
    assert await waiting is None
