"""Publish and subscribe. A listener cannot break, block or starve a publisher or another listener.

Plain handlers run at once, in the publisher's thread. Async handlers and `stream()` have a bounded backlog each: a slow
one loses deltas (whose full value follows anyway) and is told, never ends; one that is hopelessly behind is let go.
"""

import asyncio
import inspect
import logging
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import cache, reduce
from typing import Any, Self, TypeVar

from outrider.errors import ListenerOverflow
from outrider.types.events import DeltasDroppedEvent, Event

E = TypeVar("E", bound=Event)
Handler = Callable[[E], Any]
Unsubscribe = Callable[[], None]
EventFilter = Callable[[Event], bool]
Teller = Callable[[Event], Iterable[Event]]
Minded = type[Event] | tuple[type[Event], ...]

BACKLOG = 1024
_PATIENCE = 64  # ends may wait in such a multiple of a backlog's limit

_log = logging.getLogger("outrider.event_bus")


Route = tuple[Handler[Any], ...] | None


class _Routes(dict[type[Event], Route]):
    """Event class → the handlers that hear it, worked out on the first event of a class; None where such an event
    reaches nobody at all."""

    def __init__(self, find: Callable[[type[Event]], Route]) -> None:
        self._find = find

    def __missing__(self, cls: type[Event]) -> Route:
        self[cls] = handlers = self._find(cls)
        return handlers


