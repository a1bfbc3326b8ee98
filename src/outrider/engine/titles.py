"""Generates session titles: after the first turn a model request replaces the default title, which is the first
line."""

import asyncio
from collections.abc import Mapping

from msgspec.structs import replace

from outrider.agents.budget import RunBudget
from outrider.agents.delegation import open_agent_context
from outrider.agents.run_context import ProgramFunctions
from outrider.agents.turn import Turn
from outrider.context.prompts import render_prompt
from outrider.engine.child_sessions import TITLE_AGENT
from outrider.engine.inbox import first_line_title, title_of_text
from outrider.engine.live_session import LiveSession
from outrider.engine.runtime import EngineRuntime
from outrider.errors import OutriderError
from outrider.event_bus import EventBus
from outrider.sessions.journal import create_journal
from outrider.sessions.records import SessionUpdate
from outrider.sessions.session import Session
from outrider.types.agents import Agent, Limits
from outrider.types.events import LoopCompletedEvent
from outrider.types.messages import Message
from outrider.types.parts import TextPart

TITLE_PROMPT = "title"
MAX_INPUT, MAX_ANSWER = 2_000, 1_000  # characters of the first input and answer in the request
MAX_TITLE_TOKENS = 256
TITLE_LIMITS = Limits(turns=1, seconds=60)
STRIPPED_CHARACTERS = " \t\"'`*#“”„«».:"


class TitleGenerator:
    """Requests a title in an internal child session, so that its usage is recorded. It requests at most one title per
    session, and stores it only if the current title is still the first line."""

    def __init__(self, runtime: EngineRuntime, live: Mapping[str, LiveSession]) -> None:
        self._runtime = runtime
        self._live = live
        self._store = runtime.store
        self._requested: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop_listening = runtime.bus.subscribe(LoopCompletedEvent, self._on_turn_end)

    async def close(self) -> None:
        self._stop_listening()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _on_turn_end(self, event: LoopCompletedEvent) -> None:
        live = self._live.get(event.session_id)
        if live is None or event.termination_reason != "completed" or event.session_id in self._requested:
            return
        agent = self._title_agent(live)
        if agent is not None and live.journal.session.title == _first_line(live.journal.session):
            self._requested.add(event.session_id)
            task = asyncio.create_task(self._update_title(live, agent))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _update_title(self, live: LiveSession, agent: Agent) -> None:
        session = live.journal.session
        try:
            title = await self._generate_title(session, agent)
            if title and (await self._store.get(session.id)).title == _first_line(session):
                await live.journal.update_session(SessionUpdate(title=title))
        except OutriderError:
            return  # the title stays the first line

    async def _generate_title(self, session: Session, agent: Agent) -> str:
        child = Session(title=TITLE_PROMPT, mode="chat", agent=TITLE_AGENT, parent_id=session.id)
        run = replace(
            self._runtime.create_run_context(child, None),
            budget=RunBudget(TITLE_LIMITS),
            bus=EventBus(),
            program=ProgramFunctions(),
            agents={TITLE_AGENT: agent},
        )
        try:
            async with await create_journal(child, self._store, run.bus) as journal:
                await journal.add_message(Message("user", [TextPart(_conversation_start(session))]))
                end = await Turn(open_agent_context(agent, journal, run)).run()
        finally:
            await self._runtime.release_session(child.id)
        return _clean_title(end.output) if end.reason == "completed" else ""

    def _title_agent(self, live: LiveSession) -> Agent | None:
        """Returns the agent that generates the title: the configured agent, or one with the session's model. Returns
        None for a scripted model, whose answers are limited, and for a local model, which would delay the user."""
        configured = self._runtime.titles
        agent = configured if isinstance(configured, Agent) else live.agent
        if configured is True and self._runtime.spec.providers[agent.provider].kind in (
            "scripted",
            "local",
            "outrider",
        ):
            return None
        return replace(
            agent,
            name=TITLE_AGENT,
            instructions=render_prompt(TITLE_PROMPT, live.prompts),
            max_output_tokens=MAX_TITLE_TOKENS,
            reasoning=False,
            tools=(),
            extra={},
        )


def _first_line(session: Session) -> str:
    return first_line_title(session.messages[0]) if session.messages else ""


def _conversation_start(session: Session) -> str:
    user_input = session.messages[0].get_text_content()
    answers = (message.get_text_content() for message in session.messages if message.role == "assistant")
    answer = next((text for text in answers if text.strip()), "")
    return f"<user>\n{user_input[:MAX_INPUT]}\n</user>\n<assistant>\n{answer[:MAX_ANSWER]}\n</assistant>"


def _clean_title(text: str) -> str:
    """Returns the first non-empty line without the quotation marks and headings that models add."""
    return title_of_text(text, STRIPPED_CHARACTERS)
