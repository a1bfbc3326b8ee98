"""Builds a tree of spans from records, some of which may be missing, late, duplicated or contradictory.

The parent of a span is its session, the call that its record names, or the innermost open call of its agent. Spans are
looked up by id first, so the order of records matters only for records without an id.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from outrider.tracing.records import UNKNOWN, AgentEvent, Span, SpanStatus
from outrider.types.parts import CacheTokens, Tokens

_DONE = {"", "completed", "complete", "done", "finish", "finished", "stop", "end_turn", "success", "ok"}


def set_start(span: Span, event: AgentEvent) -> None:
    """Sets the start from a record; a second, later start changes nothing."""
    start = as_time(event.data.get("started", event.timestamp))
    span.start = start if span.start == UNKNOWN else min(span.start, start)


def set_end(span: Span, event: AgentEvent) -> None:
    """Sets the end. A measured duration has priority over the wall clock, which may have been changed meanwhile."""
    measured = as_time(event.data.get("duration_ms"))
    if span.start == UNKNOWN and "started" in event.data:
        span.start = as_time(event.data["started"])
    elif span.start == UNKNOWN and measured:
        span.start = as_time(event.timestamp - measured)
    finish = span.start + measured if measured else max(span.start, as_time(event.timestamp))
    span.end = max(finish, span.end or 0)


def end_model_span(span: Span, event: AgentEvent) -> None:
    set_end(span, event)
    span.status = "ok"
    span.outcome = as_text(event.data.get("stop_reason"))
    span.details |= event.data
    span.tokens = Tokens(
        as_integer(event.data.get("input_tokens")),
        as_integer(event.data.get("output_tokens")),
        as_integer(event.data.get("reasoning_tokens")),
        CacheTokens(as_integer(event.data.get("cache_read_tokens")), as_integer(event.data.get("cache_write_tokens"))),
    )
    span.answers = 1
    price = as_decimal(event.data.get("cost"))
    span.known_cost, span.unpriced = (Decimal(0), 1) if price is None else (price, 0)


def end_tool_span(span: Span, event: AgentEvent) -> None:
    span.details |= event.data
    if event.data.get("open"):
        set_start(span, event)
        return
    set_end(span, event)
    set_result(span, event, ok=event.data.get("success", True) is not False)


def end_agent_span(span: Span, event: AgentEvent) -> None:
    span.details |= event.data
    set_end(span, event)
    set_result(span, event, ok=event.data.get("success", True) is not False)


def set_result(span: Span, event: AgentEvent, *, ok: bool) -> None:
    """Sets the result of a call. A status that the agent's loop has set is not overwritten."""
    output = as_text(event.data.get("output"))
    span.result = output or span.result
    span.outcome = as_text(event.data.get("reason")) or span.outcome
    if not ok and span.status != "stopped":
        span.status = "failed"
        span.error = span.error or output or span.outcome or "failed"
    elif span.status == "unfinished":
        span.status = "ok"


def end_loop_span(span: Span, event: AgentEvent) -> None:
    """Sets the end of an agent's loop. For an agent that was called, the return record may add to it, before or
    after."""
    span.details = event.data | span.details
    if event.data.get("open"):
        set_start(span, event)
        return
    set_end(span, event)
    span.outcome = as_text(event.data.get("termination_reason"))
    span.result = as_text(event.data.get("output")) or span.result
    status = loop_status(event, span.outcome)
    if status == "stopped" and span.error in (None, span.result):
        span.error = None  # the return record only states the failure; the loop has the reason
        span.status = status
    elif span.status != "failed":
        span.status = status


def loop_status(event: AgentEvent, reason: str) -> SpanStatus:
    if event.type == "error":
        return "failed"
    return "ok" if reason.lower() in _DONE else "stopped"


def add_error(span: Span, event: AgentEvent) -> None:
    """Adds an error to a span, and ends it if it is open."""
    kind, message = as_text(event.data.get("error_type")), as_text(event.data.get("message"))
    problem = ": ".join(word for word in (kind, message) if word) or "error"
    if span.error is None:
        span.error = problem
    elif problem not in span.error:
        span.error = f"{span.error}\n{problem}"
    if span.status == "unfinished":
        span.status = "failed"
        span.end = max(span.start, as_time(event.timestamp))


