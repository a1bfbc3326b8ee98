"""Finds the place of every span in the tree, whatever is missing, late, doubled or contradictory.

A span belongs to the session that it happened in, to the call that it names, or to the innermost open call of its
agent. Spans are looked up by id before they are placed, so the order of records matters only where no id helps.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from outrider.tracing.event_record import AgentEvent
from outrider.tracing.span import UNKNOWN, Span, SpanStatus
from outrider.types.usage import CacheTokens, Tokens

_DONE = {"", "completed", "complete", "done", "finish", "finished", "stop", "end_turn", "success", "ok"}


def begin(span: Span, event: AgentEvent) -> None:
    """Take the start from a record that marks one; a second, later start changes nothing."""
    start = moment(event.data.get("started", event.timestamp))
    span.start = start if span.start == UNKNOWN else min(span.start, start)


def end(span: Span, event: AgentEvent) -> None:
    """Take the end. A measured duration counts for more than two readings of a clock that may have been set."""
    measured = moment(event.data.get("duration_ms"))
    if span.start == UNKNOWN and "started" in event.data:
        span.start = moment(event.data["started"])
    elif span.start == UNKNOWN and measured:
        span.start = moment(event.timestamp - measured)
    finish = span.start + measured if measured else max(span.start, moment(event.timestamp))
    span.end = max(finish, span.end or 0)


def end_model(span: Span, event: AgentEvent) -> None:
    end(span, event)
    span.status = "ok"
    span.outcome = text(event.data.get("stop_reason"))
    span.details |= event.data
    span.tokens = Tokens(
        whole(event.data.get("input_tokens")),
        whole(event.data.get("output_tokens")),
        whole(event.data.get("reasoning_tokens")),
        CacheTokens(whole(event.data.get("cache_read_tokens")), whole(event.data.get("cache_write_tokens"))),
    )
    span.answers = 1
    price = money(event.data.get("cost"))
    span.known_cost, span.unpriced = (Decimal(0), 1) if price is None else (price, 0)


def end_tool(span: Span, event: AgentEvent) -> None:
    span.details |= event.data
    if event.data.get("open"):
        begin(span, event)
        return
    end(span, event)
    conclude(span, event, ok=event.data.get("success", True) is not False)


def end_agent(span: Span, event: AgentEvent) -> None:
    span.details |= event.data
    end(span, event)
    conclude(span, event, ok=event.data.get("success", True) is not False)


def conclude(span: Span, event: AgentEvent, *, ok: bool) -> None:
    """The result of something that succeeded or failed. What a loop said of its own end stands."""
    output = text(event.data.get("output"))
    span.result = output or span.result
    span.outcome = text(event.data.get("reason")) or span.outcome
    if not ok and span.status != "stopped":
        span.status = "failed"
        span.error = span.error or output or span.outcome or "failed"
    elif span.status == "unfinished":
        span.status = "ok"


def end_loop(span: Span, event: AgentEvent) -> None:
    """The end of an agent's loop. Of an agent that another called, the return may say more, before or after."""
    span.details = event.data | span.details
    if event.data.get("open"):
        begin(span, event)
        return
    end(span, event)
    span.outcome = text(event.data.get("termination_reason"))
    span.result = text(event.data.get("output")) or span.result
    status = loop_status(event, span.outcome)
    if status == "stopped" and span.error in (None, span.result):
        span.error = None  # a return that says no more than "not a success": the loop knows better
        span.status = status
    elif span.status != "failed":
        span.status = status


def loop_status(event: AgentEvent, reason: str) -> SpanStatus:
    if event.type == "error":
        return "failed"
    return "ok" if reason.lower() in _DONE else "stopped"


def fail(span: Span, event: AgentEvent) -> None:
    """An error inside a span that has not ended ends it; all that a span failed of is kept."""
    kind, message = text(event.data.get("error_type")), text(event.data.get("message"))
    said = ": ".join(word for word in (kind, message) if word) or "error"
    if span.error is None:
        span.error = said
    elif said not in span.error:
        span.error = f"{span.error}\n{said}"
    if span.status == "unfinished":
        span.status = "failed"
        span.end = max(span.start, moment(event.timestamp))


