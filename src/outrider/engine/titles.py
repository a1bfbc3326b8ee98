"""Titles: once the first turn of a session is over, a model finds a better one than its first line."""

import asyncio
from collections.abc import Mapping

from msgspec.structs import replace

from outrider.agents.budget import Budget
from outrider.agents.delegation import open_agent_context
from outrider.agents.hooks import Hooks
from outrider.agents.turn import Turn
from outrider.context.prompts import words
from outrider.engine.child_sessions import TITLER
from outrider.engine.inbox import TITLE, title_of
from outrider.engine.live_session import LiveSession
from outrider.engine.runtime import EngineRuntime
from outrider.errors import OutriderError
from outrider.event_bus import EventBus
from outrider.sessions.journal import begin
from outrider.sessions.records import SessionUpdate
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.types.agents import Agent, Limits
from outrider.types.events import LoopCompletedEvent
from outrider.types.messages import Message
from outrider.types.parts import TextPart

PROMPT = "title"
ASKED, ANSWERED = 2_000, 1_000  # characters of the first input and of the first answer that a title is made of
MOST_TOKENS = 256
BY_THE_WAY = Limits(turns=1, seconds=60)
WRAPPING = " \t\"'`*#“”„«».:"


class Titles:
    """The question is a turn of its own in a session below, so what it uses is counted like any other agent's. It is
    asked at most once, and what it finds counts only while the title is still the first line."""

    def __init__(self, staff: EngineRuntime, live: Mapping[str, LiveSession], store: Store, bus: EventBus) -> None:
        self._staff = staff
        self._live = live
        self._store = store
        self._asked: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop_listening = bus.subscribe(LoopCompletedEvent, self._hear)

    async def close(self) -> None:
        self._stop_listening()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _hear(self, event: LoopCompletedEvent) -> None:
        live = self._live.get(event.session_id)
        if live is None or event.termination_reason != "completed" or event.session_id in self._asked:
            return
        agent = self._agent(live)
        if agent is not None and live.journal.session.title == _first_line(live.journal.session):
            self._asked.add(event.session_id)
            task = asyncio.create_task(self._name(live, agent))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _name(self, live: LiveSession, agent: Agent) -> None:
        session = live.journal.session
        try:
            title = await self._find(session, agent)
            if title and (await self._store.get(session.id)).title == _first_line(session):
                await live.journal.update(SessionUpdate(title=title))
        except OutriderError:
            return  # the first line is a title too

    async def _find(self, session: Session, agent: Agent) -> str:
        below = Session(title=PROMPT, mode="chat", agent=TITLER, parent_id=session.id)
        crew = replace(
            self._staff.crew(below, None),
            budget=Budget(BY_THE_WAY),
            bus=EventBus(),
            hooks=Hooks(),
            agents={TITLER: agent},
        )
        try:
            async with await begin(below, self._store, crew.bus) as journal:
                await journal.add_message(Message("user", [TextPart(_beginning(session))]))
                end = await Turn(open_agent_context(agent, journal, crew), crew).run()
        finally:
            await self._staff.leave(below.id)
        return _cleaned(end.output) if end.reason == "completed" else ""

    def _agent(self, live: LiveSession) -> Agent | None:
        """The one that was named for it, else the session's own model: a script has no answer to spare, and a model on
        this machine would keep the user waiting."""
        wanted = self._staff.titles
        agent = wanted if isinstance(wanted, Agent) else live.agent
        if wanted is True and self._staff.plan.providers[agent.provider].kind in ("scripted", "local", "outrider"):
            return None
        return replace(
            agent,
            name=TITLER,
            instructions=words(PROMPT, live.prompts),
            max_output_tokens=MOST_TOKENS,
            reasoning=False,
            tools=(),
            extra={},
        )


def _first_line(session: Session) -> str:
    return title_of(session.messages[0]) if session.messages else ""


def _beginning(session: Session) -> str:
    asked = session.messages[0].get_text_content()
    said = (message.get_text_content() for message in session.messages if message.role == "assistant")
    answer = next((text for text in said if text.strip()), "")
    return f"<user>\n{asked[:ASKED]}\n</user>\n<assistant>\n{answer[:ANSWERED]}\n</assistant>"


def _cleaned(text: str) -> str:
    """One line without the quotation marks and headings that models wrap titles in."""
    line = next((line.strip(WRAPPING) for line in text.splitlines() if line.strip(WRAPPING)), "")
    return line if len(line) <= TITLE else f"{line[: TITLE - 1].rstrip()}…"
