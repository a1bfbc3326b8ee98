"""Helpers of scenario tests: a scripted model, agents, and a run whose events are recorded."""

from collections.abc import Callable, Iterable
from typing import Any

from outrider import Agent, EventBus, Limits, Provider, RunResult, Tool, async_run
from outrider.events import Event
from outrider.providers.scripted import call

__all__ = ["Story", "agent", "call", "scripted"]


def scripted(script: Iterable[Any] | Callable[..., Any], **options: Any) -> Provider:
    """Returns a scripted provider that checks every request with Anthropic's rules, which are the strictest."""
    return Provider("scripted", "scripted", options={"script": script, "rules": "anthropic", **options})


def agent(name: str = "writer", instructions: str = "You write.", **fields: Any) -> Agent:
    return Agent(name, instructions, "model-1", "scripted", **fields)


class Story:
    """One run with a script, and all events that were received."""

    def __init__(self, script: Iterable[Any] | Callable[..., Any], **provider_options: Any) -> None:
        self.provider = scripted(script, **provider_options)
        self.bus = EventBus()
        self.events: list[Event] = []
        self.bus.subscribe_all(self.events.append)

    async def run(
        self,
        message: str = "go",
        *,
        entry: Agent | None = None,
        agents: Iterable[Agent] = (),
        tools: Iterable[Tool | Callable[..., Any]] = (),
        **options: Any,
    ) -> RunResult:
        entry = entry or agent()
        options.setdefault("limits", Limits(turns=20))
        return await async_run(entry, message, [entry, *agents], tools, [self.provider], bus=self.bus, **options)

    def events_of(self, kind: type[Event] | None = None) -> list[Any]:
        return [event for event in self.events if kind is None or isinstance(event, kind)]

    def names(self) -> list[str]:
        return [event.event_type for event in self.events]
