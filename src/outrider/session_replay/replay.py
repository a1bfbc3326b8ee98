"""Runs a stored session again, offline, and finds out where it goes otherwise."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from outrider.agents.compaction import Compactor
from outrider.agents.delegation import open_agent_context
from outrider.agents.run_context import AgentContext, RunContext, Verdict
from outrider.agents.turn import Turn
from outrider.engine.engine import Engine
from outrider.engine.session_tools import SessionTools
from outrider.errors import ConfigurationError, OutriderError, ToolFailure
from outrider.event_bus import EventBus
from outrider.models.clients import known_models, model_client
from outrider.models.recorder import UNWIRED, cassette_of
from outrider.providers.cassettes.deck import Deck, DeckOptions
from outrider.providers.cassettes.recording import NonHttpWire
from outrider.providers.cassettes.replay import ReplayTransport
from outrider.providers.client import WireClient
from outrider.providers.provider import ModelClient
from outrider.session_replay.recorded_session import (
    Difference,
    Input,
    Replay,
    ReplayedStep,
    RequestDiffers,
    compare_steps,
    copied,
    descendants,
    inputs_of,
    load,
    shared_messages,
    steps_of,
    with_its_model,
)
from outrider.sessions.journal import Journal, begin
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import fingerprint
from outrider.sessions.session import Session
from outrider.tools.context import ToolContext
from outrider.tools.tool import Tool, ToolResult
from outrider.types.agents import Agent, Provider
from outrider.types.deltas import Delta
from outrider.types.events import LLMRequestEvent
from outrider.types.messages import Message
from outrider.types.parts import ToolPart
from outrider.types.request import Request
from outrider.types.tool_state import ToolCompleted, ToolError

Tell = Callable[[str, str], None]
"""Of which conversation, and what differs."""


class Players:
    """One for each provider, all from the same tape."""

    def __init__(self, cassette: Path, providers: Mapping[str, Provider], tell: Tell, ignore: Collection[str]) -> None:
        self._deck = Deck(DeckOptions(path=str(cassette), ignore=tuple(ignore)))
        self.clients = {name: _Player(provider, self._deck, tell) for name, provider in providers.items()}

    @property
    def unplayed(self) -> int:
        return len(self._deck.player.unplayed)


class _Player:
    """Each conversation has a client of its own, so that it is known whose request differs."""

    def __init__(self, provider: Provider, deck: Deck, tell: Tell) -> None:
        self.name = provider.name
        self._provider = provider
        self._deck = deck
        self._tell = tell
        self._clients: dict[str, ModelClient] = {}

    def family(self, model: str) -> str:
        return self._client("").family(model)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        async for delta in self._client(request.conversation).stream(request):
            yield delta

    async def aclose(self) -> None:
        """Nothing was opened."""

    def _client(self, conversation: str) -> ModelClient:
        if conversation not in self._clients:
            player = self._deck.player.telling(lambda words: self._tell(conversation, words))
            self._clients[conversation] = _client(self._provider, player, self._deck)
        return self._clients[conversation]


def _client(provider: Provider, player: ReplayTransport, deck: Deck) -> ModelClient:
    if provider.kind in UNWIRED:
        family = model_client(provider).family("")
        return WireClient(provider.name, NonHttpWire(provider.name, family), player)
    own = Deck(deck.options, deck.cassette)
    own.player = player
    kept = {name: value for name, value in provider.options.items() if name != "rate_limit"}
    retry = {**kept.get("retry", {}), "first_window": 0.0}
    playing = replace(provider, options={**kept, "cassette": own, "retry": retry})
    return model_client(playing, catalog=known_models())


_UNKNOWN = "This call is not in the record, so there is no result for it. It was not run."
_YES, _NO = True, False


class PastCalls:
    """The calls of a record by tool and input; of several alike, the one with the same id, else the earliest."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self._calls: dict[str, list[ToolPart]] = defaultdict(list)
        for message in messages:
            for call in message.get_parts_by_type(ToolPart):
                self._calls[fingerprint(call.tool, call.state.input)].append(call)

    def find(self, tool: str, arguments: dict[str, Any], call_id: str) -> ToolPart | None:
        alike = self._calls.get(fingerprint(tool, arguments), [])
        return next((call for call in alike if call.call_id == call_id), alike[0] if alike else None)

    def take(self, tool: str, arguments: dict[str, Any], call_id: str) -> ToolPart | None:
        """Each call ends once."""
        found = self.find(tool, arguments, call_id)
        if found is not None:
            self._calls[fingerprint(tool, arguments)].remove(found)
        return found


