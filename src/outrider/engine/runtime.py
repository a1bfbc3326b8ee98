"""The composition root of `run()` and of the engine: connects models, permissions, store and tools, and creates the run
context of each turn.

`run()` needs neither built-in tools nor undo, so their modules are imported only if an engine is created with them."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypedDict, TypeVar, cast, get_args

import msgspec

from outrider._sync import CALLBACK_SECONDS, CallbackRunner, call_user_function, describe_argument
from outrider.agents.budget import RunBudget
from outrider.agents.hooks import HookDecision, HookedPrompt, Hooks, SentRequests
from outrider.agents.run_context import (
    CallServices,
    ProgramFunctions,
    PromptTexts,
    RunContext,
    RunModels,
    discard_output,
    no_call_wrapper,
)
from outrider.config.providers import redactor_for, search_path, with_environment_defaults
from outrider.engine.approval_gate import (
    ApprovalChannel,
    ApprovalGate,
    ApproveFunction,
    PermissionChecker,
    Rules,
    function_channel,
    ignore_admitted_call,
)
from outrider.engine.child_sessions import ChildSessionOpener, DelegatedLimits, end_child_sessions
from outrider.errors import CallbackError, ConfigurationError, OutriderError
from outrider.event_bus import EventBus
from outrider.models.clients import (
    CatalogPricing,
    LazyClient,
    adapt_to_local_models,
    as_provider,
    shared_catalog,
    shared_client,
)
from outrider.permissions.redaction.redactor import FILTERED_EVENTS, RedactingEventFilter
from outrider.providers.catalog import ModelCatalog
from outrider.providers.provider import CustomProvider, ModelClient
from outrider.sessions.journal import Journal, create_journal, resume_journal
from outrider.sessions.leases import LeaseOwner, current_process
from outrider.sessions.records import ApprovalScope, SessionFilter
from outrider.sessions.redacted_store import redact_store
from outrider.sessions.session import Session
from outrider.sessions.store import STORE_METHODS, Store
from outrider.tools.runner import describe_touched_files
from outrider.tools.tool import Tool, tools_by_name
from outrider.types.agents import Agent, Limits, Provider, SessionContext
from outrider.types.ids import now_ms
from outrider.types.messages import Message
from outrider.types.modes import ApprovalLevel, ReasoningEffort
from outrider.types.origins import FlowSettings
from outrider.types.parts import ModelRef, TextPart
from outrider.types.validate import check_mode, is_positive_number

if TYPE_CHECKING:
    from outrider.engine.session_tools import OwnerLimits, SessionTools, ToolEnvironment
    from outrider.engine.undo import UndoRecorder
    from outrider.models.session_recorder import SessionRecorder
    from outrider.permissions.information_flow import EgressPolicy, OriginLabels
    from outrider.processes.git import GitRunner
    from outrider.project.extensions import WorkspaceExtensions
    from outrider.project.mcp import McpServerManager
    from outrider.sessions.records import StoredSession


Named = TypeVar("Named", Agent, Provider)
DepsFactory = Callable[[SessionContext[Any]], Any]
Redacted = TypeVar("Redacted")
_log = logging.getLogger("outrider.engine")


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The checked agents, tools and providers of a run or an engine, by name. With `more_tools`, sessions add further
    tools, so an agent may name tools that are not known yet."""

    entry: Agent
    agents: Mapping[str, Agent]
    tools: Mapping[str, Tool]
    providers: Mapping[str, Provider]
    more_tools: bool = False

    @classmethod
    def build(
        cls,
        entry: Agent | str,
        agents: Iterable[Agent],
        tools: Iterable[Tool | Callable[..., Any]],
        providers: Iterable[Provider | CustomProvider],
        *,
        more_tools: bool = False,
    ) -> Self:
        """Indexes agents, tools and providers by name and validates them. Raises ConfigurationError."""
        by_name = _by_name("agents", agents)
        if isinstance(entry, Agent):
            by_name.setdefault(entry.name, entry)
        elif not isinstance(entry, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"the entry agent is {describe_argument(entry)}; pass an Agent, or the name of one in agents"
            )
        elif entry not in by_name:
            raise ConfigurationError(f"the entry agent {entry!r} is not one of: {', '.join(by_name) or 'no agents'}")
        providers_by_name = _by_name("providers", map(as_provider, providers))
        by_name = {name: agent.select_listed_model(providers_by_name) for name, agent in by_name.items()}
        spec = cls(
            entry=by_name[entry.name if isinstance(entry, Agent) else entry],
            agents=by_name,
            tools=tools_by_name(tools),
            providers=providers_by_name,
            more_tools=more_tools,
        )
        spec._validate()
        return spec

    def _validate(self) -> None:
        for agent in self.agents.values():
            check_mode(agent.mode, f"agent {agent.name!r}")
            if agent.provider not in self.providers:
                available = f"there is {', '.join(self.providers)}" if self.providers else "no provider was given"
                raise ConfigurationError(f"agent {agent.name!r} needs the provider {agent.provider!r}; {available}")
            for tool in agent.tools or ():
                if tool not in self.tools and not self.more_tools:
                    raise ConfigurationError(f"agent {agent.name!r} needs the tool {tool!r}, which was not given")
        for name in ({"call_agent", "finish"} & self.tools.keys()) | (self.agents.keys() & self.tools.keys()):
            raise ConfigurationError(f"the name {name!r} is taken; give that tool another one")