def is_loop_end(event: AgentEvent) -> bool:
    """Returns whether the record ends a loop; a failed loop is recorded as an error."""
    return event.type == "finish" or (event.type == "error" and "termination_reason" in event.data)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def as_integer(value: Any) -> int:
    """Converts a value of a record, which a program may have written, to an integer."""
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0


def as_time(value: Any) -> int:
    """Converts a value to a time or duration, which are never negative."""
    return max(0, as_integer(value))


def as_decimal(value: Any) -> Decimal | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return None
    return amount if amount.is_finite() else None


CALL_AGENT = "call_agent"


class SpanPairing:
    """Assigns records to spans. `span_of` has the span of each record; None for ends of loops and errors, which have no
    separate span."""

    def __init__(self, events: Sequence[AgentEvent]) -> None:
        self.span_of: list[Span | None] = [None] * len(events)
        self.first_of: dict[str, Span] = {}
        self.session_of: dict[Span, str] = {}
        agents, models, tools = AgentSpans(), ModelSpans(), ToolSpans()
        self.child_sessions = agents.by_session
        for index, event in enumerate(events):
            match event.type:
                case "agent_call":
                    self._assign_span(index, event, agents.add_call(event))
                case "agent_return":
                    self._assign_span(index, event, agents.add_return(event))
                case "llm_call":
                    self._assign_span(index, event, models.add_request(event))
                case "llm_response":
                    self._assign_span(index, event, models.add_response(event))
                case "tool_exec" | "finish" | "error":
                    pass
        # Tool calls come second, because some of them are calls of agents, which are known only now.
        for index, event in enumerate(events):
            if event.type == "tool_exec":
                self._assign_span(index, event, tools.add_execution(event, agents.agent_for_tool(event)))

    def _assign_span(self, index: int, event: AgentEvent, span: Span) -> None:
        self.span_of[index] = span
        if event.call_id:
            self.claim_id(event.call_id, span)
            self.session_of.setdefault(span, event.session_id)

    def claim_id(self, call_id: str, span: Span) -> None:
        """Maps an id to the first span that has it, or to an agent: some logs use an agent's id for all that it
        does."""
        current = self.first_of.get(call_id)
        if current is None or (span.kind == "agent" and current.kind != "agent"):
            self.first_of[call_id] = span


class AgentSpans:
    """Matches calls of agents with their returns: by session, else by id, else the newest open call of that agent."""

    def __init__(self) -> None:
        self.by_session: dict[str, Span] = {}
        self._by_id: dict[str, Span] = {}
        self._called_at: dict[Span, int] = {}
        self._caller: dict[Span, tuple[str, str]] = {}
        self._without_id: defaultdict[str, list[Span]] = defaultdict(list)

    def add_call(self, event: AgentEvent) -> Span:
        span = self._find_span(event)
        if span is None or self._is_other_call(span, event):
            span = self._new_span(event)
        self._called_at[span] = event.timestamp
        span.details = event.data | span.details
        set_start(span, event)
        return span

    def add_return(self, event: AgentEvent) -> Span:
        waiting = self._without_id[_callee_name(event)] if not event.call_id else []
        span = self._find_span(event) or (waiting.pop() if waiting else None) or self._new_span(event)
        end_agent_span(span, event)
        return span

    def agent_for_tool(self, event: AgentEvent) -> Span | None:
        """Returns the agent that this tool call has called. Other tool records may have the same id: a call that the
        agent itself made, or one of another session, since models reuse ids."""
        span = self._by_id.get(event.call_id)
        if span is None or self._caller.get(span) != (event.session_id, event.agent_name):
            return None
        if span.name == event.agent_name and event.data.get("tool_name") != CALL_AGENT:
            return None
        started = as_integer(event.data.get("started", event.timestamp))
        meanwhile = started <= span.start and (bool(event.data.get("open")) or span.start <= event.timestamp)
        return span if meanwhile else None

    def _find_span(self, event: AgentEvent) -> Span | None:
        session = as_text(event.data.get("child_session_id"))
        return self.by_session.get(session) or self._by_id.get(event.call_id)

    def _is_other_call(self, span: Span, event: AgentEvent) -> bool:
        """Returns whether the span is another call with the same id: some models number their calls from 1 in every
        answer."""
        return self._called_at.get(span, event.timestamp) != event.timestamp or (
            as_text(span.details.get("child_session_id")) != as_text(event.data.get("child_session_id"))
        )

    def _new_span(self, event: AgentEvent) -> Span:
        span = Span(_callee_name(event), "agent", agent_name=_callee_name(event), call_id=event.call_id)
        self._caller[span] = event.session_id, event.agent_name
        span.details["caller"] = event.agent_name
        span.details["child_session_id"] = session = as_text(event.data.get("child_session_id"))
        if event.call_id:
            self._by_id[event.call_id] = span
        elif event.type == "agent_call":
            self._without_id[span.name].append(span)
        if session:
            self.by_session[session] = span
        return span


