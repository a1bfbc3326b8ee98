"""Every route rejects requests without the required rights."""

import asyncio
import re
import socket

import pytest

from outrider.server.app import all_routes
from outrider.server.auth import LINK_SECONDS, LOGIN_SECONDS, BrowserLogins
from outrider.server.users import ServerUser, UserDirectory
from tests.e2e.server.http_server import TOKEN, served

# From what is really served, so that no route can be forgotten; each of the page's files is one.
SERVED = [(method, route.path) for route in all_routes("0") for method in route.methods or () if method != "HEAD"]
MCP = [("GET", "/mcp"), ("POST", "/mcp"), ("DELETE", "/mcp")]
ROUTES = sorted({(method, re.sub(r"{\w+}", "0", path)) for method, path in [*SERVED, *MCP]})
ROUTES += [("GET", "/no/such/route")]
RIGHT = {"Authorization": f"Bearer {TOKEN}"}

ATTACKS = {
    "no token": ({}, 401),
    "a wrong token": ({"Authorization": "Bearer wrong"}, 401),
    "an empty token": ({"Authorization": "Bearer "}, 401),
    "the token with more behind it": ({"Authorization": f"Bearer {TOKEN}x"}, 401),
    "half a token": ({"Authorization": f"Bearer {TOKEN[:-1]}"}, 401),
    "the token as a password": ({"Authorization": f"Basic {TOKEN}"}, 401),
    "bytes that are no text": (
        {"Authorization": "Bearer \udcff".encode("utf-8", "surrogateescape").decode("latin-1")},
        401,
    ),
    "a cookie of its own": ({"Cookie": f"outrider={TOKEN}"}, 401),
    "a name that was made to point here": (RIGHT | {"Host": "evil.example"}, 421),
    "a name that begins like ours": (RIGHT | {"Host": "127.0.0.1.evil.example"}, 421),
    "our name with another port": (RIGHT | {"Host": "127.0.0.1:1"}, 421),
    "an empty name": (RIGHT | {"Host": ""}, 421),
    "the page of another site": (RIGHT | {"Origin": "http://evil.example"}, 403),
    "a page without an origin": (RIGHT | {"Origin": "null"}, 403),
    "our name on another port as origin": (RIGHT | {"Origin": "http://127.0.0.1:1"}, 403),
    "another site's request without its origin": (RIGHT | {"Sec-Fetch-Site": "cross-site"}, 403),
    "a neighbour on this machine": (RIGHT | {"Sec-Fetch-Site": "same-site"}, 403),
}


TRICKS = (
    "/../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/static/..%2f..%2fapp.py",
    "//etc/passwd",
    "/api/sessions/../../x",
)


@pytest.mark.parametrize("attack", ATTACKS)
async def test_no_route_serves_an_intruder(attack, tmp_path):
    headers, status = ATTACKS[attack]
    async with served(tmp_path, [], mcp=True) as client:
        for method, path in ROUTES:
            async with client.http.request(method, client.address.url + path, headers=headers) as answer:
                assert answer.status in (status, 429), f"{method} {path}"
                assert "error" in await answer.json()
                assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_body_that_a_form_could_send_is_not_read(kind, tmp_path):
    async with served(tmp_path, [], mcp=True) as client:
        for method, path in [(method, path) for method, path in ROUTES if method in ("POST", "PATCH")]:
            headers = {"Content-Type": kind}
            status, answer = await client.ask(method, path, {"title": "x"}, headers=headers)
            assert status == 415, f"{method} {path}: {answer}"
        assert (await client.ask("GET", "/api/sessions"))[1]["sessions"] == []


async def test_a_body_that_is_too_large_is_refused_by_its_length_and_while_it_comes(tmp_path):
    async def endless():
        for _ in range(40):
            yield b" " * 1024 * 1024

    async with served(tmp_path, []) as client:
        headers = RIGHT | {"Content-Type": "application/json"}
        url = client.address.url + "/api/sessions"
        async with client.http.post(url, data=endless(), headers=headers) as answer:
            assert answer.status == 413
        reader, writer = await asyncio.open_connection("127.0.0.1", client.address.port)
        host = f"127.0.0.1:{client.address.port}"
        writer.write(
            f"POST /api/sessions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Content-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n".encode()
        )
        assert b" 413 " in await reader.readline()
        writer.close()


async def test_without_being_asked_for_the_server_takes_no_orders_of_other_agents(tmp_path):
    async with served(tmp_path, []) as client:
        for method, path in MCP:
            assert (await client.ask(method, path, {} if method == "POST" else None))[0] == 404
    async with served(tmp_path, [], mcp=True) as client:
        assert (await client.ask("POST", "/mcp", {}))[0] == 400


async def test_paths_lead_nowhere_but_to_routes(tmp_path):
    async with served(tmp_path, []) as client:
        for path in (
            "/../etc/passwd",
            "/%2e%2e/%2e%2e/etc/passwd",
            "/static/..%2f..%2fapp.py",
            "//etc/passwd",
            "/api/sessions/../../x",
        ):
            status, answer = await client.ask("GET", path)
            assert status == 404, path
            assert b"root:" not in str(answer).encode()


async def test_websockets_and_strange_methods_are_refused(tmp_path):
    async with served(tmp_path, []) as client:
        for method in ("TRACE", "OPTIONS", "PUT", "PROPFIND"):
            assert (await client.ask(method, "/api/sessions"))[0] in (400, 404, 405), method


async def test_guessing_is_slowed_down_and_does_not_lock_the_owner_out(tmp_path):
    async with served(tmp_path, []) as client:
        answers = []
        for guess in range(40):
            headers = {"Authorization": f"Bearer {guess}"}
            async with client.http.get(client.address.url + "/api/health", headers=headers) as answer:
                answers.append(answer.status)
        assert answers[-1] == 429
        assert (await client.ask("GET", "/api/health"))[0] == 200