class RecordedTool(Tool):
    """A tool that is offered as it is and never runs: its calls end as they once did."""

    def __init__(self, tool: Tool, /, *, past: PastCalls) -> None:  # pyright: ignore[reportInconsistentConstructor]
        super().__init__(tool.function, name=tool.name, description=tool.description)
        self.options = tool.options
        self._parameters = tool.spec().parameters
        self._past = past

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> str | ToolResult:
        past = self._past.take(self.name, arguments, context.call_id)
        match past.state if past else None:
            case ToolCompleted() as done:
                metadata = {name: value for name, value in done.metadata.items() if name != "truncated"}
                return ToolResult(done.output, done.attachments, done.title, metadata)
            case ToolError() as failed:
                failure = ToolFailure(failed.error)
                failure.reason = failed.reason  # pyright: ignore[reportAttributeAccessIssue]  as it was
                raise failure
            case _:
                raise ToolFailure(_UNKNOWN)


class RecordedGate:
    """Lets through what was let through, and refuses what was refused, in the same words."""

    def __init__(self, past: PastCalls) -> None:
        self._past = past

    async def admit(self, call: ToolPart, tool: Tool, seat: AgentContext) -> Verdict:
        past = self._past.find(call.tool, call.state.input, call.call_id)
        match past.state if past else None:
            case ToolError(reason="denied" | "rejected" as reason, error=words):
                self._past.take(call.tool, call.state.input, call.call_id)
                return Verdict(_NO, reason, words)
            case _:
                return Verdict(_YES)


def recorded_tools(tools: Mapping[str, Tool], past: PastCalls) -> dict[str, Tool]:
    return {name: RecordedTool(tool, past=past) for name, tool in tools.items()}


async def replay(
    engine: Engine,
    session_id: str,
    *,
    cassette: str | Path | None = None,
    fresh_results: bool = False,
    own_models: bool = False,
    ignore: Collection[str] = (),
) -> Replay:
    """The session from its beginning (a fork from where it branched off), with the engine's agents and tools as they
    are now and the models' answers from its cassette; nothing is stored, and no provider is reached.

    Results of calls come from the record; with `fresh_results` the tools run, under the engine's rules. The models are
    those that answered then; with `own_models` each agent's own. `ignore` names fields of requests that may differ,
    such as "system"."""
    if cassette is None and engine.cassettes is None:
        raise ConfigurationError("nothing was recorded: give the engine a folder for `cassettes`, or name a cassette")
    path = Path(cassette) if cassette is not None else cassette_of(Path(engine.cassettes or ""), session_id)
    recorded = await load(engine.store, session_id)
    below = await descendants(engine.store, session_id)
    rerun = _Rerun(engine, recorded, below, fresh_results=fresh_results, own_models=own_models)
    players = Players(path, engine.staff.plan.providers, rerun.note, ignore)
    await rerun.run(players)
    return Replay(
        recorded=recorded,
        session=rerun.session,
        steps=tuple(await rerun.steps()),
        given=len(steps_of(recorded.messages[: rerun.given])),
        unplayed=players.unplayed,
    )