class ModelSpans:
    """Matches requests with responses: a response belongs to the newest open request of the same source."""

    def __init__(self) -> None:
        self._open: defaultdict[tuple[str, ...], list[Span]] = defaultdict(list)
        self._early: defaultdict[tuple[str, ...], list[Span]] = defaultdict(list)
        self._newest: dict[tuple[str, ...], tuple[AgentEvent, Span]] = {}

    def add_request(self, event: AgentEvent) -> Span:
        source = _source_key(event)
        newest, span = self._newest.get((*source, "asked"), (None, None))
        if span is not None and newest == event and (event.call_id or span.end is None):
            return span
        span = self._find_early_response(source, event)
        if span is None:
            span = _model_span(event)
            self._open[source].append(span)
        span.details = event.data | span.details
        set_start(span, event)
        self._newest[(*source, "asked")] = event, span
        return span

    def add_response(self, event: AgentEvent) -> Span:
        source = _source_key(event)
        open_spans = self._open[source]
        newest, span = self._newest.get((*source, "answered"), (None, None))
        if span is not None and newest == event and not open_spans:
            return span
        if open_spans:
            span = open_spans.pop()
        else:
            span = _model_span(event)
            self._early[source].append(span)
        end_model_span(span, event)
        self._newest[(*source, "answered")] = event, span
        return span

    def _find_early_response(self, source: tuple[str, ...], event: AgentEvent) -> Span | None:
        """Returns the span of a response that was recorded before its request."""
        early = self._early[source]
        return early.pop() if early and event.timestamp <= (early[-1].end or 0) else None


class ToolSpans:
    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Span] = {}

    def add_execution(self, event: AgentEvent, agent: Span | None) -> Span:
        """Returns the span of a tool call; a call that started an agent is shown as that agent."""
        if agent is not None:
            agent.details.setdefault("input", event.data.get("input"))
            return agent
        name = as_text(event.data.get("tool_name")) or "tool"
        span = self._find_duplicate(event, name)
        if span is None:
            span = Span(name, "tool", event.agent_name, event.call_id)
            self._known |= dict.fromkeys(_time_keys(event, name), span)
        end_tool_span(span, event)
        return span

    def _find_duplicate(self, event: AgentEvent, name: str) -> Span | None:
        """Finds the span of a duplicate record. An id may be reused by another call, but a duplicate has equal
        times."""
        if not event.call_id:
            return None
        return next((self._known[time] for time in _time_keys(event, name) if time in self._known), None)


def _time_keys(event: AgentEvent, name: str) -> Iterator[tuple[object, ...]]:
    call = (event.session_id, event.agent_name, event.call_id, name)
    if "started" in event.data:
        yield *call, "started", as_integer(event.data["started"])
    if not event.data.get("open"):
        yield *call, "ended", event.timestamp


