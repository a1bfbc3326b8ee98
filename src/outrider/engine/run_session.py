"""Puts a run together: agents, models, tools, store, bus, budget; and takes it apart again."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from outrider.agents.budget import Budget
from outrider.agents.delegation import open_agent_context
from outrider.agents.hooks import Hooks
from outrider.agents.output_type import REPAIRS, OutputType
from outrider.agents.run_context import AgentContext, RunContext
from outrider.agents.turn import Turn
from outrider.agents.turn_state import TurnEnd
from outrider.config.environment import filled_in, redactor_for
from outrider.engine.approval_gate import ApprovalGate, Approve, PermissionChecker, Rules, asking_a_function
from outrider.errors import ConfigurationError, OutputMismatch, SessionNotFoundError
from outrider.event_bus import EventBus
from outrider.models.clients import CatalogPricing, connected, known_models
from outrider.models.peers import peers_among
from outrider.permissions.redaction.event_filter import FILTERED_EVENTS, RedactingEventFilter
from outrider.providers.provider import ModelClient
from outrider.sessions.journal import Journal, begin, resume
from outrider.sessions.records import SessionUpdate
from outrider.sessions.redacted_store import redacted
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.tools.tool import Tool, named
from outrider.types.agents import Agent, AgentMessage, Limits, Mode, Provider
from outrider.types.ids import now_ms
from outrider.types.messages import Message
from outrider.types.parts import FilePart, TextPart
from outrider.types.tool_state import Attachment

USER = "user"
Named = TypeVar("Named", Agent, Provider)


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was said about a run, checked before anything is opened. `more_tools` says that each session
    brings further tools of its own, so that an agent may name some that are not here yet."""

    entry: Agent
    agents: Mapping[str, Agent]
    tools: Mapping[str, Tool]
    providers: Mapping[str, Provider]
    mode: Mode | None = None
    limits: Limits | None = None
    approve: Approve | None = None
    output: OutputType | None = None
    hooks: Hooks = Hooks()
    more_tools: bool = False

    @classmethod
    def of(
        cls,
        entry: Agent | str,
        agents: Iterable[Agent],
        tools: Iterable[Tool | Callable[..., Any]],
        providers: Iterable[Provider],
        **rest: Any,
    ) -> "RunSpec":
        by_name = _by_name("agents", agents)
        if isinstance(entry, Agent):
            by_name.setdefault(entry.name, entry)
        elif entry not in by_name:
            raise ConfigurationError(f"the entry agent {entry!r} is none of: {', '.join(by_name) or 'no agents'}")
        plan = cls(
            entry=by_name[entry.name if isinstance(entry, Agent) else entry],
            agents=by_name,
            tools=named(tools),
            providers=_by_name("providers", providers),
            **rest,
        )
        plan._check()
        return plan

    def _check(self) -> None:
        check_mode(self.mode, "the run")
        for agent in self.agents.values():
            check_mode(agent.mode, f"agent {agent.name!r}")
            if agent.provider not in self.providers:
                known = f"there is {', '.join(self.providers)}" if self.providers else "no provider was given"
                raise ConfigurationError(f"agent {agent.name!r} wants the provider {agent.provider!r}; {known}")
            for tool in agent.tools or ():
                if tool not in self.tools and not self.more_tools:
                    raise ConfigurationError(f"agent {agent.name!r} wants the tool {tool!r}, which was not given")
        for taken in ({"call_agent", "finish"} & self.tools.keys()) | (self.agents.keys() & self.tools.keys()):
            raise ConfigurationError(f"the name {taken!r} is taken; give that tool another one")


def check_mode(mode: str | None, whose: str) -> None:
    if mode is not None and mode not in get_args(Mode):
        raise ConfigurationError(f"{whose} is in no mode {mode!r}; there are {', '.join(get_args(Mode))}")


