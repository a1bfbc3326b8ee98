"""Deprecated alias: import the event bus from `outrider`. This path was public in version 0.1."""

from outrider._lazy import deprecated_names

__getattr__ = deprecated_names(
    __name__,
    {name: ("outrider.event_bus", name) for name in ("EventBus", "EventStream", "get_event_bus")},
)
