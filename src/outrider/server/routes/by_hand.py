"""Commands that people run in a session themselves: their output as it comes, then how they ended."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Annotated

import msgspec

from outrider.app.engine import Engine
from outrider.app.views.calls import denying_rule
from outrider.app.views.commands import run_by_hand
from outrider.errors import OutriderError, ProcessError, ToolFailure
from outrider.server.endpoint import Asked, Endpoint, Nothing, Stream
from outrider.server.feeds.frames import HEARTBEAT
from outrider.server.routes.sessions import ONE

WAITING = 1024 * 1024  # characters that a slow client may be behind; more than a command of a person is read for
MOMENT = 0.03  # seconds; what comes within is sent in one piece
SILENCE = 15.0  # seconds, after which a client hears that the command goes on
LEFT_OUT = "\n[some output was left out here]\n"

_encode = msgspec.json.encode


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line for the shell, run in the session's workspace. Nobody is asked, since whoever sends it wrote it; what the
    server's rules deny is denied to everybody."""

    command: Annotated[str, msgspec.Meta(min_length=1, max_length=100_000)]


async def run_command(asked: Asked[Nothing, Command]) -> Stream:
    session_id = asked.path["session_id"]
    await asked.engine.open(session_id)
    if asked.engine.live[session_id].toolbox is None:
        raise ProcessError("this server runs no commands")
    if rule := await denying_rule(asked.engine, session_id, asked.body.command):
        raise ToolFailure(f"a rule of the server denies this command: {rule}")
    return Stream(_framed(asked.engine, session_id, asked.body.command))


async def _framed(engine: Engine, session_id: str, command: str) -> AsyncGenerator[bytes, None]:
    """Whoever stops listening ends the command: it was theirs."""
    output = _Output()
    running = asyncio.create_task(run_by_hand(engine, session_id, command, output.put))
    running.add_done_callback(lambda _: output.end())
    try:
        yield HEARTBEAT
        while (text := await output.take()) is not None:
            yield b"event: output\ndata: %b\n\n" % _encode({"text": text}) if text else HEARTBEAT
        yield b"event: ended\ndata: %b\n\n" % _encode({"words": _ending(running)})
    finally:
        running.cancel()
        await asyncio.wait([running])


def _ending(running: asyncio.Task[str]) -> str:
    error = running.exception()
    if isinstance(error, OutriderError):
        return error.message
    return running.result()


class _Output:
    """What a command wrote and nobody has taken yet: bounded, and the oldest goes first."""

    def __init__(self) -> None:
        self._pieces: deque[str] = deque()
        self._size = 0
        self._over = False
        self._left_out = False
        self._news = asyncio.Event()

    def put(self, text: str) -> None:
        self._pieces.append(text[-WAITING:])
        self._size += len(self._pieces[-1])
        while self._size > WAITING:
            self._size -= len(self._pieces.popleft())
            self._left_out = True
        self._news.set()

    def end(self) -> None:
        self._over = True
        self._news.set()

    async def take(self) -> str | None:
        """All that has come; "" where nothing came for long, None at the end."""
        try:
            async with asyncio.timeout(SILENCE):
                await self._news.wait()
        except TimeoutError:
            return ""
        if not self._over:
            await asyncio.sleep(MOMENT)
        if not self._over:
            self._news.clear()
        return self._taken() or (None if self._over else "")

    def _taken(self) -> str:
        text = (LEFT_OUT if self._left_out else "") + "".join(self._pieces)
        self._pieces.clear()
        self._size, self._left_out = 0, False
        return text


BY_HAND = (
    Endpoint(method="POST", path=f"{ONE}/commands", name="run_command", summary="Run a command of one's own",
             answer=run_command, body=Command, gives="text/event-stream"),
)  # fmt: skip
