"""The agents of an engine with all they work with: models, tools, rules, somebody to ask. It makes each turn's crew."""

from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from outrider.agents.budget import Budget
from outrider.agents.hooks import Hooks
from outrider.agents.run_context import AgentContext, RunContext, not_saved, unwatched
from outrider.config.environment import filled_in, search_path
from outrider.engine.approval_gate import ApprovalGate, PermissionChecker, Rules, asking_at
from outrider.engine.approval_grants import Grant
from outrider.engine.approvals import ApprovalQueue
from outrider.engine.child_sessions import Children, DelegatedLimits
from outrider.engine.run_session import RunSpec
from outrider.engine.session_tools import SessionTools, ToolEnvironment, confining
from outrider.engine.undo import Undo
from outrider.errors import ConfigurationError
from outrider.event_bus import EventBus
from outrider.models.clients import CatalogPricing, LateClient, connected, known_models
from outrider.models.local.weights import adapt_to_local_models
from outrider.permissions.redaction.redactor import Redactor
from outrider.project.extensions import noted
from outrider.providers.catalog import Catalog
from outrider.providers.provider import ModelClient
from outrider.sessions.leases import LeaseOwner
from outrider.sessions.session import Session
from outrider.sessions.sqlite.owners import this_process
from outrider.sessions.store import Store
from outrider.tools.builtin.task import task_tool
from outrider.types.agents import Agent, Limits
from outrider.types.ids import now_ms
from outrider.types.parts import ModelRef

