"""How requests reach a server: directly on this machine, through the configured proxy on others, on a Unix socket."""

import asyncio
import sys
from pathlib import Path

import pytest

from outrider.errors import ConfigurationError, ServerAwayError
from outrider.remote.client import ServerClient, resolve_server
from tests.fixtures.http_server import CERTIFICATE, Proxy, Reply, proxying, server_tls, serving

OK = Reply([b'{"ok":true}'], headers={"content-type": "application/json"})


@pytest.fixture
def proxy_variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    return monkeypatch


def client_of(url: str) -> ServerClient:
    return ServerClient(resolve_server(url, token="secret-token", environ={}))


async def test_a_server_on_another_machine_is_reached_through_the_proxy(proxy_variables: pytest.MonkeyPatch):
    async with serving(OK, tls=server_tls()) as server:
        proxy = Proxy(target=server.port)
        async with proxying(proxy) as address:
            proxy_variables.setenv("HTTPS_PROXY", address)
            assert await client_of("https://build.example:8443/tools").get("/api/health", wait=True) == {"ok": True}
    (head,) = proxy.heads
    assert head.startswith("CONNECT build.example:8443 HTTP/1.1\r\n")
    assert "proxy-authorization: Basic " in head
    assert "secret-token" not in head
    (request,) = server.requests
    assert request.target == "/tools/api/health?wait=true"
    assert (request.headers["authorization"], request.headers["host"]) == ("Bearer secret-token", "build.example:8443")


async def test_a_proxy_that_refuses_is_named_in_the_error(proxy_variables: pytest.MonkeyPatch):
    async with proxying(Proxy(b"407 Who are you?")) as address:
        proxy_variables.setenv("HTTPS_PROXY", address)
        with pytest.raises(ServerAwayError, match=r"no server answers at .*the proxy 127.0.0.1:\d+ rejected .* 407"):
            await client_of("https://build.example:8443").get("/api/health")


async def test_servers_of_this_machine_and_of_no_proxy_are_reached_without_it(proxy_variables: pytest.MonkeyPatch):
    proxy = Proxy(b"500 Unused")
    async with serving(OK, tls=server_tls()) as server, proxying(proxy) as address:
        proxy_variables.setenv("HTTPS_PROXY", address)
        assert await client_of(server.url).get("/api/health") == {"ok": True}
        proxy_variables.setenv("NO_PROXY", "missing.invalid")
        with pytest.raises(ServerAwayError, match=r"missing\.invalid cannot be resolved"):
            await client_of("https://missing.invalid").get("/api/health")
    assert proxy.heads == []


async def test_a_proxy_of_another_kind_is_reported(proxy_variables: pytest.MonkeyPatch):
    proxy_variables.setenv("HTTPS_PROXY", "socks5://127.0.0.1:1080")
    with pytest.raises(ConfigurationError, match="socks5 proxies are not supported"):
        await client_of("https://build.example").get("/api/health")


@pytest.mark.skipif(sys.platform == "win32", reason="asyncio has no Unix sockets on Windows")
async def test_a_server_on_a_socket_is_reached_and_a_missing_one_is_named(tmp_path: Path):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    path = tmp_path / "o.sock"
    with pytest.raises(ServerAwayError, match=r"no server answers at http\+unix://.*No such file"):
        await client_of(str(path)).get("/api/health")
    listener = await asyncio.start_unix_server(serve, path)
    async with listener:
        assert await client_of(str(path)).get("/api/health") == {}