def _model_span(event: AgentEvent) -> Span:
    return Span(as_text(event.data.get("model")) or "model", "model", event.agent_name, event.call_id)


def _source_key(event: AgentEvent) -> tuple[str, ...]:
    return event.session_id, event.agent_name, event.parent_call_id, event.call_id


def _callee_name(event: AgentEvent) -> str:
    return as_text(event.data.get("callee")) or event.agent_name or "agent"


class SpanTreeBuilder:
    """Builds the tree: `roots` are loops without a caller, `orphans` spans whose parent is unknown, `unplaced_errors`
    the errors that belong to no span."""

    def __init__(self, events: Sequence[AgentEvent]) -> None:
        self.roots: list[Span] = []
        self.orphans: list[Span] = []
        self.unplaced_errors: list[AgentEvent] = []
        self._pairs = SpanPairing(events)
        self._roots = RootSpans(self.roots)
        self._now: dict[str, Span] = {}
        self._parents: dict[Span, Span | None] = {}
        self._unanswered: dict[Span, Span] = {}
        self._open_agents: defaultdict[str, list[Span]] = defaultdict(list)
        self._returned: set[Span] = set()
        self._declare_loops(events)
        for event, span in zip(events, self._pairs.span_of, strict=True):
            if span is not None:
                self._place_span(event, span)
            elif not self._roots.close_root(event):
                self._apply_end(event)
        self._cut_cycles()
        for span, parent in self._parents.items():
            (self.orphans if parent is None else parent.children).append(span)

    def _declare_loops(self, events: Sequence[AgentEvent]) -> None:
        for event in events:
            if is_loop_end(event) and self._find_named(event) is None:
                span = self._roots.add_root(event)
                if event.call_id:
                    self._pairs.claim_id(event.call_id, span)

    def _place_span(self, event: AgentEvent, span: Span) -> None:
        if event.call_id and (span.kind == "agent" or self._pairs.first_of[event.call_id].kind != "agent"):
            self._now[event.call_id] = span
        if span not in self._parents:
            self._parents[span] = parent = self._find_parent(event, span)
            if parent is not None and span.kind == "model" and span.end is None:
                self._unanswered[parent] = span
        if event.type == "agent_call":
            self._open_agents[span.name].append(span)
        elif event.type == "agent_return":
            self._returned.add(span)

    def _find_parent(self, event: AgentEvent, span: Span) -> Span | None:
        named = self._find_named(event, span)
        if named is not None:
            return named
        if event.parent_call_id and event.parent_call_id != event.call_id:
            return None
        return self._open_agent(event.agent_name) or self._roots.find_enclosing(event, span.start)

    def _find_named(self, event: AgentEvent, span: Span | None = None) -> Span | None:
        """Returns the span that the ids of the record refer to, other than the record's own span."""
        inside = self._find_by_id(event.call_id)
        if inside is not None and inside is not span and _is_done_by(inside, event):
            return inside
        session = self._pairs.child_sessions.get(event.session_id)
        session = None if session is span else session
        parent = self._find_by_id(event.parent_call_id)
        parent = None if parent is span else parent
        if session is None or parent is None:
            return session or parent
        in_session = parent.kind != "agent" and self._pairs.session_of.get(parent) == event.session_id
        return parent if in_session else session

    def _find_by_id(self, call_id: str) -> Span | None:
        return (self._now.get(call_id) or self._pairs.first_of.get(call_id)) if call_id else None

    def _open_agent(self, name: str) -> Span | None:
        """Returns the innermost agent with that name that was called and has not returned."""
        waiting = self._open_agents[name]
        while waiting and waiting[-1] in self._returned:
            waiting.pop()
        return waiting[-1] if waiting else None

    def _apply_end(self, event: AgentEvent) -> None:
        """Applies an end of a loop or an error to the span that contains it."""
        scope = self._find_named(event)
        if scope is None and not event.parent_call_id:
            scope = self._open_agent(event.agent_name) or self._roots.find_enclosing(event, UNKNOWN)
        if scope is None:
            self.unplaced_errors.append(event)
        elif is_loop_end(event):
            end_loop_span(scope, event)
        else:
            self._apply_error(scope, event)

    def _apply_error(self, scope: Span, event: AgentEvent) -> None:
        """Applies an error to the call that it names; else to the loop, and to its open request."""
        call = self._find_by_id(event.call_id)
        if call is not None and call.kind != "agent":
            add_error(call, event)
            return
        if (unanswered := self._unanswered.pop(scope, None)) is not None:
            add_error(unanswered, event)
        add_error(scope, event)

    def _cut_cycles(self) -> None:
        """Breaks cycles, which contradictory parents can form: the first span of a cycle becomes an orphan."""
        settled: set[Span] = set()
        for span in self._parents:
            path: set[Span] = set()
            ancestor: Span | None = span
            while ancestor is not None and ancestor not in settled:
                if ancestor in path:
                    self._parents[ancestor] = None
                    break
                path.add(ancestor)
                ancestor = self._parents.get(ancestor)
            settled |= path


