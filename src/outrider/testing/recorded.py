"""Providers whose traffic is recorded, or played."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from outrider.providers.cassettes.deck import Deck, DeckOptions
from outrider.types.agents import Provider, ProviderKind


class RecordedProviders:
    """What the fixture `outrider_cassette` gives: ask it for providers, and use them as any other."""

    def __init__(self, path: Path, *, recording: bool, ignore: Iterable[str] = (), secrets: Iterable[str] = ()) -> None:
        self.path = path
        self.recording = recording
        self._deck = Deck(
            DeckOptions(
                path=str(path),
                mode="record" if recording else "replay",
                ignore=tuple(ignore),
                secrets=tuple(secrets),
            )
        )
        if recording:
            self._deck.cassette.erase()

    def provider(self, name: str, kind: ProviderKind, **fields: Any) -> Provider:
        """A Provider, with the fields that one has; it needs a key only while it is recorded."""
        options = {**fields.pop("options", {}), "cassette": self._deck}
        return Provider(name, kind, options=options, **fields)

    @property
    def unplayed(self) -> int:
        """How many recorded exchanges nobody has asked for."""
        return 0 if self.recording else len(self._deck.player.unplayed)
