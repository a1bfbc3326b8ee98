"""Replays a stored session offline from its cassette and reports where it differs."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from outrider.agents.compaction import ContextCompactor
from outrider.agents.delegation import open_agent_context
from outrider.agents.run_context import AgentContext, ApprovalVerdict, RunContext, ToolCallGate
from outrider.agents.turn import Turn
from outrider.engine.engine import Engine
from outrider.engine.runtime import check_engine
from outrider.engine.session_tools import SessionTools
from outrider.errors import ConfigurationError, OutriderError, ToolFailure
from outrider.event_bus import EventBus
from outrider.models.clients import model_client, shared_catalog
from outrider.models.session_recorder import NON_HTTP_KINDS, cassette_path
from outrider.providers.cassettes.record import NonHttpWire
from outrider.providers.cassettes.replay import CassetteOptions, CassetteTransportFactory, ReplayTransport
from outrider.providers.client import WireClient
from outrider.providers.provider import ModelClient
from outrider.session_replay.recorded_session import (
    Difference,
    RecordedInput,
    Replay,
    ReplayedStep,
    RequestDiffers,
    assistant_steps,
    compare_steps,
    copy_message,
    count_shared_messages,
    load_descendants,
    load_session,
    recorded_inputs,
    with_recorded_model,
)
from outrider.sessions.journal import Journal, create_journal
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import fingerprint_call
from outrider.sessions.session import Session
from outrider.tools.tool import Tool, ToolContext, ToolResult
from outrider.types.agents import Agent, Provider
from outrider.types.events import LLMRequestEvent
from outrider.types.messages import Message
from outrider.types.modes import Mode
from outrider.types.parts import CompactionPart, ToolPart
from outrider.types.request import Delta, Request
from outrider.types.tool_state import ToolCompleted, ToolError

ReportDifference = Callable[[str, str], None]
"""Receives the conversation id and a description of the difference."""


class CassetteClients:
    """Model clients that answer from one cassette, one per provider."""

    def __init__(
        self, cassette: Path, providers: Mapping[str, Provider], report: ReportDifference, ignore: Collection[str]
    ) -> None:
        self._factory = CassetteTransportFactory(CassetteOptions(path=str(cassette), ignore=tuple(ignore)))
        self.clients = {name: CassetteClient(provider, self._factory, report) for name, provider in providers.items()}

    @property
    def unplayed_count(self) -> int:
        return len(self._factory.replay_transport.unplayed)


class CassetteClient:
    """Answers requests from the cassette, with one client per conversation, to attribute a differing request."""

    repeats_requests = True

    def __init__(self, provider: Provider, factory: CassetteTransportFactory, report: ReportDifference) -> None:
        self.name = provider.name
        self._provider = provider
        self._factory = factory
        self._report = report
        self._clients: dict[str, ModelClient] = {}

    def model_family(self, model: str) -> str:
        return self._conversation_client("").model_family(model)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        async for delta in self._conversation_client(request.conversation).stream(request):
            yield delta

    async def aclose(self) -> None:
        """Does nothing: a replay opens no connection."""

    def _conversation_client(self, conversation: str) -> ModelClient:
        if conversation not in self._clients:
            transport = self._factory.replay_transport.with_difference_callback(
                lambda text: self._report(conversation, text)
            )
            self._clients[conversation] = _make_client(self._provider, transport, self._factory)
        return self._clients[conversation]


def _make_client(provider: Provider, transport: ReplayTransport, factory: CassetteTransportFactory) -> ModelClient:
    if provider.kind in NON_HTTP_KINDS:
        family = model_client(provider).model_family("")
        return WireClient(provider.name, NonHttpWire(provider.name, family), transport)
    conversation_factory = CassetteTransportFactory(factory.options, factory.cassette)
    conversation_factory.replay_transport = transport
    options = {name: value for name, value in provider.options.items() if name != "rate_limit"}
    retry = {**options.get("retry", {}), "first_window": 0.0}
    replaying = replace(provider, options={**options, "cassette": conversation_factory, "retry": retry})
    return model_client(replaying, catalog=shared_catalog())


_UNKNOWN = "This call is not in the record, so there is no result for it. It was not run."


class RecordedCalls:
    """Finds recorded calls by tool and input; of equal calls, the one with the same id, else the earliest."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self._calls: dict[str, list[ToolPart]] = defaultdict(list)
        for message in messages:
            for call in message.get_calls():
                self._calls[fingerprint_call(call.tool, call.state.input)].append(call)

    def find_call(self, tool: str, arguments: dict[str, Any], call_id: str) -> ToolPart | None:
        equal_calls = self._calls.get(fingerprint_call(tool, arguments), [])
        return next((call for call in equal_calls if call.call_id == call_id), equal_calls[0] if equal_calls else None)

    def take_call(self, tool: str, arguments: dict[str, Any], call_id: str) -> ToolPart | None:
        """Returns a recorded call and removes it, so that each is used once."""
        call = self.find_call(tool, arguments, call_id)
        if call is not None:
            self._calls[fingerprint_call(tool, arguments)].remove(call)
        return call


