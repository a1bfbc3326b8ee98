"""Child sessions: the sessions that agents open for each other, and internal sessions such as title requests."""

from collections.abc import Sequence
from weakref import WeakValueDictionary

import msgspec

from outrider.agents.budget import RunBudget
from outrider.errors import SessionNotFoundError
from outrider.event_bus import EventBus
from outrider.permissions.modes import stricter_level, stricter_mode
from outrider.sessions.journal import Journal, create_journal, resume_journal
from outrider.sessions.leases import LeaseOwner
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.types.agents import Agent, Limits, Mode
from outrider.types.ids import now_ms
from outrider.types.messages import Message
from outrider.types.modes import ApprovalLevel
from outrider.types.parts import SubtaskPart, Usage
from outrider.types.request import UsageReport
from outrider.types.tool_state import LEFT_OPEN

TITLE_AGENT = "outrider/title"  # the slash avoids conflicts with names of user agents


def is_internal_agent(agent: str) -> bool:
    """Returns whether a session of this agent is an internal session of the engine."""
    return agent == TITLE_AGENT


def called_sessions(messages: Sequence[Message]) -> list[str]:
    """Returns the ids of the sessions that the agents of these messages opened."""
    parts = (part for message in messages for part in message.get_parts_by_type(SubtaskPart))
    return [part.child_session_id for part in parts if part.child_session_id is not None]


async def end_child_sessions(store: Store, messages: Sequence[Message]) -> None:
    """Ends the child sessions of the last answer when their parent is reopened, except sessions whose call was
    suspended to wait for an approval: those continue."""
    calls = messages[-1].get_calls() if messages else []
    left_open = {call.metadata.get(LEFT_OPEN) for call in calls if not call.ended}
    for part in messages[-1].get_parts_by_type(SubtaskPart) if messages else ():
        if part.child_session_id is not None and part.child_session_id not in left_open:
            await end_session(store, part.child_session_id)


async def end_session(store: Store, session_id: str) -> None:
    """Ends a session and its descendants: takes over its lease, fails its open calls and revokes its open approvals.
    The previous owner can no longer write to it."""
    from outrider.sessions.leases import current_process  # lazy: runs without leases do not need it

    try:
        lease = await store.acquire(session_id, current_process(), take_over=True)
    except SessionNotFoundError:
        return
    transcript = await store.load(session_id)
    from outrider.sessions.recovery import repair_transcript  # lazy: most sessions have no children

    if changed := repair_transcript(transcript, now_ms(), keep_waiting=False):
        await store.append(session_id, changed, token=lease.token)
    for question in await store.approvals(session_id, only_open=True):
        await store.answer(question.id, "withdrawn")
    await end_child_sessions(store, transcript.messages)
    await store.release(lease)


class OpenSessionTree:
    """A root session and the open sessions of its agents. Child sessions are weak references: they live as long as
    their journal."""

    def __init__(self, root: Session) -> None:
        self._root = root
        self._called: WeakValueDictionary[str, Session] = WeakValueDictionary()

    def add(self, called: Session) -> None:
        self._called[called.id] = called

    def find(self, session_id: str) -> Session | None:
        return self._root if session_id in ("", self._root.id) else self._called.get(session_id)

    def mode_of(self, session_id: str) -> Mode:
        """Returns the strictest mode of a session and its ancestors; "chat", which allows no tools, for an unknown
        session."""
        session = self.find(session_id)
        if session is None:
            return "chat"
        return (
            session.mode
            if session is self._root
            else stricter_mode(self.mode_of(session.parent_id or ""), session.mode)
        )

    def level_of(self, session_id: str) -> ApprovalLevel:
        """Returns the strictest approval level of a session and its ancestors."""
        session = self.find(session_id)
        if session is None:
            return "ask"
        if session is self._root:
            return session.approval
        return stricter_level(self.level_of(session.parent_id or ""), session.approval)


class ChildSessionOpener:
    """Opens the sessions of called agents. They share the lease owner of their parent, so taking over the parent takes
    over its children. A run without a store has no lease owner. `tree` makes the sessions visible to tools."""

    __slots__ = ("_bus", "_lease_owner", "_store", "_tree")

    def __init__(
        self, store: Store, bus: EventBus, lease_owner: LeaseOwner | None, tree: OpenSessionTree | None
    ) -> None:
        self._store = store
        self._bus = bus
        self._lease_owner = lease_owner
        self._tree = tree

    @property
    def can_reopen(self) -> bool:
        """Whether an agent that was suspended can continue in its session. In a run without leases it starts again."""
        return self._lease_owner is not None

    async def open_child(self, child: Session) -> Journal:
        """Stores a new child session and returns its journal."""
        return self._register_child(await create_journal(child, self._store, self._bus, lease_owner=self._lease_owner))

    async def reopen_child(self, session_id: str) -> Journal:
        """Reopens a session whose agent was suspended while it waited for an approval."""
        journal = self._register_child(
            await resume_journal(
                session_id, self._store, self._bus, lease_owner=self._lease_owner, take_over=True, repeat_calls=True
            )
        )
        try:
            await end_child_sessions(self._store, journal.session.messages)
        except BaseException:
            await journal.close()
            raise
        return journal

    def _register_child(self, journal: Journal) -> Journal:
        if self._tree is not None:
            self._tree.add(journal.session)
        return journal


class DelegatedLimits(msgspec.Struct):
    """Limits and rules that a calling process imposes on a session, and the usage under them."""

    limits: Limits = Limits()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    budgets: list[RunBudget] = []

    def restrict_agent(self, agent: Agent) -> Agent:
        """Returns the agent with the ask and deny rules of its callers added."""
        rules = agent.permissions
        tighter = {"ask": (*rules.get("ask", ()), *self.ask), "deny": (*rules.get("deny", ()), *self.deny)}
        return msgspec.structs.replace(agent, permissions={**rules, **tighter})

    def create_budget(self, limits: Limits) -> RunBudget:
        """Creates a budget with the stricter limits and includes it in the usage report."""
        from outrider.config.file import stricter_limits  # lazy: only sessions of remote callers need it

        self.budgets.append(RunBudget(stricter_limits(limits, self.limits)))
        return self.budgets[-1]

    def report_usage(self) -> UsageReport:
        """Returns the usage of all agents of the session so far."""
        usage, turns = Usage(), 0
        for budget in self.budgets:
            turns += budget.turns
            if budget.usage != Usage():
                usage = usage.plus(budget.usage.tokens, budget.usage.total_cost)
        return UsageReport(usage.tokens, usage.total_cost, max(turns, 1))
