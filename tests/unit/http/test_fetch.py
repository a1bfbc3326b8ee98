"""Redirects, bounded bodies and address checks on top of the client."""

import gzip
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from ipaddress import ip_address
from typing import Any

import pytest

from outrider.errors import ConfigurationError, NetworkError
from outrider.http.client import HttpClient, is_no_downgrade, read_body, redirected_request, send_with_redirects
from outrider.http.connection import AddressRefusedError, IpAddress
from outrider.http.transport import HttpRequest
from tests.fixtures.http_server import Reply, listening, serving

KEYS = {"authorization": "Bearer x", "x-api-key": "y", "cookie": "z=1", "accept": "text/plain", "range": "bytes=0-"}


def moved(to: str, status: int = 302) -> Reply:
    return Reply([], status, {"location": to})


def get(url: str, **headers: str) -> HttpRequest:
    return HttpRequest(url, headers, method="GET")


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[HttpClient]:
    async with aclosing(HttpClient(**options)) as client:
        yield client


async def test_a_get_request_has_no_body_and_no_length():
    seen = b""

    async def serve(reader: Any, writer: Any) -> None:
        nonlocal seen
        seen = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async with listening(serve) as port, opened() as client:
        response = await client.send(get(f"http://127.0.0.1:{port}/a?b=c"))
        assert await read_body(response, 10) == (b"ok", False)
    assert seen.startswith(b"GET /a?b=c HTTP/1.1\r\n")
    assert b"content-length" not in seen


async def test_a_head_response_has_no_body_for_any_head():
    raw = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\ncontent-encoding: gzip\r\n\r\n"
    async with serving(Reply(raw=raw)) as server, opened() as client:
        response = await client.send(HttpRequest(server.url, {}, method="HEAD"))
        assert (response.headers["content-length"], await response.read()) == ("1000", b"")


async def test_redirects_are_followed_and_credentials_stay_with_their_origin():
    async with (
        serving(Reply([b"here"])) as other,
        serving(moved("/next"), moved(f"{other.url}/end")) as server,
        opened() as client,
    ):
        response, url = await send_with_redirects(client, get(server.url, **KEYS), max_redirects=2)
        assert (await read_body(response, 10), url) == ((b"here", False), f"{other.url}/end")
    assert [seen.headers.get("authorization") for seen in server.requests] == ["Bearer x", "Bearer x"]
    (last,) = other.requests
    assert not {"authorization", "x-api-key", "cookie"} & last.headers.keys()
    assert (last.headers["accept"], last.headers["range"]) == ("text/plain", "bytes=0-")


async def test_redirects_have_a_limit_and_do_not_leave_https():
    async with serving(moved("/again")) as server, opened() as client:
        with pytest.raises(NetworkError, match="more than 3 redirects"):
            await send_with_redirects(client, get(server.url), max_redirects=3)
        assert len(server.requests) == 4
    async with serving(moved("file:///etc/passwd")) as server, opened() as client:
        with pytest.raises(ConfigurationError, match="not a valid HTTP URL"):
            await send_with_redirects(client, get(server.url), max_redirects=3)
    assert not is_no_downgrade("https://h.example/", "http://h.example/")
    assert is_no_downgrade("http://h.example/", "https://other.example/")


@pytest.mark.parametrize(
    ("status", "method", "becomes"),
    [(301, "POST", "GET"), (302, "POST", "GET"), (303, "PUT", "GET"), (303, "HEAD", "HEAD"), (307, "POST", "POST"),
     (308, "POST", "POST"), (302, "HEAD", "HEAD")],
)  # fmt: skip
def test_the_method_after_a_redirect_is_that_of_browsers(status: int, method: str, becomes: str):
    headers = {"content-type": "text/plain", "accept": "x"}
    request = redirected_request(HttpRequest("http://h.example/", headers, b"x", method), status, "http://h.example/2")
    assert (request.method, request.url) == (becomes, "http://h.example/2")
    assert (request.body, "content-type" in request.headers) == ((b"", False) if becomes == "GET" else (b"x", True))


