"""What the screen holds of the engine: one session at a time, and everything that people do with it."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from outrider.engine.session_client import SessionClient
from outrider.errors import OutriderError
from outrider.tui.completion import attachments
from outrider.tui.conversation import Conversation
from outrider.tui.entries import CommandEntry
from outrider.types.agents import Mode
from outrider.types.events import Event
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.parts import FilePart, ModelRef, TextPart

TOLD = 20_000  # characters of a command's output that go along


class ByHand:
    def __init__(self) -> None:
        self._parts: list[TextPart] = []
        self._running: asyncio.Future[str] | None = None

    async def run(self, bridge: SessionClient, session_id: str, ran: CommandEntry, changed: Callable[[], None]) -> None:
        def on_output(text: str) -> None:
            ran.output(text)
            changed()

        self._running = asyncio.ensure_future(bridge.run_by_hand(session_id, ran.command, on_output))
        try:
            ran.end(await self._running)
        except OutriderError as error:
            ran.end(error.message)
            return  # it did not run, so there is nothing to tell of it
        except asyncio.CancelledError:
            ran.end("interrupted")
            if (task := asyncio.current_task()) and task.cancelling():
                raise
        finally:
            changed()
        said = f"The user ran a command: {ran.command}\n{ran.text[-TOLD:]}\n({ran.exit})"
        kept = {"command": ran.command, "output": ran.text}
        self._parts.append(TextPart(said, synthetic=True, id=ran.id, metadata=kept))

    def interrupt(self) -> None:
        if self._running is not None:
            self._running.cancel()

    def take(self) -> list[TextPart]:
        """What goes along with the next message."""
        parts, self._parts = self._parts, []
        return parts


PAGE = 60
PAINT = 0.1  # seconds; what was loaded is on the screen by then
MOST_ENTRIES = 1500
MOST_COUNTED = 99


class Waiting(msgspec.Struct, frozen=True):
    """Input that has been said and not yet been taken."""

    id: str
    delivery: str
    text: str


class SessionController:
    """A session is made when the first words are said, so that nobody collects empty ones."""

    def __init__(self, bridge: SessionClient) -> None:
        self.bridge = bridge
        self.engine = bridge.engine
        self.settings = settings = bridge.settings
        self.archive = bridge.archive
        self.conversation = Conversation("")
        self.waiting: list[Waiting] = []
        self.first = True  # whether the oldest entry is the session's first
        self._mode: Mode = settings.mode
        self._agent = settings.agents[0].name
        self._model: ModelRef | None = None
        self._by_hand = ByHand()
        self._loading = False
        self._opening = asyncio.Lock()

    @property
    def session_id(self) -> str:
        return self.conversation.session_id

    @property
    def workspace(self) -> Path:
        return self.settings.workspace

    @property
    def mode(self) -> Mode:
        live = self.engine.live.get(self.session_id)
        return live.session.mode if live else self._mode

    @property
    def agent(self) -> str:
        live = self.engine.live.get(self.session_id)
        return live.session.agent if live else self._agent

    @property
    def model(self) -> ModelRef:
        live = self.engine.live.get(self.session_id)
        if live is not None:
            return ModelRef(live.agent.provider, live.agent.model)
        agent = next((found for found in self.settings.agents if found.name == self._agent), self.settings.agents[0])
        return self._model or ModelRef(agent.provider, agent.model)

    @property
    def title(self) -> str:
        live = self.engine.live.get(self.session_id)
        return live.session.title if live else ""

    @property
    def context_limit(self) -> int | None:
        return self.bridge.context_limit(self.session_id, self.model)

    def hear(self, event: Event) -> None:
        self.conversation.hear(event)
        surplus = len(self.conversation.entries) - MOST_ENTRIES
        if surplus > PAGE:
            self.conversation.forget_first(surplus)
            self.first = False

    def begin_anew(self) -> None:
        """A new conversation; the session that was shown stays as it is."""
        self.conversation = Conversation("")
        self.waiting, self.first, self._by_hand = [], True, ByHand()

    async def show(
        self, session_id: str, *, take_over: bool = False, changed: Callable[[], None] = lambda: None
    ) -> None:
        """The end of a stored session at once; then it is opened, which may take longer, and what is said waits."""
        async with self._opening:
            page = await self.archive.load(session_id, PAGE)
            conversation = Conversation(session_id)
            conversation.load(page.messages)
            conversation.activity.recount(page.messages)
            self.conversation, self.first, self.waiting = conversation, page.first, []
            changed()
            await asyncio.sleep(PAINT)
            await self._open(session_id, take_over=take_over)

    async def older(self) -> bool:
        """Another page at the top; False where there is none."""
        first = next((entry.message_id for entry in self.conversation.entries if entry.message_id), "")
        if self.first or self._loading or not first:
            return False
        self._loading = True
        try:
            page = await self.archive.load(self.session_id, PAGE, before=first)
            self.first = page.first
            return bool(self.conversation.prepend(page.messages))
        finally:
            self._loading = False

    async def say(self, text: str, *, queue: bool = False, changed: Callable[[], None]) -> None:
        """Put it into the session; returns at the end of the turn that takes it."""
        files, complaints = attachments(text, self.workspace)
        for complaint in complaints:
            self.conversation.note(complaint, "warn")
        session_id = await self.ensure_session()
        parts: list[str | FilePart | TextPart] = [*self._by_hand.take(), text, *files]
        delivery = "queue" if queue else "steer"
        input_id = new_id()
        if self.conversation.activity.busy:
            self.waiting = [*self.waiting, Waiting(input_id, delivery, text)]
            changed()
        await self.engine.prompt(session_id, parts, delivery=delivery, input_id=input_id, sender="terminal")

    async def run_command(self, command: str, changed: Callable[[], None]) -> None:
        """A command of the user's own; its output goes along with what is said next."""
        session_id = await self.ensure_session()
        ran = CommandEntry(new_id(), command)
        self.conversation.add(ran)
        await self._by_hand.run(self.bridge, session_id, ran, changed)

    async def interrupt(self) -> None:
        """End the turn under way, and a command that was run by hand."""
        self._by_hand.interrupt()
        await self.engine.abort(self.session_id)

    async def go_on(self) -> None:
        await self.engine.go_on(self.session_id)

    async def look_at_waiting(self) -> None:
        """What was said and has not been taken yet."""
        if self.session_id:
            items = await self.engine.queued(self.session_id)
            self.waiting = [Waiting(item.id, item.delivery, item.message.get_text_content()) for item in items]

    async def take_back(self) -> str | None:
        """The last thing that was said and has not been taken; it may be said again in other words."""
        for item in reversed(self.waiting):
            if await self.engine.withdraw(self.session_id, item.id):
                await self.look_at_waiting()
                return item.text
        return None

    async def earlier(self) -> int:
        """How many sessions there are of this folder, as far as it matters."""
        return len(await self.archive.sessions(MOST_COUNTED, workspace=self.bridge.folder))

    async def set_mode(self, mode: Mode) -> None:
        self._mode = mode
        if self.session_id:
            await self.engine.set_mode(self.session_id, mode)

    async def set_agent(self, agent: str) -> None:
        self._agent, self._model = agent, None
        if self.session_id:
            await self.engine.set_agent(self.session_id, agent)
            await self.engine.live[self.session_id].use_model(None)

    async def set_model(self, model: ModelRef) -> None:
        self._model = model
        if self.session_id in self.engine.live:
            await self.engine.live[self.session_id].use_model(model)

    async def transcript(self) -> Sequence[Message]:
        """Everything that was said in the session that is shown."""
        live = self.engine.live[self.session_id]
        return live.session.messages if live.whole else (await self.archive.load(self.session_id)).messages

    def agents(self) -> Sequence[str]:
        return [agent.name for agent in self.settings.agents]

    async def ensure_session(self) -> str:
        async with self._opening:
            if not self.session_id:
                session_id = await self.engine.create(mode=self._mode, agent=self._agent, workspace=self.bridge.folder)
                self.conversation.session_id = session_id
                if self._model is not None:
                    await self.engine.live[session_id].use_model(self._model)
                self._follow(session_id)
            return self.session_id

    async def _open(self, session_id: str, *, take_over: bool) -> None:
        await self.engine.open(session_id, take_over=take_over)
        self._follow(session_id)
        live = self.engine.live[session_id]
        self.conversation.refresh(live.session.messages[-PAGE:])
        self.conversation.activity.recount(live.session.messages)
        if not live.whole:
            self.conversation.activity.recount_all(await self.archive.usage("model", session_id=session_id))
        if live.in_turn:
            self.conversation.activity.resume()
        last = next((m.model for m in reversed(live.session.messages) if m.model is not None), None)
        if self._model is not None or (last is not None and last.provider in self.bridge.providers):
            await live.use_model(self._model or last)

    def _follow(self, session_id: str) -> None:
        """Events name messages; the session that is open has them."""
        session = self.engine.live[session_id].session

        def message_of(message_id: str) -> Message | None:
            return next((found for found in reversed(session.messages) if found.id == message_id), None)

        self.conversation.message_of = message_of
