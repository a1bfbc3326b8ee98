"""Which addresses may be called, decided on the very address that a connection is opened to."""

import errno
import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any

Address = IPv4Address | IPv6Address
Allowed = Callable[[Address], bool]

_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))


def is_public(address: Address) -> bool:
    """Also for an IPv4 address that hides in an IPv6 one."""
    if isinstance(address, IPv6Address):
        inner = _embedded(address)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _embedded(address: IPv6Address) -> IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if any(address in network for network in _NAT64):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


class Gate:
    """Opens sockets for a connector, so that no name can lead elsewhere between the check and the connection."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self.refused: str | None = None

    def open_socket(self, found: Any) -> socket.socket:
        family, kind, protocol, _, target = found
        address = str(target[0]).partition("%")[0]
        if not self._allowed(ip_address(address)):
            self.refused = address
            raise OSError(errno.EACCES, f"{address} is not a public address")
        return socket.socket(family, kind, protocol)
