"""What is going on in a session right now: the running turn, called agents, background processes, the task list."""

from collections.abc import Callable, Sequence
from decimal import Decimal
from math import ceil
from typing import Any, Literal, Protocol

import msgspec

from outrider.presentation.items import RETRY_NOW, STATE_LABELS, progress_text, retry_notice, silence_text
from outrider.presentation.tool_calls import call_title, call_todos
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    Event,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    ModelProgressEvent,
    ModelSilentEvent,
    PartDeltaEvent,
    ProcessExitedEvent,
    ProcessStartedEvent,
    RetryScheduledEvent,
    StateChangedEvent,
    ToolApprovalRequestedEvent,
    ToolExecutionStartedEvent,
    ToolInputDeltaEvent,
)
from outrider.types.messages import Message
from outrider.types.parts import SubtaskPart, ToolPart
from outrider.types.tool_state import TodoItem, ToolCompleted

_CHARACTERS_PER_TOKEN = 4
AgentState = Literal["working", "asking", "done", "failed"]
_ENDED = frozenset({"done", "failed"})
MAX_ENDED = 12
"""Agents and processes that have ended and are still listed."""


class UsageTotals(Protocol):
    """Stored usage of a session, summed up per model."""

    @property
    def cost(self) -> Decimal: ...
    @property
    def unpriced(self) -> int: ...
    @property
    def messages(self) -> int: ...