def _by_name(kind: str, values: Iterable[Named]) -> dict[str, Named]:
    by_name: dict[str, Named] = {}
    for value in values:
        if value.name in by_name:
            raise ConfigurationError(f"two {kind} are called {value.name!r}")
        by_name[value.name] = value
    return by_name


class EngineKeywords(TypedDict, total=False):
    """The keyword arguments of `Engine`, for type checkers and editors; see `EngineOptions` for their defaults."""

    attended: bool
    workspace: Path | str | None
    limits: Limits | None
    rules: Rules
    surroundings: "ToolEnvironment | None"
    cassettes: Path | str | None
    hooks: Hooks
    secrets: tuple[str, ...]
    catalog: ModelCatalog | None
    compacts: bool
    titles: bool | Agent
    approval: ApprovalLevel
    flow: FlowSettings
    deps: "DepsFactory | None"
    callback_seconds: float | None
    approve: "ApproveFunction | None"


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a run or an engine in one value.

    - `attended`: whether a user can approve calls; otherwise calls that need it are denied.
    - `workspace`: the folder of new sessions; by default the current folder.
    - `limits`: usage limits of each turn.
    - `rules`: which calls are allowed, asked about or denied.
    - `surroundings`: adds the built-in tools.
    - `cassettes`: a folder in which model requests and answers are recorded.
    - `hooks`: functions that see calls, messages and ends.
    - `secrets`: values that are redacted.
    - `catalog`: facts and prices of models.
    - `compacts`: whether history is summarised before the context is full.
    - `titles`: whether a model generates session titles: the agent if it is one, else the session's own model unless
      that is scripted or runs locally.
    - `approval`: which calls of agent mode need an approval.
    - `flow`: where sessions may send data without a question after they have read untrusted text.
    - `deps`: a plain or async function that takes a `SessionContext` and returns the dependencies of that session. It
      is called when a session is opened, in any process; a context manager that it returns, plain or async, is entered
      then and exited when the session is closed.
    - `callback_seconds`: limits each call of a function of the program, except for `approve`.
    - `approve`: decides about calls that need approval; without it they wait for `Engine.answer`.
    """

    attended: bool = True
    workspace: Path | str | None = None
    limits: Limits | None = None
    rules: Rules = Rules()
    surroundings: "ToolEnvironment | None" = None
    cassettes: Path | str | None = None
    hooks: Hooks = Hooks()
    secrets: tuple[str, ...] = ()
    catalog: ModelCatalog | None = None
    compacts: bool = True
    titles: bool | Agent = False
    approval: ApprovalLevel = "ask"
    flow: FlowSettings = FlowSettings()
    deps: "DepsFactory | None" = None
    callback_seconds: float | None = CALLBACK_SECONDS
    approve: "ApproveFunction | None" = None

    @classmethod
    def from_keywords(cls, keywords: EngineKeywords) -> Self:
        """Checks the names of keyword arguments. Raises ConfigurationError for an unknown one."""
        unknown = keywords.keys() - set(cls.__struct_fields__)
        if unknown:
            names = ", ".join(cls.__struct_fields__)
            raise ConfigurationError(f"an engine has no option {', '.join(sorted(unknown))}; it has {names}")
        return cls(**keywords)


class EngineRuntime:
    """The base of `run()` and the engine. Open it before the first run context is created, and close it after the last
    turn. Its `store` redacts secrets. Without `takes_leases` sessions have no lease, as in a run that is only in
    memory. `approvals` denies calls that need an approval, until the owner of the runtime sets another channel."""

    __slots__ = (  # less memory: a process may have thousands of concurrent runs
        "_catalog", "_clients", "_options", "_owner_clients", "_pricing", "_provider_names", "_recorder", "_redactor",
        "_sent_requests", "_stack", "approvals", "bus", "delegated_limits", "is_open", "keys_of_owner", "lease_owner",
        "silence_seconds", "spec", "store", "titles", "undo",
    )  # fmt: skip

    def __init__(
        self,
        spec: RunSpec,
        options: EngineOptions,
        *,
        store: Store | None,
        bus: EventBus,
        takes_leases: bool = True,
    ) -> None:
        self._redactor = redactor_for(spec.providers.values(), options.secrets)
        self.spec = spec
        self.store = redact_store(store or _create_memory_store(), self._redactor)
        self.bus = bus
        self.lease_owner = LeaseOwner(self.store, current_process()) if takes_leases else None
        self.approvals: ApprovalChannel = function_channel(None)
        self.titles = options.titles
        self.undo = _create_undo_recorder(options.surroundings)
        self.delegated_limits: dict[str, DelegatedLimits] = {}  # by session, for agents of other processes
        self.is_open = False
        self.silence_seconds = 30.0  # without a part of an answer, until it is reported
        self._options = options
        self._catalog = options.catalog or shared_catalog()
        self._pricing = CatalogPricing(self._catalog, spec.providers)
        self._clients: dict[str, ModelClient] = {}
        self.keys_of_owner: Callable[[str], Mapping[str, str]] | None = None  # keys of a user, by provider
        self._owner_clients: dict[tuple[str, str], ModelClient] = {}  # by provider and key
        self._sent_requests: SentRequests = {}  # for the hook `before_request`, across the turns of a session
        self._provider_names = {name: provider.vendor for name, provider in spec.providers.items()}
        self._recorder = self._create_recorder()
        self._stack = AsyncExitStack()

    def _create_recorder(self) -> "SessionRecorder | None":
        """Creates the cassette recorder. The import is lazy, because it is rarely used."""
        folder = self._options.cassettes
        if folder is None:
            return None
        from outrider.models.session_recorder import SessionRecorder

        return SessionRecorder(Path(folder), self.spec.providers, self._clients, self._redactor.known_forms)

    async def open(self, *, unused_providers: bool = True) -> None:
        """Redacts events of the bus and connects the models. Providers without an agent connect on first use; without
        `unused_providers` they are left out."""
        self.is_open = True
        redact_event = RedactingEventFilter(self._redactor).__call__  # calling a method is faster than an object
        self._stack.callback(self.bus.add_transform(redact_event, FILTERED_EVENTS))
        used_providers = {name for agent in self.spec.agents.values() for name in agent.provider_names}
        for name, provider in self.spec.providers.items():
            if name in used_providers:
                client = shared_client(with_environment_defaults(provider), self._catalog)
            elif unused_providers:
                client = aclosing(LazyClient(with_environment_defaults(provider), self._catalog))
            else:
                continue
            self._clients[name] = await self._stack.enter_async_context(client)

    async def update_providers(self, providers: Iterable[Provider]) -> None:
        """Uses other keys, or more providers, from the next request on. Running requests are not affected."""
        changed = [provider for provider in providers if provider != self.spec.providers.get(provider.name)]
        current = cast("dict[str, Provider]", self.spec.providers)
        for provider in changed:
            current[provider.name] = provider
            self._provider_names[provider.name] = provider.vendor
            self._redactor.add_secrets([provider.api_key] if provider.api_key else [])
            client = aclosing(LazyClient(provider, self._catalog))
            self._clients[provider.name] = await self._stack.enter_async_context(client)

    def use_default_model(self, provider: str, model: str) -> None:
        """Uses this model from the next turn on, for all agents with the same model as the entry agent."""
        agents, entry = cast("dict[str, Agent]", self.spec.agents), self.spec.entry
        for name, agent in agents.items():
            if (agent.provider, agent.model) == (entry.provider, entry.model):
                agents[name] = msgspec.structs.replace(agent, provider=provider, model=model)
        self.spec = msgspec.structs.replace(self.spec, entry=agents[entry.name])

    async def aclose(self) -> None:
        """Closes recorder, undo and models. It is safe to call after `open` raised an exception."""
        self.is_open = False
        if self._recorder is not None:
            await self._recorder.aclose()
        if self.undo is not None:
            await self.undo.close()
        await self._stack.aclose()

    async def release_session(self, session_id: str) -> None:
        """Closes what was opened for one session."""
        self.delegated_limits.pop(session_id, None)
        for key in [key for key in self._sent_requests if key[0] == session_id]:
            del self._sent_requests[key]
        if self._recorder is not None:
            await self._recorder.close(session_id)

    @property
    def rules(self) -> Rules:
        return self._options.rules

    @property
    def approval(self) -> ApprovalLevel:
        """The approval level of new sessions."""
        return self._options.approval

    @property
    def data(self) -> Path | None:
        """Outrider's data folder; None for an engine without built-in tools, which stores no files."""
        return self._options.surroundings.data if self._options.surroundings else None

    def find_agent(self, name: str, model: ModelRef | None = None, effort: ReasoningEffort | None = None) -> Agent:
        """Returns the agent of this name ("": the first agent). `model` and `effort` replace those of the agent if they
        are not None. Raises ConfigurationError if the name is unknown."""
        if name and name not in self.spec.agents:
            raise ConfigurationError(f"there is no agent {name!r}; there are {', '.join(self.spec.agents)}")
        agent = self.spec.agents[name or self.spec.entry.name]
        if effort is not None:
            agent = msgspec.structs.replace(agent, reasoning_effort=effort, reasoning=None)
        if model is None:
            return agent
        chosen = msgspec.structs.replace(agent, provider=model.provider, model=model.model)
        return adapt_to_local_models([chosen], self.spec.providers.values())[0]

    def session_agent(self, session: Session, model: ModelRef | None, effort: ReasoningEffort | None = None) -> Agent:
        """Returns the session's agent, with the delegated rules of the process that it works for."""
        agent, delegated = self.find_agent(session.agent, model, effort), self.delegated_limits.get(session.id)
        return delegated.restrict_agent(agent) if delegated else agent

    def _create_budget(self, session: Session) -> RunBudget:
        limits, delegated = self._options.limits or self.spec.entry.limits, self.delegated_limits.get(session.id)
        return delegated.create_budget(limits) if delegated else RunBudget(limits)

    @property
    def mcp_servers(self) -> "McpServerManager | None":
        """The MCP servers, for front ends that show their status and prompts."""
        environment = self._options.surroundings
        return environment.extensions.servers if environment and environment.extensions else None

    @property
    def workspace_extensions(self) -> "WorkspaceExtensions | None":
        """What workspaces add, and whether they are trusted; None for an engine without built-in tools."""
        environment = self._options.surroundings
        return environment.extensions if environment else None

    def create_session_tools(self, session: Session) -> "SessionTools | None":
        """Creates the built-in tools of a session; the caller closes them. Without a user there is no question tool."""
        environment = self._options.surroundings
        if environment is None:
            return None
        from outrider.engine.session_tools import SessionTools

        if not self._options.attended:
            environment = msgspec.structs.replace(environment, ask=None)
        find_secrets, options = self._redactor.find_spans_in_bytes, self._options
        return SessionTools(
            session, environment, self.approvals, self.undo, find_secrets, flow=options.flow, rules=options.rules
        )

    async def create_session(self, session: Session) -> Journal:
        """Stores a new session and returns its journal, with a lease if this runtime takes leases."""
        return await create_journal(session, self.store, self.bus, lease_owner=self.lease_owner)

    async def resume_session(self, session_id: str, *, take_over: bool = False, repeat_calls: bool = False) -> Journal:
        """Opens a stored session, with a lease if this runtime takes leases. The results of interrupted calls describe
        the current state of their files."""
        journal = await resume_journal(
            session_id,
            self.store,
            self.bus,
            lease_owner=self.lease_owner,
            take_over=take_over,
            describe=describe_touched_files,
            repeat_calls=repeat_calls,
        )
        try:
            await end_child_sessions(self.store, journal.session.messages)
            if self.undo is not None:
                await self.undo.recover_session(journal)
        except BaseException:
            await journal.close()
            raise
        return journal

    async def open_deps(self, session: Session) -> "OpenDependencies":
        """Creates the dependencies of a session. Raises CallbackError if the factory fails."""
        factory, seconds = self._options.deps, self._options.callback_seconds
        if factory is None:
            return _NO_DEPENDENCIES
        context: SessionContext[Any] = SessionContext(
            session_id=session.id,
            root_session_id=session.id,
            owner=session.owner,
            metadata=session.metadata,
            agent=session.agent,
        )
        value = await call_user_function("the deps factory", factory, context, seconds=seconds)
        return await _enter_dependencies(value, seconds)

    @property
    def callback_seconds(self) -> float | None:
        return self._options.callback_seconds

    async def call_prompt_hook(self, session: Session, message: Message) -> None:
        """Calls the hook `on_prompt` for an input and adds the text that it returns. Raises OutriderError if the hook
        refuses the input, and CallbackError if it fails."""
        hook = self._options.hooks.on_prompt
        if hook is None:
            return
        prompt = HookedPrompt(text=message.get_text_content(), session_id=session.id, is_first=not session.messages)
        returned = await call_user_function("the hook on_prompt", hook, prompt, seconds=self._options.callback_seconds)
        if isinstance(returned, HookDecision) and returned.effect == "deny":
            raise OutriderError(f"a hook refused the input: {returned.reason or 'it gives no reason'}")
        if isinstance(returned, str) and returned.strip():
            message.add_part(TextPart(returned, synthetic=True))
        elif returned is not None and not isinstance(returned, str):
            raise CallbackError(
                "the hook on_prompt",
                f"returned {describe_argument(returned)}; it must return a string, a HookDecision that denies, or None",
            )

    def redact(self, value: Redacted) -> Redacted:
        """Returns a copy of a value with secrets redacted."""
        return self._redactor.redact_value(value)

    def create_run_context(
        self, session: Session, session_tools: "SessionTools | None" = None, *, deps: Any = None
    ) -> RunContext:
        """Creates the context of one turn. Its budget is new; everything else belongs to the engine or the session."""
        options = self._options
        built_in = session_tools.tools if session_tools else {}
        built_in_names = built_in.keys() - self.spec.tools.keys()
        environment = options.surroundings
        flow = _TurnFlow(self, session, session_tools)
        checker = PermissionChecker(
            options.rules,
            built_in_names,
            sandbox=self.can_sandbox,
            unconfined=environment is not None and environment.sandbox.accepted,
            search_path=search_path(),
            egress=flow.egress,
            is_limited=flow.is_limited,
        )
        return RunContext(
            agents=self.spec.agents,
            models=RunModels(
                clients=self._clients_for(session),
                pricing=self._pricing,
                provider_names=self._provider_names,
                silence_seconds=self.silence_seconds,
            ),
            tools={**built_in, **self.spec.tools},
            task_tool=session_tools.task_tool if session_tools else None,
            gate=ApprovalGate(
                checker, self.approvals, session_tools.admit_call if session_tools else ignore_admitted_call
            ),
            calls=CallServices(
                labels=flow.labels,
                save_output=session_tools.save_output if session_tools else discard_output,
                wrap_call=self.undo.call_wrapper(built_in_names) if self.undo else no_call_wrapper,
            ),
            child_sessions=ChildSessionOpener(
                self.store, self.bus, self.lease_owner, session_tools.tree if session_tools else None
            ),
            budget=self._create_budget(session),
            bus=self.bus,
            clock=now_ms,
            prompts=session_tools.prompt_texts(session, attended=options.attended) if session_tools else PromptTexts(),
            program=ProgramFunctions(
                hooks=options.hooks,
                deps=deps,
                callbacks=CallbackRunner(options.callback_seconds),
                sent_requests=self._sent_requests,
            ),
            auto_compact=options.compacts,
        )

    def create_egress_policy(self) -> "EgressPolicy":
        """Returns where sessions without built-in tools may send data without a question."""
        from outrider.permissions.information_flow import EgressPolicy  # lazy: most runs send nothing

        return EgressPolicy(allowed=self._options.flow.allowed)

    def create_labels(self, session_tools: "SessionTools | None") -> "OriginLabels":
        """Returns the object that derives the origins of tool results."""
        from outrider.permissions.information_flow import OriginLabels  # lazy: needed with the first call

        flow = self._options.flow
        return OriginLabels(
            trusts_workspace=cache(session_tools.trusts_workspace) if session_tools else _trusts_workspace,
            private_servers=flow.private_servers,
            trusted_servers=flow.trusted_servers,
            has_secret=self._redactor.has_secret,
        )

    def _clients_for(self, session: Session) -> Mapping[str, ModelClient]:
        """Returns the clients of a session, with the keys of its owner if there are any. Requests with an owner's key
        are not recorded."""
        configured, keys = self.spec.providers, dict[str, str]()
        if self.keys_of_owner is not None and session.owner:
            keys.update(self.keys_of_owner(session.owner))
        owner_clients = {
            name: self._owner_client(configured[name], key) for name, key in keys.items() if name in configured
        }
        if owner_clients:
            return {**self._clients, **owner_clients}
        return self._recorder.clients_for(session.id) if self._recorder else self._clients

    def _owner_client(self, provider: Provider, key: str) -> ModelClient:
        cache_key = (provider.name, key)
        if cache_key not in self._owner_clients:
            self._redactor.add_secrets([key])
            client = LazyClient(msgspec.structs.replace(provider, api_key=key, credentials=None), self._catalog)
            self._stack.push_async_callback(client.aclose)
            self._owner_clients[cache_key] = client
        return self._owner_clients[cache_key]

    def find_limits(self, session: "Session | StoredSession") -> "OwnerLimits | None":
        """Returns the limits of a session whose owner may not use the whole machine."""
        environment = self._options.surroundings
        return environment.find_limits(session) if environment is not None else None

    def git_runner(self, session: "StoredSession") -> "GitRunner":
        """Returns the object that runs git for a session."""
        from outrider.processes.git import GitRunner  # lazy: for the review of changes only

        environment = self._options.surroundings
        return environment.git_runner(session) if environment is not None else GitRunner()

    def can_sandbox(self) -> bool:
        """Returns whether commands can be sandboxed. The first call starts processes to find that out."""
        environment = self._options.surroundings
        return environment is not None and environment.sandbox.confines


