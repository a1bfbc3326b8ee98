"""The two contexts of the loop: `RunContext` is shared by all agents of a run, `AgentContext` belongs to one agent in
one session."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from contextvars import Context
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec.structs import replace

from outrider._sync import CallbackRunner
from outrider.agents.budget import ModelPrice, RunBudget
from outrider.agents.hooks import HookedClient, Hooks, SentRequests
from outrider.agents.output_type import OutputType
from outrider.agents.turn_state import SilenceTimer, TurnState
from outrider.context.lower import PromptProjection
from outrider.context.request_ledger import RequestRecorder
from outrider.errors import (
    AuthenticationError,
    MalformedAnswerError,
    NetworkError,
    NotFoundError,
    OverloadedError,
    PermissionRefusedError,
    ProviderError,
    QuotaExceededError,
    RateLimitError,
    ServerError,
)
from outrider.event_bus import EventBus
from outrider.permissions.modes import stricter_level, stricter_mode
from outrider.providers.provider import ModelClient
from outrider.sessions.journal import Journal
from outrider.sessions.session import Session
from outrider.tools.runner import SaveOutput
from outrider.tools.tool import Progress, Tool, ToolContext
from outrider.types.agents import Agent, AgentMessage, Mode, SessionContext
from outrider.types.events import Event, PartUpdatedEvent, StateChangedEvent
from outrider.types.messages import Message
from outrider.types.modes import ApprovalLevel
from outrider.types.origins import Origins
from outrider.types.parts import Tokens, ToolPart
from outrider.types.request import OutputSchema, ToolSpec

if TYPE_CHECKING:
    from outrider.agents.carried_context import RemovedTexts
    from outrider.permissions.information_flow import ContextOrigins, OriginLabels

TakeInput = Callable[[], Awaitable[list[Message]]]
RunTask = Callable[[str, str, str, ToolContext], Awaitable[str]]
"""Runs an agent: its name, a short description, the prompt and the context of the tool call. Returns its answer."""
TaskTool = Callable[[Mapping[str, str], RunTask], Tool]
"""Builds the `task` tool from the agents' names and roles."""


class ApprovalVerdict(msgspec.Struct, frozen=True):
    """Whether a call may run. If not, the model reads `message`, and `reason` is "denied", "rejected",
    "invalid_input", or "failed" for a call that could not have worked. `by_stored_answer` is set if a stored answer
    decides about exactly this call, so that no user was asked now."""

    allowed: bool
    reason: str = ""
    message: str = ""
    by_stored_answer: bool = False


class ToolCallGate(Protocol):
    """Decides whether a call may run and requests an approval where the rules require one. The call that it receives is
    exactly the one that runs. `confirm` asks whether an agent may continue to repeat a call; it returns None if no user
    can be asked."""

    async def admit(self, call: ToolPart, tool: Tool, context: "AgentContext") -> ApprovalVerdict: ...
    async def confirm(self, call: ToolPart, context: "AgentContext", question: str) -> bool | None: ...


class ChildSessions(Protocol):
    """Opens the sessions of called agents. If `can_reopen` is False, an agent that was suspended starts from the
    beginning."""

    @property
    def can_reopen(self) -> bool: ...
    async def open_child(self, child: Session) -> Journal: ...
    async def reopen_child(self, session_id: str) -> Journal: ...


class ModelPricing(Protocol):
    """Limits and prices of models."""

    def price(self, agent: Agent) -> ModelPrice | None: ...
    def cost(self, agent: Agent, model: str, tokens: Tokens) -> Decimal | None: ...
    def context_limit(self, agent: Agent) -> int | None: ...
    def output_limit(self, agent: Agent) -> int | None: ...
    def result_limit(self, agent: Agent) -> int | None:
        """Returns how many characters of a tool result are sent to the model; None for all."""
        ...


# Errors of the request itself and of its content are not listed: the next model would reject them as well.
_FALLBACK_ERRORS = (
    AuthenticationError,
    MalformedAnswerError,
    NetworkError,
    NotFoundError,
    OverloadedError,
    PermissionRefusedError,
    QuotaExceededError,
    RateLimitError,
    ServerError,
)

