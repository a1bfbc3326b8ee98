"""The bus: order, isolation, async handlers, bounded streams."""

import asyncio
import gc
import logging
import threading

import pytest

from outrider import EventBus, ListenerOverflow, get_event_bus
from outrider.event_bus import QUEUE_LIMIT
from outrider.events import (
    DeltasDroppedEvent,
    Event,
    MessageAddedEvent,
    PartDeltaEvent,
    TurnCompletedEvent,
    TurnStartedEvent,
)


def turn(number: int) -> TurnStartedEvent:
    return TurnStartedEvent(turn_number=number)


def delta(number: int) -> PartDeltaEvent:
    return PartDeltaEvent(message_id="m", part_id="p", delta=str(number))


def test_a_handler_receives_its_class_and_subscribe_all_receives_everything():
    bus, turns, everything = EventBus(), [], []
    bus.subscribe(TurnStartedEvent, turns.append)
    bus.subscribe_all(everything.append)
    first, second = turn(1), MessageAddedEvent(role="user")
    bus.publish(first)
    bus.publish(second)
    assert turns == [first]
    assert everything == [first, second]


def test_a_filter_receives_events_with_listeners_and_those_it_asks_for():
    bus, filtered, received = EventBus(), list[Event](), list[Event]()

    def transform(event: Event) -> list[Event]:
        filtered.append(event)
        return [event]

    end = bus.add_transform(transform, TurnStartedEvent)
    assert not bus.has_listeners(TurnStartedEvent)
    bus.subscribe(TurnCompletedEvent, received.append)
    events = [turn(1), TurnCompletedEvent(turn_number=1), MessageAddedEvent(role="user")]
    assert [bus.has_listeners(type(event)) for event in events] == [True, True, False]
    for event in events:
        bus.publish(event)
    assert (filtered, received) == (events[:2], events[1:2])
    end()
    assert [bus.has_listeners(type(event)) for event in events] == [False, True, False]
    bus.publish(events[1])
    assert (filtered, received) == (events[:2], [events[1], events[1]])
    bus.add_transform(transform)
    assert bus.has_listeners(MessageAddedEvent)


def test_a_subscription_to_a_class_receives_its_subclasses():
    class Special(TurnStartedEvent, frozen=True):
        pass

    bus, received = EventBus(), []
    bus.publish(Special(turn_number=0))
    bus.subscribe(TurnStartedEvent, received.append)
    bus.publish(Special(turn_number=1))
    assert [event.turn_number for event in received] == [1]


def test_handlers_are_called_in_the_order_of_subscription():
    bus, received = EventBus(), []
    for name in "abc":
        bus.subscribe(TurnStartedEvent, lambda _, name=name: received.append(name))
    bus.publish(turn(1))
    assert received == ["a", "b", "c"]


def test_after_unsubscribing_nothing_is_received_and_doing_it_twice_is_harmless():
    bus, received = EventBus(), []
    unsubscribe = bus.subscribe(TurnStartedEvent, received.append)
    same_handler_again = bus.subscribe(TurnStartedEvent, received.append)
    unsubscribe()
    unsubscribe()
    bus.publish(turn(1))
    assert len(received) == 1
    same_handler_again()
    bus.publish(turn(2))
    assert len(received) == 1


def test_a_handler_that_raises_is_logged_and_affects_nothing_else(caplog):
    bus, received = EventBus(), []

    def broken(_: Event) -> None:
        raise RuntimeError("broken handler")

    bus.subscribe(TurnStartedEvent, broken)
    bus.subscribe(TurnStartedEvent, received.append)
    with caplog.at_level(logging.ERROR):
        bus.publish(turn(1))
    assert len(received) == 1
    assert "broken handler" in caplog.text


def test_handlers_may_subscribe_and_unsubscribe_during_a_delivery():
    bus, received = EventBus(), []
    late: list[int] = []

    def once(event: TurnStartedEvent) -> None:
        received.append(event.turn_number)
        stop()
        bus.subscribe(TurnStartedEvent, lambda event: late.append(event.turn_number))

    stop = bus.subscribe(TurnStartedEvent, once)
    bus.publish(turn(1))
    bus.publish(turn(2))
    assert received == [1]
    assert late == [2]


