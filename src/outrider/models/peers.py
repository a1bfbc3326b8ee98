"""Peers, the remote Outrider servers in the configuration: list them, and send replies to their agents."""

from collections.abc import Iterable
from contextlib import aclosing
from typing import Any

from outrider.config.environment import proxy_for, with_environment_defaults
from outrider.types.agents import Provider

PEER_KIND = "outrider"


def find_peers(providers: Iterable[Provider]) -> dict[str, Provider]:
    """Returns the peers by address, in the form that RemoteAgentWire uses."""
    peers = [with_environment_defaults(provider) for provider in providers if provider.kind == PEER_KIND]
    return {(peer.base_url or "").rstrip("/"): peer for peer in peers}


async def send_to_peer(peer: Provider, path: str, answer: dict[str, Any]) -> bytes:
    """Posts a reply to a peer and returns the response body.

    Raises ProviderError for an error response, NotFoundError if the question is no longer open.
    """
    from outrider.providers.remote_agent import RemoteAgentWire  # lazy: most configurations have no peers
    from outrider.providers.transport.http_client import HttpClient

    wire, chunks = RemoteAgentWire(peer), list[bytes]()
    async with aclosing(HttpClient(proxy=proxy_for)) as http:
        response = await http.send(wire.build_reply(path, answer))
        while chunk := await response.read():
            chunks.append(chunk)
    if response.status >= 400:
        raise wire.decode_error(response.status, response.headers, b"".join(chunks))
    return b"".join(chunks)