CallWrapper = Callable[[ToolPart, Tool, "AgentContext"], AbstractAsyncContextManager[None]]
"""Returns a context manager that is active while the tool of a call runs."""


def no_call_wrapper(call: ToolPart, tool: Tool, context: "AgentContext") -> AbstractAsyncContextManager[None]:
    return nullcontext()


def discard_output(output: str) -> None:
    """The default of `save_output`: without file tools the model could not read a saved file."""


class RunModels(msgspec.Struct, frozen=True, kw_only=True):
    """The models of a run.

    - `clients`: the client of each provider.
    - `pricing`: limits and prices.
    - `provider_names`: for OpenTelemetry, the standard name of each provider.
    - `silence_seconds`: a model that sends nothing for this time is reported.
    """

    clients: Mapping[str, ModelClient]
    pricing: ModelPricing
    provider_names: Mapping[str, str]
    silence_seconds: float


class CallServices(msgspec.Struct, frozen=True, kw_only=True):
    """What tool calls use.

    - `labels`: derives the origins of results.
    - `save_output`: stores an output that is too long for the model.
    - `wrap_call`: returns a context manager that is active while a tool runs; undo snapshots use it.
    """

    labels: "Callable[[], OriginLabels]"
    save_output: SaveOutput
    wrap_call: CallWrapper


class PromptTexts(msgspec.Struct, frozen=True, kw_only=True):
    """What the built-in tools of a session add to its prompts. `notes` are appended to every system prompt; `rights`
    are the fields of its text about the mode. `overrides` replace built-in prompts by name."""

    notes: str = ""
    rights: Mapping[str, str] | None = None
    overrides: Mapping[str, str] = {}


class ProgramFunctions(msgspec.Struct, frozen=True, kw_only=True):
    """What the program adds to a run.

    - `hooks`: the hooks of the program.
    - `deps`: the value that tools and functions of the program receive.
    - `callbacks`: calls functions of the program.
    - `sent_requests`: the last requests, which the hook `before_request` needs.
    - `tasks`: the asyncio tasks in which functions of the program run.
    """

    hooks: Hooks = Hooks()
    deps: Any = None
    callbacks: CallbackRunner = msgspec.field(default_factory=CallbackRunner)
    sent_requests: SentRequests = msgspec.field(default_factory=SentRequests)
    tasks: set[asyncio.Task[Any]] = msgspec.field(default_factory=set[asyncio.Task[Any]])