class EventBus:
    """One bus per engine. Subscribing to a class hears its subclasses too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._afterwards = _Afterwards()
        self._tellers: tuple[tuple[Teller, Minded], ...] = ()
        self._teller: Teller | None = None
        self._replace_subscriptions([])

    def publish(self, event: Event) -> None:
        if self._routes[event.__class__] is None:
            return
        if self._teller is None:
            self._tell(event)
            return
        for told in self._told(event, self._teller):
            self._tell(told)

    def hears(self, event_class: type[Event]) -> bool:
        """Whether an event of this class reaches anybody; one that does not need not be made."""
        return self._routes[event_class] is not None

    def tell_through(self, teller: Teller, minds: Minded = Event) -> Unsubscribe:
        """From now on listeners hear what the teller makes of each event: nothing, the event, or others. What it
        `minds` reaches it even where nobody listens to such events. Returns what ends that."""
        entry = (teller, minds)
        with self._lock:
            self._replace_tellers((*self._tellers, entry))

        def end() -> None:
            with self._lock:
                self._replace_tellers(tuple(other for other in self._tellers if other is not entry))

        return end

    def _told(self, event: Event, teller: Teller) -> Iterable[Event]:
        try:
            return tuple(teller(event))
        except Exception:  # noqa: BLE001  an event that cannot be made safe is not told, and its publisher goes on
            _log.exception("%s was not told", type(event).__name__)
            return ()

    def _tell(self, event: Event) -> None:
        for handler in self._routes[event.__class__] or ():
            try:
                outcome = handler(event)
                if outcome is not None and inspect.isawaitable(outcome):
                    self._afterwards.add(outcome)
            except Exception:  # noqa: BLE001  whatever a listener does wrong stays with the listener
                _log.exception("a listener failed on %s", type(event).__name__)

    def subscribe(self, event_class: type[E], handler: Handler[E]) -> Unsubscribe:
        """Hear every event of a class; the handler is plain or async. Returns what ends the subscription."""
        entry = (event_class, _Courier(event_class, handler) if _is_async(handler) else handler)
        with self._lock:
            self._replace_subscriptions([*self._subscriptions, entry])

        def unsubscribe() -> None:
            with self._lock:
                self._replace_subscriptions([other for other in self._subscriptions if other is not entry])

        return unsubscribe

    def subscribe_all(self, handler: Handler[Event]) -> Unsubscribe:
        return self.subscribe(Event, handler)

    def clear(self) -> None:
        """Forget every listener; open streams end after what they still hold."""
        with self._lock:
            forgotten = self._subscriptions
            self._replace_subscriptions([])
        for _, handler in forgotten:
            if isinstance(handler, _Mailbox):
                handler.close()

    def stream(self, filter: EventFilter | None = None, *, limit: int = BACKLOG) -> "EventStream":
        """Events from now on, until the iterator is closed. With `limit` waiting, deltas are dropped and a
        DeltasDroppedEvent says how many; with 64 times as many, ListenerOverflow follows what is held."""
        mailbox = _Mailbox(limit, filter)
        return EventStream(mailbox, self.subscribe_all(mailbox))

    async def settled(self) -> None:
        """Wait until the async handlers of this loop have heard everything that was published."""
        for _, handler in self._subscriptions:
            if isinstance(handler, _Courier):
                await handler.settled()
        await self._afterwards.settled()

    def _replace_subscriptions(self, subscriptions: list[tuple[type[Event], Handler[Any]]]) -> None:
        """A new list and new routes each time, so that a delivery under way goes on undisturbed."""
        self._subscriptions = subscriptions
        self._routes = _Routes(self._find)

    def _replace_tellers(self, tellers: tuple[tuple[Teller, Minded], ...]) -> None:
        self._tellers = tellers
        self._teller = reduce(_through_both, [teller for teller, _ in tellers]) if tellers else None
        self._replace_subscriptions(self._subscriptions)

    def _find(self, cls: type[Event]) -> Route:
        found = tuple(handler for heard, handler in self._subscriptions if issubclass(cls, heard))
        minded = bool(self._subscriptions) and any(issubclass(cls, minds) for _, minds in self._tellers)
        return found if found or minded else None


def _through_both(first: Teller, then: Teller) -> Teller:
    return lambda event: [told for heard in first(event) for told in then(heard)]


class _Backlog:
    """What waits for one slow listener: bounded, and deltas go first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._events: deque[Event] = deque()
        self._deltas = 0  # of those that wait
        self._dropped = 0
        self._lock = threading.Lock()
        self.overflowed = False

    def put(self, event: Event) -> None:
        with self._lock:
            if self.overflowed:
                return
            if len(self._events) >= self._limit:
                if event.droppable:
                    self._dropped += 1
                    return
                if self._deltas:
                    self._drop_deltas()
            if self._dropped:
                self._events.append(DeltasDroppedEvent(count=self._dropped))
                self._dropped = 0
            self._events.append(event)
            self._deltas += event.droppable
            self.overflowed = len(self._events) >= _PATIENCE * self._limit

    def take(self) -> Event | None:
        with self._lock:
            if self._events:
                event = self._events.popleft()
                self._deltas -= event.droppable
                return event
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                return DeltasDroppedEvent(count=dropped)
            return None

    def _drop_deltas(self) -> None:
        """Only ends stay; earlier words about dropped deltas become one."""
        kept: deque[Event] = deque()
        for event in self._events:
            if isinstance(event, DeltasDroppedEvent):
                self._dropped += event.count
            elif event.droppable:
                self._dropped += 1
            else:
                kept.append(event)
        self._events, self._deltas = kept, 0


class _Mailbox:
    """The backlog of a `stream()`: filled from any thread, read in the event loop that opened it."""

    def __init__(self, limit: int, filter: EventFilter | None) -> None:
        self._backlog = _Backlog(limit)
        self._filter = filter
        self._closed = False
        self._arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def __call__(self, event: Event) -> None:
        if self._closed or (self._filter is not None and not self._filter(event)):
            return
        self._backlog.put(event)
        self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()

    async def get(self) -> Event | None:
        """The next event; None once closed and empty. ListenerOverflow once an overflowing backlog is empty."""
        while True:
            self._arrived.clear()
            if (event := self._backlog.take()) is not None:
                return event
            if self._backlog.overflowed:
                raise ListenerOverflow("this listener fell too far behind and was let go")
            if self._closed:
                return None
            await self._arrived.wait()

    def _wake(self) -> None:
        if threading.get_ident() == self._thread:
            self._arrived.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrived.set)


