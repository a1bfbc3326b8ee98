"""Publish and subscribe. A listener cannot break, block or starve a publisher or another listener.

Synchronous handlers run inline, in the publisher's thread. Async handlers and `stream()` have a bounded queue each: a
slow listener loses deltas (their full value follows) and is notified, but never loses other events; a listener that is
too far behind is removed."""

import asyncio
import inspect
import logging
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from functools import cache, reduce
from typing import Any, Self, TypeVar

from outrider._lazy import deprecated_method
from outrider._sync import describe_value, is_interruption
from outrider.errors import ConfigurationError, ListenerOverflow
from outrider.types.events import DeltasDroppedEvent, Event

E = TypeVar("E", bound=Event)
Handler = Callable[[E], Any]
Unsubscribe = Callable[[], None]
EventFilter = Callable[[Event], bool]
EventTransform = Callable[[Event], Iterable[Event]]
EventClasses = type[Event] | tuple[type[Event], ...]
CallScope = Callable[[str, str], AbstractContextManager[Any]]

QUEUE_LIMIT = 1024
_OVERFLOW_FACTOR = 64  # a queue may have this multiple of its limit of events that must not be dropped

_log = logging.getLogger("outrider.event_bus")


Route = tuple[Handler[Any], ...] | None


class _HandlerTable(dict[type[Event], Route]):
    """Cache: event class → its handlers, computed on the first event of a class; None if there is no handler."""

    def __init__(self, find: Callable[[type[Event]], Route]) -> None:
        self._find = find

    def __missing__(self, cls: type[Event]) -> Route:
        self[cls] = handlers = self._find(cls)
        return handlers