def test_a_handler_may_publish_another_event():
    bus, received = EventBus(), []
    bus.subscribe(TurnStartedEvent, lambda event: bus.publish(TurnCompletedEvent(turn_number=event.turn_number)))
    bus.subscribe_all(lambda event: received.append(event.event_type))
    bus.publish(turn(1))
    assert sorted(received) == ["TurnCompletedEvent", "TurnStartedEvent"]


def test_clear_forgets_every_listener():
    bus, received = EventBus(), []
    bus.subscribe_all(received.append)
    bus.clear()
    bus.publish(turn(1))
    assert received == []


def test_publishing_from_many_threads_reaches_everybody():
    bus, received = EventBus(), []
    bus.subscribe(TurnStartedEvent, received.append)
    threads = [threading.Thread(target=lambda: [bus.publish(turn(number)) for number in range(200)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(received) == 1600


def test_the_default_bus_is_one_and_an_engines_bus_is_its_own():
    assert get_event_bus() is get_event_bus()
    assert EventBus() is not get_event_bus()


async def test_an_async_handler_receives_everything_in_order():
    bus, received = EventBus(), []

    async def slow_at_first(event: TurnStartedEvent) -> None:
        await asyncio.sleep(0.01 if event.turn_number == 0 else 0)
        received.append(event.turn_number)

    bus.subscribe(TurnStartedEvent, slow_at_first)
    for number in range(20):
        bus.publish(turn(number))
    await bus.settled()
    assert received == list(range(20))


async def test_an_async_handler_that_raises_continues_with_the_next_event(caplog):
    bus, received = EventBus(), []

    async def fragile(event: TurnStartedEvent) -> None:
        if event.turn_number == 1:
            raise RuntimeError("fragile")
        received.append(event.turn_number)

    bus.subscribe(TurnStartedEvent, fragile)
    for number in range(3):
        bus.publish(turn(number))
    await bus.settled()
    assert received == [0, 2]
    assert "fragile" in caplog.text


def test_an_async_handler_works_in_a_plain_script():
    bus, received = EventBus(), []

    async def handler(event: TurnStartedEvent) -> None:
        await asyncio.sleep(0)
        received.append(event.turn_number)

    bus.subscribe(TurnStartedEvent, handler)
    bus.publish(turn(1))
    assert received == [1]


async def test_an_async_handler_runs_in_its_own_loop_when_another_thread_publishes():
    bus, received = EventBus(), []

    async def handler(event: TurnStartedEvent) -> None:
        received.append((event.turn_number, threading.current_thread()))

    bus.subscribe(TurnStartedEvent, handler)
    await asyncio.to_thread(bus.publish, turn(1))
    await asyncio.sleep(0.01)
    await bus.settled()
    assert received == [(1, threading.current_thread())]


async def test_an_async_handler_that_blocks_does_not_hold_the_publisher():
    bus, received = EventBus(), []
    release = asyncio.Event()

    async def stuck(_: TurnStartedEvent) -> None:
        await release.wait()

    bus.subscribe(TurnStartedEvent, stuck)
    bus.subscribe(TurnStartedEvent, received.append)
    bus.publish(turn(1))
    assert received
    release.set()
    await bus.settled()


async def test_a_stream_receives_from_the_moment_it_is_opened():
    bus = EventBus()
    async with bus.stream() as events:
        bus.publish(turn(1))
        bus.publish(turn(2))
        assert [(await anext(events)).turn_number, (await anext(events)).turn_number] == [1, 2]


async def test_a_stream_can_filter():
    bus = EventBus()
    async with bus.stream(lambda event: isinstance(event, TurnStartedEvent)) as events:
        bus.publish(MessageAddedEvent(role="user"))
        bus.publish(turn(1))
        assert isinstance(await anext(events), TurnStartedEvent)


async def test_a_slow_stream_loses_deltas_never_ends_and_is_reported():
    bus = EventBus()
    async with bus.stream(limit=10) as events:
        for number in range(100):
            bus.publish(delta(number))
        bus.publish(turn(1))
        bus.clear()
        received = [event async for event in events]
    dropped = [event.count for event in received if isinstance(event, DeltasDroppedEvent)]
    deltas = [event for event in received if isinstance(event, PartDeltaEvent)]
    assert any(isinstance(event, TurnStartedEvent) for event in received)
    assert sum(dropped) + len(deltas) == 100
    assert len(received) <= 12


async def test_a_slow_stream_delivers_every_end_in_order():
    bus = EventBus()
    async with bus.stream(limit=10) as events:
        for number in range(30):
            bus.publish(delta(number))
            bus.publish(turn(number))
        bus.clear()
        turns = [event.turn_number async for event in events if isinstance(event, TurnStartedEvent)]
    assert turns == list(range(30))


async def test_an_unread_stream_is_closed_after_its_buffered_events():
    bus = EventBus()
    async with bus.stream(limit=5) as events:
        for number in range(1000):
            bus.publish(turn(number))
        received = []
        with pytest.raises(ListenerOverflow):
            while True:
                received.append((await anext(events)).turn_number)
    assert received == list(range(320))


async def test_an_async_handler_receives_every_end_of_a_burst():
    bus, received = EventBus(), []

    async def handle(event: TurnStartedEvent) -> None:
        received.append(event.turn_number)

    bus.subscribe(TurnStartedEvent, handle)
    for number in range(20_000):
        bus.publish(turn(number))
    await bus.settled()
    assert received == list(range(20_000))


async def test_a_slow_async_handler_is_given_only_what_it_receives(caplog):
    bus, received = EventBus(), set()

    async def handle(event: PartDeltaEvent) -> None:
        received.add(type(event))

    bus.subscribe(PartDeltaEvent, handle)
    for number in range(5_000):
        bus.publish(delta(number))
    await bus.settled()
    assert received == {PartDeltaEvent}
    assert "too slow" in caplog.text


async def test_an_async_handler_that_is_too_far_behind_is_removed_once(caplog):
    bus, received = EventBus(), []

    async def handler(event: TurnStartedEvent) -> None:
        received.append(event.turn_number)

    bus.subscribe(TurnStartedEvent, handler)
    for number in range(64 * QUEUE_LIMIT + 1):
        bus.publish(turn(number))
    with caplog.at_level(logging.ERROR):
        await bus.settled()
        assert not bus.has_listeners(TurnStartedEvent)
        for number in range(3):
            bus.publish(turn(number))
            await bus.settled()
    assert received == list(range(64 * QUEUE_LIMIT))
    assert [record.message for record in caplog.records] == ["a listener is too far behind and was removed"]


async def test_a_stream_receives_other_threads():
    bus = EventBus()
    async with bus.stream() as events:
        thread = threading.Thread(target=lambda: [bus.publish(turn(number)) for number in range(50)])
        thread.start()
        received = [(await asyncio.wait_for(anext(events), 30)).turn_number for _ in range(50)]
        thread.join()
    assert received == list(range(50))


async def test_a_stream_that_is_dropped_half_way_leaves_no_listener():
    bus = EventBus()
    events = bus.stream()
    bus.publish(turn(1))
    await anext(events)
    assert bus.has_listeners(Event)
    del events
    gc.collect()
    assert not bus.has_listeners(Event)


async def test_clear_ends_open_streams():
    bus = EventBus()
    events = bus.stream()
    bus.publish(turn(1))
    bus.clear()
    assert [event.turn_number async for event in events] == [1]


async def test_what_a_plain_handler_gives_to_await_is_awaited_in_order():
    bus, received = EventBus(), []

    async def slowly(event: TurnStartedEvent) -> None:
        await asyncio.sleep(0.001 * (3 - event.turn_number))
        received.append(event.turn_number)

    bus.subscribe(TurnStartedEvent, lambda event: slowly(event))  # noqa: PLW0108  what people write
    for number in range(3):
        bus.publish(turn(number))
    await bus.settled()
    assert received == [0, 1, 2]


def test_what_a_plain_handler_gives_to_await_is_awaited_in_a_plain_script_too():
    bus, received = EventBus(), []

    async def receive(event: TurnStartedEvent) -> None:
        received.append(event.turn_number)

    bus.subscribe(TurnStartedEvent, lambda event: receive(event))  # noqa: PLW0108  what people write
    bus.publish(turn(1))
    assert received == [1]


async def test_what_goes_wrong_afterwards_is_logged_and_affects_nothing_else(caplog):
    bus, received = EventBus(), []

    async def fail(event: TurnStartedEvent) -> None:
        received.append(event.turn_number)
        raise ValueError("no")

    bus.subscribe(TurnStartedEvent, lambda event: fail(event))  # noqa: PLW0108  what people write
    bus.publish(turn(1))
    bus.publish(turn(2))
    await bus.settled()
    assert received == [1, 2]
    assert "awaitable of a listener" in caplog.text
