"""Waits for the ends of turns on a server, also across its restart: what was asked counts once and is worked off."""

import asyncio
from contextlib import suppress
from time import monotonic
from typing import Any

import msgspec

from outrider.agents.ends import TerminationReason, TurnEnd
from outrider.app.remote.client import Client
from outrider.app.remote.feeds.held import HeldSession, path_of, stored
from outrider.app.remote.refusals import named_error
from outrider.errors import ServerAwayError

PAUSE = 0.25  # seconds between two looks for a server that went away
LAST_WORDS = 10.0  # seconds in which what happened until the end has to be heard


class Ended(msgspec.Struct, frozen=True):
    """How a turn ended, as the server writes it."""

    reason: TerminationReason
    output: str = ""
    error: str = ""
    error_type: str = ""

    def turn_end(self) -> TurnEnd:
        error = named_error(self.error_type, self.error) if self.error_type or self.error else None
        return TurnEnd(self.reason, self.output, error)


class Prompted(msgspec.Struct, frozen=True):
    id: str
    end: Ended


class Turns:
    """`patience` is how many seconds a server may be away before somebody who waits gives up; None is for ever."""

    def __init__(self, client: Client, patience: float | None) -> None:
        self._client = client
        self._patience = patience

    async def prompt(self, held: HeldSession, prompt: dict[str, Any]) -> TurnEnd:
        """Put input into a session and wait for the end of its turn. If the server broke off, the turn goes on."""
        broke = False
        while True:
            try:
                if broke and await self._is_open(held, prompt["id"]):
                    return await self.waited(held, "continue", None)
                return await self._put(held, prompt)
            except ServerAwayError as error:
                await self._returned(error)
                broke = True

    async def waited(self, held: HeldSession, what: str, body: Any) -> TurnEnd:
        """The end of what is asked for, once all that led to it has been heard."""
        ended = await self._client.post(f"{path_of(held.session.id)}/{what}", body, Ended, patient=True)
        return await self._heard(held, ended)

    async def _put(self, held: HeldSession, prompt: dict[str, Any]) -> TurnEnd:
        put = await self._client.post(f"{path_of(held.session.id)}/prompt", prompt, Prompted, patient=True)
        return await self._heard(held, put.end)

    async def _heard(self, held: HeldSession, ended: Ended) -> TurnEnd:
        last = (await stored(self._client, held.session.id)).seq
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await held.until(lambda: held.mirror.seq >= last and not held.in_turn)
        return ended.turn_end()

    async def _is_open(self, held: HeldSession, input_id: str) -> bool:
        """Whether a turn took the input and has not come to its end."""
        there = await held.look()
        last = (await stored(self._client, held.session.id)).seq
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await held.until(lambda: held.mirror.seq >= last)
        return input_id in held.mirror.taken and (there.busy or there.broke_off)

    async def _returned(self, error: ServerAwayError) -> None:
        """Raises the error if the server stays away for too long."""
        since = monotonic()
        while self._patience is None or monotonic() - since < self._patience:
            with suppress(ServerAwayError):
                await self._client.get("/api/health")
                return
            await asyncio.sleep(PAUSE)
        raise error