class EventBus:
    """An event bus. Every engine has one. A subscription to a class receives events of its subclasses too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._returned_awaitables = _ReturnedAwaitables()
        self._transforms: tuple[tuple[EventTransform, EventClasses], ...] = ()
        self._transform: EventTransform | None = None
        self.call_scopes: list[CallScope] = []
        self._replace_subscriptions([])

    def publish(self, event: Event) -> None:
        """Delivers an event to all listeners of its class and of its base classes. Errors of a listener do not reach
        the publisher."""
        if self._handlers[event.__class__] is None:
            return
        if self._transform is None:
            self._deliver(event)
            return
        try:
            results = tuple(self._transform(event))
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001  an event that cannot be redacted is dropped; the publisher continues
            _log.exception("%s was dropped: a transform failed", type(event).__name__)
            return
        for result in results:
            self._deliver(result)

    def has_listeners(self, event_class: type[Event]) -> bool:
        """Returns whether an event of this class has a listener. Without one, the publisher need not create the
        event."""
        return self._handlers[event_class] is not None

    def add_transform(self, transform: EventTransform, classes: EventClasses = Event) -> Unsubscribe:
        """Replaces every published event with the events that `transform` returns, which may be none, the same or
        others. Events of `classes` are passed to it even if they have no listener. Returns a function that removes the
        transform."""
        entry = (transform, classes)
        with self._lock:
            self._replace_transforms((*self._transforms, entry))

        def end() -> None:
            with self._lock:
                self._replace_transforms(tuple(other for other in self._transforms if other is not entry))

        return end

    hears = deprecated_method("hears", has_listeners)
    tell_through = deprecated_method("tell_through", add_transform)

    def _deliver(self, event: Event) -> None:
        for handler in self._handlers[event.__class__] or ():
            try:
                outcome = handler(event)
                if outcome is not None and inspect.isawaitable(outcome):
                    self._returned_awaitables.add(outcome)
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001  an error of a listener must not reach the publisher
                _log.exception("a listener failed on %s", type(event).__name__)

    def subscribe(self, event_class: type[E] | tuple[type[E], ...], handler: Handler[E]) -> Unsubscribe:
        """Calls `handler`, a sync or async function, for every event of a class, or of several classes. Returns a
        function that unsubscribes."""
        classes = event_class if isinstance(event_class, tuple) else (event_class,)
        if not all(isinstance(cls, type) and issubclass(cls, Event) for cls in classes) or not callable(handler):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"subscribe() takes a class of outrider.events and a function, got {describe_value(event_class)} "
                f"and {describe_value(handler)}"
            )
        if _is_async(handler):  # a weak reference, because the bus refers to the handler
            handler = _AsyncHandler(classes, handler, weakref.WeakMethod(self._remove_handler))
        entry = (classes, handler)
        with self._lock:
            self._replace_subscriptions([*self._subscriptions, entry])

        def unsubscribe() -> None:
            with self._lock:
                self._replace_subscriptions([other for other in self._subscriptions if other is not entry])

        return unsubscribe

    def subscribe_all(self, handler: Handler[Event]) -> Unsubscribe:
        """Calls `handler` with every event. Returns a function that ends the subscription."""
        return self.subscribe(Event, handler)

    def clear(self) -> None:
        """Removes every listener. Open streams end after the queued events."""
        with self._lock:
            subscriptions = self._subscriptions
            self._replace_subscriptions([])
        for _, handler in subscriptions:
            if isinstance(handler, _StreamQueue):
                handler.close()

    def stream(self, filter: EventFilter | None = None, *, limit: int = QUEUE_LIMIT) -> "EventStream":
        """Returns an async iterator over events from now on. When `limit` events are queued, deltas are dropped and a
        DeltasDroppedEvent reports their number; at 64 times the limit, ListenerOverflow is raised after the queued
        events."""
        queue = _StreamQueue(limit, filter)
        return EventStream(queue, self.subscribe_all(queue))

    async def settled(self, seconds: float | None = 60.0) -> None:
        """Waits until the async handlers of this loop have handled every published event, at most for `seconds`. A
        handler that takes longer continues in the background."""
        handlers = [handler for _, handler in self._subscriptions if isinstance(handler, _AsyncHandler)]
        if not handlers and self._returned_awaitables.is_empty:
            return
        try:
            async with asyncio.timeout(seconds):
                for handler in (*handlers, self._returned_awaitables):
                    await handler.settled()
        except TimeoutError:
            _log.error("a listener did not handle its events within %g s", seconds or 0)

    def forward_to(self, other: "EventBus") -> Unsubscribe:
        """Publishes every event to another bus too, and uses the call scopes of that bus."""
        self.call_scopes = other.call_scopes
        return self.subscribe_all(other.publish)

    def add_call_scope(self, scope: CallScope) -> Unsubscribe:
        """Enters `scope(session_id, call_id)` around the function of every tool call, in its task or thread. A tracer
        uses it to make its span the current one. Returns a function that removes the scope."""
        self.call_scopes.append(scope)
        return lambda: self.call_scopes.remove(scope)

    def _replace_subscriptions(self, subscriptions: list[tuple[tuple[type[Event], ...], Handler[Any]]]) -> None:
        """Creates a new list and a new table each time, so that a delivery in progress is not affected."""
        self._subscriptions = subscriptions
        self._handlers = _HandlerTable(self._find_handlers)

    def _remove_handler(self, handler: Handler[Any]) -> None:
        with self._lock:
            self._replace_subscriptions([other for other in self._subscriptions if other[1] is not handler])

    def _replace_transforms(self, transforms: tuple[tuple[EventTransform, EventClasses], ...]) -> None:
        self._transforms = transforms
        self._transform = reduce(_compose, [transform for transform, _ in transforms]) if transforms else None
        self._replace_subscriptions(self._subscriptions)

    def _find_handlers(self, cls: type[Event]) -> Route:
        if not self._subscriptions:
            return None
        handlers = tuple([handler for subscribed, handler in self._subscriptions if issubclass(cls, subscribed)])
        if handlers or any([issubclass(cls, classes) for _, classes in self._transforms]):
            return handlers
        return None


def _compose(first: EventTransform, second: EventTransform) -> EventTransform:
    return lambda event: [result for intermediate in first(event) for result in second(intermediate)]


class _BoundedEventQueue:
    """A bounded queue for one listener. When it is full, deltas are dropped first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._events: deque[Event] = deque()
        self._deltas = 0  # number of queued deltas
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
            self.overflowed = len(self._events) >= _OVERFLOW_FACTOR * self._limit

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
        """Removes queued deltas and merges earlier reports about dropped deltas."""
        retained: deque[Event] = deque()
        for event in self._events:
            if isinstance(event, DeltasDroppedEvent):
                self._dropped += event.count
            elif event.droppable:
                self._dropped += 1
            else:
                retained.append(event)
        self._events, self._deltas = retained, 0


class _StreamQueue:
    """The queue of a `stream()`: filled from any thread, read in the event loop that created it."""

    def __init__(self, limit: int, filter: EventFilter | None) -> None:
        self._queue = _BoundedEventQueue(limit)
        self._filter = filter
        self._closed = False
        self._arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def __call__(self, event: Event) -> None:
        if self._closed or (self._filter is not None and not self._filter(event)):
            return
        self._queue.put(event)
        self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()

    async def get(self) -> Event | None:
        """Returns the next event; None once closed and empty. Raises ListenerOverflow after the last queued event of an
        overflowed queue."""
        while True:
            self._arrived.clear()
            if (event := self._queue.take()) is not None:
                return event
            if self._queue.overflowed:
                raise ListenerOverflow("this listener is too far behind and was removed")
            if self._closed:
                return None
            await self._arrived.wait()

    def _wake(self) -> None:
        if threading.get_ident() == self._thread:
            self._arrived.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrived.set)


