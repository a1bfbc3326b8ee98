"""What a run gives back."""

from functools import cached_property
from typing import Any

from outrider.sessions.session import Session
from outrider.tracing.event_log import EventLog
from outrider.tracing.spans import Trace
from outrider.types.agents import AgentMessage
from outrider.types.usage import Usage


class RunResult:
    """`output` is the entry agent's last word (or the value of the output type), `messages` every forward and return,
    `session` the entry agent's transcript, `usage` that of all agents together."""

    def __init__(
        self,
        *,
        output: Any,
        messages: list[AgentMessage],
        event_log: EventLog,
        session: Session,
        usage: Usage,
        termination_reason: str,
    ) -> None:
        self.output = output
        self.messages = messages
        self.event_log = event_log
        self.session = session
        self.usage = usage
        self.termination_reason = termination_reason

    @cached_property
    def trace(self) -> Trace:
        return Trace(self.event_log)

    def format_trace(self) -> str:
        return self.trace.format_tree()

    def __repr__(self) -> str:
        return f"RunResult(output={self.output!r}, termination_reason={self.termination_reason!r})"
