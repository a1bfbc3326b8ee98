"""Work that is begun at once: done without a task where nothing has to be waited for, and whole where something has."""

import asyncio

import pytest

from outrider.sessions.waiting.works import eagerly


async def test_work_that_need_not_wait_is_done_at_once_and_without_a_task():
    done: list[str] = []

    async def work() -> None:
        done.append("done")

    assert eagerly(work()) is None
    assert done == ["done"]


async def test_work_that_waits_is_begun_at_once_and_goes_on_as_a_task():
    done: list[object] = []
    gate = asyncio.get_running_loop().create_future()

    async def work() -> None:
        done.append("begun")
        done.append(await gate)
        await asyncio.sleep(0)
        done.append("ended")

    rest = eagerly(work())
    assert rest is not None
    assert done == ["begun"]
    gate.set_result("waited")
    await rest
    assert done == ["begun", "waited", "ended"]


async def test_what_goes_wrong_before_it_waits_is_raised_to_the_caller():
    async def work() -> None:
        raise ValueError("at once")

    with pytest.raises(ValueError, match="at once"):
        eagerly(work())


async def test_what_goes_wrong_later_is_raised_to_whoever_awaits_the_rest():
    async def work() -> None:
        await asyncio.sleep(0)
        raise ValueError("later")

    rest = eagerly(work())
    assert rest is not None
    with pytest.raises(ValueError, match="later"):
        await rest


async def test_a_rest_that_is_cancelled_lets_the_work_clean_up():
    done: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            done.append("clean")

    rest = eagerly(work())
    assert rest is not None
    await asyncio.sleep(0)
    rest.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rest
    assert done == ["clean"]
