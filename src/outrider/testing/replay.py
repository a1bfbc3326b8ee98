"""Agents whose sessions are recorded once and replayed in later test runs."""

import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from outrider.engine.engine import Engine
from outrider.http.client import is_loopback
from outrider.models.session_recorder import NON_HTTP_KINDS, cassette_path
from outrider.providers.cassettes.replay import CassetteOptions, CassetteTransportFactory
from outrider.session_replay.recorded_session import Replay, is_input, load_session, session_from_export
from outrider.session_replay.replay import replay
from outrider.session_replay.what_if import WhatIf, what_if
from outrider.sessions.export import export_session, import_session
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.tools.tool import Tool
from outrider.types.agents import Agent, Provider, ProviderKind


class ReplayedAgents:
    """Value of the fixture `outrider_replay`. Agents, tools, providers and options are those of an Engine."""

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
        """Runs one session with these inputs. While recording, it is stored next to the test; otherwise the stored
        session is replayed with the current agents. Call `check()` on the result, or inspect its `differences`."""
        engine = Engine(agents, providers, _as_tools(tools), attended=False, **options)
        expected_inputs = [inputs] if isinstance(inputs, str) else list(inputs)
        if self.recording:
            session_id = await self._record_session(engine, expected_inputs)
        else:
            session_id = await self._import_recorded(engine.store)
            recorded = await load_session(engine.store, session_id)
            recorded_inputs = [message.join_text() for message in recorded.messages if is_input(message)]
            assert recorded_inputs == expected_inputs, (
                f"the recording has the inputs {recorded_inputs}, not {expected_inputs}; record again with "
                "--outrider-record"
            )
        return await replay(
            engine,
            session_id,
            cassette=self._cassette_path,
            fresh_results=fresh_results,
            own_models=True,
            ignore=ignore,
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
        """Forks the stored session and continues it with a change: see `outrider.what_if`. The models' responses are
        recorded and replayed too."""
        self._forks += 1
        recorded_providers = self._with_cassette(providers, self._folder / f"{self._name}.fork{self._forks}.jsonl")
        engine = Engine(agents, recorded_providers, _as_tools(tools), attended=False)
        return await what_if(engine, await self._import_recorded(engine.store), at_step=at_step, **changes)

    async def session(self) -> Session:
        """Returns the stored session."""
        return await session_from_export(self._read_document())

    @property
    def _cassette_path(self) -> Path:
        return self._folder / f"{self._name}.jsonl"

    @property
    def _session_path(self) -> Path:
        return self._folder / f"{self._name}.session.json"

    async def _record_session(self, engine: Engine, inputs: Sequence[str]) -> str:
        self._folder.mkdir(parents=True, exist_ok=True)
        async with engine.replace(cassettes=self._folder) as recording:
            session_id = await recording.create(workspace=".")
            for text in inputs:
                end = await recording.prompt(session_id, text)
                if end.error is not None:
                    raise end.error
        cassette_path(self._folder, session_id).replace(self._cassette_path)
        self._session_path.write_bytes(await export_session(engine.store, session_id))
        return session_id

    async def _import_recorded(self, store: Store) -> str:
        return (await import_session(store, self._read_document())).sessions[0].id

    def _read_document(self) -> bytes:
        try:
            return self._session_path.read_bytes()
        except FileNotFoundError:
            raise AssertionError(f"there is no {self._session_path}; record one with --outrider-record") from None

    def _with_cassette(self, providers: Sequence[Provider], path: Path) -> list[Provider]:
        mode = "record" if self.recording else "replay"
        factory = CassetteTransportFactory(CassetteOptions(path=str(path), mode=mode))
        if self.recording:
            factory.cassette.erase()
        return [
            provider
            if provider.kind in NON_HTTP_KINDS
            else replace(provider, options={**provider.options, "cassette": factory})
            for provider in providers
        ]


def _as_tools(tools: Iterable[Tool | Callable[..., Any]]) -> list[Tool]:
    return [tool if isinstance(tool, Tool) else Tool(tool) for tool in tools]


class RecordedProviders:
    """Value of the fixture `outrider_cassette`: its providers are used like any other."""

    def __init__(self, path: Path, *, recording: bool, ignore: Iterable[str] = (), secrets: Iterable[str] = ()) -> None:
        self.path = path
        self.recording = recording
        self._factory = CassetteTransportFactory(
            CassetteOptions(
                path=str(path),
                mode="record" if recording else "replay",
                ignore=tuple(ignore),
                secrets=tuple(secrets),
            )
        )
        if recording:
            self._factory.cassette.erase()

    def provider(self, name: str, kind: ProviderKind, **fields: Any) -> Provider:
        """Returns a Provider with the given fields; a key is needed only while recording."""
        options = {**fields.pop("options", {}), "cassette": self._factory}
        return Provider(name, kind, options=options, **fields)

    @property
    def unplayed(self) -> int:
        """Number of recorded exchanges that were not replayed."""
        return 0 if self.recording else len(self._factory.replay_transport.unplayed)


def refuse_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks connections and name lookups except for this machine, until the test ends."""
    for method in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, method, _guard_connect(getattr(socket.socket, method)))
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        _check_host(host)
        return resolve(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def _guard_connect(real: Any) -> Any:
    def connect(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            _check_host(address[0])
        return real(self, address)

    return connect


def _check_host(host: Any) -> None:
    name = host.decode() if isinstance(host, bytes) else host
    if name not in (None, "") and not is_loopback(name):
        # Not an OSError, which clients would retry.
        raise RuntimeError(
            f"a test that plays a cassette tried to reach {name}; use the providers of the fixture outrider_cassette, "
            "or record with --outrider-record"
        )
