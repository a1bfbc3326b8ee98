"""Keeps a cassette along with every session: what its models were asked, and what they answered."""

from collections.abc import Collection, Mapping
from pathlib import Path

from msgspec.structs import replace

from outrider.models.clients import known_models, model_client
from outrider.providers.cassettes.cassette import Cassette
from outrider.providers.cassettes.deck import Deck, DeckOptions
from outrider.providers.cassettes.recording import RecordingClient
from outrider.providers.provider import ModelClient
from outrider.types.agents import Provider

UNWIRED = ("scripted", "local")  # kinds of providers that are not reached over HTTP


def cassette_of(folder: Path, session_id: str) -> Path:
    return folder / f"{session_id}.jsonl"


class Recorder:
    """The agents that a session's agent calls are on the cassette of that session. `clients` are shared by sessions;
    where the wire is recorded each session has connections of its own."""

    def __init__(
        self,
        folder: str | Path,
        providers: Mapping[str, Provider],
        clients: Mapping[str, ModelClient],
        secrets: Collection[str] = (),
    ) -> None:
        self._folder = Path(folder)
        self._providers = providers
        self._clients = clients
        self._secrets = tuple(secrets)
        self._recording: dict[str, dict[str, ModelClient]] = {}

    def clients(self, session_id: str) -> Mapping[str, ModelClient]:
        if session_id not in self._recording:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            cassette = Cassette(cassette_of(self._folder, session_id), compact=True)
            self._recording[session_id] = {name: self._client(name, cassette) for name in self._providers}
        return self._recording[session_id]

    async def close(self, session_id: str) -> None:
        for client in self._recording.pop(session_id, {}).values():
            await client.aclose()

    async def aclose(self) -> None:
        for session_id in list(self._recording):
            await self.close(session_id)

    def _client(self, name: str, cassette: Cassette) -> ModelClient:
        provider = self._providers[name]
        if provider.kind in UNWIRED:
            return RecordingClient(self._clients[name], cassette, secrets=self._secrets)
        if "cassette" in provider.options:  # the user has a place of their own for it
            return self._clients[name]
        deck = Deck(DeckOptions(path=str(cassette.path), mode="record", secrets=self._secrets), cassette)
        return model_client(replace(provider, options=provider.options | {"cassette": deck}), catalog=known_models())
