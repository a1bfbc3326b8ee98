"""A program serves its agents over the API and the page: alone, mounted in another application, or as a process."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import outrider
from outrider import Agent, ConfigurationError, Engine, Provider, Tool
from outrider.providers.scripted import call
from outrider.server.auth import ListenAddress
from outrider.server.server import bind_socket
from tests.e2e.server.http_server import TOKEN

HEADERS = {"Authorization": f"Bearer {TOKEN}"}
PROGRAM = """
import outrider
model = outrider.Provider("demo", kind="scripted", options={"script": ["Hello."]})
engine = outrider.Engine([outrider.Agent("helper", "You help.", model="demo", provider="demo")], [model])
outrider.serve(engine, port=0, announce=lambda line: print(line, flush=True))
print("ended", flush=True)
"""


def engine_with(script: Any, tools: list[Tool] | None = None) -> Engine:
    provider = Provider("scripted", "scripted", options={"script": script})
    return Engine([Agent("helper", "You help.", "model-1", "scripted")], [provider], tools or [])


@asynccontextmanager
async def running(application: Any, url: str, listening: Any, lifespan: str = "on") -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(application, log_level="error", lifespan=lifespan))
    server.capture_signals = suppress  # type: ignore[method-assign]
    serving = asyncio.create_task(server.serve([listening]))
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        yield url
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def mounted(engine: Engine, prefix: str = "/agents") -> AsyncIterator[tuple[str, outrider.ServerApp]]:
    """The application below a prefix of another one."""
    listening, address = bind_socket(ListenAddress())
    app = outrider.server_app(engine, token=TOKEN, url=address.url + prefix)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with app:
            yield

    async def home(_: Request) -> PlainTextResponse:
        return PlainTextResponse("the other application")

    other = Starlette(routes=[Route("/", home), Mount(prefix, app=app)], lifespan=lifespan)
    async with running(other, address.url + prefix, listening) as url:
        yield url, app


async def ask(http: aiohttp.ClientSession, method: str, url: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    async with http.request(method, url, json=body, headers={**HEADERS, **headers}) as answer:
        return answer.status, await answer.json() if answer.content_type == "application/json" else await answer.text()


async def test_a_mounted_application_runs_a_turn_with_an_approval():
    @Tool(policy="ask")
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    async with (
        mounted(engine_with([call("pay", amount=5), "done"], [pay])) as (url, _),
        aiohttp.ClientSession() as http,
    ):
        status, session = await ask(http, "POST", f"{url}/api/sessions", {})
        assert status == 201
        path = f"{url}/api/sessions/{session['id']}"
        waiting = asyncio.create_task(ask(http, "POST", f"{path}/prompt", {"text": "pay 5", "wait": True}))
        while not (approvals := (await ask(http, "GET", f"{url}/api/approvals"))[1]):
            await asyncio.sleep(0.01)
        assert approvals[0]["tool"] == "pay"
        status, _ = await ask(http, "POST", f"{url}/api/approvals/{approvals[0]['id']}", {"allow": True})
        assert status == 200
        status, receipt = await waiting
        assert (status, receipt["end"]["output"]) == (202, "done")
        _, page = await ask(http, "GET", f"{path}/messages")
        assert "paid 5" in str(page)


async def test_a_mounted_application_checks_token_host_and_origin_and_leaves_the_other_routes_alone():
    async with mounted(engine_with(["hi"])) as (url, _), aiohttp.ClientSession() as http:
        root = url.removesuffix("/agents")
        assert await ask(http, "GET", f"{root}/") == (200, "the other application")
        assert (await ask(http, "GET", f"{url}/api/sessions", Authorization="Bearer wrong"))[0] == 401
        assert (await ask(http, "GET", f"{url}/api/sessions", Host="evil.example"))[0] == 421
        assert (await ask(http, "GET", f"{url}/api/sessions", Origin="https://evil.example"))[0] == 403
        assert (await ask(http, "GET", f"{url}/api/sessions", Origin=root))[0] == 200
        assert (await ask(http, "GET", f"{root}/api/sessions"))[0] == 404


async def test_a_link_signs_a_browser_in_below_the_prefix():
    async with mounted(engine_with(["hi"])) as (url, app), aiohttp.ClientSession() as http:
        link = app.sign_in_link()
        assert link.startswith(f"{url}/?code=")
        async with http.get(link, allow_redirects=False) as answer:
            assert answer.status == 303
            assert answer.headers["location"].startswith("/agents/#/sign-in/")
            assert "Path=/agents/" in answer.headers["set-cookie"]
            cookie = answer.headers["set-cookie"].partition(";")[0]
        async with http.get(f"{url}/", headers={"Cookie": cookie}) as page:
            assert 'src="page/app.js"' in await page.text()
        async with http.get(f"{url}/page/app.js", headers={"Cookie": cookie}) as script:
            assert script.status == 200
        async with http.get(link, allow_redirects=False) as again:
            assert again.status == 401


async def test_an_asgi_server_opens_and_closes_the_engine():
    listening, address = bind_socket(ListenAddress())
    engine = engine_with(["hi"])
    app = outrider.server_app(engine, token=TOKEN, url=address.url)
    async with running(app, address.url, listening) as url, aiohttp.ClientSession() as http:
        assert (await ask(http, "POST", f"{url}/api/sessions", {}))[0] == 201
    assert not engine.runtime.is_open


async def test_an_engine_that_is_open_stays_open():
    async with engine_with(["hi"]) as engine:
        async with outrider.server_app(engine, token=TOKEN):
            assert engine.runtime.is_open
        assert engine.runtime.is_open


def test_a_short_token_and_a_wrong_address_are_reported():
    with pytest.raises(ConfigurationError, match="at least 32"):
        outrider.server_app(engine_with(["hi"]), token="short")
    with pytest.raises(ConfigurationError, match=r"url=example\.com/agents is not an address"):
        outrider.server_app(engine_with(["hi"]), url="example.com/agents")


def test_https_addresses_allow_https_origins_only():
    app = outrider.server_app(engine_with(["hi"]), url="https://agents.example/team")
    origins = app.address.allowed_origins
    assert "https://agents.example" in origins
    assert not origins & {"http://agents.example", "https://evil.example"}
    assert app.sign_in_link().startswith("https://agents.example/team/?code=")


async def test_a_token_and_logins_are_stored_in_the_folder(tmp_path: Path):
    first = outrider.server_app(engine_with(["hi"]), folder=tmp_path)
    assert outrider.server_app(engine_with(["hi"]), folder=tmp_path).token == first.token
    assert outrider.server_app(engine_with(["hi"])).token != first.token


async def test_serving_ends_when_the_task_is_cancelled():
    ready: asyncio.Queue[str] = asyncio.Queue()
    engine = engine_with(["hi"])
    serving = asyncio.create_task(outrider.async_serve(engine, port=0, token=TOKEN, announce=ready.put_nowait))
    link = (await asyncio.wait_for(ready.get(), 30)).removeprefix("Open ")
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        async with http.get(link) as page:
            assert "<title>Outrider</title>" in await page.text()
        assert (await ask(http, "GET", f"{link.partition('/?')[0]}/api/sessions"))[0] == 200
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert not engine.runtime.is_open


async def test_other_machines_need_consent_and_tls():
    with pytest.raises(ConfigurationError, match="reachable from other machines"):
        await outrider.async_serve(engine_with(["hi"]), host="0.0.0.0", port=0)


async def test_a_missing_certificate_is_named(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"there is no file .*tls\.pem"):
        await outrider.async_serve(
            engine_with(["hi"]), port=0, certificate=tmp_path / "tls.pem", key=tmp_path / "key.pem"
        )


async def test_a_number_that_is_no_port_is_a_configuration_error():
    with pytest.raises(ConfigurationError, match="99999 is not a port"):
        await outrider.async_serve(engine_with(["hi"]), port=99999)


def test_a_program_serves_until_it_is_interrupted():
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=environment
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline().startswith("Open http://127.0.0.1:")
        program.send_signal(signal.SIGINT)
        assert program.stdout.readline() == "ended\n"
        assert program.wait(30) == 0
