"""Agents whose sessions are recorded, and run again in every test to come."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from outrider.engine.engine import Engine
from outrider.models.recorder import UNWIRED, cassette_of
from outrider.providers.cassettes.deck import Deck, DeckOptions
from outrider.session_replay.recorded_session import Replay, exported, is_input, load
from outrider.session_replay.replay import replay
from outrider.session_replay.what_if import WhatIf, what_if
from outrider.sessions.export import export_session, import_session
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.tools.tool import Tool
from outrider.types.agents import Agent, Provider


class ReplayedAgents:
    """What the fixture `outrider_replay` gives: agents, tools and providers go in as to an Engine, with its options."""

    def __init__(self, folder: Path, name: str, *, recording: bool) -> None:
        self.recording = recording
        self._folder = folder
        self._name = name
        self._forks = 0

    async def run(
        self,
        inputs: str | Sequence[str],
        agents: Sequence[Agent],
        tools: Iterable[Tool | Callable[..., Any]] = (),
        providers: Sequence[Provider] = (),
        *,
        fresh_results: bool = False,
        ignore: Sequence[str] = (),
        **options: Any,
    ) -> Replay:
        """One session with these inputs. Recorded, it is kept beside the test; otherwise the kept one runs again, with
        the agents as they are now: `check()` what comes back, or look at its `differences`."""
        engine = Engine(agents, providers, _tools(tools), attended=False, **options)
        wanted = [inputs] if isinstance(inputs, str) else list(inputs)
        if self.recording:
            session_id = await self._record(engine, wanted)
        else:
            session_id = await self._stored(engine.store)
            recorded = await load(engine.store, session_id)
            said = [message.get_text_content() for message in recorded.messages if is_input(message)]
            assert said == wanted, f"recorded were the inputs {said}, not {wanted}; record anew with --outrider-record"
        return await replay(
            engine, session_id, cassette=self._tape, fresh_results=fresh_results, own_models=True, ignore=ignore
        )

    async def what_if(
        self,
        agents: Sequence[Agent],
        tools: Iterable[Tool | Callable[..., Any]] = (),
        providers: Sequence[Provider] = (),
        *,
        at_step: int | None = None,
        **changes: Any,
    ) -> WhatIf:
        """The kept session, forked and run on with a change: see `outrider.what_if`. What the models answer to that is
        recorded and played as well."""
        self._forks += 1
        played = self._decked(providers, self._folder / f"{self._name}.fork{self._forks}.jsonl")
        engine = Engine(agents, played, _tools(tools), attended=False)
        return await what_if(engine, await self._stored(engine.store), at_step=at_step, **changes)

    async def session(self) -> Session:
        """The session that was kept."""
        return await exported(self._document())

    @property
    def _tape(self) -> Path:
        return self._folder / f"{self._name}.jsonl"

    @property
    def _session(self) -> Path:
        return self._folder / f"{self._name}.session.json"

    async def _record(self, engine: Engine, inputs: Sequence[str]) -> str:
        self._folder.mkdir(parents=True, exist_ok=True)
        async with engine.like(cassettes=self._folder) as recording:
            session_id = await recording.create(workspace=".")
            for words in inputs:
                end = await recording.prompt(session_id, words)
                if end.error is not None:
                    raise end.error
        cassette_of(self._folder, session_id).replace(self._tape)
        self._session.write_bytes(await export_session(engine.store, session_id))
        return session_id

    async def _stored(self, store: Store) -> str:
        return (await import_session(store, self._document())).sessions[0].id

    def _document(self) -> bytes:
        try:
            return self._session.read_bytes()
        except FileNotFoundError:
            raise AssertionError(f"there is no {self._session}; record one with --outrider-record") from None

    def _decked(self, providers: Sequence[Provider], tape: Path) -> list[Provider]:
        deck = Deck(DeckOptions(path=str(tape), mode="record" if self.recording else "replay"))
        if self.recording:
            deck.cassette.erase()
        return [
            one if one.kind in UNWIRED else replace(one, options={**one.options, "cassette": deck}) for one in providers
        ]


def _tools(tools: Iterable[Tool | Callable[..., Any]]) -> list[Tool]:
    return [tool if isinstance(tool, Tool) else Tool(tool) for tool in tools]