if TYPE_CHECKING:
    from outrider.models.recorder import Recorder
    from outrider.project.mcp import Servers


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What may be said about an engine besides its agents, providers and tools. New sessions work in `workspace`, else
    in the current folder. With `titles` sessions get their names from a model: the session's own, unless that is a
    script or runs here, or the agent that is given."""

    attended: bool = True
    workspace: Path | None = None
    limits: Limits | None = None
    rules: Rules = Rules()
    surroundings: ToolEnvironment | None = None
    cassettes: Path | None = None
    hooks: Hooks = Hooks()
    secrets: tuple[str, ...] = ()
    catalog: Catalog | None = None
    compacts: bool = True
    titles: bool | Agent = False

    @classmethod
    def read(cls, given: dict[str, Any]) -> Self:
        unknown = given.keys() - set(cls.__struct_fields__)
        if unknown:
            known = ", ".join(cls.__struct_fields__)
            raise ConfigurationError(f"an engine has no option {', '.join(sorted(unknown))}; it has {known}")
        return cls(**given)


class EngineRuntime:
    """Open it before the first crew, and close it after the last turn."""

    def __init__(
        self,
        plan: RunSpec,
        options: EngineOptions,
        store: Store,
        bus: EventBus,
        desk: ApprovalQueue,
        redactor: Redactor,
    ) -> None:
        self.plan = plan
        self.titles = options.titles
        self._options = options
        self._store = store
        self._bus = bus
        self.holder = LeaseOwner(store, this_process())
        self._desk = desk
        self._catalog = options.catalog or known_models()
        self._clients: dict[str, ModelClient] = {}
        self._redactor = redactor
        self._recorder = self._recording(options.cassettes)
        self._tariff = CatalogPricing(self._catalog, plan.providers)
        self._ask = asking_at(desk)
        around = options.surroundings
        self._confines = confining(around)
        self.undo = Undo(around.data, around.bus) if around else None
        self.terms: dict[str, DelegatedLimits] = {}  # of sessions that work for agents of other processes
        self._opened = AsyncExitStack()
        self.is_open = False

    def _recording(self, cassettes: Path | None) -> "Recorder | None":
        """What writes cassettes is loaded by those who want some."""
        if cassettes is None:
            return None
        from outrider.models.recorder import Recorder

        return Recorder(cassettes, self.plan.providers, self._clients, self._redactor.known)

    async def open(self) -> None:
        self.is_open = True
        wanted = {agent.provider for agent in self.plan.agents.values()}
        for name, provider in self.plan.providers.items():
            filled = filled_in(provider)
            if name in wanted:
                client = await self._opened.enter_async_context(connected(filled, self._catalog))
            else:
                client = await self._opened.enter_async_context(aclosing(LateClient(filled, self._catalog)))
            self._clients[name] = client

    async def aclose(self) -> None:
        self.is_open = False
        if self._recorder is not None:
            await self._recorder.aclose()
        if self.undo is not None:
            await self.undo.close()
        await self._opened.aclose()

    async def leave(self, session_id: str) -> None:
        """The session is closed: what was open for it alone closes too."""
        self.terms.pop(session_id, None)
        if self._recorder is not None:
            await self._recorder.close(session_id)

    @property
    def rules(self) -> Rules:
        return self._options.rules

    @property
    def data(self) -> Path | None:
        """Where Outrider keeps its own things; None for an engine without built-in tools, which keeps none."""
        return self._options.surroundings.data if self._options.surroundings else None

    def agent(self, name: str, model: ModelRef | None = None) -> Agent:
        """The agent of that name, thinking with another model than its own if one is named."""
        if name and name not in self.plan.agents:
            raise ConfigurationError(f"there is no agent {name!r}; there are {', '.join(self.plan.agents)}")
        agent = self.plan.agents[name or self.plan.entry.name]
        if model is None:
            return agent
        chosen = msgspec.structs.replace(agent, provider=model.provider, model=model.model)
        return adapt_to_local_models([chosen], self.plan.providers.values())[0]

    def agent_of(self, session: Session, model: ModelRef | None) -> Agent:
        """The session's agent, under the terms of whom it works for."""
        agent, terms = self.agent(session.agent, model), self.terms.get(session.id)
        return terms.bound(agent) if terms else agent

    def _budget(self, session: Session) -> Budget:
        limits, terms = self._options.limits or self.plan.entry.limits, self.terms.get(session.id)
        return terms.budget(limits) if terms else Budget(limits)

    @property
    def servers(self) -> "Servers | None":
        """The MCP servers, for front ends: how they stand, what they offer to read and to say."""
        around = self._options.surroundings
        return around.belongings.servers if around and around.belongings else None

    def toolbox(self, session: Session) -> SessionTools | None:
        """The built-in tools of a session; whoever takes them closes them. Where nobody is, no question is asked."""
        around, find_secrets = self._options.surroundings, self._redactor.spans_of_bytes
        if around is None:
            return None
        if not self._options.attended:
            around = msgspec.structs.replace(around, ask=None)
        return SessionTools(session, around, self.undo, find_secrets)

    def _granted(self, seat: AgentContext) -> Grant:
        """An answer for a session counts for those that its agents open, too."""
        sessions, above = {seat.session.id}, seat.caller
        while above is not None:
            sessions.add(above.session.id)
            above = above.caller
        return self._desk.granted(sessions, str(seat.workspace))

    def crew(self, session: Session, toolbox: SessionTools | None) -> RunContext:
        """A crew for one turn: its budget is its own, everything else is the engine's or the session's."""
        options = self._options
        built_in = toolbox.tools if toolbox else {}
        own = built_in.keys() - self.plan.tools.keys()

        children = Children(self._store, self._bus, self.holder, toolbox.tree if toolbox else None)
        return RunContext(
            agents=self.plan.agents,
            clients=self._recorder.clients(session.id) if self._recorder else self._clients,
            tools={**built_in, **self.plan.tools},
            gate=ApprovalGate(
                PermissionChecker(options.rules, own, sandbox=self._confines, search_path=search_path()),
                self._ask,
                self._granted,
                toolbox.admit if toolbox else lambda _: None,
                self._desk.renew,
            ),
            tariff=self._tariff,
            budget=self._budget(session),
            bus=self._bus,
            open_journal=children.begin,
            reopen_journal=children.resume,
            clock=now_ms,
            save_output=toolbox.save_output if toolbox else not_saved,
            around=self.undo.watching(own) if self.undo else unwatched,
            hooks=options.hooks,
            task_tool=task_tool if toolbox else None,
            compacts=options.compacts,
            **_told(session, toolbox),
        )


def _told(session: Session, toolbox: SessionTools | None) -> dict[str, Any]:
    """What agents are told of their place: what the session began with, else what is true now."""
    if toolbox is None or toolbox.belongings is None:
        return {}
    notes = noted(session.messages)
    return {"notes": toolbox.notes if notes is None else notes, "prompts": toolbox.belongings.prompts}
