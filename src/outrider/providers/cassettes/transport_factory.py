"""Creates the transport that records to a cassette or replays from it."""

from typing import Literal

import msgspec

from outrider.http.transport import HttpTransport
from outrider.providers.cassettes.cassette import Cassette
from outrider.providers.cassettes.record import RecordingTransport
from outrider.providers.cassettes.replay import ReplayTransport


class CassetteOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The provider option `cassette`.

    `ignore` lists body fields that may differ on replay, `secrets` lists texts to redact besides keys, `timing` replays
    chunks with their recorded delays.
    """

    path: str
    mode: Literal["record", "replay"] = "replay"
    ignore: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    timing: bool = False


class CassetteTransportFactory:
    """Wraps the transports of all clients that share one cassette."""

    def __init__(self, options: CassetteOptions, cassette: Cassette | None = None) -> None:
        self.options = options
        self.cassette = cassette or Cassette(options.path)
        self.replay_transport = ReplayTransport(
            self.cassette, ignore=options.ignore, secrets=options.secrets, timing=options.timing
        )

    def wrap_transport(self, network: HttpTransport) -> HttpTransport:
        """Returns a transport that records from `network`, or one that replays and never uses it."""
        if self.options.mode == "replay":
            return self.replay_transport
        return RecordingTransport(network, self.cassette, secrets=self.options.secrets)