def is_loop_end(event: AgentEvent) -> bool:
    """A loop that failed is recorded as an error, and is an end all the same."""
    return event.type == "finish" or (event.type == "error" and "termination_reason" in event.data)


def text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def whole(value: Any) -> int:
    """A whole number from a record that anybody may have written."""
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0


def moment(value: Any) -> int:
    """A time or a duration, which are never negative."""
    return max(0, whole(value))


def money(value: Any) -> Decimal | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return None
    return amount if amount.is_finite() else None


CALL_AGENT = "call_agent"


class Pairing:
    """`span_of` holds the span of each record, None for ends of loops and errors, which have no span of their own."""

    def __init__(self, events: Sequence[AgentEvent]) -> None:
        self.span_of: list[Span | None] = [None] * len(events)
        self.first_of: dict[str, Span] = {}
        self.session_of: dict[Span, str] = {}
        agents, models, tools = AgentCalls(), ModelCalls(), ToolCalls()
        self.child_sessions = agents.by_session
        for index, event in enumerate(events):
            match event.type:
                case "agent_call":
                    self._join(index, event, agents.called(event))
                case "agent_return":
                    self._join(index, event, agents.returned(event))
                case "llm_call":
                    self._join(index, event, models.asked(event))
                case "llm_response":
                    self._join(index, event, models.answered(event))
                case "tool_exec" | "finish" | "error":
                    pass
        # Only now is it known which tool calls were calls of agents.
        for index, event in enumerate(events):
            if event.type == "tool_exec":
                self._join(index, event, tools.ran(event, agents.of_tool(event)))

    def _join(self, index: int, event: AgentEvent, span: Span) -> None:
        self.span_of[index] = span
        if event.call_id:
            self.claim(event.call_id, span)
            self.session_of.setdefault(span, event.session_id)

    def claim(self, call_id: str, span: Span) -> None:
        """An id names the first span that has it, or an agent: some logs give an agent's id to all that it does."""
        known = self.first_of.get(call_id)
        if known is None or (span.kind == "agent" and known.kind != "agent"):
            self.first_of[call_id] = span


class AgentCalls:
    """Joins calls of agents to their returns: by session, else by id, else the newest open call of that agent."""

    def __init__(self) -> None:
        self.by_session: dict[str, Span] = {}
        self._by_id: dict[str, Span] = {}
        self._called_at: dict[Span, int] = {}
        self._caller: dict[Span, tuple[str, str]] = {}
        self._without_id: defaultdict[str, list[Span]] = defaultdict(list)

    def called(self, event: AgentEvent) -> Span:
        span = self._known(event)
        if span is None or self._is_another(span, event):
            span = self._new(event)
        self._called_at[span] = event.timestamp
        span.details = event.data | span.details
        begin(span, event)
        return span

    def returned(self, event: AgentEvent) -> Span:
        waiting = self._without_id[_callee(event)] if not event.call_id else []
        span = self._known(event) or (waiting.pop() if waiting else None) or self._new(event)
        end_agent(span, event)
        return span

    def of_tool(self, event: AgentEvent) -> Span | None:
        """The agent that this tool call called. Other tool records may have the same id: one that the agent itself
        made, or one from another place, since ids of models come again."""
        span = self._by_id.get(event.call_id)
        if span is None or self._caller.get(span) != (event.session_id, event.agent_name):
            return None
        if span.name == event.agent_name and event.data.get("tool_name") != CALL_AGENT:
            return None
        started = whole(event.data.get("started", event.timestamp))
        meanwhile = started <= span.start and (bool(event.data.get("open")) or span.start <= event.timestamp)
        return span if meanwhile else None

    def _known(self, event: AgentEvent) -> Span | None:
        session = text(event.data.get("child_session_id"))
        return self.by_session.get(session) or self._by_id.get(event.call_id)

    def _is_another(self, span: Span, event: AgentEvent) -> bool:
        """Some models number their calls from 1 in every answer, so an id alone does not make a duplicate."""
        return self._called_at.get(span, event.timestamp) != event.timestamp or (
            text(span.details.get("child_session_id")) != text(event.data.get("child_session_id"))
        )

    def _new(self, event: AgentEvent) -> Span:
        span = Span(_callee(event), "agent", agent_name=_callee(event), call_id=event.call_id)
        self._caller[span] = event.session_id, event.agent_name
        span.details["caller"] = event.agent_name
        span.details["child_session_id"] = session = text(event.data.get("child_session_id"))
        if event.call_id:
            self._by_id[event.call_id] = span
        elif event.type == "agent_call":
            self._without_id[span.name].append(span)
        if session:
            self.by_session[session] = span
        return span


