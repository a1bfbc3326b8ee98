"""Servers whose agents work for ours: who they are, and how a person's answers reach them."""

from collections.abc import Iterable
from contextlib import aclosing
from typing import Any

from outrider.config.environment import filled_in, proxy_for
from outrider.types.agents import Provider

KIND = "outrider"


def peers_among(providers: Iterable[Provider]) -> dict[str, Provider]:
    """By their addresses, as the wire of such providers writes them."""
    peers = [filled_in(provider) for provider in providers if provider.kind == KIND]
    return {(peer.base_url or "").rstrip("/"): peer for peer in peers}


async def tell_peer(peer: Provider, path: str, answer: dict[str, Any]) -> bytes:
    """Raises ProviderError where it is refused, NotFoundError where nobody waits for it any more."""
    from outrider.providers.remote_agent import PeerWire  # by those who answer: most have no peers
    from outrider.providers.transport.http_client import HttpClient

    wire, pieces = PeerWire(peer), list[bytes]()
    async with aclosing(HttpClient(proxy=proxy_for)) as http:
        answered = await http.send(wire.answering(path, answer))
        while piece := await answered.read():
            pieces.append(piece)
    if answered.status >= 400:
        raise wire.error(answered.status, answered.headers, b"".join(pieces))
    return b"".join(pieces)
