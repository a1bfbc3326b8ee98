"""Models that answer from a session's cassette, and tell where they were asked something else."""

from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from pathlib import Path

from msgspec.structs import replace

from outrider.app.build import model_client
from outrider.app.models.recorder import UNWIRED
from outrider.app.models.tariff import known_models
from outrider.providers.cassettes.deck import Deck, DeckOptions
from outrider.providers.cassettes.replay import ReplayTransport
from outrider.providers.cassettes.unwired import UnwiredWire
from outrider.providers.client import WireClient
from outrider.providers.provider import ModelClient
from outrider.types.agents import Provider
from outrider.types.request import Request
from outrider.types.stream import Delta

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
        return WireClient(provider.name, UnwiredWire(provider.name, family), player)
    own = Deck(deck.options, deck.cassette)
    own.player = player
    kept = {name: value for name, value in provider.options.items() if name != "rate_limit"}
    retry = {**kept.get("retry", {}), "first_window": 0.0}
    playing = replace(provider, options={**kept, "cassette": own, "retry": retry})
    return model_client(playing, catalog=known_models())
