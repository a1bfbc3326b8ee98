"""A response that the shutdown of the server interrupts reports that to the client."""

import asyncio
from types import SimpleNamespace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from outrider.errors import ServerAwayError
from outrider.remote.client import error_from_response, resolve_server
from outrider.server.endpoint import MAX_REPEAT_BYTES, REPEAT_SECONDS, ApiEndpoint, RepeatedRequests, make_handler


async def test_who_waits_for_an_answer_when_the_server_ends_is_asked_to_come_back():
    waiting = asyncio.Event()

    async def for_ever(asked: Any) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async def no_body() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    unused = (
        "engine", "feeds", "peers", "background", "questions", "logins", "settings", "server_logins", "turns",
        "webhooks",
    )  # fmt: skip
    state = SimpleNamespace(**dict.fromkeys(unused), version="0", url="", users=None, limits=None, monitor=None)
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": [], "path_params": {}}
    request = Request({**scope, "app": SimpleNamespace(state=state), "server": ("localhost", 80)}, no_body)
    endpoint = ApiEndpoint(method="POST", path="/", name="wait", summary="Wait", handler=for_ever)
    answer = asyncio.create_task(make_handler(endpoint)(request))
    await asyncio.wait((answer, waited := asyncio.create_task(waiting.wait())), return_when="FIRST_COMPLETED")
    assert waited.done(), answer
    answer.cancel()
    response = await answer
    assert response.status_code == 503
    place = resolve_server("http://localhost", token="t" * 40, environ={"HOME": "/nowhere"})
    assert isinstance(error_from_response(place, response.status_code, bytes(response.body)), ServerAwayError)


async def test_repeated_requests_are_forgotten_after_a_day_and_when_they_are_too_large():
    now = 0.0
    handled: list[str] = []
    repeats = RepeatedRequests(clock=lambda: now)

    async def ask(key: str, size: int = 1) -> None:
        async def body() -> dict[str, Any]:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def handle() -> Response:
            handled.append(key)
            return Response(b"x" * size)

        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
        await repeats.answer_once(Request({**scope, "server": ("localhost", 80)}, body), key, handle)

    for key in ("a", "a"):
        await ask(key)
    assert handled == ["a"]
    now = REPEAT_SECONDS + 1.0
    await ask("a")
    assert handled == ["a", "a"]
    await ask("large", MAX_REPEAT_BYTES + 1)
    await ask("b")
    await ask("a")
    assert handled == ["a", "a", "large", "b", "a"]
