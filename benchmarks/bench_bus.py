"""Publishing an event to one synchronous listener, compared with a bare loop and two libraries."""

import time
from collections.abc import Callable
from dataclasses import replace

import blinker
import pyee

from benchmarks.figure import Figure
from outrider import EventBus
from outrider.events import TurnStartedEvent

COUNT = 200_000
ROUNDS = 7
PEERS = ("blinker", "pyee")


class Sink:
    """A listener that counts events."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, event: object) -> None:
        self.seen += 1


def bench() -> list[Figure]:
    event = TurnStartedEvent(turn_number=1)
    cases = {
        "loop": bare_loop(event),
        "bus": through_bus(event),
        "blinker": through_blinker(event),
        "pyee": through_pyee(event),
    }
    best = dict.fromkeys(cases, 1e9)
    for _ in range(ROUNDS):
        for name, case in cases.items():
            start = time.process_time()
            case()
            best[name] = min(best[name], (time.process_time() - start) / COUNT * 1e9)
    figures = [Figure("publish, against a bare loop", best["bus"], "ns", best["bus"] / best["loop"], "<= 2x")]
    figures += [
        Figure(f"publish, against {name}", best[name], "ns", best["bus"] / best[name], "< 1x") for name in PEERS
    ]
    return [replace(figure, ok=(figure.ratio or 9) <= (2 if "loop" in figure.name else 1)) for figure in figures]


def bare_loop(event: TurnStartedEvent) -> Callable[[], None]:
    handlers = [Sink()]

    def run() -> None:
        for _ in range(COUNT):
            for handler in handlers:
                handler(event)

    return run


def through_bus(event: TurnStartedEvent) -> Callable[[], None]:
    bus = EventBus()
    bus.subscribe(TurnStartedEvent, Sink())

    def run() -> None:
        for _ in range(COUNT):
            bus.publish(event)

    return run


def through_blinker(event: TurnStartedEvent) -> Callable[[], None]:
    signal, sink = blinker.Signal(), Sink()

    def listener(sender: object, event: TurnStartedEvent) -> None:
        sink(event)

    signal.connect(listener, weak=False)

    def run() -> None:
        for _ in range(COUNT):
            signal.send("bus", event=event)

    return run


def through_pyee(event: TurnStartedEvent) -> Callable[[], None]:
    emitter = pyee.EventEmitter()
    emitter.on("turn", Sink())

    def run() -> None:
        for _ in range(COUNT):
            emitter.emit("turn", event)

    return run