class EventStream(AsyncIterator[Event]):
    """An open ear on the bus. Closing it, leaving its `async with` block, or dropping it ends the subscription."""

    def __init__(self, mailbox: _Mailbox, unsubscribe: Unsubscribe) -> None:
        self._mailbox = mailbox
        self._end = weakref.finalize(self, unsubscribe)

    async def __anext__(self) -> Event:
        event = await self._mailbox.get()
        if event is None:
            await self.aclose()
            raise StopAsyncIteration
        return event

    def close(self) -> None:
        """What it still holds can be read; then it ends."""
        self._end()
        self._mailbox.close()

    async def aclose(self) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _Courier:
    """Brings events to an async handler, one after the other and in order.

    They are handled in the loop that was running when the handler subscribed, else in the publisher's loop, else (a
    plain script) at once, before `publish` returns."""

    def __init__(self, event_class: type[Event], handler: Callable[[Any], Awaitable[Any]]) -> None:
        self._event_class = event_class
        self._handler = handler
        self._backlog = _Backlog(BACKLOG)
        self._round: asyncio.Task[None] | None = None
        self._home = _running_loop()

    def __call__(self, event: Event) -> None:
        self._backlog.put(event)
        here = _running_loop()
        home = here if self._home is None or self._home.is_closed() else self._home
        if home is None:
            asyncio.run(self._deliver())
        elif home is here:
            self._start(home)
        else:
            home.call_soon_threadsafe(self._start, home)

    async def settled(self) -> None:
        if self._round is not None and not self._round.done() and self._round is not asyncio.current_task():
            await asyncio.wait([self._round])

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._round is None or self._round.done():
            self._round = loop.create_task(self._deliver())

    async def _deliver(self) -> None:
        while (event := self._backlog.take()) is not None:
            if not isinstance(event, self._event_class):
                _log.warning("a listener was too slow: %s", event)  # a word about dropped deltas, not what it hears
                continue
            try:
                await self._handler(event)
            except Exception:  # noqa: BLE001  as in publish
                _log.exception("a listener failed on %s", type(event).__name__)
        if self._backlog.overflowed:
            _log.error("a listener fell too far behind and was let go")


class _Afterwards:
    """Awaits what plain handlers give back, as a lambda around an async function does: in the publisher's loop, one
    after the other; in a plain script at once."""

    def __init__(self) -> None:
        self._rounds: dict[asyncio.AbstractEventLoop, tuple[deque[Awaitable[Any]], asyncio.Task[None]]] = {}

    def add(self, outcome: Awaitable[Any]) -> None:
        loop = _running_loop()
        if loop is None:
            asyncio.run(_awaited(deque([outcome])))
        elif loop not in self._rounds:
            waiting = deque([outcome])
            work = loop.create_task(_awaited(waiting))
            work.add_done_callback(lambda _: self._rounds.pop(loop, None))
            self._rounds[loop] = waiting, work
        elif len(waiting := self._rounds[loop][0]) < _PATIENCE * BACKLOG:
            waiting.append(outcome)
        else:
            _log.error("a listener fell too far behind; what it wanted to do now is not done")
            if inspect.iscoroutine(outcome):
                outcome.close()

    async def settled(self) -> None:
        _, work = self._rounds.get(asyncio.get_running_loop(), (None, None))
        if work is not None and work is not asyncio.current_task():
            await asyncio.wait([work])


async def _awaited(waiting: deque[Awaitable[Any]]) -> None:
    while waiting:
        try:
            await waiting.popleft()
        except Exception:  # noqa: BLE001  as in publish
            _log.exception("a listener failed afterwards")


def _is_async(handler: Handler[Any]) -> bool:
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    if code is not None:  # a plain function or a method, as nearly all are
        return bool(code.co_flags & inspect.CO_COROUTINE)
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@cache
def get_event_bus() -> EventBus:
    """The default bus, for scripts that ask for one; an Engine has its own."""
    return EventBus()
