"""Finds the place of every span in the tree, whatever is missing, late, doubled or contradictory.

A span belongs to the session that it happened in, to the call that it names, or to the innermost open call of its
agent. Spans are looked up by id before they are placed, so the order of records matters only where no id helps.
"""

from collections import defaultdict, deque
from collections.abc import Sequence

from outrider.tracing.agent_event import AgentEvent
from outrider.tracing.span import UNKNOWN, Span
from outrider.tracing.trees import outcomes
from outrider.tracing.trees.outcomes import is_loop_end
from outrider.tracing.trees.pairing import Pairing


class Nesting:
    """`tops` are the loops that nobody called, `loose` the spans whose parent is unknown, `adrift` the errors."""

    def __init__(self, events: Sequence[AgentEvent]) -> None:
        self.tops: list[Span] = []
        self.loose: list[Span] = []
        self.adrift: list[AgentEvent] = []
        self._pairs = Pairing(events)
        self._loops = Loops(self.tops)
        self._now: dict[str, Span] = {}
        self._parents: dict[Span, Span | None] = {}
        self._unanswered: dict[Span, Span] = {}
        self._open_agents: defaultdict[str, list[Span]] = defaultdict(list)
        self._returned: set[Span] = set()
        self._declare_loops(events)
        for event, span in zip(events, self._pairs.span_of, strict=True):
            if span is not None:
                self._place(event, span)
            elif not self._loops.leave(event):
                self._conclude(event)
        self._cut_cycles()
        for span, parent in self._parents.items():
            (self.loose if parent is None else parent.children).append(span)

    def _declare_loops(self, events: Sequence[AgentEvent]) -> None:
        for event in events:
            if is_loop_end(event) and self._named(event) is None:
                span = self._loops.declare(event)
                if event.call_id:
                    self._pairs.claim(event.call_id, span)

    def _place(self, event: AgentEvent, span: Span) -> None:
        if event.call_id and (span.kind == "agent" or self._pairs.first_of[event.call_id].kind != "agent"):
            self._now[event.call_id] = span
        if span not in self._parents:
            self._parents[span] = parent = self._parent(event, span)
            if parent is not None and span.kind == "model" and span.end is None:
                self._unanswered[parent] = span
        if event.type == "agent_call":
            self._open_agents[span.name].append(span)
        elif event.type == "agent_return":
            self._returned.add(span)

    def _parent(self, event: AgentEvent, span: Span) -> Span | None:
        named = self._named(event, span)
        if named is not None:
            return named
        if event.parent_call_id and event.parent_call_id != event.call_id:
            return None
        return self._open_agent(event.agent_name) or self._loops.around(event, span.start)

    def _named(self, event: AgentEvent, span: Span | None = None) -> Span | None:
        """The span that the record's own ids name, other than the record's span itself."""
        inside = self._lookup(event.call_id)
        if inside is not None and inside is not span and _is_by(inside, event):
            return inside
        session = self._pairs.child_sessions.get(event.session_id)
        session = None if session is span else session
        parent = self._lookup(event.parent_call_id)
        parent = None if parent is span else parent
        if session is None or parent is None:
            return session or parent
        in_session = parent.kind != "agent" and self._pairs.session_of.get(parent) == event.session_id
        return parent if in_session else session

    def _lookup(self, call_id: str) -> Span | None:
        return (self._now.get(call_id) or self._pairs.first_of.get(call_id)) if call_id else None

    def _open_agent(self, name: str) -> Span | None:
        """The innermost agent of that name that has been called and has not returned."""
        waiting = self._open_agents[name]
        while waiting and waiting[-1] in self._returned:
            waiting.pop()
        return waiting[-1] if waiting else None

    def _conclude(self, event: AgentEvent) -> None:
        """An end or an error that has no span of its own belongs to the span that it happened in."""
        scope = self._named(event)
        if scope is None and not event.parent_call_id:
            scope = self._open_agent(event.agent_name) or self._loops.around(event, UNKNOWN)
        if scope is None:
            self.adrift.append(event)
        elif is_loop_end(event):
            outcomes.end_loop(scope, event)
        else:
            self._fail(scope, event)

    def _fail(self, scope: Span, event: AgentEvent) -> None:
        """An error that names a call is that call's; else it ended the loop, and the request that was under way."""
        call = self._lookup(event.call_id)
        if call is not None and call.kind != "agent":
            outcomes.fail(call, event)
            return
        if (unanswered := self._unanswered.pop(scope, None)) is not None:
            outcomes.fail(unanswered, event)
        outcomes.fail(scope, event)

    def _cut_cycles(self) -> None:
        """Contradictory parents can form a ring; its first span becomes loose."""
        settled: set[Span] = set()
        for span in self._parents:
            path: set[Span] = set()
            at: Span | None = span
            while at is not None and at not in settled:
                if at in path:
                    self._parents[at] = None
                    break
                path.add(at)
                at = self._parents.get(at)
            settled |= path


