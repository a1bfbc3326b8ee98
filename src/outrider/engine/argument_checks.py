"""Checks of the arguments that programs pass: what is wrong, where, and what to write instead."""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, cast

from outrider.agents.hooks import Hooks
from outrider.errors import ConfigurationError
from outrider.event_bus import EventBus
from outrider.sessions.session import Session
from outrider.types.agents import Agent, Limits, Provider


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _is_store(value: Any) -> bool:
    return not isinstance(value, type) and hasattr(value, "append") and hasattr(value, "create")


def _is_one_of(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


_ARGUMENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "limits": (_is_one_of(Limits), "Limits(turns=20, seconds=60)"),
    "hooks": (_is_one_of(Hooks), "Hooks(before_call=function)"),
    "bus": (_is_one_of(EventBus), "EventBus()"),
    "store": (_is_store, 'an open store, such as `async with SqliteStore("sessions.db") as store`'),
    "session": (_is_one_of(Session, str), "a Session, or the id of one in `store`"),
    "approve": (callable, "a function that takes an ApprovalRequest and returns True or False"),
    "deps": (callable, "a function that takes a SessionContext and returns the dependencies"),
    "owner": (_is_one_of(str), "a text, such as the name of the user"),
    "instructions": (_is_one_of(str), "a text"),
    "callback_seconds": (_is_number, "a number of seconds, or None for no limit"),
}


def check_arguments(where: str, arguments: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for an argument of the wrong type. None is the default of each."""
    for name, value in arguments.items():
        expected = _ARGUMENTS.get(name)
        if value is not None and expected is not None and not expected[0](value):
            raise ConfigurationError(f"{where}: {name} is {_describe(value)}; pass {expected[1]}")


def check_names(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise ConfigurationError for a keyword argument that does not exist, with the nearest one that does."""
    names = list(known)
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names)}"
            raise ConfigurationError(f"{where} has no argument {name!r}; {hint}")


def check_parts(where: str, agents: Any, tools: Any, providers: Any) -> None:
    """Raise ConfigurationError if agents, tools or providers are not lists of such values."""
    for name, values, kind in (("agents", agents, Agent), ("tools", tools, None), ("providers", providers, Provider)):
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ConfigurationError(f"{where}: {name} is a list, got {_describe(values)}; write {name}=[…]")
        if kind is None or not isinstance(values, list | tuple):
            continue
        for value in cast("Iterable[Any]", values):
            if not isinstance(value, kind) and not hasattr(value, "name"):
                raise ConfigurationError(
                    f"{where}: {name} has {_describe(value)}; it has {kind.__name__} values, such as {_EXAMPLES[kind]}"
                )


_EXAMPLES: dict[type, str] = {
    Agent: 'Agent("helper", "You help.", model=…, provider=…)',
    Provider: 'Provider("openai", kind="openai")',
}


def _describe(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    shown = repr(value)
    return f"a value of type {type(value).__name__}" + (f" ({shown})" if len(shown) <= 40 else "")