class SessionActivity:
    """State and usage of the running turn, fed with the events of a session and of the agents that it calls."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.busy = False
        self.label = ""
        self.silence_text = ""  # for how long the model has sent nothing
        self._retry: tuple[RetryScheduledEvent, float] | None = None  # with the time at which the request is sent again
        self.waits_for_person = False
        self.streamed_characters = 0  # of the answer that is being written
        self.turn_tokens = 0
        self.context_tokens = 0  # of the last prompt and its answer
        self.answers = 0
        self._cost = Decimal(0)
        self._cost_known = True
        self._started = 0.0

    @property
    def seconds(self) -> float:
        return self._clock() - self._started if self.busy else 0.0

    @property
    def retry_text(self) -> str:
        """Why a request is repeated, with a countdown, or how long the model has been silent."""
        if self._retry is None:
            return self.silence_text
        event, until = self._retry
        wait = max(ceil(until - self._clock()), 0) * 1000
        return retry_notice(event, wait).text if wait else RETRY_NOW

    @property
    def tokens(self) -> int:
        """Tokens of this turn: those reported, and an estimate for the answer that is being written."""
        return self.turn_tokens + self.streamed_characters // _CHARACTERS_PER_TOKEN

    @property
    def cost(self) -> Decimal | None:
        """None if an answer came from a model without a known price."""
        return self._cost if self._cost_known else None

    def apply(self, event: Event, *, is_shown_session: bool) -> None:
        """Folds an event. `is_shown_session` is False for an event of an agent that was called in the session."""
        match event:
            case LoopStartedEvent() if is_shown_session:
                self.busy, self._started, self.turn_tokens, self.streamed_characters = True, self._clock(), 0, 0
                self.label = "starting"
            case LoopCompletedEvent() if is_shown_session:
                self.busy, self._retry, self.silence_text = False, None, ""
            case StateChangedEvent() if is_shown_session:
                self.label = STATE_LABELS.get(event.new_state, self.label)
            case LLMRequestEvent():
                self.streamed_characters = 0
            case PartDeltaEvent() | ToolInputDeltaEvent():
                self._apply_delta(event, is_shown_session=is_shown_session)
            case RetryScheduledEvent():
                self._retry, self.silence_text = (event, self._clock() + event.delay_ms / 1000), ""
            case ModelSilentEvent() | ModelProgressEvent():
                self._apply_wait(event)
            case LLMResponseEvent():
                self._add_usage(event, is_shown_session=is_shown_session)
            case _:
                return  # not a part of the activity; `TranscriptView` matches every event

    def load(self, messages: Sequence[Message]) -> None:
        """Computes usage from the stored messages of a session."""
        answers = [message for message in messages if message.role == "assistant"]
        self._cost = sum((message.cost for message in answers if message.cost is not None), Decimal(0))
        self._cost_known = all(message.cost is not None for message in answers if message.tokens.total)
        self.answers = len(answers)
        last_usage = next((message.tokens for message in reversed(answers) if message.tokens.total), None)
        self.context_tokens = last_usage.total if last_usage else 0

    def load_totals(self, rows: Sequence[UsageTotals]) -> None:
        """Takes usage from stored totals where only the last messages of a session were loaded."""
        self._cost = sum((row.cost for row in rows), Decimal(0))
        self._cost_known = not any(row.unpriced for row in rows)
        self.answers = sum(row.messages for row in rows)

    def resume(self) -> None:
        """Shows a turn that was already running when the session was opened."""
        self.busy, self.label, self._started = True, "working", self._clock()

    def _apply_delta(self, event: PartDeltaEvent | ToolInputDeltaEvent, *, is_shown_session: bool) -> None:
        self._retry, self.silence_text = None, ""
        self.streamed_characters += len(event.delta)
        if is_shown_session:
            reasoning = isinstance(event, PartDeltaEvent) and event.field == "reasoning"
            self.label = "thinking" if reasoning else "writing"

    def _apply_wait(self, event: ModelSilentEvent | ModelProgressEvent) -> None:
        self._retry, self.silence_text = None, ""
        if isinstance(event, ModelProgressEvent):
            self.label = progress_text(event)
        else:
            self.silence_text = silence_text(event)

    def _add_usage(self, event: LLMResponseEvent, *, is_shown_session: bool) -> None:
        self.turn_tokens += event.tokens.output + event.tokens.reasoning
        self.streamed_characters = 0
        self.answers += 1
        # 0: no attempt was answered
        if is_shown_session and (context_tokens := event.tokens.total - event.withdrawn_tokens):
            self.context_tokens = context_tokens
        if event.cost is not None:
            self._cost += Decimal(event.cost)
        elif event.tokens.total:
            self._cost_known = False


class ChildAgent(msgspec.Struct):
    """An agent that was called in the session.

    - `call_id`: the call of the caller.
    - `name`: the name of the agent.
    - `message`: what the caller asked it to do.
    - `session_id`: the session of the agent.
    - `started`: when it was called, on the clock of `SideActivity`.
    - `state`: whether it works, waits for an approval, or has ended.
    - `activity`: what it does now; empty after its end.
    - `seconds`: how long it has worked; set at its end.
    - `task`: the short description of its work, if the caller gave one.
    - `stored`: it was called before the session was opened in this process.
    """

    call_id: str
    name: str
    message: str
    session_id: str
    started: float
    state: AgentState = "working"
    activity: str = "starting"
    seconds: float = 0.0
    task: str = ""
    stored: bool = False


class ChildProcess(msgspec.Struct):
    """A command that a call has started.

    - `id`: the id of the process.
    - `command`: the command line.
    - `started`: when it started, on the clock of `SideActivity`.
    - `in_background`: the call has ended and the command continues.
    - `exit_text`: how the command ended; empty while it runs.
    """

    id: str
    command: str
    started: float
    in_background: bool = False
    exit_text: str = ""


class SideActivity:
    """Called agents, processes and the task list of a session."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.agents: dict[str, ChildAgent] = {}  # by the id of their session
        self.processes: dict[str, ChildProcess] = {}
        self.todos: tuple[TodoItem, ...] = ()

    def has_agent(self, session_id: str) -> bool:
        return session_id in self.agents

    def apply(self, event: Event) -> None:
        match event:
            case AgentCalledEvent():
                earlier_call = self.agents.get(event.child_session_id)
                self.agents[event.child_session_id] = ChildAgent(
                    event.call_id,
                    event.callee,
                    event.message,
                    event.child_session_id,
                    self._clock(),
                    task=earlier_call.task if earlier_call else "",
                )
                _drop_oldest(self.agents, lambda agent: agent.state in _ENDED)
            case AgentReturnedEvent() if event.child_session_id in self.agents:
                agent = self.agents[event.child_session_id]
                agent.state = "done" if event.success else "failed"
                agent.activity, agent.seconds = "", self._clock() - agent.started
            case ProcessStartedEvent():
                self.processes[event.process_id] = ChildProcess(event.process_id, event.command, self._clock())
                _drop_oldest(self.processes, lambda process: bool(process.exit_text))
            case ProcessExitedEvent() if event.process_id in self.processes:
                code = event.exit_code
                text = event.signal or ("exited" if code == 0 else f"exit code {code}")
                self.processes[event.process_id].exit_text = text
            case _:
                self._apply_to_agent(event)

    def add_subtask(self, part: SubtaskPart) -> None:
        """Takes the description of a called agent from its stored part; the part may be older than this process."""
        if part.child_session_id is None:
            return
        agent = self.agents.setdefault(
            part.child_session_id,
            ChildAgent("", part.agent, part.prompt, part.child_session_id, self._clock(), "done", "", stored=True),
        )
        agent.task = part.description

    def update_from_call(self, part: ToolPart) -> None:
        """Takes the task list that a call has stored, and notes whether its command continues in the background."""
        if not isinstance(part.state, ToolCompleted):
            return
        if (todos := call_todos(part)) is not None:
            self.todos = todos
        process = self.processes.get(str(part.state.metadata.get("process_id", "")))
        if process is not None:
            process.in_background = bool(part.state.metadata.get("running"))

    def background_processes(self) -> list[ChildProcess]:
        """Returns the commands that no call waits for; the others are shown with their call."""
        return [process for process in self.processes.values() if process.in_background]

    def running_commands(self) -> list[ChildProcess]:
        """Returns the commands that a call waits for."""
        return [process for process in self.processes.values() if not process.in_background and not process.exit_text]

    @property
    def is_running(self) -> bool:
        """Whether an agent or a background process runs, so that its time grows."""
        working = any(agent.state not in _ENDED for agent in self.agents.values() if not agent.stored)
        return working or any(not process.exit_text for process in self.background_processes())

    def _apply_to_agent(self, event: Event) -> None:
        agent = self.agents.get(event.session_id)
        if agent is None or agent.state in _ENDED:
            return
        match event:
            case ToolExecutionStartedEvent():
                agent.state, agent.activity = "working", call_title(event.tool_name, event.tool_input)
            case ToolApprovalRequestedEvent():
                agent.state, agent.activity = "asking", event.tool_name
            case StateChangedEvent(new_state="calling_model"):
                agent.state, agent.activity = "working", "thinking"
            case _:
                return  # the agent continues what it does


def _drop_oldest(entries: dict[str, Any], has_ended: Callable[[Any], bool]) -> None:
    ended = [key for key, value in entries.items() if has_ended(value)]
    for key in ended[: max(len(ended) - MAX_ENDED, 0)]:
        del entries[key]