class RootSpans:
    """Root spans. Each has an end record, so records before that end belong to it."""

    def __init__(self, tops: list[Span]) -> None:
        self._tops = tops
        self._declared: dict[tuple[object, ...], Span] = {}
        self._waiting: defaultdict[str, deque[Span]] = defaultdict(deque)
        self._last_ended: dict[str, Span] = {}
        self._home_of_agent: dict[str, str] = {}

    def add_root(self, event: AgentEvent) -> Span:
        span = self._find_root(event)
        if span is None:
            span = self._new_root(event, _root_key(event), event.call_id)
            self._declared[_end_key(event)] = self._declared[*_end_key(event), event.data.get("started")] = span
            end_loop_span(span, event)
        return span

    def close_root(self, event: AgentEvent) -> bool:
        """Returns whether the record ends a root span; later records of its session belong to a new one."""
        span = self._find_root(event) if is_loop_end(event) else None
        if span is None:
            return False
        waiting = self._waiting[_root_key(event)]
        if waiting and waiting[0] is span and span.end is not None:
            self._last_ended[_root_key(event)] = waiting.popleft()
        return True

    def _find_root(self, event: AgentEvent) -> Span | None:
        """Returns the span of an end that was already recorded; the log has the start only for the first of two."""
        if "started" in event.data:
            return self._declared.get((*_end_key(event), event.data["started"]))
        return self._declared.get(_end_key(event))

    def find_enclosing(self, event: AgentEvent, start: int) -> Span | None:
        home = event.session_id or self._home_of_agent.get(event.agent_name) or event.agent_name
        if not home:
            return None
        ended, waiting = self._last_ended.get(home), self._waiting[home]
        moment = event.timestamp if start == UNKNOWN else start
        is_late = ended is not None and ended.end is not None and moment <= ended.end
        if is_late and not (waiting and UNKNOWN < waiting[0].start <= moment):
            return ended
        return waiting[0] if waiting else self._new_root(event, home)

    def _new_root(self, event: AgentEvent, home: str, call_id: str = "") -> Span:
        span = Span(event.agent_name or "agent", "agent", event.agent_name, call_id)
        self._tops.append(span)
        self._waiting[home].append(span)
        if event.session_id:
            self._home_of_agent[event.agent_name] = event.session_id
        return span


def _root_key(event: AgentEvent) -> str:
    """Returns the key of a root span: its session, or its agent if no session is known."""
    return event.session_id or event.agent_name


def _end_key(event: AgentEvent) -> tuple[object, ...]:
    return _root_key(event), event.call_id, event.timestamp, bool(event.data.get("open"))


def _is_done_by(agent: Span, event: AgentEvent) -> bool:
    """Returns whether a record with the id of an agent call is an operation of that agent, not the call itself."""
    if agent.kind != "agent" or event.type in ("agent_call", "agent_return"):
        return False
    session = agent.details.get("child_session_id")
    return event.agent_name in ("", agent.agent_name) and event.session_id in ("", session or event.session_id)