class EventStream(AsyncIterator[Event]):
    """An async iterator over events. Closing it, leaving its `async with` block or deleting it unsubscribes."""

    def __init__(self, mailbox: _StreamQueue, unsubscribe: Unsubscribe) -> None:
        self._queue = mailbox
        self._end = weakref.finalize(self, unsubscribe)

    async def __anext__(self) -> Event:
        event = await self._queue.get()
        if event is None:
            await self.aclose()
            raise StopAsyncIteration
        return event

    def close(self) -> None:
        """Ends the subscription. Events that are already queued can still be read."""
        self._end()
        self._queue.close()

    async def aclose(self) -> None:
        """Ends the subscription, like `close`."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _AsyncHandler:
    """Calls an async handler for one event at a time, in order.

    The handler runs in the loop that was running when it subscribed, or else in the publisher's loop. In a script
    without a loop, it runs in a new loop before `publish` returns."""

    def __init__(
        self,
        event_classes: tuple[type[Event], ...],
        handler: Callable[[Any], Awaitable[Any]],
        remove_handler: weakref.WeakMethod[Callable[[Handler[Any]], None]],
    ) -> None:
        self._remove_handler = remove_handler
        self._removed = False
        self._event_classes = event_classes
        self._handler = handler
        self._queue = _BoundedEventQueue(QUEUE_LIMIT)
        self._task: asyncio.Task[None] | None = None
        self._loop = _running_loop()

    def __call__(self, event: Event) -> None:
        self._queue.put(event)
        current_loop = _running_loop()
        loop = current_loop if self._loop is None or self._loop.is_closed() else self._loop
        if loop is None:
            asyncio.run(self._handle_queued())
        elif loop is current_loop:
            self._start_task(loop)
        else:
            loop.call_soon_threadsafe(self._start_task, loop)

    async def settled(self) -> None:
        if self._task is not None and not self._task.done() and self._task is not asyncio.current_task():
            await asyncio.wait([self._task])

    def _start_task(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._handle_queued())

    async def _handle_queued(self) -> None:
        while (event := self._queue.take()) is not None:
            if not isinstance(event, self._event_classes):
                _log.warning(
                    "a listener was too slow: %s", event
                )  # a DeltasDroppedEvent, which it did not subscribe to
                continue
            try:
                await self._handler(event)
            except BaseException as error:
                if is_interruption(error, asyncio.current_task()):
                    raise
                _log.exception("a listener failed on %s", type(event).__name__)
        if self._queue.overflowed and not self._removed:
            self._removed = True
            _log.error("a listener is too far behind and was removed")
            if (remove := self._remove_handler()) is not None:
                remove(self)


class _ReturnedAwaitables:
    """Awaits the awaitables that synchronous handlers return, such as a lambda around an async function. They are
    awaited one at a time in the publisher's loop; without a loop, in a new loop before `publish` returns."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.AbstractEventLoop, tuple[deque[Awaitable[Any]], asyncio.Task[None]]] = {}

    def add(self, outcome: Awaitable[Any]) -> None:
        loop = _running_loop()
        if loop is None:
            asyncio.run(_await_all(deque([outcome])))
        elif loop not in self._tasks:
            waiting = deque([outcome])
            work = loop.create_task(_await_all(waiting))
            work.add_done_callback(lambda _: self._tasks.pop(loop, None))
            self._tasks[loop] = waiting, work
        elif len(waiting := self._tasks[loop][0]) < _OVERFLOW_FACTOR * QUEUE_LIMIT:
            waiting.append(outcome)
        else:
            _log.error("a listener is too far behind; its coroutine was closed without running")
            if inspect.iscoroutine(outcome):
                outcome.close()

    @property
    def is_empty(self) -> bool:
        return not self._tasks

    async def settled(self) -> None:
        _, work = self._tasks.get(asyncio.get_running_loop(), (None, None))
        if work is not None and work is not asyncio.current_task():
            await asyncio.wait([work])


async def _await_all(waiting: deque[Awaitable[Any]]) -> None:
    while waiting:
        try:
            await waiting.popleft()
        except BaseException as error:
            if is_interruption(error, asyncio.current_task()):
                raise
            _log.exception("an awaitable of a listener failed")


def _is_async(handler: Handler[Any]) -> bool:
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    if code is not None:  # a function or a method; cheaper than inspect.iscoroutinefunction
        return bool(code.co_flags & inspect.CO_COROUTINE)
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def check_bus(bus: object, where: str) -> None:
    """Raises ConfigurationError if a value is not a bus. `where` names the function to which it was passed."""
    if not isinstance(bus, EventBus):
        raise ConfigurationError(
            f"{where} takes an EventBus, such as engine.bus or EventBus(), got {describe_value(bus)}"
        )


@cache
def get_event_bus() -> EventBus:
    """Returns the default bus, for scripts. Every Engine has a separate bus."""
    return EventBus()
