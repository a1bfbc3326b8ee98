"""What the agents of one run share, and what one agent at work has for itself."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from outrider.agents.budget import Budget, Price
from outrider.agents.hooks import Hooks
from outrider.agents.turn_state import TurnStateTracker
from outrider.context.lower import Projection
from outrider.event_bus import EventBus
from outrider.permissions.modes import stricter
from outrider.providers.provider import ModelClient
from outrider.sessions.journal import Journal
from outrider.sessions.session import Session
from outrider.tools.context import ToolContext
from outrider.tools.runner import OutputCap, Save
from outrider.tools.tool import Tool
from outrider.types.agents import Agent, AgentMessage, Mode
from outrider.types.events import Event, PartUpdatedEvent
from outrider.types.messages import Message
from outrider.types.parts import ToolPart
from outrider.types.request import OutputSchema, ToolSpec
from outrider.types.usage import Tokens

TakeInput = Callable[[], Awaitable[list[Message]]]
RunTask = Callable[[str, str, str, ToolContext], Awaitable[str]]
"""Lets the agent of that name work, by a short description and a prompt, for a call; its answer."""
TaskTool = Callable[[Mapping[str, str], RunTask], Tool]
"""The tool that hands out tasks to agents, given by their names and roles."""


class Verdict(msgspec.Struct, frozen=True):
    """Whether a call may run; if not, `reason` and the words that the model reads."""

    allowed: bool
    reason: str = ""
    words: str = ""


class Gate(Protocol):
    """Decides on a call, and asks somebody where it must. What it is shown is what will run."""

    async def admit(self, call: ToolPart, tool: Tool, seat: "AgentContext") -> Verdict: ...


class Tariff(Protocol):
    """What is known about models: limits and prices."""

    def price(self, agent: Agent) -> Price | None: ...
    def cost(self, agent: Agent, model: str, tokens: Tokens) -> Decimal | None: ...
    def context_limit(self, agent: Agent) -> int | None: ...
    def output_limit(self, agent: Agent) -> int | None: ...


Around = Callable[[ToolPart, Tool, "AgentContext"], AbstractAsyncContextManager[None]]
"""Stands around a call while its tool runs, as what keeps files for an undo does."""


def unwatched(call: ToolPart, tool: Tool, seat: "AgentContext") -> AbstractAsyncContextManager[None]:
    return nullcontext()


def not_saved(output: str) -> None:
    """Where no tool could read a file of it."""


class RunContext(msgspec.Struct, kw_only=True):
    """One run: its agents, the models and tools they have, their common budget and bus. `notes` tell every agent about
    the place it works in; `prompts` are the user's own, by name, in the place of ours; without `compacts` a context is
    shortened only when a model refuses it or somebody asks for it."""

    agents: Mapping[str, Agent]
    clients: Mapping[str, ModelClient]
    tools: Mapping[str, Tool]
    gate: Gate
    tariff: Tariff
    budget: Budget
    bus: EventBus
    open_journal: Callable[[Session], Awaitable[Journal]]
    reopen_journal: Callable[[str], Awaitable[Journal]] | None = None
    clock: Callable[[], int]
    cap: OutputCap = OutputCap()
    save_output: Save = not_saved
    around: Around = unwatched
    forwards: list[AgentMessage] = []
    hooks: Hooks = Hooks()
    task_tool: TaskTool | None = None
    notes: str = ""
    prompts: Mapping[str, str] = {}
    compacts: bool = True

    def client(self, agent: Agent) -> ModelClient:
        return self.clients[agent.provider]


class AgentContext(msgspec.Struct, kw_only=True):
    """One agent at work in one session. `call_id` is the call that brought it here, "" for the first agent. `mode` is
    what its tools and its system prompt were chosen for. `ask` and `deny` are its own rules and those of everybody
    above it: no agent has more rights than who called it. One that is `leaving` comes back: what was asked stays, and
    so do the calls in `left`, whose agents wait for an answer."""

    agent: Agent
    crew: RunContext
    mode: Mode
    journal: Journal
    projection: Projection
    system: str
    tools: Mapping[str, Tool]
    workspace: Path
    depth: int = 0
    call_id: str = ""
    specs: tuple[ToolSpec, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    output: OutputSchema | None = None
    finished: str | None = None
    leaving: bool = False
    left: set[str] = msgspec.field(default_factory=set[str])
    take_input: TakeInput | None = None
    caller: "AgentContext | None" = None
    states: TurnStateTracker = msgspec.field(default_factory=TurnStateTracker)

    @property
    def session(self) -> Session:
        return self.journal.session

    @property
    def comes_back(self) -> bool:
        """Whether it, or whoever called it, is leaving."""
        return self.leaving or (self.caller is not None and self.caller.comes_back)

    @property
    def effective_mode(self) -> Mode:
        """What the session's mode is now and what those above it allow, together; both may change during a turn."""
        own = self.session.mode
        return own if self.caller is None else stricter(self.caller.effective_mode, own)

    def begin(self, crew: RunContext) -> None:
        """A new turn at the same seat: what it may use is counted anew, what it has prepared is kept."""
        self.crew = crew
        self.finished = None

    def echoed(self, event: Event, message_id: str) -> Event:
        """An event of another process. One of the agent that sits there for this one happened here."""
        if event.session_id:
            return event
        own: dict[str, Any] = {
            "session_id": self.session.id,
            "agent_name": self.agent.name,
            "parent_call_id": self.call_id,
        }
        if isinstance(event, PartUpdatedEvent):
            own["part"] = replace(event.part, session_id=self.session.id, message_id=message_id)
        return replace(event, **own)

    def tell(self, event: type[Event], /, **fields: Any) -> None:
        """Of what happened at this seat, after the changes that came before it."""
        if self.crew.bus.hears(event):
            self.journal.tell(self.labelled(event, **fields))

    def labelled(self, event: type[Event], /, **fields: Any) -> Event:
        """An event of this seat: its session, agent and the call that it belongs to."""
        return event(session_id=self.session.id, agent_name=self.agent.name, parent_call_id=self.call_id, **fields)
