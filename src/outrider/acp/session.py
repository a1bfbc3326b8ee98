"""One open session as its client follows it: what is said into it, what comes back, and what is asked."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

import acp
from acp.schema import (
    AvailableCommand,
    AvailableCommandsUpdate,
    ConfigOptionUpdate,
    CurrentModeUpdate,
    PermissionOption,
    SessionConfigOptionSelect,
    SessionConfigSelectOption,
    SessionMode,
    SessionModeState,
    ToolCallUpdate,
    UsageUpdate,
)

from outrider.acp.engines import Opened
from outrider.acp.permissions import BY, PermissionView, Questions
from outrider.acp.tool_calls import shown, valid
from outrider.acp.updates import Spending, Telling, Update, plan_of_text
from outrider.config.settings import Settings
from outrider.engine.archive import TurnEnd
from outrider.engine.engine import Engine
from outrider.engine.frontend import models_of
from outrider.errors import ConfigurationError
from outrider.types.agents import Mode
from outrider.types.events import (
    Event,
    LLMResponseEvent,
    SessionUpdatedEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
)
from outrider.types.ids import new_id
from outrider.types.parts import ModelRef, PartBase, TextPart, ToolPart
from outrider.types.tool_state import ToolPending

MODES: dict[Mode, str] = {
    "chat": "talks only; no tools",
    "plan": "reads and looks around, changes nothing, ends with a plan",
    "agent": "works, and asks before it changes or runs something",
    "background": "works without asking, inside a sandbox",
}


class Choices:
    """Of one open session."""

    def __init__(self, session_id: str, engine: Engine, settings: Settings) -> None:
        self._session_id = session_id
        self._engine = engine
        self._settings = settings

    @property
    def mode(self) -> Mode:
        return self._engine.live[self._session_id].journal.session.mode

    def modes(self) -> SessionModeState:
        available = [SessionMode(id=mode, name=mode.capitalize(), description=note) for mode, note in MODES.items()]
        return SessionModeState(current_mode_id=self.mode, available_modes=available)

    def options(self) -> list[SessionConfigOptionSelect]:
        """Modes once more, for clients that know options only, and what has no place of its own."""
        live = self._engine.live[self._session_id]
        model = f"{live.agent.provider}/{live.agent.model}"
        return [
            _select("mode", "Mode", self.mode, {mode: mode.capitalize() for mode in MODES}, category="mode"),
            _select("model", "Model", model, {name: name for name in self._models(model)}, category="model"),
            _select("agent", "Agent", live.agent.name, {agent.name: agent.name for agent in self._settings.agents}),
        ]

    async def choose(self, option: str, value: str) -> None:
        """Raises ConfigurationError for what cannot be chosen, with what can."""
        match option:
            case "mode":
                await self.set_mode(value)
            case "model":
                self._set_model(value)
            case "agent":
                await self._engine.set_agent(self._session_id, value)
                self._engine.live[self._session_id].model = None
            case _:
                raise ConfigurationError(f"there is no option {option!r}; there are mode, model and agent")

    async def set_mode(self, wanted: str) -> None:
        for mode in get_args(Mode):
            if mode == wanted:
                await self._engine.set_mode(self._session_id, mode)
                return
        raise ConfigurationError(f"no mode is called {wanted!r}; there are {', '.join(MODES)}")

    def _set_model(self, wanted: str) -> None:
        provider, _, model = wanted.partition("/")
        known = [found.name for found in self._settings.providers]
        if provider not in known or not model:
            raise ConfigurationError(f"no model is called {wanted!r}; write PROVIDER/MODEL, with one of {known}")
        self._engine.live[self._session_id].model = ModelRef(provider, model)

    def _models(self, current: str) -> list[str]:
        used = [f"{agent.provider}/{agent.model}" for agent in self._settings.agents]
        listed = [f"{found.provider}/{found.model}" for found in models_of(self._settings.providers)]
        return list(dict.fromkeys((current, *used, *listed)))


def _select(
    name: str, title: str, current: str, values: dict[str, str], category: str | None = None
) -> SessionConfigOptionSelect:
    options = [SessionConfigSelectOption(value=valid(value), name=valid(label)) for value, label in values.items()]
    return SessionConfigOptionSelect(
        type="select",
        id=name,
        name=title,
        category=category,  # type: ignore[arg-type]  the words of our own tables are among the known ones
        current_value=valid(current),
        options=options,
    )


Name = Literal["compact", "undo", "redo"]
COMMANDS: dict[Name, str] = {
    "compact": "Put a summary in place of old messages",
    "undo": "Bring files back to what they were before the last turn",
    "redo": "Make the changes again that were undone last",
}


def offered() -> AvailableCommandsUpdate:
    commands = [AvailableCommand(name=name, description=words) for name, words in COMMANDS.items()]
    return AvailableCommandsUpdate(session_update="available_commands_update", available_commands=commands)


def named(parts: Sequence[PartBase]) -> Name | None:
    """The command that this is, if it is one and nothing else."""
    if len(parts) != 1 or not isinstance(parts[0], TextPart):
        return None
    said = parts[0].text.strip()
    return next((name for name in COMMANDS if said == f"/{name}"), None)


async def carry_out(name: Name, engine: Engine, session_id: str) -> str:
    """What came of it, in words."""
    match name:
        case "compact":
            part = await engine.compact(session_id)
            return (
                f"Summed up: {part.tokens_before} → {part.tokens_after} tokens." if part else "Nothing to sum up yet."
            )
        case "undo":
            return await _restored(engine, session_id, "undo")
        case "redo":
            return await _restored(engine, session_id, "redo")


async def _restored(engine: Engine, session_id: str, direction: Literal["undo", "redo"]) -> str:
    changes = engine.file_changes(session_id)
    restored = await (changes.undo() if direction == "undo" else changes.redo())
    done = f"Brought back: {', '.join(restored.changed)}." if restored.changed else restored.off or "Nothing changed."
    left = (
        f" Left alone, since somebody else changed them: {', '.join(restored.conflicts)}." if restored.conflicts else ""
    )
    return f"{done}{left}"


AFTER_THE_ANSWER = 0.05  # seconds
_ACCEPT = PermissionOption(option_id="accept", name="Yes, carry it out", kind="allow_once")
_KEEP_PLANNING = PermissionOption(option_id="refuse", name="No, keep planning", kind="reject_once")


class Conversation:
    """Hears the engine from the moment it is made until it is closed."""

    def __init__(self, session_id: str, opened: Opened, client: acp.Client, tasks: asyncio.TaskGroup) -> None:
        self.session_id = session_id
        self.engine = opened.engine
        self._client = client
        self._folder = Path()
        self._telling = Telling(session_id, self._folder)
        self.choices = Choices(session_id, opened.engine, opened.settings)
        self.spending = Spending(session_id, opened.engine)
        self.questions = Questions(session_id, opened.engine, client, tasks)
        self._speaking = asyncio.Lock()  # held while what was kept is told, before what happens now
        self._inputs: set[str] = set()
        self._cancelled = 0
        self._stop_hearing = opened.engine.bus.subscribe_all(self._hear)

    async def open(self, *, replay: bool) -> None:
        """What a crash left waiting for an answer is asked once more, after everything else is told."""
        async with self._speaking:
            await self.engine.open(self.session_id)
            kept = await self.engine.store.load(self.session_id)  # without secrets, which an open session may hold
            self._folder = Path(kept.session.workspace_directory)
            self._telling = Telling(self.session_id, self._folder)
            for update in self._telling.replay(kept.messages):
                if replay:
                    await self._tell(update)

    def close(self) -> None:
        self._stop_hearing()
        self.questions.close()

    def concerns(self, session_id: str) -> bool:
        return self._telling.concerns(session_id)

    async def say(self, parts: Sequence[PartBase]) -> TurnEnd:
        """The end of the turn; the client has heard everything before it when this returns."""
        self.spending.begin()
        if (command := named(parts)) is not None:
            return await self._obey(command)
        before, input_id = self._cancelled, new_id()
        self._inputs.add(input_id)
        try:
            ends = await self.engine.put(self.session_id, parts, input_id=input_id, sender=BY)
            if self._cancelled != before:  # it came before there was anything to cancel
                await self._stop()
            end = await ends
        finally:
            self._inputs.discard(input_id)
        await self.engine.bus.settled()
        return await self._with_plan(end)

    async def tell_commands(self) -> None:
        """A client knows a session once it has read the answer that names it."""
        await asyncio.sleep(AFTER_THE_ANSWER)
        await self._tell(offered())

    async def _obey(self, command: Name) -> TurnEnd:
        words = await carry_out(command, self.engine, self.session_id)
        await self.engine.bus.settled()
        await self._tell(acp.update_agent_message(acp.text_block(valid(words))))
        return TurnEnd("completed", words)

    async def cancel(self) -> None:
        self._cancelled += 1
        await self._stop()

    async def _stop(self) -> None:
        """The turn under way ends, and what the client said into the session after it is taken back."""
        for input_id in list(self._inputs):
            await self.engine.withdraw(self.session_id, input_id)
        await self.engine.abort(self.session_id)

    async def _with_plan(self, end: TurnEnd) -> TurnEnd:
        """A turn that ends in a plan ends with what the user says to it: carried out, its end is that of the work."""
        plan = await self.engine.plan(self.session_id) if end.reason == "completed" else None
        if plan is None:
            return end
        await self._tell(plan_of_text(plan.text))
        call = acp.start_tool_call(
            f"plan-{plan.id}",
            "The plan is ready. Shall it be carried out?",
            kind="switch_mode",
            status="pending",
            content=[acp.tool_content(acp.text_block(valid(plan.text)))],
        )
        await self._tell(call)
        asked = ToolCallUpdate(
            tool_call_id=call.tool_call_id, title=call.title, kind=call.kind, status=call.status, content=call.content
        )
        chosen = await self.questions.choose(asked, (_ACCEPT, _KEEP_PLANNING))
        accepted = chosen == _ACCEPT.option_id
        await self._tell(acp.update_tool_call(call.tool_call_id, status="completed" if accepted else "failed"))
        if accepted:
            end = await self.engine.accept_plan(self.session_id, by=BY)
            await self.engine.bus.settled()
        elif chosen is not None:
            await self.engine.refuse_plan(self.session_id, by=BY)
        return TurnEnd("aborted") if chosen is None else end

    async def _hear(self, event: Event) -> None:
        async with self._speaking:
            for update in self._telling.hear(event):
                await self._tell(update)
            match event:
                case LLMResponseEvent() if self.concerns(event.session_id):
                    if (used := self.spending.hear(event)) is not None:
                        await self._tell(used)
                case ToolApprovalRequestedEvent() if self.concerns(event.session_id):
                    self.questions.ask_about(self._asked(event))
                case ToolApprovalResultEvent():
                    self.questions.drop(event.approval_id)
                case SessionUpdatedEvent(session_id=self.session_id) if event.changes.keys() & {"mode", "agent"}:
                    await self._tell_choices()
                case _:
                    pass

    def _asked(self, event: ToolApprovalRequestedEvent) -> PermissionView:
        call = self._telling.call(event.session_id, event.call_id)
        if call is None:
            waiting = ToolPending(event.tool_input, phase="awaiting_approval")
            call = shown(ToolPart(event.call_id, event.tool_name, waiting), self._folder)
        return PermissionView(
            event.approval_id, event.session_id, call, event.description, event.offers, event.can_last
        )

    async def _tell_choices(self) -> None:
        await self._tell(CurrentModeUpdate(session_update="current_mode_update", current_mode_id=self.choices.mode))
        await self._tell(
            ConfigOptionUpdate(session_update="config_option_update", config_options=list(self.choices.options()))
        )

    async def _tell(
        self, update: Update | CurrentModeUpdate | ConfigOptionUpdate | UsageUpdate | AvailableCommandsUpdate
    ) -> None:
        with suppress(ConnectionError):  # the client has gone, and what happens is kept all the same
            await self._client.session_update(self.session_id, update)
