"""Providers whose traffic is recorded, or played."""

import ipaddress
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

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


def refuse_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test is over, only this machine can be reached, and only it has a name."""
    for method in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, method, _guarded(getattr(socket.socket, method)))
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        _check(host)
        return resolve(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def _guarded(real: Any) -> Any:
    def connect(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            _check(address[0])
        return real(self, address)

    return connect


def _check(host: Any) -> None:
    name = host.decode() if isinstance(host, bytes) else host
    if name in (None, "", "localhost"):
        return
    try:
        local = ipaddress.ip_address(name).is_loopback
    except ValueError:
        local = False
    if not local:
        # Not an OSError: nobody should take it for a connection that may work the next time.
        raise RuntimeError(
            f"a test that plays a cassette tried to reach {name}; use the providers of the fixture outrider_cassette, "
            "or record with --outrider-record"
        )
