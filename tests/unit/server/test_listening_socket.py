"""The listening socket of the server."""

import asyncio
import socket

from outrider.server.auth import ListenAddress
from outrider.server.server import bind_socket


async def test_responses_are_sent_without_the_delay_of_nagle_s_algorithm():
    """A response is written in two pieces; the second would wait 40 ms for the acknowledgement of the first."""
    options: list[int] = []
    listening, address = bind_socket(ListenAddress())

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        options.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(accept, sock=listening):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        await reader.read()
        writer.close()
    assert options and options[0] != 0
