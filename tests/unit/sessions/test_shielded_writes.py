"""A shielded write finishes even if its caller is cancelled."""

import asyncio

import pytest

from outrider.sessions.write_queue import ShieldedTasks

PLACES = pytest.mark.parametrize("inline", [True, False])


async def test_work_that_never_waits_takes_no_round_of_the_event_loop():
    """Other work that is ready does not run in between."""
    order: list[str] = []

    async def work() -> None:
        order.append("work")

    asyncio.get_running_loop().call_soon(order.append, "other")
    await ShieldedTasks(inline=True).run_shielded(work())
    assert order == ["work"]


async def test_work_runs_in_one_task_from_start_to_end():
    tasks: list[object] = []

    async def work() -> None:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0.001)
        tasks.append(asyncio.current_task())

    await ShieldedTasks(inline=False).run_shielded(work())
    assert tasks[0] is tasks[1] is not asyncio.current_task()


@PLACES
async def test_work_that_waits_gets_what_it_waited_for(inline: bool):
    done: list[object] = []
    gate = asyncio.get_running_loop().create_future()

    async def work() -> None:
        done.append(await gate)
        await asyncio.sleep(0)
        done.append("ended")

    asyncio.get_running_loop().call_later(0.001, gate.set_result, "waited")
    await ShieldedTasks(inline=inline).run_shielded(work())
    assert done == ["waited", "ended"]


@PLACES
@pytest.mark.parametrize("waits", [True, False])
async def test_what_goes_wrong_is_raised_to_the_caller(inline: bool, waits: bool):
    async def work() -> None:
        if waits:
            await asyncio.sleep(0.001)
        raise ValueError("oh")

    works = ShieldedTasks(inline=inline)
    with pytest.raises(ValueError, match="oh"):
        await works.run_shielded(work())
    await asyncio.sleep(0)
    assert not works.is_running


@PLACES
async def test_what_it_waits_for_may_fail_and_the_work_can_deal_with_it(inline: bool):
    done: list[str] = []
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        try:
            await gate
        except ValueError as error:
            done.append(str(error))

    asyncio.get_running_loop().call_later(0.001, gate.set_exception, ValueError("no"))
    await ShieldedTasks(inline=inline).run_shielded(work())
    assert done == ["no"]


@PLACES
async def test_a_caller_that_is_cancelled_leaves_at_once_and_the_work_continues(inline: bool):
    done: list[object] = []
    gate = asyncio.get_running_loop().create_future()
    works = ShieldedTasks(inline=inline)

    async def work() -> None:
        done.append(await gate)
        await asyncio.sleep(0)
        done.append("ended")

    caller = asyncio.create_task(works.run_shielded(work()))
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert works.is_running
    assert done == []
    gate.set_result("waited")
    await works.wait_finished()
    assert done == ["waited", "ended"]
    await asyncio.sleep(0)
    assert not works.is_running


async def test_what_one_work_waits_for_others_may_wait_for_too():
    done: list[str] = []
    gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    works = ShieldedTasks(inline=False)

    async def work(name: str) -> None:
        done.append(f"{name} {await gate}")

    first, second = (asyncio.create_task(works.run_shielded(work(name))) for name in ("first", "second"))
    await asyncio.sleep(0)
    plain = asyncio.create_task(work("plain"))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    gate.set_result("waited")
    await second
    await plain
    await works.wait_finished()
    assert sorted(done) == ["first waited", "plain waited", "second waited"]


@PLACES
async def test_the_end_of_running_work_can_be_awaited(inline: bool):
    done: list[str] = []
    gate = asyncio.Event()
    works = ShieldedTasks(inline=inline)

    async def work(name: str) -> None:
        await gate.wait()
        await asyncio.sleep(0)
        done.append(name)

    callers = [asyncio.create_task(works.run_shielded(work(name))) for name in ("first", "second")]
    await asyncio.sleep(0)
    callers[0].cancel()
    hasty, waiting = (asyncio.create_task(works.wait_finished()) for _ in range(2))
    await asyncio.sleep(0)
    hasty.cancel()
    await asyncio.wait([hasty])
    assert not waiting.done()
    gate.set()
    await waiting
    assert sorted(done) == ["first", "second"]
    assert not works.is_running
    await asyncio.wait(callers)


@PLACES
async def test_a_cancellation_that_comes_with_the_answer_loses_neither(inline: bool):
    done: list[object] = []
    gate = asyncio.get_running_loop().create_future()
    works = ShieldedTasks(inline=inline)

    async def work() -> None:
        done.append(await gate)

    caller = asyncio.create_task(works.run_shielded(work()))
    await asyncio.sleep(0.01)
    gate.set_result("waited")
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await works.wait_finished()
    assert done == ["waited"]


async def test_a_rest_that_is_cancelled_too_lets_the_work_clean_up():
    done: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            done.append("clean")

    before = asyncio.all_tasks()
    caller = asyncio.create_task(ShieldedTasks(inline=True).run_shielded(work()))
    await asyncio.sleep(0.01)
    caller.cancel()
    await asyncio.wait([caller])
    (rest,) = asyncio.all_tasks() - before
    await asyncio.sleep(0)
    rest.cancel()
    await asyncio.wait([rest])
    assert done == ["clean"]