class _TurnFlow:
    """The data flow settings for the permission check of one turn. Most turns need none of them, so each value is
    created when it is first used."""

    __slots__ = ("_egress", "_labels", "_runtime", "_session", "_session_tools")

    def __init__(self, runtime: EngineRuntime, session: Session, session_tools: "SessionTools | None") -> None:
        self._runtime = runtime
        self._session = session
        self._session_tools = session_tools
        self._egress: EgressPolicy | None = None
        self._labels: OriginLabels | None = None

    def egress(self) -> "EgressPolicy":
        if self._egress is None:
            tools = self._session_tools
            self._egress = tools.egress if tools else self._runtime.create_egress_policy()
        return self._egress

    def labels(self) -> "OriginLabels":
        if self._labels is None:
            self._labels = self._runtime.create_labels(self._session_tools)
        return self._labels

    def is_limited(self) -> bool:
        return self._runtime.find_limits(self._session) is not None


def _trusts_workspace() -> bool:
    return True


async def _close_nothing() -> None:
    """Closes a session without dependencies."""


class OpenDependencies(NamedTuple):
    """The dependencies of an open session, and the function that closes them."""

    value: Any = None
    close: Callable[[], Awaitable[None]] = _close_nothing


_NO_DEPENDENCIES = OpenDependencies()