class Loops:
    """The top spans. Each ends with a record of its own, so what comes before that record belongs to it."""

    def __init__(self, tops: list[Span]) -> None:
        self._tops = tops
        self._declared: dict[tuple[object, ...], Span] = {}
        self._waiting: defaultdict[str, deque[Span]] = defaultdict(deque)
        self._last: dict[str, Span] = {}
        self._home_of_agent: dict[str, str] = {}

    def declare(self, event: AgentEvent) -> Span:
        span = self._known(event)
        if span is None:
            span = self._new(event, _home(event), event.call_id)
            self._declared[_end_of(event)] = self._declared[*_end_of(event), event.data.get("started")] = span
            outcomes.end_loop(span, event)
        return span

    def leave(self, event: AgentEvent) -> bool:
        """Whether this is the end of a top span; what follows in its session is a new one."""
        span = self._known(event) if is_loop_end(event) else None
        if span is None:
            return False
        waiting = self._waiting[_home(event)]
        if waiting and waiting[0] is span and span.end is not None:
            self._last[_home(event)] = waiting.popleft()
        return True

    def _known(self, event: AgentEvent) -> Span | None:
        """The span of an end that was recorded before; the log finds the start for the first of two only."""
        if "started" in event.data:
            return self._declared.get((*_end_of(event), event.data["started"]))
        return self._declared.get(_end_of(event))

    def around(self, event: AgentEvent, start: int) -> Span | None:
        home = event.session_id or self._home_of_agent.get(event.agent_name) or event.agent_name
        if not home:
            return None
        last, waiting = self._last.get(home), self._waiting[home]
        moment = event.timestamp if start == UNKNOWN else start
        is_late = last is not None and last.end is not None and moment <= last.end
        if is_late and not (waiting and UNKNOWN < waiting[0].start <= moment):
            return last
        return waiting[0] if waiting else self._new(event, home)

    def _new(self, event: AgentEvent, home: str, call_id: str = "") -> Span:
        span = Span(event.agent_name or "agent", "agent", event.agent_name, call_id)
        self._tops.append(span)
        self._waiting[home].append(span)
        if event.session_id:
            self._home_of_agent[event.agent_name] = event.session_id
        return span


def _home(event: AgentEvent) -> str:
    """What tells top spans apart: the session, or the agent where no session is known."""
    return event.session_id or event.agent_name


def _end_of(event: AgentEvent) -> tuple[object, ...]:
    return _home(event), event.call_id, event.timestamp, bool(event.data.get("open"))


def _is_by(agent: Span, event: AgentEvent) -> bool:
    """Whether a record with an agent call's id tells what that agent did, and not of the call itself."""
    if agent.kind != "agent" or event.type in ("agent_call", "agent_return"):
        return False
    session = agent.details.get("child_session_id")
    return event.agent_name in ("", agent.agent_name) and event.session_id in ("", session or event.session_id)
