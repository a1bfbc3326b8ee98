"""Connects the screen to the engine: opens one session at a time and performs the user's actions on it."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from outrider.config.providers import expand_model_name
from outrider.errors import OutriderError, ServerAwayError, ToolFailure
from outrider.presentation.formats import away_text
from outrider.presentation.items import CommandItem, Notice, UserItem, damage_notices
from outrider.presentation.transcript import TranscriptView
from outrider.tui.completion import find_attachments
from outrider.tui.theme import FolderChoices, FolderMemory
from outrider.types.events import Event, LLMRequestEvent, SessionUpdatedEvent
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.modes import UNATTENDED_MODES, ApprovalLevel, Mode, ReasoningEffort
from outrider.types.origins import Origin
from outrider.types.parts import FilePart, ModelRef, TextPart, ToolPart
from outrider.types.tool_state import ToolCompleted

if TYPE_CHECKING:
    from outrider.engine.session_client import SessionClient
    from outrider.project.extensions import CustomCommand


class UserCommandRunner:
    """Runs shell commands of the user (`!command`), and stores a note about each one for the model."""

    def __init__(self) -> None:
        self._parts: list[TextPart] = []
        self._running: asyncio.Future[Any] | None = None

    async def run(
        self, client: "SessionClient", session_id: str, item: CommandItem, changed: Callable[[], None]
    ) -> None:
        def on_output(text: str) -> None:
            item.append_output(text)
            changed()

        self._running = asyncio.ensure_future(client.run_user_command(session_id, item.command, on_output))
        try:
            item.finish(await self._running)
        except OutriderError as error:
            item.finish(error.message)
            return  # it did not run, so the model gets no note about it
        except asyncio.CancelledError:
            item.finish("interrupted")
            if (task := asyncio.current_task()) and task.cancelling():
                raise
        finally:
            changed()
        from outrider.engine.frontend import user_command_part  # lazy: the first screen does not need the engine

        self._parts.append(user_command_part(item.command, item.output, item.exit_status or "", part_id=item.id))

    async def run_embedded(
        self, run: "Callable[[], Awaitable[ToolPart]]", item: CommandItem, changed: Callable[[], None]
    ) -> "ToolPart":
        """Runs a command of a command file and shows its output; raises ToolFailure if it does not succeed."""
        self._running = running = asyncio.ensure_future(run())
        try:
            call = await running
        except ToolFailure as error:
            item.append_output(error.message)
            item.finish("failed")
            raise
        except asyncio.CancelledError:
            item.finish("interrupted")
            if (task := asyncio.current_task()) and task.cancelling():
                raise
            raise ToolFailure("interrupted") from None
        finally:
            changed()
        item.append_output(call.state.output if isinstance(call.state, ToolCompleted) else "")
        item.finish("exit code 0")
        return call

    @property
    def is_running(self) -> bool:
        return self._running is not None and not self._running.done()

    def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def close(self) -> None:
        """Cancels a running command and waits for its end, because it uses the engine."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    def take_parts(self) -> list[TextPart]:
        """Returns and clears the notes about user commands that are sent with the next message."""
        parts, self._parts = self._parts, []
        return parts

    def return_parts(self, parts: Sequence[TextPart]) -> None:
        """Takes back the notes of a message that was not delivered."""
        self._parts = [*parts, *self._parts]


PAGE_MESSAGES = 60
PAINT_SECONDS = 0.1  # seconds to let the screen draw the loaded messages before the session is opened
MAX_ITEMS = 1500
MAX_COUNTED_SESSIONS = 99


class PendingInput(msgspec.Struct, frozen=True):
    """An input that is queued and not delivered to the model yet."""

    id: str
    delivery: str
    text: str


class UnsentInput(msgspec.Struct, frozen=True):
    """An input that the engine has not stored yet, with the task that delivers it. `is_shown`: it is shown as queued
    even if the server can be reached, because a turn runs."""

    item: PendingInput
    conversation: TranscriptView
    task: asyncio.Future[None]
    is_shown: bool


