"""The engine: sessions, agents, models and tools in one program. Every front end holds one of these, no more."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from outrider.agents.turn_state import TurnEnd
from outrider.config.environment import redactor_for
from outrider.engine.abort import asks_for_the_end
from outrider.engine.approvals import ApprovalQueue, RemoteApprovals
from outrider.engine.plans import Plan
from outrider.engine.run_session import RunSpec, check_mode, in_memory
from outrider.engine.runtime import EngineOptions, EngineRuntime
from outrider.engine.session_registry import OpenSessions
from outrider.engine.undo_history import FileChanges
from outrider.errors import ConfigurationError
from outrider.event_bus import EventBus, EventStream
from outrider.permissions.redaction.event_filter import FILTERED_EVENTS, RedactingEventFilter
from outrider.sessions.records import Approval, ApprovalScope, Delivery, InboxItem, SessionUpdate
from outrider.sessions.redacted_store import redacted
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.tools.builtin.todo import Todo, recorded_todos
from outrider.tools.tool import Tool
from outrider.types.agents import Agent, Mode, Provider
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.parts import CompactionPart, PartBase, TextPart


class Submits(Protocol):
    """`outrider.Background` is one."""

    async def submit(self, prompt: str, **order: Any) -> Any: ...


class Submitting:
    """The side of an engine that knows runs. Who keeps them comes from above, so that an engine does without."""

    background: Submits | None = None

    async def submit(self, prompt: str, **order: Any) -> Any:
        """Work for later, kept before this returns; gives a `RunHandle`. It needs an open `Background(engine, …)`,
        whose `submit` says what else may be ordered."""
        if self.background is None:
            raise ConfigurationError("nobody keeps runs for this engine; open outrider.Background(engine, database)")
        return await self.background.submit(prompt, **order)


class Engine(Submitting):
    """Open it with `async with`. Several front ends may listen, prompt, answer and abort at once.

    `attended` says whether somebody is there to approve calls. With `surroundings` every session has the built-in tools
    for its workspace, besides the ones that are given. With `cassettes`, a folder, what its models were asked and what
    they answered is recorded there for every session, so that it can be replayed."""

    def __init__(
        self,
        agents: Sequence[Agent],
        providers: Sequence[Provider],
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        store: Store | None = None,
        bus: EventBus | None = None,
        **options: Any,
    ) -> None:
        if not agents:
            raise ConfigurationError("an engine needs at least one agent")
        self._made_of: dict[str, Any] = {"agents": agents, "providers": providers, "tools": tuple(tools), **options}
        chosen = EngineOptions.read(options)
        self.attended = chosen.attended
        self._workspace = chosen.workspace
        self.cassettes = chosen.cassettes
        self._redactor = redactor_for(providers, chosen.secrets)
        self.store = redacted(store or in_memory(), self._redactor)
        self.bus = bus or EventBus()
        self.desk = ApprovalQueue(self.store, self.bus, lambda: self.attended, RemoteApprovals(self.bus, providers))
        more = chosen.surroundings is not None
        plan = RunSpec.of(agents[0], agents, self._made_of["tools"], providers, limits=chosen.limits, more_tools=more)
        self.staff = EngineRuntime(plan, chosen, self.store, self.bus, self.desk, self._redactor)
        self._sessions = OpenSessions(self.staff, self.store, self.bus)
        self.live = self._sessions.live

    async def __aenter__(self) -> Self:
        self._tell_all = self.bus.tell_through(RedactingEventFilter(self._redactor), FILTERED_EVENTS)
        await self.staff.open()
        await self.desk.load()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sessions.close_all()
        await self.bus.settled()
        await self.staff.aclose()
        self.desk.close()
        self._tell_all()

    def like(self, **changes: Any) -> "Engine":
        """Another engine made of the same things, except for what is named; it has to be opened too."""
        parts: dict[str, Any] = {**self._made_of, "store": self.store, "bus": self.bus, **changes}
        return Engine(**parts)

    async def create(
        self,
        *,
        title: str = "",
        mode: Mode | None = None,
        agent: str | None = None,
        workspace: str | Path | None = None,
    ) -> str:
        """A new session, owned by this engine; returns its id. Agent and mode are the first agent's unless named."""
        check_mode(mode, "a session")
        chosen = self.staff.agent(agent or "")
        session = Session(
            title=title,
            mode=mode or chosen.mode,
            agent=chosen.name,
            workspace_directory=str(workspace or self._workspace or Path.cwd()),
        )
        await self._sessions.begin(session)
        return session.id

    async def open(self, session_id: str, *, take_over: bool = False) -> Session:
        """Own a stored session: what a crash left open is ended, what was asked is asked again, what is in its inbox
        is worked off. A turn that was cut off waits for `go_on` or for new input."""
        return (await self._sessions.at(session_id, take_over=take_over)).journal.session

    async def go_on(self, session_id: str, *, take_over: bool = False) -> TurnEnd:
        """Let a turn go on that a crash, an abort or a limit cut off, and wait for its end. Nothing is done twice,
        except for calls of tools that are `repeatable`: the model reads which of the others were interrupted."""
        live = await self._sessions.at(session_id, take_over=take_over, goes_on=True)
        return self._redactor.value(await live.go_on())

    async def prompt(
        self,
        session_id: str,
        content: str | Sequence[str | PartBase],
        *,
        delivery: Delivery = "queue",
        input_id: str | None = None,
        sender: str = "",
    ) -> TurnEnd:
        """Put input into the session and wait for the end of the turn that takes it."""
        put = self.put(session_id, content, delivery=delivery, input_id=input_id, sender=sender)
        return self._redactor.value(await (await put))

    async def put(
        self,
        session_id: str,
        content: str | Sequence[str | PartBase],
        *,
        delivery: Delivery = "queue",
        input_id: str | None = None,
        sender: str = "",
    ) -> asyncio.Future[TurnEnd]:
        """The same without waiting: the input is kept when this returns, and what it returns is the turn's end."""
        live = await self._sessions.at(session_id)
        parts = [content] if isinstance(content, str) else content
        message = Message("user", [TextPart(part) if isinstance(part, str) else part for part in parts])
        item = InboxItem(
            session_id=session_id, message=message, id=input_id or new_id(), delivery=delivery, sender=sender
        )
        return await live.put(item)

    async def queued(self, session_id: str) -> Sequence[InboxItem]:
        """The input that waits for its turn, in the order in which it came."""
        return [item for item in await self.store.inbox(session_id) if not asks_for_the_end(item)]

    async def withdraw(self, session_id: str, input_id: str) -> bool:
        """Take back input that waits; False if a turn has taken it before. Whoever waits for its end gets `aborted`."""
        return await (await self._sessions.at(session_id)).inbox.withdraw(input_id)

    async def plan(self, session_id: str) -> Plan | None:
        """What a turn in plan mode ended in, as long as nobody has answered it or said something else. A
        SessionUpdatedEvent with `changes["plan"]` tells of it."""
        return self._redactor.value((await self._sessions.at(session_id)).plan())

    async def accept_plan(self, session_id: str, changed: str | None = None, *, by: str = "") -> TurnEnd:
        """Let the plan be carried out, as it is or as `changed`: the session goes on in agent mode, and the end is that
        of the work. The first answer counts; another one raises OutriderError."""
        live = await self._sessions.at(session_id)
        answer = "accepted" if changed is None else "changed"
        return self._redactor.value(await (await live.answer_plan(answer, changed or "", sender=by)))

    async def refuse_plan(self, session_id: str, words: str = "", *, by: str = "") -> TurnEnd:
        """Stay in plan mode. With words the model plans anew at once; without, it hears of it with the next input."""
        live = await self._sessions.at(session_id)
        return self._redactor.value(await (await live.answer_plan("refused", words, sender=by)))

    async def compact(self, session_id: str) -> CompactionPart | None:
        """Let a summary take the place of old messages, after the turn under way if there is one; None if there is
        nothing to shorten."""
        return await (await self._sessions.at(session_id)).compact()

    async def fork(self, session_id: str, *, at: str | None = None, title: str | None = None) -> str:
        """A new session that begins as a copy of another up to and with message `at` (None: all of it); its id."""
        return (await self.store.fork(session_id, at=at, title=title)).id

    async def todos(self, session_id: str) -> Sequence[Todo]:
        """What the session's agent noted to be done. A SessionUpdatedEvent with `changes["todos"]` tells of changes."""
        return self._redactor.value(recorded_todos((await self.open(session_id)).messages))

    async def rename(self, session_id: str, title: str) -> None:
        """Also a session that somebody else owns may be given a name."""
        if session_id in self.live:
            await self.live[session_id].journal.update(SessionUpdate(title=title))
        else:
            await self.store.update(session_id, SessionUpdate(title=title))

    async def abort(self, session_id: str) -> None:
        """End the turn under way, with everything kept; where another process works on it, that one ends it. Raises
        SessionInUseError if that one does not answer."""
        await self._sessions.abort(session_id)

    async def set_mode(self, session_id: str, mode: Mode) -> None:
        check_mode(mode, "a session")
        await self._update(session_id, SessionUpdate(mode=mode))

    async def set_agent(self, session_id: str, agent: str) -> None:
        await self._update(session_id, SessionUpdate(agent=self.staff.agent(agent).name))

    async def answer(
        self, approval_id: str, *, allow: bool, scope: ApprovalScope = "once", by: str = "", words: str = ""
    ) -> Approval:
        """Answer a question about a call; the first answer counts, whoever gives it."""
        return await self.desk.answer(approval_id, allow=allow, scope=scope, by=by, words=words)

    async def approvals(self, session_id: str | None = None) -> Sequence[Approval]:
        """The questions that wait for an answer."""
        return await self.desk.waiting(session_id)

    def file_changes(self, session_id: str) -> FileChanges:
        """What the session's agents did to files, to be looked at, undone and redone."""
        return FileChanges(
            session_id, self.staff.undo, self.store, self.bus, lambda: self._sessions.at_rest(session_id)
        )

    def discreet(self, value: Any) -> Any:
        """A value as it may be written down elsewhere: its secrets are stars, as they are in the store."""
        return self._redactor.value(value)

    def events(self, session_id: str | None = None) -> EventStream:
        return self.bus.stream(None if session_id is None else lambda event: event.session_id == session_id)

    async def close(self, session_id: str) -> None:
        """Give the session back; another engine may go on with it."""
        await self._sessions.close(session_id)

    async def _update(self, session_id: str, update: SessionUpdate) -> None:
        await (await self._sessions.at(session_id)).journal.update(update)
