"""Runs one script over a real connection with any vendor's API, through `run()` or an engine."""

from collections.abc import Iterable
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec

from outrider import (
    Agent,
    Engine,
    EventBus,
    Limits,
    Message,
    OutriderError,
    Session,
    Tool,
    ToolPart,
    async_run,
)
from outrider.events import Event, ToolApprovalRequestedEvent
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import StoredSession
from outrider.testing.simulator import Script, Simulator
from outrider.testing.simulator_answers import SIMULATED_APIS

Way = Literal["run", "engine"]


class Ended(msgspec.Struct):
    output: Any
    session: Session
    reason: str
    error: OutriderError | None = None

    @property
    def calls(self) -> list[ToolPart]:
        return [part for message in self.session.messages for part in message.get_parts_by_type(ToolPart)]

    @property
    def answers(self) -> list[Message]:
        return [message for message in self.session.messages if message.role == "assistant"]


class WireHarness:
    """A simulated server of one vendor, agents that use it, and all events that were received."""

    def __init__(self, server: Simulator, kind: Any, way: Way, *, stream: bool) -> None:
        self.server = server
        self.vendor = SIMULATED_APIS[kind]
        self.bus = EventBus()
        self.events: list[Event] = []
        self.bus.subscribe_all(self.events.append)
        self._way = way
        self._stream = stream
        retry = {"attempts": 3, "first_window": 0.01}
        self.provider = server.provider(kind, "vendor", retry=retry)

    def agent(self, name: str = "writer", instructions: str = "You write.", **fields: Any) -> Agent:
        return Agent(name, instructions, self.vendor.model, "vendor", stream=self._stream, **fields)

    def events_of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def run_turn(
        self,
        message: str = "go",
        *,
        agents: Iterable[Agent] = (),
        tools: Iterable[Tool] = (),
        session: Session | None = None,
        allow: bool | None = None,
    ) -> Ended:
        """Runs a turn to its end. `allow` is the answer to approvals; None is unattended mode."""
        cast = list(agents) or [self.agent()]
        session = session or Session()
        if self._way == "run":
            return await self._run(message, cast, list(tools), session, allow)
        return await self._engine(message, cast, list(tools), session, allow)

    async def _run(
        self, message: str, cast: list[Agent], tools: list[Tool], session: Session, allow: bool | None
    ) -> Ended:
        approve = None if allow is None else lambda _: allow
        try:
            result = await async_run(
                cast[0], message, cast, tools, [self.provider], session=session, bus=self.bus, approve=approve
            )
        except OutriderError as error:
            return Ended(None, error.details["result"].session, "error", error)
        return Ended(result.output, result.session, result.termination_reason)

    async def _engine(
        self, message: str, cast: list[Agent], tools: list[Tool], session: Session, allow: bool | None
    ) -> Ended:
        async with self.engine(cast, tools, session, attended=allow is not None) as engine:

            async def answer(event: ToolApprovalRequestedEvent) -> None:
                await engine.answer(event.approval_id, allow=bool(allow), by="the test")

            self.bus.subscribe(ToolApprovalRequestedEvent, answer)
            end = await engine.prompt(session.id, message)
            return Ended(end.output, await engine.open(session.id), end.reason, end.error)

    @asynccontextmanager
    async def engine(self, cast: list[Agent], tools: list[Tool], session: Session, **options: Any):
        """An engine that already knows the session."""
        store = MemoryStore()
        await store.create(StoredSession.from_session(session))
        if session.messages:
            await store.append(session.id, session.messages)
        options.setdefault("limits", Limits(turns=20))
        async with Engine(cast, [self.provider], tools, store=store, bus=self.bus, **options) as engine:
            yield engine


@asynccontextmanager
async def wire_harness(kind: str, script: Script, way: Way = "run", *, stream: bool = True):
    """Checks at the end that no request broke the vendor's rules."""
    async with Simulator(script) as server:
        yield WireHarness(server, kind, way, stream=stream)
        assert server.rejected == []