class RunSession:
    """One run in progress."""

    def __init__(self, plan: RunSpec, crew: RunContext, journal: Journal) -> None:
        self._plan = plan
        self.crew = crew
        self.journal = journal
        self.value: Any = msgspec.UNSET

    async def work(self, message: str, attachments: Sequence[Attachment] = ()) -> TurnEnd:
        """Give the entry agent its message and let it work to its end."""
        entry, output = self._plan.entry, self._plan.output
        self.crew.forwards.append(AgentMessage("forward", USER, entry.name, message, "", tuple(attachments)))
        files = [_file(attachment) for attachment in attachments]
        await self.journal.add_message(Message("user", [TextPart(message), *files], agent=entry.name))
        seat = open_agent_context(entry, self.journal, self.crew, output=output.schema if output else None)
        end = await Turn(seat, self.crew).run()
        if output is not None:
            end, self.value = await self._value(end, output, seat)
        self.crew.forwards.append(AgentMessage("return", entry.name, USER, end.output, ""))
        return end

    async def _value(self, end: TurnEnd, output: OutputType, seat: AgentContext) -> tuple[TurnEnd, Any]:
        """The answer as the wanted type; the model may mend it, a few times."""
        for repairs_left in range(REPAIRS, -1, -1):
            if end.reason != "completed":
                return end, msgspec.UNSET
            try:
                return end, output.read(end.output)
            except OutputMismatch as problem:
                if not repairs_left:
                    return TurnEnd("error", end.output, problem), msgspec.UNSET
                words = TextPart(output.repair(problem), synthetic=True)
            await self.journal.add_message(Message("user", [words]))
            seat.finished = None
            end = await Turn(seat, self.crew).run()
        return end, msgspec.UNSET


@asynccontextmanager
async def open_workshop(
    plan: RunSpec, bus: EventBus, *, store: Store | None = None, session: Session | str | None = None
) -> AsyncGenerator[RunSession, None]:
    redactor = redactor_for(plan.providers.values())
    place = redacted(store or in_memory(), redactor)

    async def open_journal(child: Session) -> Journal:
        return await begin(child, place, bus)

    async with AsyncExitStack() as opened:
        opened.callback(bus.tell_through(RedactingEventFilter(redactor), FILTERED_EVENTS))
        clients: dict[str, ModelClient] = {}
        for name in {agent.provider for agent in plan.agents.values()}:
            provider = filled_in(plan.providers[name])
            clients[name] = await opened.enter_async_context(connected(provider, known_models()))
        await _relay(plan, bus, opened)
        journal = await opened.enter_async_context(await _journal(session, plan, place, bus))
        if plan.mode is not None and plan.mode != journal.session.mode:
            await journal.update(SessionUpdate(mode=plan.mode))
        crew = RunContext(
            agents=plan.agents,
            clients=clients,
            tools=plan.tools,
            gate=ApprovalGate(PermissionChecker(Rules()), asking_a_function(plan.approve)),
            tariff=CatalogPricing(known_models(), plan.providers),
            budget=Budget(plan.limits or plan.entry.limits),
            bus=bus,
            open_journal=open_journal,
            clock=now_ms,
            hooks=plan.hooks,
        )
        yield RunSession(plan, crew, journal)


async def _relay(plan: RunSpec, bus: EventBus, opened: AsyncExitStack) -> None:
    """Loaded by those who have agents on other servers, and somebody to ask about their calls."""
    if plan.approve is not None and peers_among(plan.providers.values()):
        from outrider.engine.approval_gate import relaying

        await opened.enter_async_context(relaying(bus, plan.providers.values(), plan.approve))


async def _journal(session: Session | str | None, plan: RunSpec, store: Store, bus: EventBus) -> Journal:
    """A new session, a stored one, or one in memory that the store gets to know now."""
    if isinstance(session, str):
        return await resume(session, store, bus)
    if session is None:
        fresh = Session(workspace_directory=str(Path.cwd()), mode=plan.mode or plan.entry.mode, agent=plan.entry.name)
        return await begin(fresh, store, bus)
    try:
        await store.get(session.id)
    except SessionNotFoundError:
        journal = await begin(session, store, bus)
        if session.messages:
            await store.append(session.id, session.messages)
        return journal
    return await resume(session.id, store, bus)


def _file(attachment: Attachment) -> FilePart:
    url = attachment.url or f"data:{attachment.mime_type};base64,{attachment.data}"
    return FilePart(attachment.mime_type, url, attachment.name)


def in_memory() -> Store:
    """Loaded by those who keep nothing; whoever has a store of their own needs none of it."""
    from outrider.sessions.memory_store import MemoryStore

    return MemoryStore()


def _by_name(what: str, values: Iterable[Named]) -> dict[str, Named]:
    by_name: dict[str, Named] = {}
    for value in values:
        if value.name in by_name:
            raise ConfigurationError(f"two {what} are called {value.name!r}")
        by_name[value.name] = value
    return by_name
