"""One record of an event log, made only of values that JSON gives back unchanged."""

import math
from types import NoneType
from typing import Any, Literal, cast, get_args

import msgspec

EventKind = Literal["llm_call", "llm_response", "tool_exec", "agent_call", "agent_return", "finish", "error"]
EVENT_KINDS: tuple[EventKind, ...] = get_args(EventKind)

TEXT_LIMIT = 20_000
ITEM_LIMIT = 200
DEPTH_LIMIT = 12
_SMALL = (int, bool, NoneType)


class AgentEvent(msgspec.Struct, frozen=True):
    """What an agent did. `call_id` joins a call to its return; `parent_call_id` is the call that it happened in."""

    type: EventKind
    agent_name: str = ""
    timestamp: int = 0
    call_id: str = ""
    parent_call_id: str = ""
    session_id: str = ""
    data: dict[str, Any] = {}

    @property
    def event_type(self) -> EventKind:
        return self.type

    def to_dict(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "AgentEvent":
        return msgspec.convert(value, cls)


def bounded(value: Any, depth: int = 0) -> Any:
    """A copy that is small enough to keep and that JSON can hold; what had to be cut says so."""
    if value.__class__ in _SMALL:
        return value
    if isinstance(value, str):
        return bounded_text(value)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth >= DEPTH_LIMIT:
        return "(nested too deeply to be kept)"
    if isinstance(value, dict):
        return _bounded_dict(cast("dict[Any, Any]", value), depth + 1)
    if isinstance(value, list | tuple):
        return _bounded_list(cast("list[Any] | tuple[Any, ...]", value), depth + 1)
    return bounded_text(_shown(value))


def bounded_text(text: str) -> str:
    if len(text) > TEXT_LIMIT:
        text = f"{text[:TEXT_LIMIT]}… ({len(text) - TEXT_LIMIT:,} more characters)"
    # Half of a surrogate pair, as broken tool output has it, cannot be written as UTF-8.
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _bounded_dict(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    items = list(value.items())
    kept = {bounded_text(str(key)): bounded(item, depth) for key, item in items[:ITEM_LIMIT]}
    if len(items) > ITEM_LIMIT:
        kept["…"] = f"({len(items) - ITEM_LIMIT:,} more entries)"
    return kept


def _bounded_list(value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
    kept = [bounded(item, depth) for item in value[:ITEM_LIMIT]]
    if len(value) > ITEM_LIMIT:
        kept.append(f"({len(value) - ITEM_LIMIT:,} more items)")
    return kept


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  a user's own __repr__ may do anything
        return f"({type(value).__name__})"