async def test_a_browser_signs_in_with_a_link_and_gets_a_secret_that_no_other_server_sees(tmp_path):
    async with served(tmp_path, []) as client:
        url = client.address.url
        link = (await client.ask("POST", "/api/login-links"))[1]["url"]
        async with client.http.get(link, allow_redirects=False) as answer:
            assert answer.status == 303
            cookie, place = answer.headers["Set-Cookie"], answer.headers["Location"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Max-Age" in cookie
        secret = place.removeprefix("/#/sign-in/")
        assert TOKEN not in cookie + place and secret not in cookie
        value = {"Cookie": cookie.partition(";")[0]}
        async with client.http.get(f"{url}/page/app.js", headers=value) as answer:
            assert answer.status == 200
        for method, path in ROUTES:  # a server on another port of this machine receives the cookie, but cannot use it
            if path.startswith("/page/") or path == "/":
                continue
            async with client.http.request(method, url + path, headers=value) as answer:
                assert answer.status in (401, 429), f"{method} {path}"
        bearer = {"Authorization": f"Bearer {secret}"}
        async with client.http.get(f"{url}/api/health", headers=bearer) as answer:
            assert answer.status == 200
        for used in (link, f"{url}/?token=wrong", f"{url}/?code=wrong"):
            async with client.http.get(used, allow_redirects=False) as answer:
                assert answer.status in (401, 429), "a link works once"
        async with client.http.post(f"{url}/api/sign-out", headers=bearer) as answer:
            assert answer.status == 204
        async with client.http.get(f"{url}/api/health", headers=bearer) as answer:
            assert answer.status in (401, 429)


def test_logins_and_links_expire_and_survive_a_restart(tmp_path):
    now = [1000.0]
    logins = BrowserLogins(tmp_path / "logins.json", clock=lambda: now[0])
    cookie, secret = logins.sign_in()
    code = logins.create_code()
    assert secret not in (tmp_path / "logins.json").read_text() and cookie not in (tmp_path / "logins.json").read_text()
    again = BrowserLogins(tmp_path / "logins.json", clock=lambda: now[0])
    assert again.find_by_secret(secret) and again.find_by_cookie(cookie)
    assert not again.find_by_secret(cookie) and not again.find_by_cookie(secret) and not again.find_by_secret("")
    now[0] += LINK_SECONDS + 1
    assert not logins.redeem_code(code)
    found = logins.find_by_secret(secret)
    assert found and logins.is_signed_in(found.id)
    now[0] += LOGIN_SECONDS
    assert not logins.find_by_secret(secret) and not logins.is_signed_in(found.id)
    logins.sign_in()
    assert found.id not in (tmp_path / "logins.json").read_text(), "expired logins are forgotten"


def test_files_with_hashes_are_private_whatever_an_interrupted_write_left(tmp_path):
    for name in ("logins", "users"):
        (tmp_path / f"{name}.new").touch(mode=0o644)
        (tmp_path / f"{name}.new").chmod(0o644)
    BrowserLogins(tmp_path / "logins.json").sign_in()
    UserDirectory(tmp_path / "users.json").put(ServerUser(name="ana"))
    for name in ("logins.json", "users.json"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600, name


async def test_others_cannot_use_up_the_requests_of_the_owner(tmp_path):
    async with served(tmp_path, []) as client:
        strangers = [client.http.get(client.address.url + "/api/health") for _ in range(300)]
        for stranger in asyncio.as_completed(strangers):
            (await stranger).close()
        assert [(await client.ask("GET", "/api/health"))[0] for _ in range(40)] == [200] * 40


async def test_connections_without_a_request_do_not_lock_the_owner_out(tmp_path):
    async with served(tmp_path, []) as client:
        half_open = [await asyncio.open_connection("127.0.0.1", client.address.port) for _ in range(400)]
        for _, writer in half_open:
            writer.write(b"GET /api/health HTTP/1.1\r\nHost: x\r\n")
        assert (await client.ask("GET", "/api/health"))[0] == 200
        assert await asyncio.wait_for(half_open[0][0].read(), 10) == b"", "the oldest one is closed"
        for _, writer in half_open:
            writer.close()


async def test_a_burst_of_clients_is_served_completely(tmp_path):
    async with served(tmp_path, []) as client:
        host = f"127.0.0.1:{client.address.port}"
        request = f"GET /api/me HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        sockets = [socket.create_connection(("127.0.0.1", client.address.port)) for _ in range(400)]
        for one in sockets:  # the server has accepted none of them: this is its event loop
            one.sendall(request)
        async with asyncio.timeout(60):
            for one in sockets:
                one.setblocking(False)
                assert await asyncio.get_running_loop().sock_recv(one, 15) == b"HTTP/1.1 200 OK"
                one.close()


async def test_every_answer_forbids_what_a_page_must_not_do(tmp_path):
    async with (
        served(tmp_path, []) as client,
        client.http.get(client.address.url + "/api/health", headers=RIGHT) as answer,
    ):
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"


async def test_a_browser_without_the_link_is_shown_where_to_get_it(tmp_path):
    async with served(tmp_path, []) as client:
        for path in ("/", "/?token=wrong", "/api/sessions"):
            accept = {"Accept": "text/html,application/xhtml+xml"}
            async with client.http.get(client.address.url + path, headers=accept) as answer:
                assert (answer.status, answer.content_type) == (401, "text/plain")
                assert "Open the link that `outrider serve` printed" in await answer.text()
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
