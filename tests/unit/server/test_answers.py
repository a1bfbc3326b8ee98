"""An answer that the end of the server cuts off says so in words that clients understand."""

import asyncio
from types import SimpleNamespace
from typing import Any

from starlette.requests import Request

from outrider.errors import ServerAwayError
from outrider.remote.client import error_from_response, resolve_server
from outrider.server.endpoint import ApiEndpoint, make_handler


async def test_who_waits_for_an_answer_when_the_server_ends_is_asked_to_come_back():
    waiting = asyncio.Event()

    async def for_ever(asked: Any) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async def no_body() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    unused = ("engine", "feeds", "peers", "background", "questions", "logins", "settings", "server_logins")
    state = SimpleNamespace(**dict.fromkeys(unused), version="0", url="")
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": [], "path_params": {}}
    request = Request({**scope, "app": SimpleNamespace(state=state), "server": ("localhost", 80)}, no_body)
    endpoint = ApiEndpoint(method="POST", path="/", name="wait", summary="Wait", handler=for_ever)
    answer = asyncio.create_task(make_handler(endpoint)(request))
    await waiting.wait()
    answer.cancel()
    said = await answer
    assert said.status_code == 503
    place = resolve_server("http://localhost", token="t" * 40, environ={"HOME": "/nowhere"})
    assert isinstance(error_from_response(place, said.status_code, bytes(said.body)), ServerAwayError)