async def _enter_dependencies(value: Any, seconds: float | None) -> OpenDependencies:
    """Returns the dependencies, entered if they are a context manager. An exception at its exit is only logged, because
    the session is closed in any case."""
    kind = cast("Any", type(value))
    is_async = hasattr(kind, "__aenter__") and hasattr(kind, "__aexit__")
    if not is_async and not (hasattr(kind, "__enter__") and hasattr(kind, "__exit__")):
        return OpenDependencies(value)
    enter, leave = (value.__aenter__, value.__aexit__) if is_async else (value.__enter__, value.__exit__)
    entered = await call_user_function("the context manager of the deps factory", enter, seconds=seconds)

    async def close() -> None:
        try:
            name = "the context manager of the deps factory"
            await call_user_function(name, leave, None, None, None, seconds=seconds)
        except CallbackError:
            _log.exception("the dependencies of a session could not be closed")

    return OpenDependencies(entered, close)


def _create_undo_recorder(environment: "ToolEnvironment | None") -> "UndoRecorder | None":
    if environment is None:
        return None
    from outrider.engine.undo import UndoRecorder

    return UndoRecorder(environment.data, environment.bus)


def _create_memory_store() -> Store:
    """Creates a store in memory. The import is lazy, because runs with another store do not need it."""
    from outrider.sessions.memory_store import MemoryStore

    return MemoryStore()


