"""Commands of one's own in a session of a server: run there, read here as they go on."""

from collections.abc import AsyncGenerator, Callable

import msgspec

from outrider.app.remote.client import Answer, Client
from outrider.app.remote.feeds.held import path_of
from outrider.errors import ServerAwayError
from outrider.providers.transport.sse import EventReader, ServerEvent


class _Output(msgspec.Struct, frozen=True):
    text: str


class _Ended(msgspec.Struct, frozen=True):
    words: str


async def run_there(client: Client, session_id: str, command: str, on_output: Callable[[str], object]) -> str:
    """How it ended, in words. Whoever stops waiting ends it there too."""
    async with client.opened("POST", f"{path_of(session_id)}/commands", {"command": command}) as answer:
        async for name, raw in _events(answer):
            if name == "output":
                on_output(msgspec.json.decode(raw, type=_Output).text)
            elif name == "ended":
                return msgspec.json.decode(raw, type=_Ended).words
    raise ServerAwayError(f"{client.place.url} hung up while the command ran")


async def _events(answer: Answer) -> AsyncGenerator[ServerEvent, None]:
    reader = EventReader()
    while piece := await answer.read():
        for event in reader.feed(piece):
            yield event
