"""Providers whose traffic is recorded or replayed, and a guard against network access in tests."""

import ipaddress
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from outrider.providers.cassettes.replay import CassetteOptions, CassetteTransportFactory
from outrider.types.agents import Provider, ProviderKind


class RecordedProviders:
    """Value of the fixture `outrider_cassette`: its providers are used like any other."""

    def __init__(self, path: Path, *, recording: bool, ignore: Iterable[str] = (), secrets: Iterable[str] = ()) -> None:
        self.path = path
        self.recording = recording
        self._deck = CassetteTransportFactory(
            CassetteOptions(
                path=str(path),
                mode="record" if recording else "replay",
                ignore=tuple(ignore),
                secrets=tuple(secrets),
            )
        )
        if recording:
            self._deck.cassette.erase()

    def provider(self, name: str, kind: ProviderKind, **fields: Any) -> Provider:
        """Returns a Provider with the given fields; a key is needed only while recording."""
        options = {**fields.pop("options", {}), "cassette": self._deck}
        return Provider(name, kind, options=options, **fields)

    @property
    def unplayed(self) -> int:
        """Number of recorded exchanges that were not replayed."""
        return 0 if self.recording else len(self._deck.replay_transport.unplayed)


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
    if name in (None, "", "localhost"):
        return
    try:
        local = ipaddress.ip_address(name).is_loopback
    except ValueError:
        local = False
    if not local:
        # Not an OSError, which clients would retry.
        raise RuntimeError(
            f"a test that plays a cassette tried to reach {name}; use the providers of the fixture outrider_cassette, "
            "or record with --outrider-record"
        )
