"""A local server that speaks for a vendor: scripted answers in its format, and refusals of what breaks its rules."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.fakes.vendors.anthropic import AnthropicApi
from tests.fakes.vendors.chat import ChatApi
from tests.fakes.vendors.google import GoogleApi
from tests.fakes.vendors.responses import ResponsesApi
from tests.fakes.vendors.vendor import Body, Refusal, Vendor

VENDORS: dict[str, Vendor] = {
    vendor.kind: vendor for vendor in (AnthropicApi(), ChatApi(), ResponsesApi(), GoogleApi())
}
Script = Iterable[Any] | Callable[[Body], Any]


class VendorServer:
    """Gives the answers of a script in order; one that is a function is asked for each answer.

    `requests` are those that were answered; `refused` holds why a request was not."""

    def __init__(self, vendor: Vendor, script: Script) -> None:
        self.vendor = vendor
        self.requests: list[Body] = []
        self.refused: list[str] = []
        self.cut = asyncio.Event()  # the client let go in the middle of an answer
        self.url = ""
        self._script = script if callable(script) else list(script)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        if problem := self.vendor.problem(body):
            self.refused.append(problem)
            return self._refuse(Refusal(400, problem))
        self.requests.append(body)
        answer = self._next(body)
        if isinstance(answer, Refusal):
            return self._refuse(answer)
        pieces = answer if isinstance(answer, list) else [answer]
        if not self.vendor.streams(request.path, body):
            return web.json_response(self.vendor.whole(pieces))
        return await self._stream(request, pieces)

    def _next(self, body: Body) -> Any:
        if callable(self._script):
            answer = self._script(body)
        elif len(self.requests) <= len(self._script):
            answer = self._script[len(self.requests) - 1]
        else:
            answer = Refusal(400, f"the script has {len(self._script)} answers")
        return answer(body) if callable(answer) else answer

    def _refuse(self, refusal: Refusal) -> web.Response:
        return web.json_response(self.vendor.refusal(refusal), status=refusal.status, headers=refusal.headers)

    async def _stream(self, request: web.Request, pieces: list[Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            for frame in self.vendor.stream(pieces):
                if isinstance(frame, asyncio.Event):
                    await self._wait(frame, request)
                else:
                    await response.write(frame)
        except (ConnectionError, asyncio.CancelledError):
            self.cut.set()
            raise
        return response

    async def _wait(self, event: asyncio.Event, request: web.Request) -> None:
        while not event.is_set():
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError
            await asyncio.sleep(0.005)


@asynccontextmanager
async def speaking(vendor: Vendor, script: Script) -> AsyncIterator[VendorServer]:
    server = VendorServer(vendor, script)
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/{path:.*}", server.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}{vendor.base}"
    try:
        yield server
    finally:
        await runner.cleanup()