class RunContext(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the agents of one run share: models, tools, permission gate, budget and event bus. Without
    `auto_compact`, the context is compacted only after an overflow or on request."""

    agents: Mapping[str, Agent]
    models: RunModels
    tools: Mapping[str, Tool]
    task_tool: TaskTool | None
    gate: ToolCallGate
    calls: CallServices
    child_sessions: ChildSessions
    budget: RunBudget
    bus: EventBus
    clock: Callable[[], int]
    prompts: PromptTexts
    program: ProgramFunctions
    auto_compact: bool
    agent_messages: list[AgentMessage] = []

    def client_for(self, agent: Agent) -> ModelClient:
        """Returns the client of the agent's provider. It repeats a request after an error, and calls the hook
        `before_request` first."""
        client = self.models.clients[agent.provider]
        if not getattr(client, "repeats_requests", False):
            from outrider.providers.client import RepeatingClient  # lazy: only for clients of users

            client = RepeatingClient(client)
        program = self.program
        if program.hooks.before_request is None:
            return client
        return HookedClient(
            client,
            program.hooks.before_request,
            program.callbacks,
            program.sent_requests,
            self.bus.publish,
            agent=agent.name,
            deps=program.deps,
        )


class AgentContext(msgspec.Struct, kw_only=True, weakref=True):
    """The state of one agent in one session.

    - `agent`: the agent with the model that answers now; a fallback model replaces it.
    - `run`: what all agents of the run share.
    - `mode`: the mode for which the tools and the system prompt were built.
    - `journal`: the write path into the session.
    - `projection`: the prompt of the transcript, extended with each request.
    - `system_prompt`: the system prompt that is sent.
    - `tools`: the tools that run in the current mode, by name.
    - `workspace`: the folder of the session.
    - `depth`: the number of callers; 0 for the entry agent.
    - `call_id`: the tool call that started the agent; "" for the entry agent.
    - `tool_specs`: the tools that are sent to the model: those of the mode with the most rights that its prompts had.
    - `ask_rules`, `deny_rules`: the rules of the agent and of all its callers, so a callee never has more rights than
      its caller.
    - `output`: the type of the requested value; None for plain text.
    - `output_value`: the requested value; UNSET until an answer has it.
    - `repairs`: how often the model was asked again for a valid value.
    - `fixed_prompt`: the system prompt without the instructions that a function writes.
    - `call_context`: the context variables of the task whose input is processed, if they differ from the turn's.
    - `finish_output`: the result that the agent has passed to `finish`.
    - `closing`: while it is set, a cancelled turn leaves open approvals and `suspended_calls` pending, so that they
      continue when the session is reopened.
    - `held`: while it is set, no request starts.
    - `not_shortened_at`: the number of messages when a compaction last shortened nothing.
    - `removed_texts`: what compactions have read of the messages that they removed.
    - `overflow_sizes`: the estimated tokens of the smallest prompt that was too long, by model.
    - `suspended_calls`: the ids of calls that wait for an answer until the session is reopened.
    - `take_input`: returns new user input, and removes it from the queue.
    - `caller`: the agent that called this one; None for the entry agent.
    - `state`: the state of the turn; None before the first turn.
    - `waiting_calls`: the number of calls of the turn that wait for an approval.
    - `tracked_origins`: the origins of what the agent has read; created when they are first needed.
    - `silence`: reports a model that sends nothing.
    - `request_recorder`: records the requests that were sent.
    """

    agent: Agent
    run: RunContext
    mode: Mode
    journal: Journal
    projection: PromptProjection
    system_prompt: str
    tools: dict[str, Tool]
    workspace: Path
    depth: int = 0
    call_id: str = ""
    tool_specs: tuple[ToolSpec, ...] = ()
    ask_rules: tuple[str, ...] = ()
    deny_rules: tuple[str, ...] = ()
    output: OutputType | None = None
    output_value: Any = msgspec.UNSET
    repairs: int = 0
    fixed_prompt: str = ""
    call_context: Context | None = None
    finish_output: str | None = None
    closing: bool = False
    held: bool = False
    not_shortened_at: int = 0
    removed_texts: "RemovedTexts | None" = None
    overflow_sizes: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    suspended_calls: set[str] = msgspec.field(default_factory=set[str])
    take_input: TakeInput | None = None
    caller: "AgentContext | None" = None
    state: TurnState | None = None
    waiting_calls: int = 0
    tracked_origins: "ContextOrigins | None" = None
    silence: SilenceTimer = msgspec.field(default_factory=SilenceTimer)
    request_recorder: RequestRecorder

    @property
    def session(self) -> Session:
        return self.journal.session

    async def wait_if_held(self) -> None:
        """Waits before a request, until the turn is cancelled, if the turn continues in another process."""
        if self.held:
            await asyncio.Event().wait()

    @property
    def output_schema(self) -> OutputSchema | None:
        return self.output.schema if self.output else None

    @property
    def root(self) -> "AgentContext":
        """The context of the entry agent."""
        return self if self.caller is None else self.caller.root

    def session_context(self) -> SessionContext[Any]:
        """Returns what functions of the program receive about the session."""
        session = self.session
        return SessionContext(
            deps=self.run.program.deps,
            session_id=session.id,
            root_session_id=self.root.session.id,
            owner=session.owner,
            metadata=session.metadata,
            agent=self.agent.name,
        )

    def tool_context(self, call_id: str, report: Callable[[Progress], None] = lambda _: None) -> ToolContext[Any]:
        """Returns the context of a tool call."""
        session = self.session
        return ToolContext(
            session_id=session.id,
            call_id=call_id,
            agent=self.agent.name,
            workspace=self.workspace,
            report=report,
            deps=self.run.program.deps,
            owner=session.owner,
            metadata=session.metadata,
            root_session_id=self.root.session.id,
        )

    @property
    def will_resume(self) -> bool:
        """Whether this agent or one of its callers is closing with the intent to be reopened."""
        return self.closing or (self.caller is not None and self.caller.will_resume)

    @property
    def effective_mode(self) -> Mode:
        """The strictest of the session's mode and the callers' modes. They may change during a turn."""
        mode = self.session.mode
        return mode if self.caller is None else stricter_mode(self.caller.effective_mode, mode)

    @property
    def effective_level(self) -> ApprovalLevel:
        """The strictest of the session's approval level and the callers' levels."""
        level = self.session.approval
        return level if self.caller is None else stricter_level(self.caller.effective_level, level)

    def read_origins(self) -> Origins:
        """Returns the origins of everything that is in the context of the agent."""
        if self.tracked_origins is None:
            from outrider.permissions.information_flow import ContextOrigins  # with the first call

            self.tracked_origins = ContextOrigins()
        return self.tracked_origins.update(self.session.messages, self.run.calls.labels(), str(self.workspace))

    def start_turn(self, run: RunContext) -> None:
        """Uses a new run context, with a fresh budget, for the next turn; prompt and tools are reused."""
        self.run = run
        self.finish_output = None
        self.output, self.output_value, self.repairs = None, msgspec.UNSET, 0
        self.call_context = None

    def enter_state(self, state: TurnState) -> None:
        """Changes the state of the turn, and publishes the change. Calls outside of a turn have no state."""
        old = self.state
        if old is not None and state != old:
            self.state = state
            self.emit_event(StateChangedEvent, old_state=old, new_state=state)

    @contextmanager
    def awaiting_approval(self) -> Generator[None, None, None]:
        """Returns a context manager for the wait for an approval. The turn is in the state "awaiting_approval" while at
        least one of its calls waits."""
        self.waiting_calls += 1
        self.enter_state("awaiting_approval")
        try:
            yield
        finally:
            self.waiting_calls -= 1
            if not self.waiting_calls:
                self.enter_state("running_tools")

    def localize_event(self, event: Event, message_id: str) -> Event:
        """Returns an event of another process as an event of this session. An event without a session id comes from the
        remote agent that answers in place of this one."""
        if event.session_id:
            return event
        fields: dict[str, Any] = {
            "session_id": self.session.id,
            "agent_name": self.agent.name,
            "parent_call_id": self.call_id,
        }
        if isinstance(event, PartUpdatedEvent):
            fields["part"] = replace(event.part, session_id=self.session.id, message_id=message_id)
        return replace(event, **fields)

    def emit_event(self, event: type[Event], /, **fields: Any) -> None:
        """Publishes an event after the journal changes that precede it. The event is not created if it has no
        listener."""
        if self.run.bus.has_listeners(event):
            # Not by `make_event`: it would copy the fields once more.
            journal, agent = self.journal, self.agent.name
            journal.publish_event(
                event(session_id=journal.session.id, agent_name=agent, parent_call_id=self.call_id, **fields)
            )

    def make_event(self, event: type[Event], /, **fields: Any) -> Event:
        """Creates an event with the session, agent and parent call of this context."""
        return event(session_id=self.session.id, agent_name=self.agent.name, parent_call_id=self.call_id, **fields)


def fallback_agent(context: AgentContext, error: ProviderError) -> Agent | None:
    """Returns the agent with the next model of its list that can be reached; None if there is none, or if another model
    would fail with this error too. A name is PROVIDER/MODEL, or a model of the agent's provider."""
    if not isinstance(error, _FALLBACK_ERRORS):
        return None
    agent, clients = context.agent, context.run.models.clients
    for position, name in enumerate(agent.fallback_models):
        provider, slash, model = name.partition("/")
        if not slash or provider not in clients:
            provider, model = agent.provider, name
        if (provider, model) != (agent.provider, agent.model):
            remaining = agent.fallback_models[position + 1 :]
            return replace(agent, provider=provider, model=model, fallback_models=remaining)
    return None