class ModelCalls:
    """Joins requests to responses: an answer belongs to the newest open request from the same place."""

    def __init__(self) -> None:
        self._open: defaultdict[tuple[str, ...], list[Span]] = defaultdict(list)
        self._early: defaultdict[tuple[str, ...], list[Span]] = defaultdict(list)
        self._newest: dict[tuple[str, ...], tuple[AgentEvent, Span]] = {}

    def asked(self, event: AgentEvent) -> Span:
        place = _place(event)
        newest, span = self._newest.get((*place, "asked"), (None, None))
        if span is not None and newest == event and (event.call_id or span.end is None):
            return span
        span = self._answered_early(place, event)
        if span is None:
            span = _model(event)
            self._open[place].append(span)
        span.details = event.data | span.details
        begin(span, event)
        self._newest[(*place, "asked")] = event, span
        return span

    def answered(self, event: AgentEvent) -> Span:
        place = _place(event)
        waiting = self._open[place]
        newest, span = self._newest.get((*place, "answered"), (None, None))
        if span is not None and newest == event and not waiting:
            return span
        if waiting:
            span = waiting.pop()
        else:
            span = _model(event)
            self._early[place].append(span)
        end_model(span, event)
        self._newest[(*place, "answered")] = event, span
        return span

    def _answered_early(self, place: tuple[str, ...], event: AgentEvent) -> Span | None:
        """An answer that was recorded before its request."""
        early = self._early[place]
        return early.pop() if early and event.timestamp <= (early[-1].end or 0) else None


class ToolCalls:
    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Span] = {}

    def ran(self, event: AgentEvent, agent: Span | None) -> Span:
        """The call that started an agent is drawn as that agent."""
        if agent is not None:
            agent.details.setdefault("input", event.data.get("input"))
            return agent
        name = text(event.data.get("tool_name")) or "tool"
        span = self._recorded(event, name)
        if span is None:
            span = Span(name, "tool", event.agent_name, event.call_id)
            self._known |= dict.fromkeys(_times(event, name), span)
        end_tool(span, event)
        return span

    def _recorded(self, event: AgentEvent, name: str) -> Span | None:
        """An id may come again for another call (see AgentCalls); a record that came twice has the same times."""
        if not event.call_id:
            return None
        return next((self._known[time] for time in _times(event, name) if time in self._known), None)


def _times(event: AgentEvent, name: str) -> Iterator[tuple[object, ...]]:
    place = (event.session_id, event.agent_name, event.call_id, name)
    if "started" in event.data:
        yield *place, "started", whole(event.data["started"])
    if not event.data.get("open"):
        yield *place, "ended", event.timestamp


def _model(event: AgentEvent) -> Span:
    return Span(text(event.data.get("model")) or "model", "model", event.agent_name, event.call_id)


def _place(event: AgentEvent) -> tuple[str, ...]:
    return event.session_id, event.agent_name, event.parent_call_id, event.call_id


def _callee(event: AgentEvent) -> str:
    return text(event.data.get("callee")) or event.agent_name or "agent"


class SpanTreeBuilder:
    """`tops` are the loops that nobody called, `loose` the spans whose parent is unknown, `adrift` the errors."""

    def __init__(self, events: Sequence[AgentEvent]) -> None:
        self.tops: list[Span] = []
        self.loose: list[Span] = []
        self.adrift: list[AgentEvent] = []
        self._pairs = Pairing(events)
        self._loops = RootSpans(self.tops)
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
            end_loop(scope, event)
        else:
            self._fail(scope, event)

    def _fail(self, scope: Span, event: AgentEvent) -> None:
        """An error that names a call is that call's; else it ended the loop, and the request that was under way."""
        call = self._lookup(event.call_id)
        if call is not None and call.kind != "agent":
            fail(call, event)
            return
        if (unanswered := self._unanswered.pop(scope, None)) is not None:
            fail(unanswered, event)
        fail(scope, event)

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


class RootSpans:
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
            end_loop(span, event)
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
