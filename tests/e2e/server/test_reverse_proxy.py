"""The server behind a real nginx with TLS, under a host name and under a path."""

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from outrider.errors import ConfigurationError
from outrider.remote.client import ServerClient, resolve_server
from outrider.server.auth import ListenAddress, PublicUrl, RequestGuard, TrustedProxies, check_exposure
from tests.e2e.server.http_server import TOKEN, Client, served
from tests.e2e.server.test_page import browsing, say
from tests.fixtures.browser import CHROMIUM
from tests.fixtures.cases import for_each

NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
CERTIFICATE = Path(__file__).parents[2] / "fixtures" / "self_signed.pem"
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
CONFIG = """\
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port} ssl; ssl_certificate {pem}; ssl_certificate_key {pem};
    location {path} {{
      proxy_pass {upstream}; proxy_http_version 1.1; proxy_buffering off; proxy_read_timeout 1h;
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Proto $scheme;
    }}
  }}
}}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 30
    with socket.socket() as probe:
        while probe.connect_ex(("127.0.0.1", port)):
            assert time.monotonic() < deadline, "nginx does not listen"
            time.sleep(0.02)


@asynccontextmanager
async def nginx(folder: Path, port: int, path: str, upstream: str) -> AsyncIterator[None]:
    assert NGINX is not None
    folder.mkdir(exist_ok=True)
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, port=port, path=path, upstream=upstream, pem=CERTIFICATE))
    process = subprocess.Popen([NGINX, "-c", str(config), "-p", str(folder), "-e", str(folder / "error.log")])
    try:
        await asyncio.to_thread(_wait_for_port, port)
        yield
    finally:
        process.terminate()
        process.wait(20)


@asynccontextmanager
async def proxied(
    tmp_path: Path, public: str, script: list[str], *, strips: bool = False, **options: float
) -> AsyncIterator[Client]:
    """A server behind nginx; the client's URL is the public one. With `strips` nginx removes the path."""
    port = free_port()
    url = PublicUrl.parse(public.format(port=port))
    async with served(tmp_path, script, listen=ListenAddress(public=url), **options) as client:
        upstream = client.address.url + ("/" if strips else "")
        async with nginx(tmp_path / "nginx", port, f"{url.prefix}/", upstream):
            client.direct = client.address.url
            client.address = SimpleNamespace(url=f"https://127.0.0.1:{port}{url.prefix}", browser=url)
            yield client


