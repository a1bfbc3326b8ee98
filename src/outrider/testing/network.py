"""Keeps a test from reaching anything but this machine."""

import ipaddress
import socket
from typing import Any

import pytest


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
