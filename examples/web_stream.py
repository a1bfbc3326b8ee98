"""A web application that streams answers: POST /chat returns server-sent events; each browser has a stored session."""

import json
import threading
import time
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from outrider import Agent, Engine, Provider
from outrider.events import LoopCompletedEvent, PartDeltaEvent

helper = Agent("helper", "You help.", model="demo", provider="demo")
model = Provider("demo", kind="scripted", options={"script": ["Hello from the engine."]})


@asynccontextmanager
async def open_engine(app: Starlette) -> AsyncGenerator[None]:
    async with Engine([helper], [model]) as engine:
        app.state.engine = engine
        yield


async def chat(request: Request) -> StreamingResponse:
    engine: Engine = request.app.state.engine
    body = await request.json()
    session = body.get("session") or await engine.create()

    async def answer() -> AsyncGenerator[str]:
        yield f"event: session\ndata: {session}\n\n"
        events = engine.events(session)
        await engine.enqueue(session, body["text"])
        async for event in events:
            match event:
                case PartDeltaEvent(field="text"):
                    yield f"data: {json.dumps(event.delta)}\n\n"
                case LoopCompletedEvent():
                    return
                case _:
                    pass

    return StreamingResponse(answer(), media_type="text/event-stream")


app = Starlette(routes=[Route("/chat", chat, methods=["POST"])], lifespan=open_engine)


if __name__ == "__main__":  # in production: uvicorn web_stream:app
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    data = json.dumps({"text": "Hi!"}).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/chat", data=data) as response:
        print(response.read().decode())
    server.should_exit = True
    thread.join()
