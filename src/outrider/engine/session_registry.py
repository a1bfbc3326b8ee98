"""The open sessions of an engine, by id."""

import asyncio
from pathlib import Path
from weakref import WeakValueDictionary

from outrider.engine.abort import AbortListener, abort_in_other_process
from outrider.engine.child_sessions import end_child_sessions
from outrider.engine.live_session import LiveSession
from outrider.engine.runtime import EngineRuntime
from outrider.engine.titles import TitleGenerator
from outrider.errors import ConfigurationError, SessionInUseError
from outrider.event_bus import EventBus
from outrider.sessions.journal import Journal, create_journal, resume_journal
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.tools.runner import describe_touched_files


class SessionRegistry:
    """Opens, finds and closes sessions. One lock per id prevents that a session is opened twice."""

    def __init__(self, runtime: EngineRuntime, store: Store, bus: EventBus) -> None:
        self.live: dict[str, LiveSession] = {}
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._runtime = runtime
        self._store = store
        self._bus = bus
        self._abort_listener = AbortListener(store)
        self._titles = TitleGenerator(runtime, self.live, store, bus) if runtime.titles else None

    async def create_session(self, session: Session) -> None:
        """Store a new session, acquire its lease and add it to the registry."""
        self._require_open()
        self._register_session(
            await create_journal(session, self._store, self._bus, lease_owner=self._runtime.lease_owner)
        )

    async def open_session(self, session_id: str, *, take_over: bool = False, resume_turn: bool = False) -> LiveSession:
        """Return the session, opened if necessary. A session whose lease was lost is reopened. With `resume_turn`,
        interrupted calls of repeatable tools run again; otherwise they end as interrupted."""
        self._require_open()
        if session_id in self.live and self.live[session_id].journal.lost.is_set():
            await self.close_session(session_id)
        if session_id in self.live:
            return self.live[session_id]
        # Concurrent calls wait for the lock: a second lease would invalidate the first one.
        async with self._opening.setdefault(session_id, asyncio.Lock()):
            if session_id not in self.live:
                self._register_session(
                    await self._resume_journal(session_id, take_over=take_over, repeats=resume_turn)
                ).wake()
            return self.live[session_id]

    async def open_idle_session(self, session_id: str) -> Journal:
        """Return the journal of a session without a running turn. Raises SessionInUseError if there is one."""
        live = await self.open_session(session_id)
        if live.in_turn:
            raise SessionInUseError("a turn is running in this session; abort it or wait for its end")
        return live.journal

    async def abort_turn(self, session_id: str) -> None:
        """Abort the turn in this process, or else in the process that owns the session."""
        live = self.live.get(session_id)
        if live is not None:
            await live.abort()
        if live is None or live.journal.lost.is_set():
            await abort_in_other_process(self._store, session_id)

    async def close_session(self, session_id: str) -> None:
        """Close the session under its lock: a concurrent open waits, because a second owner would reject the last
        writes of the first."""
        async with self._opening.setdefault(session_id, asyncio.Lock()):
            live = self.live.pop(session_id, None)
            if live is not None:
                await live.close()
            await self._runtime.release_session(session_id)

    async def close_all(self) -> None:
        """Close all sessions, and the background tasks for titles and abort requests."""
        if self._titles is not None:
            await self._titles.close()
        for live in list(self.live.values()):
            await live.close()
        await self._abort_listener.close()
        self.live.clear()

    async def _resume_journal(self, session_id: str, *, take_over: bool, repeats: bool) -> Journal:
        """Resume the journal of a stored session. The results of interrupted calls describe the current state of their
        files."""
        workspace = Path((await self._store.get(session_id)).workspace_directory or ".")
        journal = await resume_journal(
            session_id,
            self._store,
            self._bus,
            lease_owner=self._runtime.lease_owner,
            take_over=take_over,
            describe=lambda call: describe_touched_files(call, workspace),
            repeat_calls=repeats,
        )
        await end_child_sessions(self._store, journal.session.messages)
        if self._runtime.undo is not None:
            await self._runtime.undo.recover_session(journal)
        return journal

    def _register_session(self, journal: Journal) -> LiveSession:
        live = LiveSession(journal, self._store, self._runtime, self._bus, self._abort_listener)
        self.live[journal.session.id] = live
        return live

    def _require_open(self) -> None:
        if not self._runtime.is_open:
            raise ConfigurationError("this engine is not open; use it inside `async with engine:`")