class RecordedTool(Tool):
    """A tool with the schema of the original that returns recorded results instead of running."""

    def __init__(self, tool: Tool, /, *, recorded: RecordedCalls) -> None:  # pyright: ignore[reportInconsistentConstructor]
        self._set_up(tool.function, name=tool.name, description=tool.description)
        self.options, self._declaration = tool.options, tool.declaration
        self._parameters = tool.spec().parameters
        self._past = recorded

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> str | ToolResult:
        recorded = self._past.take_call(self.name, arguments, context.call_id)
        match recorded.state if recorded else None:
            case ToolCompleted() as completed:
                metadata = {name: value for name, value in completed.metadata.items() if name != "truncated"}
                return ToolResult(completed.output, completed.attachments, completed.title, metadata)
            case ToolError() as failed:
                failure = ToolFailure(failed.error)
                failure.reason = failed.reason  # pyright: ignore[reportAttributeAccessIssue]  the recorded reason
                raise failure
            case _:
                raise ToolFailure(_UNKNOWN)


class RecordedGate:
    """Allows and denies calls as in the recorded session, with the recorded reason. `gate` asks about repetitions."""

    def __init__(self, recorded: RecordedCalls, gate: ToolCallGate) -> None:
        self._past = recorded
        self.confirm = gate.confirm

    async def admit(self, call: ToolPart, tool: Tool, context: AgentContext) -> ApprovalVerdict:
        recorded = self._past.find_call(call.tool, call.state.input, call.call_id)
        match recorded.state if recorded else None:
            case ToolError(reason="denied" | "rejected" as reason, error=text):
                self._past.take_call(call.tool, call.state.input, call.call_id)
                return ApprovalVerdict(allowed=False, reason=reason, message=text)
            case _:
                return ApprovalVerdict(allowed=True)


def recorded_tools(tools: Mapping[str, Tool], recorded: RecordedCalls) -> dict[str, Tool]:
    # pyright: ignore is for `Tool.__new__`, which declares the arguments of tools from functions.
    return {name: RecordedTool(tool, recorded=recorded) for name, tool in tools.items()}  # pyright: ignore