class _Rerun:
    """One session, run again in memory."""

    def __init__(
        self, engine: Engine, recorded: Session, below: Sequence[Session], *, fresh_results: bool, own_models: bool
    ) -> None:
        self._store = MemoryStore()
        self._twin = engine.like(store=self._store, bus=EventBus(), cassettes=None)
        self._recorded = recorded
        self._below = below
        self._own_models = own_models
        self._past = None if fresh_results else PastCalls(m for one in (recorded, *below) for m in one.messages)
        self.given = shared_messages(recorded)
        self.session = Session(
            mode=recorded.mode,
            agent=recorded.agent,
            workspace_directory=recorded.workspace_directory,
            messages=[copied(message) for message in recorded.messages[: self.given]],
        )
        self._asked: dict[str, int] = defaultdict(int)
        self._notes: dict[tuple[str, int], list[Difference]] = defaultdict(list)
        self._twin.bus.subscribe(LLMRequestEvent, self._count)

    def note(self, conversation: str, words: str) -> None:
        """A request differs: that of the step which is just being made, in this conversation or, of old, the root."""
        place = conversation or self.session.id
        self._notes[place, self._asked[place]].append(RequestDiffers(words))

    async def run(self, players: Players) -> None:
        """Every input, when its time comes."""
        toolbox = self._twin.staff.toolbox(self.session)
        journal = await begin(self.session, self._store, self._twin.bus)
        if self.session.messages:
            await self._store.append(self.session.id, self.session.messages)
        waiting = inputs_of(self._recorded.messages, self.given)
        self._asked[self.session.id] = len(steps_of(self.session.messages))
        try:
            if not waiting or waiting[0].after > self._asked[self.session.id]:
                await self._turn(journal, self._crew(players, toolbox), waiting, self._next_answer())
            while waiting:
                given, crew = waiting.pop(0), self._crew(players, toolbox)
                await _add(journal, given)
                if given.compacts:
                    await self._compact(journal, crew, given.answer)
                elif given.answer is not None:
                    await self._turn(journal, crew, waiting, given.answer)
        finally:
            await journal.close()
            if toolbox is not None:
                await toolbox.aclose()

    async def steps(self) -> list[ReplayedStep]:
        """The steps of this session, then those of the agents that were called."""
        found = list(self._compared(self._recorded, self.session, self.given))
        again = await descendants(self._store, self.session.id)
        for recorded, now in _paired(self._below, again):
            found += self._compared(recorded, now)
        return found

    def _compared(self, recorded: Session | None, now: Session | None, given: int = 0) -> Iterator[ReplayedStep]:
        before = steps_of(recorded.messages) if recorded else []
        after = steps_of(now.messages) if now else []
        start = len(steps_of(recorded.messages[:given])) if recorded else 0
        for number, (old, new) in enumerate(zip_longest(before[start:], after[start:]), start + 1):
            noted = self._notes.get((now.id if now else "", number), [])
            agent = (old or new).agent  # type: ignore[union-attr]  one of the two is there
            where = recorded.id if recorded else self._recorded.id
            yield ReplayedStep(number, agent, where, (*noted, *compare_steps(old, new)))

    async def _turn(self, journal: Journal, crew: RunContext, waiting: list[Input], answer: Message | None) -> None:
        self.session.mode = answer.mode if answer and answer.mode else self.session.mode  # type: ignore[assignment]

        async def take_input() -> list[Message]:
            made = len(steps_of(self.session.messages))
            if waiting and waiting[0].steers and waiting[0].after <= made:
                return await _add(journal, waiting.pop(0))
            return []

        await Turn(open_agent_context(self._agent(answer), journal, crew, take_input=take_input), crew).run()

    async def _compact(self, journal: Journal, crew: RunContext, summary: Message | None) -> None:
        with suppress(OutriderError):  # what is missing then shows in the requests that follow
            await Compactor(open_agent_context(self._agent(summary), journal, crew), crew).compact(auto=False)

    def _agent(self, answer: Message | None) -> Agent:
        agent = self._twin.staff.agent(answer.agent if answer else self.session.agent)
        return agent if self._own_models else with_its_model(agent, answer, self._twin.staff.plan.providers)

    def _next_answer(self) -> Message | None:
        return next(iter(steps_of(self._recorded.messages[self.given :])), None)

    def _crew(self, players: Players, toolbox: SessionTools | None) -> RunContext:
        crew = replace(self._twin.staff.crew(self.session, toolbox), clients=players.clients)
        if self._past is None:
            return crew
        return replace(crew, tools=recorded_tools(crew.tools, self._past), gate=RecordedGate(self._past))

    def _count(self, event: LLMRequestEvent) -> None:
        self._asked[event.session_id] += 1


async def _add(journal: Journal, given: Input) -> list[Message]:
    return [await journal.add_message(message) for message in given.copies()]


def _paired(recorded: Sequence[Session], now: Sequence[Session]) -> Iterator[tuple[Session | None, Session | None]]:
    """Sessions of the same agent with the same input belong together, in their order."""
    left = list(now)
    for one in recorded:
        match = next((other for other in left if _subject(other) == _subject(one)), None)
        if match is not None:
            left.remove(match)
        yield one, match
    yield from ((None, other) for other in left)


def _subject(session: Session) -> tuple[str, str]:
    return session.agent, session.messages[0].get_text_content() if session.messages else ""
