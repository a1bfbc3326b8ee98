"""Puts a cassette between a provider and the network: to record, or to play."""

from typing import Literal

import msgspec

from outrider.providers.cassettes.cassette import Cassette
from outrider.providers.cassettes.recording import RecordingTransport
from outrider.providers.cassettes.replay import ReplayTransport
from outrider.providers.transport.transport import Transport


class DeckOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As a provider's options may hold them under `cassette`. `ignore` are fields of bodies that may differ when the
    cassette is played, `secrets` are texts to hide besides keys, `timing` plays as slowly as it was."""

    path: str
    mode: Literal["record", "replay"] = "replay"
    ignore: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    timing: bool = False


class Deck:
    """One cassette, for as many clients as share it."""

    def __init__(self, options: DeckOptions, cassette: Cassette | None = None) -> None:
        self.options = options
        self.cassette = cassette or Cassette(options.path)
        self.player = ReplayTransport(
            self.cassette, ignore=options.ignore, secrets=options.secrets, timing=options.timing
        )

    def over(self, network: Transport) -> Transport:
        """The transport to use in place of the network; when playing, that is never touched."""
        if self.options.mode == "replay":
            return self.player
        return RecordingTransport(network, self.cassette, secrets=self.options.secrets)