async def replay(
    engine: Engine,
    session_id: str,
    *,
    cassette: str | Path | None = None,
    fresh_results: bool = False,
    own_models: bool = False,
    ignore: Collection[str] = (),
) -> Replay:
    """Runs a session again with the engine's current agents and tools and the model responses of its cassette.

    A fork starts after its shared messages. The replay stores nothing and connects to no provider. Tool results come
    from the recorded session; with `fresh_results` the tools run under the engine's rules. The models are the recorded
    ones; with `own_models`, those of the agents. `ignore` lists request fields that may differ, such as "system".
    Raises ConfigurationError if there is no cassette.
    """
    check_engine("replay()", engine, session_id)
    if cassette is None and engine.cassettes is None:
        raise ConfigurationError("nothing was recorded: give the engine a folder for `cassettes`, or name a cassette")
    path = Path(cassette) if cassette is not None else cassette_path(Path(engine.cassettes or ""), session_id)
    recorded = await load_session(engine.store, session_id)
    descendants = await load_descendants(engine.store, session_id)
    rerun = SessionRerun(engine, recorded, descendants, fresh_results=fresh_results, own_models=own_models)
    cassette_clients = CassetteClients(path, engine.runtime.spec.providers, rerun.note_request_difference, ignore)
    await rerun.run(cassette_clients)
    return Replay(
        recorded=recorded,
        session=rerun.session,
        steps=tuple(await rerun.compare_steps()),
        copied_steps=len(assistant_steps(recorded.messages[: rerun.shared_count])),
        unused_exchanges=cassette_clients.unplayed_count,
    )


def find_cassette(folder: Path, session_id: str) -> Path:
    """Returns the cassette of a session that the programs have recorded. Raises ConfigurationError if there is none."""
    path = cassette_path(folder, session_id)
    if not path.exists():
        raise ConfigurationError(
            f"session {session_id} was not recorded; sessions are recorded with `[recording] enabled = true` in the "
            "configuration file, from then on"
        )
    return path


