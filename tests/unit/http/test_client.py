"""The client at work against real sockets: connections that are stored, proxies, encryption, servers that misbehave."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from outrider.errors import NetworkError, StalledStreamError
from outrider.http.client import HttpClient
from outrider.http.transport import HttpRequest, HttpResponse, HttpTimeouts
from tests.fixtures.http_server import CERTIFICATE, Proxy, Reply, listening, proxying, server_tls, serving

HELLO = Reply([b"hel", b"lo"])


async def whole(answer: HttpResponse) -> bytes:
    pieces: list[bytes] = []
    while piece := await answer.read():
        pieces.append(piece)
    answer.close()
    return b"".join(pieces)


async def posted(client: HttpClient, url: str, body: bytes = b"{}", **headers: str) -> bytes:
    return await whole(await client.send(HttpRequest(f"{url}/v1", headers, body)))


@asynccontextmanager
async def opened(proxy: str | None = None, **timeouts: float) -> AsyncIterator[HttpClient]:
    client = HttpClient(HttpTimeouts(**timeouts), proxy=lambda _: proxy)
    try:
        yield client
    finally:
        await client.aclose()


async def test_one_connection_serves_many_calls_and_several_at_once_get_their_own():
    async with serving(HELLO) as server, opened() as client:
        assert [await posted(client, server.url) for _ in range(3)] == [b"hello"] * 3
        assert {seen.connection for seen in server.requests} == {1}
        first, second = (
            await client.send(HttpRequest(server.url, {}, b"")),
            await client.send(HttpRequest(server.url, {}, b"")),
        )
        assert [await whole(first), await whole(second)] == [b"hello", b"hello"]
        assert len({seen.connection for seen in server.requests}) == 2


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="this Python has no eager tasks")
async def test_a_connection_is_made_where_tasks_start_eagerly_as_in_terminal_applications():
    loop = asyncio.get_running_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009  not known to the oldest Python
    try:
        async with serving(HELLO) as server, opened() as client:
            assert await posted(client, server.url) == b"hello"
    finally:
        loop.set_task_factory(None)


async def test_a_connection_that_should_close_or_sent_too_much_is_not_used_again():
    closing = Reply([b"x"], headers={"connection": "close"})
    talkative = Reply(
        raw=b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nxHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
    )
    async with serving(closing, talkative, HELLO) as server, opened() as client:
        assert [await posted(client, server.url) for _ in range(3)] == [b"x", b"x", b"hello"]
        assert [seen.connection for seen in server.requests] == [1, 2, 3]


async def test_preliminary_answers_are_passed_over():
    raw = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\n"
    raw += b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    async with serving(Reply(raw=raw)) as server, opened() as client:
        assert await posted(client, server.url) == b"ok"


async def test_headers_arrive_as_they_were_given_and_cannot_be_doubled():
    async with serving(HELLO) as server, opened() as client:
        await posted(client, server.url, b"body", **{"Content-Type": "application/json", "Accept-Encoding": "gzip"})
        seen = server.requests[0]
        assert seen.headers["host"] == server.url.removeprefix("http://")
        assert (seen.headers["content-type"], seen.headers["accept-encoding"]) == ("application/json", "gzip")
        assert (seen.headers["content-length"], seen.body) == ("4", b"body")


async def test_headers_that_change_from_call_to_call_are_sent_as_they_are_then():
    async with serving(HELLO) as server, opened() as client:
        headers = {"x-turn": "1"}
        for body, turn in ((b"a", "1"), (b"bb", "1"), (b"ccc", "2")):
            headers["x-turn"] = turn
            await whole(await client.send(HttpRequest(server.url, headers, body)))
        received = [(seen.headers["x-turn"], seen.headers["content-length"], seen.body) for seen in server.requests]
        assert received == [("1", "1", b"a"), ("1", "2", b"bb"), ("2", "3", b"ccc")]


async def test_an_answer_that_has_ended_does_not_call_off_the_watch_over_the_next_on_its_connection():
    async with serving(HELLO, Reply([b"x"], after="stall")) as server, opened(quiet=1) as client:
        first = await client.send(HttpRequest(server.url, {}, b""))
        assert await whole(first) == b"hello"
        second = await client.send(HttpRequest(server.url, {}, b""))
        first.close()
        with pytest.raises(StalledStreamError, match="sent only keep-alives"):
            await whole(second)
        assert {seen.connection for seen in server.requests} == {1}


async def test_a_server_that_never_takes_a_large_call_is_not_waited_for_without_end():
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with listening(deaf) as port, opened(first_byte=0.2) as client:
        with pytest.raises(StalledStreamError, match="sent no response within"):
            await client.send(HttpRequest(f"http://127.0.0.1:{port}/", {}, b"x" * 60_000_000))


async def test_a_refusal_of_a_large_upload_is_read_although_the_rest_was_never_accepted():
    has_read = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 7\r\nconnection: close\r\n\r\ntoo big")
        await writer.drain()
        writer.write_eof()
        await has_read.wait()

    async with listening(refuse) as port, opened() as client:
        answer = await client.send(HttpRequest(f"http://127.0.0.1:{port}/", {}, b"x" * 30_000_000))
        assert (answer.status, await whole(answer)) == (413, b"too big")
        has_read.set()


async def test_an_encrypted_connection_is_made_to_a_host_that_is_trusted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    async with serving(HELLO, tls=server_tls()) as server, opened() as client:
        assert [await posted(client, server.url) for _ in range(2)] == [b"hello", b"hello"]
        assert {seen.connection for seen in server.requests} == {1}


async def test_encrypted_calls_go_through_a_tunnel_of_the_proxy_and_it_does_not_see_them(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    proxy = Proxy()
    async with serving(HELLO, tls=server_tls()) as server, proxying(proxy) as address:
        async with opened(address) as client:
            assert [await posted(client, server.url, x_api_key="key") for _ in range(2)] == [b"hello", b"hello"]
        (head,) = proxy.heads
        assert head.startswith(f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\n")
        assert "proxy-authorization: Basic bWU6c2VjcmV0" in head
        assert "key" not in head
        assert server.requests[0].target == "/v1"
        assert "proxy-authorization" not in server.requests[0].headers


async def test_a_proxy_that_refuses_is_reported():
    async with proxying(Proxy(b"407 Who are you?")) as address, opened(address) as client:
        with pytest.raises(NetworkError, match=r"the proxy .* rejected the CONNECT request with status 407") as refused:
            await posted(client, "https://models.example")
    assert "secret" not in str(refused.value)


async def test_a_connection_that_is_never_accepted_times_out():
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with listening(silent) as port, opened(connect=0.1) as client:
        with pytest.raises(NetworkError, match=r"no connection to .* within"):
            await posted(client, f"https://127.0.0.1:{port}")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_refused_connection_names_the_server_and_what_to_do(host: str):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        async with opened() as client:
            with pytest.raises(NetworkError, match=f"no connection to {host}:{port}: connection refused; start") as one:
                await posted(client, f"http://{host}:{port}")
    assert "Connect call" not in str(one.value)


async def test_a_host_that_is_not_known_is_named():
    async with opened() as client:
        with pytest.raises(NetworkError, match=r"the host name nowhere\.invalid cannot be resolved"):
            await posted(client, "http://nowhere.invalid")


async def test_a_reader_that_waits_holds_the_other_side_back():
    sent = 0

    def endless():
        nonlocal sent
        for _ in range(400):
            sent += 64 * 1024
            yield b"x" * 64 * 1024

    async with serving(Reply(endless)) as server, opened() as client:
        answer = await client.send(HttpRequest(server.url, {}, b""))
        await asyncio.sleep(0.3)
        assert sent < 16 * 1024 * 1024  # what the buffers of both systems hold, not all of it
        assert len(await whole(answer)) == 400 * 64 * 1024


async def test_closing_the_client_closes_what_is_open():
    async with serving(Reply([b"x"], after="stall")) as server:
        client = HttpClient()
        answers = [await client.send(HttpRequest(server.url, {}, b"")) for _ in range(2)]
        await client.aclose()
        for seen in server.requests:
            await asyncio.wait_for(seen.closed.wait(), 30)
        for answer in answers:
            answer.close()
