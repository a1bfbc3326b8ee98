"""The sessions that an engine owns: opened, closed, and asked for by their ids."""

import asyncio
from pathlib import Path
from weakref import WeakValueDictionary

from outrider.engine.abort import AbortListener, abort_elsewhere
from outrider.engine.child_sessions import end_below
from outrider.engine.live_session import LiveSession
from outrider.engine.runtime import EngineRuntime
from outrider.engine.titles import Titles
from outrider.errors import ConfigurationError, SessionInUseError
from outrider.event_bus import EventBus
from outrider.sessions.journal import Journal, begin, resume
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.tools.runner import describe_touched_files


class OpenSessions:
    def __init__(self, staff: EngineRuntime, store: Store, bus: EventBus) -> None:
        self.live: dict[str, LiveSession] = {}
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._staff = staff
        self._store = store
        self._bus = bus
        self._ear = AbortListener(store)
        self._titles = Titles(staff, self.live, store, bus) if staff.titles else None

    async def begin(self, session: Session) -> None:
        self._require_open()
        self._add(await begin(session, self._store, self._bus, holder=self._staff.holder))

    async def at(self, session_id: str, *, take_over: bool = False, goes_on: bool = False) -> LiveSession:
        """The session, owned by this engine from now on; one that somebody else took over is opened anew. If its turn
        `goes_on`, calls that are safe to repeat do too; for everybody else they are interrupted like all others."""
        self._require_open()
        if session_id in self.live and self.live[session_id].journal.lost.is_set():
            await self.close(session_id)
        if session_id in self.live:
            return self.live[session_id]
        # Whoever comes while it is being opened waits: a second owner would fence off the first.
        async with self._opening.setdefault(session_id, asyncio.Lock()):
            if session_id not in self.live:
                self._add(await self._resumed(session_id, take_over=take_over, repeats=goes_on)).wake()
            return self.live[session_id]

    async def at_rest(self, session_id: str) -> Journal:
        live = await self.at(session_id)
        if live.in_turn:
            raise SessionInUseError("a turn is under way in this session; abort it or wait for its end")
        return live.journal

    async def abort(self, session_id: str) -> None:
        """The turn here, or at whoever else works on the session."""
        live = self.live.get(session_id)
        if live is not None:
            await live.abort()
        if live is None or live.journal.lost.is_set():
            await abort_elsewhere(self._store, session_id)

    async def close(self, session_id: str) -> None:
        """Whoever wants it meanwhile waits, and opens it anew: a second owner would fence off what is kept at last."""
        async with self._opening.setdefault(session_id, asyncio.Lock()):
            live = self.live.pop(session_id, None)
            if live is not None:
                await live.close()
            await self._staff.leave(session_id)

    async def close_all(self) -> None:
        if self._titles is not None:
            await self._titles.close()
        for live in list(self.live.values()):
            await live.close()
        await self._ear.close()
        self.live.clear()

    async def _resumed(self, session_id: str, *, take_over: bool, repeats: bool) -> Journal:
        """The journal of a stored session; of interrupted calls it is said what became of the files they named."""
        workspace = Path((await self._store.get(session_id)).workspace_directory or ".")
        journal = await resume(
            session_id,
            self._store,
            self._bus,
            holder=self._staff.holder,
            take_over=take_over,
            describe=lambda call: describe_touched_files(call, workspace),
            repeats=repeats,
        )
        await end_below(self._store, journal.session.messages)
        if self._staff.undo is not None:
            await self._staff.undo.recover(journal)
        return journal

    def _add(self, journal: Journal) -> LiveSession:
        live = LiveSession(journal, self._store, self._staff, self._bus, self._ear)
        self.live[journal.session.id] = live
        return live

    def _require_open(self) -> None:
        if not self._staff.is_open:
            raise ConfigurationError("this engine is not open: it works inside `async with engine:`")