def _is_store(value: Any) -> bool:
    return not isinstance(value, type) and hasattr(value, "append") and hasattr(value, "create")


def _is_one_of(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


def _is_delivery(value: Any) -> bool:
    return value in ("queue", "steer")


def _is_scope(value: Any) -> bool:
    return value in get_args(ApprovalScope)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_environment(value: Any) -> bool:
    return hasattr(value, "sandbox") and hasattr(value, "data")


_FLAG = (_is_one_of(bool), "True or False")
_TEXT = (_is_one_of(str), "a string")
_ARGUMENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "attended": _FLAG,
    "debug": _FLAG,
    "worktree": _FLAG,
    "compacts": _FLAG,
    "titles": (_is_one_of(bool, Agent), "True, False, or the agent that writes titles"),
    "secrets": (_is_one_of(list, tuple, set, frozenset), "a tuple of strings, such as (password,)"),
    "rules": (_is_one_of(Rules), 'Rules(allow=("shell(git status *)",))'),
    "catalog": (_is_one_of(ModelCatalog), "a ModelCatalog of outrider.providers"),
    "cassettes": (_is_one_of(str, Path), "the path of a folder"),
    "surroundings": (_is_environment, "nothing: outrider.workspace.Workspace adds the built-in tools"),
    "agent": (_is_one_of(str), "the name of an agent"),
    "input_id": _TEXT,
    "sender": _TEXT,
    "by": _TEXT,
    "limit": (_is_count, "a whole number of at least 0"),
    "allow": _FLAG,
    "message": _TEXT,
    "limits": (_is_one_of(Limits), "Limits(turns=20, seconds=60)"),
    "hooks": (_is_one_of(Hooks), "Hooks(before_call=function)"),
    "bus": (_is_one_of(EventBus), "EventBus()"),
    "store": (_is_store, 'an open store, such as `async with SqliteStore("sessions.db") as store`'),
    "session": (_is_one_of(Session, str), "a Session, or the id of one in `store`"),
    "approve": (callable, "a function that takes an ApprovalRequest and returns True or False"),
    "deps": (callable, "a function that takes a SessionContext and returns the dependencies"),
    "owner": (_is_one_of(str), "a string, such as the name of the user"),
    "instructions": _TEXT,
    "session_id": (_is_one_of(str), "the id of a session, as `Engine.create` returns it"),
    "title": _TEXT,
    "query": (_is_one_of(str), "the words to search for"),
    "filter": (_is_one_of(SessionFilter), "SessionFilter(owner=…)"),
    "workspace": (_is_one_of(str, Path), "the path of a folder"),
    "content": (_is_one_of(str, list, tuple), "a string, or a list of strings, Attachment values and parts"),
    "scope": (_is_scope, "one of once, session, project and always"),
    "delivery": (_is_delivery, '"queue" or "steer"'),
    "flow": (_is_one_of(FlowSettings), "FlowSettings(…)"),
    "callback_seconds": (is_positive_number, "a number of seconds, or None for no limit"),
}