@needs_nginx
async def test_a_host_name_is_served_with_links_cookies_and_streams(tmp_path):
    async with proxied(tmp_path, "https://agents.example:{port}", ["It works."]) as client:
        host = client.address.browser.authority
        named = {"Host": host, "Origin": f"https://{host}"}
        status, link = await client.ask("POST", "/api/login-links", headers=named, ssl=False)
        assert status == 201 and link["url"].startswith(f"https://{host}/?code="), link
        local = link["url"].replace(f"https://{host}", client.address.url)
        async with client.http.get(local, headers={"Host": host}, ssl=False, allow_redirects=False) as answer:
            assert answer.status == 303 and answer.headers["Location"].startswith("/#/sign-in/")
            assert "Path=/;" in answer.headers["Set-Cookie"] and "Secure" in answer.headers["Set-Cookie"]
        session = (await client.ask("POST", "/api/sessions", {}, headers=named, ssl=False))[1]["id"]
        body = {"text": "hi", "wait": True}
        status, turn = await client.ask("POST", f"/api/sessions/{session}/prompt", body, headers=named, ssl=False)
        assert status == 202 and turn["end"]["output"] == "It works."
        for wrong, status in (({"Host": "evil.example"}, 421), (named | {"Origin": "https://evil.example"}, 403)):
            assert (await client.ask("GET", "/api/health", headers=wrong, ssl=False))[0] == status
        plain = {"Host": host, "X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "http"}
        async with client.http.get(
            f"{client.direct}/api/health", headers={**plain, "Authorization": f"Bearer {TOKEN}"}
        ) as answer:
            assert answer.status == 403 and (await answer.json())["error"]["type"] == "not_encrypted"


@needs_nginx
@pytest.mark.parametrize("strips", [False, True])
async def test_a_terminal_attaches_below_a_path(strips, tmp_path, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    async with proxied(tmp_path, "https://127.0.0.1:{port}/tools/outrider", ["Hello."], strips=strips) as client:
        server = ServerClient(resolve_server(client.address.url, token=TOKEN, environ={}))
        assert (await server.get("/api/health"))["ok"]
        session = (await server.post("/api/sessions"))["id"]
        async with server.open_response("GET", f"/api/sessions/{session}/events") as events:
            assert (await events.read()).startswith(b": still here\n\n")
            await server.post(f"/api/sessions/{session}/prompt", {"text": "hi", "wait": True})
            seen = b""
            while b"LoopCompletedEvent" not in seen:
                seen += await events.read()
            assert b"Hello." in seen


@needs_nginx
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here")
@pytest.mark.usefixtures("browser")
@pytest.mark.asyncio(loop_scope="session")
async def test_the_page_works_below_a_path(tmp_path):
    public = "https://localhost:{port}/tools/outrider"
    async with proxied(tmp_path, public, ["Here is **the plan**."], delay=0.01) as client:
        client.address.url = client.address.url.replace("127.0.0.1", "localhost")
        async with browsing(client) as page:
            await page.click("#new-session")
            await say(page, "plan it")
            await page.locator(".markdown strong").get_by_text("the plan").wait_for()
            await page.reload()
            await page.locator(".markdown strong").get_by_text("the plan").wait_for()
            assert page.url.startswith(f"{client.address.url}/#/")
            await page.goto(client.address.url)  # without the slash
            await page.get_by_text("What should be done?").wait_for()


@for_each(
    "text",
    [
        "agents.example",
        "ftp://agents.example",
        "https://",
        "https://user@agents.example",
        "https://agents.example/?x",
        "https://agents.example/#x",
        "https://agents.example/a/../b",
        "https://agents.example//a",
        "https://agents.example/a%2fb",
        "https://agents.example:port/",
        "http://agents.example",
    ],
)
def test_an_address_that_cannot_be_served_is_refused(text):
    with pytest.raises(ConfigurationError, match="--public-url"):
        PublicUrl.parse(text)


def test_forwarded_addresses_are_believed_only_from_trusted_proxies():
    proxies = TrustedProxies(["127.0.0.0/8", "10.0.0.0/24", "::1"])
    assert proxies.find_client("203.0.113.9", "198.51.100.1") == "203.0.113.9"
    assert proxies.find_client("127.0.0.1", "198.51.100.1") == "198.51.100.1"
    assert proxies.find_client("127.0.0.1", "1.1.1.1, 198.51.100.1, 10.0.0.7") == "198.51.100.1", "1.1.1.1 is forged"
    assert proxies.find_client("::ffff:127.0.0.1", "198.51.100.1") == "198.51.100.1"
    assert proxies.find_client("127.0.0.1", "garbage") == "garbage"
    with pytest.raises(ConfigurationError, match="--trusted-proxy"):
        TrustedProxies(["proxy.example"])


async def test_a_server_without_tls_for_other_machines_serves_only_its_proxy():
    public = PublicUrl.parse("https://agents.example")
    open_address = ListenAddress(host="0.0.0.0", public=public)
    with pytest.raises(ConfigurationError, match="--trusted-proxy"):
        check_exposure(open_address, exposed=True)
    check_exposure(ListenAddress(host="0.0.0.0", public=public, proxies=("10.9.9.9",)), exposed=True)
    with pytest.raises(ConfigurationError, match="--expose"):
        check_exposure(ListenAddress(host="0.0.0.0", public=public, proxies=("10.9.9.9",)), exposed=False)
    guard = RequestGuard(
        _serve_nothing,
        address=ListenAddress(host="0.0.0.0", port=80, public=public, proxies=("10.9.9.9",)),
        token=TOKEN,
    )
    assert await _status(guard, "10.9.9.9") == 204
    assert await _status(guard, "127.0.0.1") == 204
    assert await _status(guard, "10.9.9.8") == 403


async def _serve_nothing(_scope, _receive, send) -> None:
    await send({"type": "http.response.start", "status": 204})


async def _status(guard: RequestGuard, peer: str) -> int:
    sent = []

    async def send(message) -> None:
        sent.append(message)

    headers = [(b"host", b"agents.example"), (b"authorization", f"Bearer {TOKEN}".encode())]
    scope = {"type": "http", "method": "GET", "path": "/api/health", "query_string": b"", "headers": headers}
    await guard(scope | {"client": (peer, 5)}, None, send)
    return sent[0]["status"]
