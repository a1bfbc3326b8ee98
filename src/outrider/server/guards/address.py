"""Where a server listens, and by which names it may be addressed."""

from pathlib import Path

import msgspec

from outrider.app.remote.place import is_loopback
from outrider.errors import ConfigurationError

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A port of this machine, or a Unix socket. Beyond the machine itself only when it was said, and with TLS."""

    host: str = "127.0.0.1"
    port: int = 0
    socket: Path | None = None
    names: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None

    @property
    def secure(self) -> bool:
        return self.certificate is not None

    @property
    def url(self) -> str:
        if self.socket is not None:
            return f"http+unix://{self.socket}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}"

    @property
    def hosts(self) -> frozenset[str]:
        """Values of the Host header that are ours. Any other name was resolved to us by somebody else."""
        if self.socket is not None:
            return frozenset({"localhost", *self.names})
        names = {*self.names, *(LOOPBACK_NAMES if is_loopback(self.host) else (self.host,))}
        plain = 443 if self.secure else 80
        return frozenset({f"{name}:{self.port}" for name in names} | (names if self.port == plain else set()))

    @property
    def origins(self) -> frozenset[str]:
        return frozenset(f"{'https' if self.secure else 'http'}://{host}" for host in self.hosts)


def check(address: Address, *, beyond_this_machine: bool) -> None:
    """Raises ConfigurationError for an address that would let others listen in."""
    if address.socket is not None or is_loopback(address.host):
        return
    if not beyond_this_machine:
        raise ConfigurationError(
            f"{address.host} can be reached from other machines: say --expose if that is wanted, or leave --host out"
        )
    if not (address.certificate and address.key):
        raise ConfigurationError("a server that other machines reach needs TLS: give --tls-cert and --tls-key")
    if address.host in ("0.0.0.0", "::") and not address.names:
        raise ConfigurationError(f"with --host {address.host}, --name must say by which name the server is addressed")
