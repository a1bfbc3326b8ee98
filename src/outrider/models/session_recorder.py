"""Records the provider traffic of each session to its own cassette."""

from collections.abc import Collection, Mapping
from pathlib import Path

from msgspec.structs import replace

from outrider.models.clients import model_client, shared_catalog
from outrider.providers.cassettes.cassette import Cassette
from outrider.providers.cassettes.record import RecordingClient
from outrider.providers.cassettes.replay import CassetteOptions, CassetteTransportFactory
from outrider.providers.provider import ModelClient
from outrider.types.agents import Provider

NON_HTTP_KINDS = ("scripted", "local", "custom")  # provider kinds that do not use HTTP


def cassette_path(folder: Path, session_id: str) -> Path:
    """Returns the path of a session's cassette."""
    return folder / f"{session_id}.jsonl"


class SessionRecorder:
    """Creates recording clients per session.

    Subagents are recorded on the cassette of the session that called them. `clients` are shared by all sessions; a
    client that records HTTP traffic has its own connections.
    """

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

    def clients_for(self, session_id: str) -> Mapping[str, ModelClient]:
        if session_id not in self._recording:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            cassette = Cassette(cassette_path(self._folder, session_id), compact=True)
            self._recording[session_id] = {name: self._create_client(name, cassette) for name in self._providers}
        return self._recording[session_id]

    async def close(self, session_id: str) -> None:
        for client in self._recording.pop(session_id, {}).values():
            await client.aclose()

    async def aclose(self) -> None:
        for session_id in list(self._recording):
            await self.close(session_id)

    def _create_client(self, name: str, cassette: Cassette) -> ModelClient:
        provider = self._providers[name]
        if provider.kind in NON_HTTP_KINDS:
            return RecordingClient(self._clients[name], cassette, secrets=self._secrets)
        if "cassette" in provider.options:  # the user configured another cassette
            return self._clients[name]
        factory = CassetteTransportFactory(
            CassetteOptions(path=str(cassette.path), mode="record", secrets=self._secrets), cassette
        )
        return model_client(
            replace(provider, options=provider.options | {"cassette": factory}), catalog=shared_catalog()
        )
