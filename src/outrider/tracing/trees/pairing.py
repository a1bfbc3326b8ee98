"""Joins the records of one call into one span, in whatever order and number they came."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from outrider.tracing.agent_event import AgentEvent
from outrider.tracing.span import Span
from outrider.tracing.trees import outcomes
from outrider.tracing.trees.outcomes import text

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
        outcomes.begin(span, event)
        return span

    def returned(self, event: AgentEvent) -> Span:
        waiting = self._without_id[_callee(event)] if not event.call_id else []
        span = self._known(event) or (waiting.pop() if waiting else None) or self._new(event)
        outcomes.end_agent(span, event)
        return span

    def of_tool(self, event: AgentEvent) -> Span | None:
        """The agent that this tool call called. Other tool records may have the same id: one that the agent itself
        made, or one from another place, since ids of models come again."""
        span = self._by_id.get(event.call_id)
        if span is None or self._caller.get(span) != (event.session_id, event.agent_name):
            return None
        if span.name == event.agent_name and event.data.get("tool_name") != CALL_AGENT:
            return None
        started = outcomes.whole(event.data.get("started", event.timestamp))
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
        outcomes.begin(span, event)
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
        outcomes.end_model(span, event)
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
        outcomes.end_tool(span, event)
        return span

    def _recorded(self, event: AgentEvent, name: str) -> Span | None:
        """An id may come again for another call (see AgentCalls); a record that came twice has the same times."""
        if not event.call_id:
            return None
        return next((self._known[time] for time in _times(event, name) if time in self._known), None)


def _times(event: AgentEvent, name: str) -> Iterator[tuple[object, ...]]:
    place = (event.session_id, event.agent_name, event.call_id, name)
    if "started" in event.data:
        yield *place, "started", outcomes.whole(event.data["started"])
    if not event.data.get("open"):
        yield *place, "ended", event.timestamp


def _model(event: AgentEvent) -> Span:
    return Span(text(event.data.get("model")) or "model", "model", event.agent_name, event.call_id)


def _place(event: AgentEvent) -> tuple[str, ...]:
    return event.session_id, event.agent_name, event.parent_call_id, event.call_id


def _callee(event: AgentEvent) -> str:
    return text(event.data.get("callee")) or event.agent_name or "agent"
