"""Agents that share a provider stay below its limits together, in the order in which they asked."""

import asyncio

import pytest

from outrider.providers.client import RateLimit, RateLimiter

FAST = 6000.0  # a hundred each second


def limiter(requests: float | None = None, tokens: float | None = None) -> RateLimiter:
    return RateLimiter(RateLimit(requests_per_minute=requests, tokens_per_minute=tokens))


async def emptied(requests: float | None = None, tokens: float | None = None) -> RateLimiter:
    """A limiter whose allowance is used up."""
    found = limiter(requests, tokens)
    for _ in range(int(requests or 1)):
        await found.reserve(int(tokens or 0))
    return found


async def test_without_limits_no_request_waits():
    unlimited = limiter()
    async with asyncio.timeout(30):
        for _ in range(1000):
            await unlimited.reserve(10**9)


async def test_a_minute_s_worth_of_requests_goes_at_once():
    async with asyncio.timeout(30):  # one each second would take a minute
        await emptied(requests=60)


async def test_requests_beyond_a_minute_s_worth_are_waited_for():
    loop = asyncio.get_running_loop()
    started = loop.time()  # the allowance fills while it is being used up
    found = await emptied(requests=FAST)
    for _ in range(10):
        await found.reserve(0)
    assert loop.time() - started >= 0.09


async def test_tokens_are_waited_for():
    loop = asyncio.get_running_loop()
    started = loop.time()
    found = await emptied(tokens=FAST)
    await found.reserve(20)
    assert loop.time() - started >= 0.19


async def test_tokens_that_were_not_used_let_the_next_one_go_at_once():
    found = limiter(tokens=100)
    first = await found.reserve(100)
    waiting = asyncio.create_task(found.reserve(90))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    first.settle(5)
    async with asyncio.timeout(30):
        await waiting


async def test_tokens_that_were_used_beyond_the_reservation_are_paid_for_later():
    found = limiter(tokens=100)
    (await found.reserve(0)).settle(150)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await found.reserve(1)


async def test_a_reservation_is_settled_once():
    found = limiter(tokens=100)
    first = await found.reserve(50)
    first.settle(0)
    first.settle(0)
    (await found.reserve(100)).settle(None)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await found.reserve(10)


async def test_a_call_larger_than_the_whole_allowance_still_goes():
    async with asyncio.timeout(30):
        await limiter(tokens=100).reserve(10_000)


async def test_who_asked_first_goes_first_even_if_it_needs_more():
    found = await emptied(tokens=FAST)
    order: list[str] = []

    async def ask(name: str, tokens: int) -> None:
        await found.reserve(tokens)
        order.append(name)

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        for name, tokens in (("large", 20), ("small", 1), ("middle", 5)):
            tasks.create_task(ask(name, tokens))
            await asyncio.sleep(0)
    assert order == ["large", "small", "middle"]


@pytest.mark.parametrize("gone", [0, 1])
async def test_a_cancelled_waiter_does_not_block_the_next_ones(gone: int):
    found = await emptied(requests=600)
    waiting = [asyncio.create_task(found.reserve(0)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[gone].cancel()
    async with asyncio.timeout(30):
        done = await asyncio.gather(*waiting, return_exceptions=True)
    assert [isinstance(result, asyncio.CancelledError) for result in done].count(True) == 1


async def test_cancelling_at_the_moment_of_reaching_the_front_blocks_no_waiter():
    found = limiter(requests=FAST)
    first, second, third = (asyncio.create_task(found.reserve(0)) for _ in range(3))
    await first
    second.cancel()
    async with asyncio.timeout(30):
        await third


async def test_a_pause_that_the_provider_asked_for_applies_to_all_requests():
    loop = asyncio.get_running_loop()
    found = limiter(requests=FAST)
    found.pause_requests(0.1)
    started = loop.time()
    await asyncio.gather(found.reserve(0), found.reserve(0))
    assert loop.time() - started >= 0.09