class SessionRerun:
    """One replay in a memory store."""

    def __init__(
        self,
        engine: Engine,
        recorded: Session,
        descendants: Sequence[Session],
        *,
        fresh_results: bool,
        own_models: bool,
    ) -> None:
        self._store = MemoryStore()
        self._engine = engine.replace(store=self._store, bus=EventBus(), cassettes=None)
        self._recorded = recorded
        self._descendants = descendants
        self._own_models = own_models
        self._recorded_calls = (
            None
            if fresh_results
            else RecordedCalls(message for session in (recorded, *descendants) for message in session.messages)
        )
        self.shared_count = count_shared_messages(recorded)
        self.session = Session(
            mode=recorded.mode,
            agent=recorded.agent,
            workspace_directory=recorded.workspace_directory,
            messages=[copy_message(message) for message in recorded.messages[: self.shared_count]],
        )
        self._request_counts: dict[str, int] = defaultdict(int)
        self._notes: dict[tuple[str, int], list[Difference]] = defaultdict(list)
        self._engine.bus.subscribe(LLMRequestEvent, self._count_request)

    def note_request_difference(self, conversation: str, text: str) -> None:
        """Records a request difference for the current step of a conversation.

        Old cassettes have no conversation id; then the root session applies.
        """
        session_id = conversation or self.session.id
        self._notes[session_id, self._request_counts[session_id]].append(RequestDiffers(text))

    async def run(self, cassette_clients: CassetteClients) -> None:
        """Feeds all inputs in order and runs their turns."""
        session_tools = self._engine.runtime.create_session_tools(self.session)
        journal = await create_journal(self.session, self._store, self._engine.bus)
        if self.session.messages:
            await self._store.append(self.session.id, self.session.messages)
        pending = recorded_inputs(self._recorded.messages, self.shared_count)
        self._request_counts[self.session.id] = len(assistant_steps(self.session.messages))
        try:
            if not pending or pending[0].after > self._request_counts[self.session.id]:
                await self._run_turn(
                    journal, self._make_run_context(cassette_clients, session_tools), pending, self._next_answer()
                )
            while pending:
                recorded_input, context = pending.pop(0), self._make_run_context(cassette_clients, session_tools)
                await _add_input(journal, recorded_input)
                if recorded_input.is_compaction:
                    await self._run_compaction(journal, context, recorded_input.answer)
                elif recorded_input.answer is not None:
                    await self._run_turn(journal, context, pending, recorded_input.answer)
        finally:
            await journal.close()
            if session_tools is not None:
                await session_tools.aclose()

    async def compare_steps(self) -> list[ReplayedStep]:
        """Returns the compared steps of this session, then those of its child sessions."""
        steps = list(self._compare_sessions(self._recorded, self.session, self.shared_count))
        rerun_descendants = await load_descendants(self._store, self.session.id)
        for recorded, replayed in _pair_sessions(self._descendants, rerun_descendants):
            steps += self._compare_sessions(recorded, replayed)
        return steps

    def _compare_sessions(
        self, recorded: Session | None, replayed: Session | None, shared_count: int = 0
    ) -> Iterator[ReplayedStep]:
        old_steps = assistant_steps(recorded.messages) if recorded else []
        new_steps = assistant_steps(replayed.messages) if replayed else []
        start = len(assistant_steps(recorded.messages[:shared_count])) if recorded else 0
        for number, (old, new) in enumerate(zip_longest(old_steps[start:], new_steps[start:]), start + 1):
            notes = self._notes.get((replayed.id if replayed else "", number), [])
            agent = next(step.agent for step in (old, new) if step is not None)
            session_id = recorded.id if recorded else self._recorded.id
            yield ReplayedStep(number, agent, session_id, (*notes, *compare_steps(old, new)))

    async def _run_turn(
        self, journal: Journal, context: RunContext, pending: list[RecordedInput], answer: Message | None
    ) -> None:
        if answer is not None and answer.mode:
            self.session.mode = cast("Mode", answer.mode)

        async def take_input() -> list[Message]:
            step_count = len(assistant_steps(self.session.messages))
            if pending and pending[0].steers and pending[0].after <= step_count:
                return await _add_input(journal, pending.pop(0))
            return []

        await Turn(open_agent_context(self._select_agent(answer), journal, context, take_input=take_input)).run()

    async def _run_compaction(self, journal: Journal, context: RunContext, summary: Message | None) -> None:
        with suppress(OutriderError):  # a missing summary shows up as a difference in the next requests
            compactions = summary.get_parts_by_type(CompactionPart) if summary else []
            instructions = next((part.instructions for part in compactions if part.instructions), "")
            await ContextCompactor(open_agent_context(self._select_agent(summary), journal, context)).compact(
                auto=False, instructions=instructions or ""
            )

    def _select_agent(self, answer: Message | None) -> Agent:
        agent = self._engine.runtime.find_agent(answer.agent if answer else self.session.agent)
        return agent if self._own_models else with_recorded_model(agent, answer, self._engine.runtime.spec.providers)

    def _next_answer(self) -> Message | None:
        return next(iter(assistant_steps(self._recorded.messages[self.shared_count :])), None)

    def _make_run_context(self, cassette_clients: CassetteClients, session_tools: SessionTools | None) -> RunContext:
        context = self._engine.runtime.create_run_context(self.session, session_tools)
        context = replace(context, models=replace(context.models, clients=cassette_clients.clients))
        if self._recorded_calls is None:
            return context
        return replace(
            context,
            tools=recorded_tools(context.tools, self._recorded_calls),
            gate=RecordedGate(self._recorded_calls, context.gate),
        )

    def _count_request(self, event: LLMRequestEvent) -> None:
        self._request_counts[event.session_id] += 1


async def _add_input(journal: Journal, recorded_input: RecordedInput) -> list[Message]:
    return [await journal.add_message(message) for message in recorded_input.copy_messages()]


def _pair_sessions(
    recorded: Sequence[Session], replayed: Sequence[Session]
) -> Iterator[tuple[Session | None, Session | None]]:
    """Pairs recorded and replayed child sessions by agent and first input, in order."""
    unpaired = list(replayed)
    for session in recorded:
        match = next((candidate for candidate in unpaired if _pairing_key(candidate) == _pairing_key(session)), None)
        if match is not None:
            unpaired.remove(match)
        yield session, match
    yield from ((None, candidate) for candidate in unpaired)


def _pairing_key(session: Session) -> tuple[str, str]:
    return session.agent, session.messages[0].join_text() if session.messages else ""
