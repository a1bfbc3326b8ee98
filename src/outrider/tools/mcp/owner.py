"""The owner of one server's connections: it connects, connects again after a death, and says how things stand."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from outrider.tools.mcp.config import ServerConfig, hide
from outrider.tools.mcp.faults import ServerFault
from outrider.tools.mcp.link import Hold, Host, Life, Link, Listed, Listener, Report
from outrider.tools.mcp.retries import Retries

State = Literal["connecting", "ready", "failed", "closed"]


class Status(msgspec.Struct, frozen=True):
    """`error` says why the server failed, or why its last connection ended."""

    state: State
    error: str = ""


class Owner:
    """`own` runs until `close`. `learn` is awaited with each new link before the server counts as ready; `tell` hears
    of every status."""

    def __init__(
        self,
        config: ServerConfig,
        host: Host,
        learn: Callable[[Link], Awaitable[None]],
        stale: Callable[[Listed], None],
        log: Report,
        tell: Callable[[], None],
    ) -> None:
        self.status = Status("connecting")
        self._config = config
        self._host = host
        self._learn = learn
        self._stale = stale
        self._log = log
        self._tell = tell
        self._link: Link | None = None
        self._life: Life | None = None
        self._settled = asyncio.Event()  # ready, failed or closed: nothing comes by waiting
        self._asked = asyncio.Event()  # for a new attempt, or for the end
        self._closing = False
        self._is_legacy = False

    async def own(self, hold: Hold) -> None:
        retries = Retries(self._host.limits)
        while not self._closing:
            self._asked.clear()
            delay = retries.after(await self._live(hold))
            if delay is None and not self._closing:
                self._change("failed")
                retries = Retries(self._host.limits)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._asked.wait()
        self._change("closed")

    async def settled(self) -> Status:
        await self._settled.wait()
        return self.status

    def reconnect(self) -> None:
        """Try a failed server again, or at once what would be tried later."""
        if self.status.state == "failed":
            self._change("connecting")
        self._asked.set()

    def close(self) -> None:
        self._closing = True
        self._asked.set()
        if self._life is not None:
            self._life.end("it was closed")

    async def link(self) -> tuple[Link, Life]:
        """Waits for a connection that is being made, as long as a start may take."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._host.limits.startup):
                await self._settled.wait()
        if self._link is None or self._life is None:
            why = f": {self.status.error}" if self.status.error else ""
            raise ServerFault(f"the MCP server {self._config.name} is not there ({self.status.state}){why}")
        return self._link, self._life

    async def _live(self, hold: Hold) -> float | None:
        """For how many seconds one connection served, or None. Some older servers do not bear to be asked for what is
        new and die of it, so those that die at the start get another one without."""
        life = await self._connect(hold)
        if life.served is None and life.has_died and not self._is_legacy and not self._closing:
            self._is_legacy = True
            life = await self._connect(hold)
            self._is_legacy = life.served is not None
        return life.served

    async def _connect(self, hold: Hold) -> Life:
        self._change("connecting")
        self._life = life = Life(Listener(self._ready, self._ended, self._stale, self._log))
        await hold(self._config, self._host, life, legacy=self._is_legacy)
        life.end("the connection ended")
        return life

    async def _ready(self, link: Link) -> None:
        await self._learn(link)
        self._link = link
        self._change("ready", "")

    def _ended(self) -> None:
        self._link = None
        if self._closing:
            self._change("closed")
        elif self._life is not None:
            self._change("connecting", hide(self._life.reason, self._config))

    def _change(self, state: State, error: str | None = None) -> None:
        if state == "connecting":
            self._settled.clear()
        else:
            self._settled.set()
        status = Status(state, self.status.error if error is None else error)
        if status != self.status:
            self.status = status
            self._tell()
