"""Sessions beside the work: what an engine asks a model for its own ends, below the session that it is for."""

from collections.abc import Sequence
from weakref import WeakValueDictionary

import msgspec

from outrider.agents.budget import Budget
from outrider.config.file import lower_of
from outrider.errors import SessionNotFoundError
from outrider.event_bus import EventBus
from outrider.permissions.modes import stricter
from outrider.sessions.journal import Journal, begin, resume
from outrider.sessions.leases import LeaseOwner
from outrider.sessions.recovery import repair
from outrider.sessions.session import Session
from outrider.sessions.sqlite.owners import this_process
from outrider.sessions.store import Store
from outrider.types.agents import Agent, Limits, Mode
from outrider.types.deltas import UsageReport
from outrider.types.ids import now_ms
from outrider.types.messages import Message
from outrider.types.parts import SubtaskPart, ToolPart
from outrider.types.tool_state import LEFT_OPEN
from outrider.types.usage import Usage

TITLER = "outrider/title"  # no agent of a user is called like that


def is_aside(agent: str) -> bool:
    """Whether the session of this agent is none of those that agents opened for each other."""
    return agent == TITLER


async def end_below(store: Store, messages: Sequence[Message]) -> None:
    """Of a session that is opened again, the agents that were at work for its last answer; not those whose calls go on,
    since they waited for an answer when the session was left."""
    calls = messages[-1].get_parts_by_type(ToolPart) if messages else []
    go_on = {call.metadata.get(LEFT_OPEN) for call in calls if not call.ended}
    for part in messages[-1].get_parts_by_type(SubtaskPart) if messages else ():
        if part.child_session_id is not None and part.child_session_id not in go_on:
            await end_session(store, part.child_session_id)


async def end_session(store: Store, session_id: str) -> None:
    """Also what waits for an answer, with its question. Who owned the session until now cannot write it any more."""
    try:
        lease = await store.acquire(session_id, this_process(), take_over=True)
    except SessionNotFoundError:
        return
    transcript = await store.load(session_id)
    if changed := repair(transcript, now_ms(), waits=False):
        await store.append(session_id, changed, token=lease.token)
    for question in await store.approvals(session_id, only_open=True):
        await store.answer(question.id, "revoked")
    await end_below(store, transcript.messages)
    await store.release(lease)


class SessionTree:
    """Sessions of agents that were called are known as long as somebody works in them."""

    def __init__(self, root: Session) -> None:
        self._root = root
        self._called: WeakValueDictionary[str, Session] = WeakValueDictionary()

    def add(self, called: Session) -> None:
        self._called[called.id] = called

    def find(self, session_id: str) -> Session | None:
        return self._root if session_id in ("", self._root.id) else self._called.get(session_id)

    def mode_of(self, session_id: str) -> Mode:
        """The mode of a session and of all above it, together; of one that nobody knows, the one without any rights."""
        session = self.find(session_id)
        if session is None:
            return "chat"
        return session.mode if session is self._root else stricter(self.mode_of(session.parent_id or ""), session.mode)


class Children:
    """They belong to the session that called, and whoever takes that one over takes them over too: `holder` is who may
    write them until then. `tree` is where tools find them."""

    def __init__(self, store: Store, bus: EventBus, holder: LeaseOwner, tree: SessionTree | None) -> None:
        self._store = store
        self._bus = bus
        self._holder = holder
        self._tree = tree

    async def begin(self, child: Session) -> Journal:
        return self._known(await begin(child, self._store, self._bus, holder=self._holder))

    async def resume(self, session_id: str) -> Journal:
        """One whose agent waited for an answer when all of it was left."""
        journal = self._known(
            await resume(session_id, self._store, self._bus, holder=self._holder, take_over=True, repeats=True)
        )
        await end_below(self._store, journal.session.messages)
        return journal

    def _known(self, journal: Journal) -> Journal:
        if self._tree is not None:
            self._tree.add(journal.session)
        return journal


class DelegatedLimits(msgspec.Struct):
    """The limits that are left over there, the rules of everybody who called, and what has been used under them."""

    limits: Limits = Limits()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    budgets: list[Budget] = []

    def bound(self, agent: Agent) -> Agent:
        """The agent, asking for and refusing also what those who called it would."""
        own = agent.permissions
        tighter = {"ask": (*own.get("ask", ()), *self.ask), "deny": (*own.get("deny", ()), *self.deny)}
        return msgspec.structs.replace(agent, permissions={**own, **tighter})

    def budget(self, own: Limits) -> Budget:
        self.budgets.append(Budget(lower_of(own, self.limits)))
        return self.budgets[-1]

    def used(self) -> UsageReport:
        """By the whole tree of agents here, so far."""
        usage, turns = Usage(), 0
        for budget in self.budgets:
            turns += budget.turns
            if budget.usage != Usage():
                usage = usage.plus(budget.usage.tokens, budget.usage.total_cost)
        return UsageReport(usage.tokens, usage.total_cost, max(turns, 1))
