"""Work that a caller waits for: done in its place and without a task, and whole when the caller is cancelled."""

import asyncio

import pytest

from outrider.sessions.write_queue import ShieldedTasks

PLACES = pytest.mark.parametrize("in_place", [True, False])


async def test_work_runs_in_the_task_of_its_caller_also_while_it_waits():
    tasks: list[object] = []

    async def work() -> None:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        tasks.append(asyncio.current_task())

    await ShieldedTasks(in_place=True).do(work())
    assert tasks == [asyncio.current_task()] * 2


@PLACES
async def test_work_that_waits_gets_what_it_waited_for(in_place: bool):
    done: list[object] = []
    gate = asyncio.get_running_loop().create_future()

    async def work() -> None:
        done.append(await gate)
        await asyncio.sleep(0)
        done.append("ended")

    asyncio.get_running_loop().call_later(0.001, gate.set_result, "waited")
    await ShieldedTasks(in_place=in_place).do(work())
    assert done == ["waited", "ended"]


@PLACES
@pytest.mark.parametrize("waits", [True, False])
async def test_what_goes_wrong_is_raised_to_the_caller(in_place: bool, waits: bool):
    async def work() -> None:
        if waits:
            await asyncio.sleep(0.001)
        raise ValueError("oh")

    works = ShieldedTasks(in_place=in_place)
    with pytest.raises(ValueError, match="oh"):
        await works.do(work())
    await asyncio.sleep(0)
    assert not works


@PLACES
async def test_what_it_waits_for_may_fail_and_the_work_can_deal_with_it(in_place: bool):
    done: list[str] = []
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        try:
            await gate
        except ValueError as error:
            done.append(str(error))

    asyncio.get_running_loop().call_later(0.001, gate.set_exception, ValueError("no"))
    await ShieldedTasks(in_place=in_place).do(work())
    assert done == ["no"]


@PLACES
async def test_a_caller_that_is_cancelled_leaves_at_once_and_the_work_goes_on(in_place: bool):
    done: list[object] = []
    gate = asyncio.get_running_loop().create_future()
    works = ShieldedTasks(in_place=in_place)

    async def work() -> None:
        done.append(await gate)
        await asyncio.sleep(0)
        done.append("ended")

    caller = asyncio.create_task(works.do(work()))
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert works
    assert done == []
    gate.set_result("waited")
    await works.settled()
    assert done == ["waited", "ended"]
    await asyncio.sleep(0)
    assert not works


async def test_what_one_work_waits_for_others_may_wait_for_too():
    done: list[str] = []
    gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    works = ShieldedTasks(in_place=True)

    async def work(name: str) -> None:
        done.append(f"{name} {await gate}")

    first, second = (asyncio.create_task(works.do(work(name))) for name in ("first", "second"))
    await asyncio.sleep(0)
    plain = asyncio.create_task(work("plain"))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    gate.set_result("waited")
    await second
    await plain
    await works.settled()
    assert sorted(done) == ["first waited", "plain waited", "second waited"]


@PLACES
async def test_a_cancellation_that_comes_with_the_answer_loses_neither(in_place: bool):
    done: list[object] = []
    gate = asyncio.get_running_loop().create_future()
    works = ShieldedTasks(in_place=in_place)

    async def work() -> None:
        done.append(await gate)

    caller = asyncio.create_task(works.do(work()))
    await asyncio.sleep(0.01)
    gate.set_result("waited")
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await works.settled()
    assert done == ["waited"]


async def test_a_rest_that_is_cancelled_too_lets_the_work_clean_up():
    done: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            done.append("clean")

    caller = asyncio.create_task(ShieldedTasks(in_place=True).do(work()))
    await asyncio.sleep(0.01)
    before = asyncio.all_tasks()
    caller.cancel()
    await asyncio.wait([caller])
    (rest,) = asyncio.all_tasks() - before
    await asyncio.sleep(0)
    rest.cancel()
    await asyncio.wait([rest])
    assert done == ["clean"]