def check_arguments(where: str, arguments: Mapping[str, Any]) -> None:
    """Raises ConfigurationError for an argument of the wrong type. None is valid for every argument."""
    for name, value in arguments.items():
        expected = _ARGUMENTS.get(name)
        if value is not None and expected is not None and not expected[0](value):
            raise ConfigurationError(f"{where}: {name} is {describe_argument(value)}; pass {expected[1]}")
    store = arguments.get("store")
    if store is not None and (missing := [name for name in STORE_METHODS if not hasattr(store, name)]):
        raise ConfigurationError(
            f"{where}: store is a {type(store).__name__} without the methods {', '.join(missing)}; implement all of "
            "outrider.stores.Store, or inherit from one of its classes (outrider.testing.check_store tests it)"
        )


def check_engine(where: str, engine: object, session_id: object) -> None:
    """Raises ConfigurationError if `engine` is not an engine or `session_id` is not the id of a session."""
    if not hasattr(engine, "runtime"):
        raise ConfigurationError(f"{where} takes an Engine, got {describe_argument(engine)}; write Engine([…], […])")
    check_arguments(where, {"session_id": session_id})


def check_parts(where: str, agents: Any, tools: Any, providers: Any) -> None:
    """Raises ConfigurationError if agents, tools or providers are not lists of the right type."""
    for name, values, kind in (("agents", agents, Agent), ("tools", tools, None), ("providers", providers, Provider)):
        if isinstance(values, str | dict) or not isinstance(values, Iterable):
            description = describe_argument(cast("object", values))
            raise ConfigurationError(f"{where}: {name} must be a list, got {description}; write {name}=[…]")
        if kind is None or not isinstance(values, list | tuple):
            continue
        for value in cast("Iterable[Any]", values):
            if kind is Provider and hasattr(value, "stream"):
                continue  # a provider of the program; `as_provider` names what it lacks
            if not isinstance(value, kind) and not hasattr(value, "name"):
                raise ConfigurationError(
                    f"{where}: {name} has {describe_argument(value)}; it has {kind.__name__} values, such as "
                    f"{_EXAMPLES[kind]}"
                )


_EXAMPLES: dict[type, str] = {
    Agent: 'Agent("helper", "You help.", model=…, provider=…)',
    Provider: 'Provider("openai", kind="openai")',
}