@pytest.mark.parametrize("size", [3, 10_000_000])
async def test_a_long_body_is_cut_whether_compressed_or_not(size: int):
    content = b"x" * size
    for body, headers in ((content, {}), (gzip.compress(content), {"content-encoding": "gzip"})):
        async with serving(Reply([body], 200, headers)) as server, opened(max_body_bytes=1000) as client:
            found, is_longer = await read_body(await client.send(get(server.url)), 1000)
            assert (len(found), is_longer) == (min(size, 1000), size > 1000)


async def test_many_compressed_members_do_not_add_up_to_a_bomb():
    members = gzip.compress(b"x" * 900) * 5000
    reply = Reply([members], 200, {"content-encoding": "gzip"})
    async with serving(reply) as server, opened(max_body_bytes=1000) as client:
        response = await client.send(get(server.url))
        assert len(await response.read()) < 3000
        response.close()


async def test_a_redirect_without_body_may_claim_to_be_compressed():
    to = Reply([], 302, {"location": "/next", "content-encoding": "gzip"})
    async with serving(to, Reply([b"here"])) as server, opened() as client:
        response, _ = await send_with_redirects(client, get(server.url), max_redirects=1)
        assert await read_body(response, 10) == (b"here", False)
    async with serving(Reply([], 200, {"content-encoding": "gzip"})) as server, opened() as client:
        assert await read_body(await client.send(get(server.url)), 10) == (b"", False)


async def test_each_hop_of_a_redirect_is_checked(monkeypatch: pytest.MonkeyPatch):
    async with serving(Reply([b"secret"])) as inner, serving(moved(f"http://inner.example:{inner.port}/")) as server:
        resolve(monkeypatch, {"outer.example": "127.0.0.1", "inner.example": "127.0.0.2"})
        async with opened(is_allowed=lambda address: address != ip_address("127.0.0.2")) as client:
            with pytest.raises(AddressRefusedError, match=r"inner\.example resolves to 127\.0\.0\.2"):
                await send_with_redirects(client, get(f"http://outer.example:{server.port}/"), max_redirects=1)
        assert (len(server.requests), inner.requests) == (1, [])


async def test_the_connection_goes_to_the_checked_address_and_to_no_other(monkeypatch: pytest.MonkeyPatch):
    """DNS rebinding: each lookup returns another address."""
    checked: list[str] = []

    def is_allowed(address: IpAddress) -> bool:
        checked.append(str(address))
        return str(address) == "127.0.0.1"

    async with serving(Reply([b"here"])) as server:
        lookups = resolve(monkeypatch, {"rebind.example": "127.0.0.1 127.0.0.2"})
        async with opened(is_allowed=is_allowed) as client:
            response = await client.send(get(f"http://rebind.example:{server.port}/"))
            assert await read_body(response, 10) == (b"here", False)
    assert (checked, lookups) == (["127.0.0.1"], ["rebind.example"])
    assert server.requests[0].headers["host"] == f"rebind.example:{server.port}"


async def test_only_the_allowed_addresses_of_a_host_are_tried(monkeypatch: pytest.MonkeyPatch):
    async with serving(Reply([b"here"])) as server:
        real = socket.getaddrinfo

        def several(host: object, port: object, *rest: Any, **more: Any):
            if host != "many.example":
                return real(host, port, *rest, **more)  # pyright: ignore
            # Nothing listens on the second address; the first one is not allowed.
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", server.port)) for n in (3, 2, 1)]

        monkeypatch.setattr(socket, "getaddrinfo", several)
        async with opened(is_allowed=lambda address: address != ip_address("127.0.0.3")) as client:
            response = await client.send(get(f"http://many.example:{server.port}/"))
            assert await read_body(response, 10) == (b"here", False)


def test_a_proxy_and_an_address_check_exclude_each_other():
    with pytest.raises(ConfigurationError, match="connects directly"):
        HttpClient(proxy=lambda _: None, is_allowed=lambda _: True)


def resolve(monkeypatch: pytest.MonkeyPatch, hosts: dict[str, str]) -> list[str]:
    """Resolves these names to their addresses, one after the other, and records the lookups."""
    real, lookups = socket.getaddrinfo, list[str]()
    answers = {host: iter(addresses.split() + addresses.split()[-1:] * 9) for host, addresses in hosts.items()}

    def lookup(host: Any, port: Any, *rest: Any, **more: Any):
        if host not in answers:
            return real(host, port, *rest, **more)
        lookups.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers[host]), port))]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    return lookups
