"""The alarm of a connection, on a separate clock."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from outrider.http.connection import RestartableTimer


class Timer:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call = call
        self.canceled = False

    def when(self) -> float:
        return self.at

    def cancel(self) -> None:
        self.canceled = True


class Clock:
    """The part of an event loop that an alarm needs."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []
        self.started = 0

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        self.started += 1
        self.timers.append(Timer(at, call))
        return self.timers[-1]

    def advance_to(self, moment: float) -> None:
        while due := [timer for timer in self.timers if not timer.canceled and timer.at <= moment]:
            timer = min(due, key=Timer.when)
            self.timers.remove(timer)
            self.now = timer.at
            timer.call()
        self.now = moment


def on(clock: Clock) -> RestartableTimer:
    return RestartableTimer(cast("asyncio.AbstractEventLoop", cast("Any", clock)))


def test_what_is_put_off_happens_once_at_the_last_moment_that_was_set():
    clock, rung = Clock(), list[float]()
    alarm = on(clock)
    for moment in range(5):
        clock.advance_to(moment)
        alarm.set(10, lambda: rung.append(clock.now))
    assert clock.started == 1
    clock.advance_to(100)
    assert rung == [14]


def test_what_is_set_to_an_earlier_moment_happens_then():
    clock, rung = Clock(), list[str]()
    alarm = on(clock)
    alarm.set(10, lambda: rung.append("late"))
    alarm.set(1, lambda: rung.append("soon"))
    clock.advance_to(1)
    assert rung == ["soon"]
    clock.advance_to(100)
    assert rung == ["soon"]


def test_what_is_called_off_does_not_happen_and_can_be_set_again():
    clock, rung = Clock(), list[float]()
    alarm = on(clock)
    alarm.set(10, lambda: rung.append(clock.now))
    alarm.clear()
    clock.advance_to(20)
    assert rung == []
    alarm.set(10, lambda: rung.append(clock.now))
    clock.advance_to(100)
    assert rung == [30]


def test_who_is_rung_may_set_it_again():
    clock, rung = Clock(), list[float]()
    alarm = on(clock)

    def ring() -> None:
        rung.append(clock.now)
        if len(rung) < 3:
            alarm.set(5, ring)

    alarm.set(1, ring)
    clock.advance_to(100)
    assert rung == [1, 6, 11]


def test_a_closed_alarm_leaves_no_timer():
    clock = Clock()
    alarm = on(clock)
    alarm.set(10, lambda: None)
    alarm.close()
    assert all(timer.canceled for timer in clock.timers)