class SessionController:
    """The session on the screen and the user's actions on it. A session is created with the first input, so that no
    empty sessions are stored. New sessions start with the choices of `memory`."""

    def __init__(self, client: "SessionClient", memory: FolderMemory | None = None) -> None:
        self.client = client
        self.engine = client.engine
        self.settings = settings = client.settings
        self.archive = client.archive
        self.custom_commands: tuple[CustomCommand, ...] = ()
        self.conversation = TranscriptView("")
        self.queued_inputs: list[PendingInput] = []
        self._unsent: dict[str, UnsentInput] = {}  # by the id of the input
        self.at_session_start = True  # whether the oldest loaded item is the session's first
        self._memory = memory
        choices = memory.choices if memory else FolderChoices()
        self._mode: Mode = choices.mode or settings.mode
        self._approval: ApprovalLevel = choices.approval or settings.approval
        self._agent = (
            choices.agent if choices.agent and choices.agent in self.agent_names() else settings.agents[0].name
        )
        self._model: ModelRef | None = None
        self._effort: ReasoningEffort | None = None
        provider, _, model = (choices.model or "").partition("/")
        self._first_model = ModelRef(provider, model) if model and provider in client.providers else None
        self._first_effort: ReasoningEffort | None = choices.effort
        self._user_commands = UserCommandRunner()
        self._loading = False
        self._requested_session = ""  # the session whose first request since its opening has been sent
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
            return live.agent.model_ref
        agents = self.settings.agents
        agent = next((agent for agent in agents if agent.name == self._agent), agents[0])
        return self._model or self._first_model or agent.model_ref

    @property
    def effort(self) -> ReasoningEffort:
        """The reasoning effort of the agent that answers."""
        live = self.engine.live.get(self.session_id)
        if live is not None:
            return live.agent.reasoning_effort
        agents = self.settings.agents
        agent = next((agent for agent in agents if agent.name == self._agent), agents[0])
        return self._effort or self._first_effort or agent.reasoning_effort

    async def set_effort(self, effort: ReasoningEffort) -> None:
        self._effort = effort
        self._remember(effort=effort)
        if self.session_id in self.engine.live:
            await self.engine.live[self.session_id].use_effort(effort)

    @property
    def title(self) -> str:
        live = self.engine.live.get(self.session_id)
        return live.session.title if live else ""

    @property
    def context_limit(self) -> int | None:
        return self.client.context_limit(self.session_id, self.model)

    @property
    def connection_text(self) -> str:
        """A sentence about a server that cannot be reached, with a countdown; "" if it answers."""
        connection = self.client.connection
        if connection is None or not connection.is_away:
            return ""
        return away_text(ceil(connection.next_attempt - monotonic()))

    @property
    def waiting_inputs(self) -> list[PendingInput]:
        """The queued inputs, and the inputs that the engine has not stored yet if they have to wait."""
        return [*self.queued_inputs, *self._waiting_unsent()]

    def _waiting_unsent(self) -> list[PendingInput]:
        away = bool(self.connection_text)
        return [
            msgspec.structs.replace(unsent.item, delivery="away") if away else unsent.item
            for unsent in self._unsent.values()
            if (away or unsent.is_shown) and unsent.conversation.session_id == self.session_id
        ]

    def apply_event(self, event: Event) -> None:
        if isinstance(event, SessionUpdatedEvent) and self._unsent:
            self._mark_delivered(event)
        self.conversation.apply(event)
        if isinstance(event, LLMRequestEvent) and event.session_id == self.session_id != self._requested_session:
            self._freeze_objects(self.session_id)
        surplus = len(self.conversation.items) - MAX_ITEMS
        if surplus > PAGE_MESSAGES:
            self.conversation.forget_first(surplus)
            self.at_session_start = False

    async def close(self) -> None:
        """Cancels what the user has started here and waits for its end; turns belong to the engine."""
        await self._user_commands.close()

    def start_new_session(self) -> None:
        """Shows an empty conversation; the previous session is unchanged."""
        self.conversation = TranscriptView("")
        self.queued_inputs, self.at_session_start, self._user_commands = [], True, UserCommandRunner()

    async def show_session(
        self, session_id: str, *, take_over: bool = False, changed: Callable[[], None] = lambda: None
    ) -> None:
        """Loads and shows the end of a stored session, then opens it. Opening may take longer; `_opening` makes new
        inputs wait for it."""
        async with self._opening:
            page = await self.archive.load(session_id, PAGE_MESSAGES)
            conversation = TranscriptView(session_id)
            conversation.load(page.messages)
            for notice in damage_notices(page):
                conversation.add_notice(notice)
            conversation.activity.load(page.messages)
            self.conversation, self.at_session_start, self.queued_inputs = conversation, page.first, []
            changed()
            await asyncio.sleep(PAINT_SECONDS)
            await self._open_session(session_id, take_over=take_over)

    async def load_older(self) -> bool:
        """Loads the page of messages before the oldest one; returns False if there is none."""
        first_message_id = next((item.message_id for item in self.conversation.items if item.message_id), "")
        if self.at_session_start or self._loading or not first_message_id:
            return False
        self._loading = True
        try:
            page = await self.archive.load(self.session_id, PAGE_MESSAGES, before=first_message_id)
            self.at_session_start = page.first
            return bool(self.conversation.prepend(page.messages, damage_notices(page)))
        finally:
            self._loading = False

    async def send_prompt(
        self,
        text: str,
        *,
        queue: bool = False,
        origins: Sequence[Origin] = (),
        changed: Callable[[], None],
        undelivered: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Sends an input to the session; returns when the turn that consumes it ends. `origins` are the origins of text
        in it that the user did not write. If the call fails before the session has the input, e.g. on a full disk,
        `undelivered` receives the text."""
        files, complaints = find_attachments(text, self.workspace, self.settings.rules.deny)
        for complaint in complaints:
            self.conversation.add_notice(Notice("warning", "command", complaint))
        notes, conversation, count = self._user_commands.take_parts(), self.conversation, self._count_inputs()
        item = PendingInput(new_id(), "queue" if queue else "steer", text)
        content = TextPart(text, origins=tuple(origins)) if origins else TextPart(text)
        delivery = asyncio.ensure_future(self._deliver_input(item, [*notes, content, *files]))
        self._unsent[item.id] = UnsentInput(item, conversation, delivery, conversation.activity.busy)
        changed()
        try:
            await delivery
        except OutriderError:
            with suppress(OutriderError):
                await self.refresh_queued_inputs()
            is_queued = any(queued.id == item.id for queued in self.queued_inputs)
            if conversation is self.conversation and self._count_inputs() == count and not is_queued:
                self._user_commands.return_parts(notes)
                undelivered(text)
            raise
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) and task.cancelling():
                delivery.cancel()
                raise
            self._user_commands.return_parts(notes)  # the user has withdrawn the input
        finally:
            self._unsent.pop(item.id, None)

    async def _deliver_input(self, item: PendingInput, parts: "list[FilePart | TextPart]") -> None:
        """Sends an input; waits for a server that cannot be reached. Returns when the turn that consumes it ends."""
        delivery: Literal["queue", "steer"] = "queue" if item.delivery == "queue" else "steer"
        while True:
            try:
                session_id = await self.ensure_session()
                break
            except ServerAwayError:
                if self.client.connection is None:
                    raise
                await self.client.connection.wait_until_reachable()
        await self.engine.prompt(session_id, parts, delivery=delivery, input_id=item.id, sender="terminal")

    def _mark_delivered(self, event: SessionUpdatedEvent) -> None:
        """Notes that the engine has stored an input: it is in the queue, or a turn has taken it."""
        for input_id in [event.changes.get("queued"), event.changes.get("taken")]:
            unsent = self._unsent.pop(input_id, None) if isinstance(input_id, str) else None
            if unsent is not None and unsent.is_shown and "queued" in event.changes:
                self.queued_inputs = [*self.queued_inputs, unsent.item]

    def take_unsent(self) -> list[str]:
        """Withdraws the inputs that a server did not receive because it cannot be reached, and returns their texts."""
        items = self._waiting_unsent() if self.connection_text else []
        for item in items:
            self._unsent.pop(item.id).task.cancel()
        return [item.text for item in items]

    def _count_inputs(self) -> int:
        """Returns how many inputs of the user the conversation shows."""
        return sum(isinstance(item, UserItem) for item in self.conversation.items)

    async def run_command(self, command: str, changed: Callable[[], None]) -> None:
        """Runs a shell command of the user; its output is sent with the next input."""
        session_id = await self.ensure_session()
        item = CommandItem(new_id(), command)
        self.conversation.add(item)
        await self._user_commands.run(self.client, session_id, item, changed)

    async def run_embedded_command(
        self, command: str, allowed: Sequence[str] | None, changed: Callable[[], None]
    ) -> ToolPart:
        """Runs a shell command of a command file as a call of the agent, and shows it. Raises ToolFailure if it was
        refused, failed or was interrupted."""
        session_id = await self.ensure_session()
        conversation, item = self.conversation, CommandItem(new_id(), command)
        conversation.add(item)
        changed()

        async def run() -> ToolPart:
            return await self.client.run_embedded_command(
                session_id, command, allowed, conversation.related_sessions.add
            )

        return await self._user_commands.run_embedded(run, item, changed)

    @property
    def is_working(self) -> bool:
        """Whether a turn or a command of the user runs, or an input waits for the server."""
        return self.conversation.activity.busy or self._user_commands.is_running or bool(self._waiting_unsent())

    async def interrupt_turn(self) -> list[str]:
        """Cancels the current turn and a running user command. Returns the queued inputs, which are withdrawn."""
        self._user_commands.cancel()
        if unsent := self.take_unsent():
            return unsent
        withdrawn = [item.text for item in self.queued_inputs if await self.engine.withdraw(self.session_id, item.id)]
        await self.engine.abort(self.session_id)
        await self.refresh_queued_inputs()
        return withdrawn

    async def send_to_background(self) -> bool:
        """Lets the command that a call waits for continue in the background; returns False if none can."""
        has_moved = False
        for process in self.conversation.side.running_commands():
            has_moved = await self.client.send_to_background(self.session_id, process.id) or has_moved
        return has_moved

    async def continue_turn(self) -> None:
        await self.engine.resume(self.session_id)

    async def refresh_queued_inputs(self) -> None:
        """Reloads the inputs that are queued and not delivered yet."""
        if self.session_id:
            items = await self.engine.queued(self.session_id)
            self.queued_inputs = [
                PendingInput(item.id, item.delivery, item.message.get_text_content()) for item in items
            ]

    async def withdraw_last_input(self) -> str | None:
        """Withdraws the last queued input and returns its text for editing; None if all were delivered already."""
        for item in reversed(self.waiting_inputs):
            if item.delivery == "away":
                self._unsent.pop(item.id).task.cancel()
                return item.text
            if await self.engine.withdraw(self.session_id, item.id):
                await self.refresh_queued_inputs()
                return item.text
        return None

    async def count_earlier_sessions(self) -> int:
        """Returns the number of this folder's sessions, up to MAX_COUNTED_SESSIONS."""
        return len(await self.archive.list_sessions(MAX_COUNTED_SESSIONS, workspace=self.client.folder))

    async def set_mode(self, mode: Mode) -> None:
        self._mode = mode
        if mode not in UNATTENDED_MODES:  # a mode that asks nothing must be requested for each session
            self._remember(mode=mode)
        if self.session_id:
            await self.engine.set_mode(self.session_id, mode)

    @property
    def approval(self) -> ApprovalLevel:
        live = self.engine.live.get(self.session_id)
        return live.session.approval if live else self._approval

    async def set_approval(self, level: ApprovalLevel) -> None:
        self._approval = level
        self._remember(approval=level)
        if self.session_id:
            await self.engine.set_approval(self.session_id, level)

    async def set_agent(self, agent: str) -> None:
        self._agent, self._model, self._first_model = agent, None, None
        self._remember(agent=agent, model=None)
        if self.session_id:
            await self.engine.set_agent(self.session_id, agent)
            await self.engine.live[self.session_id].use_model(None)

    def expand_model_name(self, text: str) -> str:
        """Returns PROVIDER/MODEL for an alias or a model name alone."""
        return expand_model_name(text, {provider.name: provider.kind for provider in self.settings.providers})

    async def set_model(self, model: ModelRef) -> None:
        self._model = model
        self._remember(model=str(model))
        if self.session_id in self.engine.live:
            await self.engine.live[self.session_id].use_model(model)

    async def load_transcript(self) -> Sequence[Message]:
        """Returns all messages of the session; the open session may hold only the last ones."""
        live = self.engine.live[self.session_id]
        return live.session.messages if live.has_all_messages else (await self.archive.load(self.session_id)).messages

    def agent_names(self) -> Sequence[str]:
        return [agent.name for agent in self.settings.agents]

    async def ensure_session(self) -> str:
        """Returns the id of the session; creates it first if there is none. The lock prevents a second creation."""
        async with self._opening:
            if not self.session_id:
                session_id = await self.engine.create(
                    mode=self._mode, agent=self._agent, workspace=self.client.folder, approval=self._approval
                )
                self.conversation.session_id = session_id
                if (model := self._model or self._first_model) is not None:
                    await self.engine.live[session_id].use_model(model)
                if (effort := self._effort or self._first_effort) is not None:
                    await self.engine.live[session_id].use_effort(effort)
                self._bind_message_lookup(session_id)
            return self.session_id

    async def _open_session(self, session_id: str, *, take_over: bool) -> None:
        """Opens a session (`take_over` takes its lease), and updates the conversation with its current state."""
        await self.engine.open(session_id, take_over=take_over)
        self._bind_message_lookup(session_id)
        live = self.engine.live[session_id]
        self.conversation.refresh(live.session.messages[-PAGE_MESSAGES:])
        self.conversation.activity.load(live.session.messages)
        if not live.has_all_messages:
            self.conversation.activity.load_totals(await self.archive.usage_statistics("model", session_id=session_id))
        if live.in_turn:
            self.conversation.activity.resume()
        messages = live.session.messages
        last_model = next((message.model for message in reversed(messages) if message.model is not None), None)
        if self._model is not None or (last_model is not None and last_model.provider in self.client.providers):
            await live.use_model(self._model or last_model)
        if self._effort is not None:
            await live.use_effort(self._effort)
        self._freeze_objects()

    def _freeze_objects(self, requested: str = "") -> None:
        """Excludes the modules and the messages from garbage collections, because they stay: each full collection would
        visit them and delay a key by 40 ms. The first request of a session, `requested`, loads the older messages."""
        self._requested_session = requested
        gc.collect(1)
        gc.freeze()

    def _remember(self, **choices: str | None) -> None:
        if self._memory is not None:
            self._memory.remember(**choices)

    def _bind_message_lookup(self, session_id: str) -> None:
        """Lets the conversation find messages by id in the open session: events carry only ids."""
        session = self.engine.live[session_id].session

        def find_message(message_id: str) -> Message | None:
            return next((message for message in reversed(session.messages) if message.id == message_id), None)

        self.conversation.find_message = find_message
