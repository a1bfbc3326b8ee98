"""The agents, tools and providers that a run or an engine is created with, indexed by name and validated."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeVar

import msgspec

from outrider.errors import ConfigurationError
from outrider.tools.tool import Tool, tools_by_name
from outrider.types.agents import Agent, Provider
from outrider.types.modes import APPROVAL_LEVELS, MODES

Named = TypeVar("Named", Agent, Provider)


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The agents, tools and providers of a run or an engine, by name and checked. `more_tools` means that sessions add
    further tools, so an agent may name tools that are not known yet."""

    entry: Agent
    agents: Mapping[str, Agent]
    tools: Mapping[str, Tool]
    providers: Mapping[str, Provider]
    more_tools: bool = False

    @classmethod
    def build(
        cls,
        entry: Agent | str,
        agents: Iterable[Agent],
        tools: Iterable[Tool | Callable[..., Any]],
        providers: Iterable[Provider],
        *,
        more_tools: bool = False,
    ) -> Self:
        """Index agents, tools and providers by name and validate them. Raises ConfigurationError."""
        by_name = _by_name("agents", agents)
        if isinstance(entry, Agent):
            by_name.setdefault(entry.name, entry)
        elif entry not in by_name:
            raise ConfigurationError(f"the entry agent {entry!r} is not one of: {', '.join(by_name) or 'no agents'}")
        spec = cls(
            entry=by_name[entry.name if isinstance(entry, Agent) else entry],
            agents=by_name,
            tools=tools_by_name(tools),
            providers=_by_name("providers", providers),
            more_tools=more_tools,
        )
        spec._validate()
        return spec

    def _validate(self) -> None:
        for agent in self.agents.values():
            check_mode(agent.mode, f"agent {agent.name!r}")
            if agent.provider not in self.providers:
                known = f"there is {', '.join(self.providers)}" if self.providers else "no provider was given"
                raise ConfigurationError(f"agent {agent.name!r} needs the provider {agent.provider!r}; {known}")
            for tool in agent.tools or ():
                if tool not in self.tools and not self.more_tools:
                    raise ConfigurationError(f"agent {agent.name!r} needs the tool {tool!r}, which was not given")
        for name in ({"call_agent", "finish"} & self.tools.keys()) | (self.agents.keys() & self.tools.keys()):
            raise ConfigurationError(f"the name {name!r} is taken; give that tool another one")


def check_mode(mode: str | None, whose: str) -> None:
    """Raise ConfigurationError if the mode is unknown; `whose` names its owner in the message."""
    if mode is not None and mode not in MODES:
        raise ConfigurationError(f"{whose} has the unknown mode {mode!r}; modes: {', '.join(MODES)}")


def check_level(level: str | None, whose: str) -> None:
    """Raise ConfigurationError if the approval level is unknown; `whose` names its owner in the message."""
    if level is not None and level not in APPROVAL_LEVELS:
        known = ", ".join(APPROVAL_LEVELS)
        raise ConfigurationError(f"{whose} has the unknown approval level {level!r}; levels: {known}")


def _by_name(what: str, values: Iterable[Named]) -> dict[str, Named]:
    by_name: dict[str, Named] = {}
    for value in values:
        if value.name in by_name:
            raise ConfigurationError(f"two {what} are called {value.name!r}")
        by_name[value.name] = value
    return by_name
