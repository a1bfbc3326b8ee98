"""One open session of a client: prompts, updates, options, slash commands and permission requests."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import acp
from acp.schema import (
    AvailableCommand,
    AvailableCommandInput,
    AvailableCommandsUpdate,
    ClientCapabilities,
    ConfigOptionUpdate,
    CurrentModeUpdate,
    PermissionOption,
    SessionConfigOptionSelect,
    SessionConfigSelectOption,
    SessionMode,
    SessionModeState,
    ToolCallProgress,
    ToolCallStart,
    ToolCallUpdate,
    UnstructuredCommandInput,
    UsageUpdate,
)

from outrider.acp.client import ClientBuffers, CommandTerminals, has_terminals, shows_output_messages
from outrider.acp.engines import OpenedEngine
from outrider.acp.permissions import EDITOR_SENDER, PermissionRequests, PermissionView
from outrider.acp.tool_calls import replace_surrogates, show_planned_changes, view_tool_call
from outrider.acp.updates import Update, UpdateBuilder, UsageTracker, plan_from_text
from outrider.config.providers import expand_model_name
from outrider.config.settings import Settings, parse_effort
from outrider.engine.archive import TurnEnd, TurnOutcome
from outrider.engine.engine import Engine
from outrider.engine.frontend import (
    ToolContext,
    UserQuestion,
    catalog_models,
    describe_model,
    list_models,
    list_offers,
    run_embedded_command,
)
from outrider.errors import ConfigurationError
from outrider.presentation.approvals import PLAN_DETAILS, requested_approval_view
from outrider.presentation.formats import as_sentence, clean_line
from outrider.presentation.items import compaction_notice, compaction_result, compaction_undo_result
from outrider.project.extensions import CustomCommand, find_custom_commands
from outrider.project.trust import WorkspaceTrust, find_project
from outrider.types.events import (
    DeltasDroppedEvent,
    Event,
    LLMResponseEvent,
    SessionUpdatedEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
    ToolOutputEvent,
)
from outrider.types.ids import new_id
from outrider.types.modes import APPROVAL_LEVELS, MODE_DESCRIPTIONS, MODES, REASONING_EFFORTS, Mode
from outrider.types.parts import ModelRef, PartBase, TextPart, ToolPart
from outrider.types.tool_state import ToolPending

if TYPE_CHECKING:
    from outrider.project.mcp import ServerOffers


class SessionOptions:
    """The mode, model and agent of a session as protocol options."""

    def __init__(self, session_id: str, engine: Engine, settings: Settings) -> None:
        self._session_id = session_id
        self._engine = engine
        self._settings = settings
        self._listed = catalog_models(settings.providers)
        self._notes: dict[str, str] = {}

    async def load_models(self) -> bool:
        """Reads the models that the providers' servers list, and their prices; returns whether anything changed."""
        old_state = self._listed, self._notes
        self._listed = await list_models(self._settings.providers)
        self._notes = await asyncio.to_thread(self._describe_models, self._listed)
        return old_state != (self._listed, self._notes)

    @property
    def mode(self) -> Mode:
        return self._engine.live[self._session_id].journal.session.mode

    def mode_state(self) -> SessionModeState:
        available = [
            SessionMode(id=mode, name=mode.capitalize(), description=note) for mode, note in MODE_DESCRIPTIONS.items()
        ]
        return SessionModeState(current_mode_id=self.mode, available_modes=available)

    def config_options(self) -> list[SessionConfigOptionSelect]:
        """Returns the mode, for clients that support options only, and the options that have no field in the
        protocol."""
        live = self._engine.live[self._session_id]
        model = str(live.agent.model_ref)
        return [
            _select_option(
                "mode", "Mode", self.mode, {mode: mode.capitalize() for mode in MODE_DESCRIPTIONS}, category="mode"
            ),
            _select_option(
                "approval", "Approval level", live.session.approval, {level: level for level in APPROVAL_LEVELS}
            ),
            _select_option(
                "model",
                "Model",
                model,
                {name: name for name in self._model_names(model)},
                category="model",
                notes=self._notes,
            ),
            _select_option(
                "effort",
                "Reasoning effort",
                live.agent.reasoning_effort,
                {effort: effort for effort in REASONING_EFFORTS},
                category="thought_level",
            ),
            _select_option(
                "agent", "Agent", live.agent.name, {agent.name: agent.name for agent in self._settings.agents}
            ),
        ]

    async def set_option(self, option: str, value: str) -> None:
        """Sets an option. Raises ConfigurationError with the valid values."""
        match option:
            case "mode":
                await self.set_mode(value)
            case "approval":
                await self._set_approval(value)
            case "model":
                self._set_model(value)
            case "effort":
                await self._engine.live[self._session_id].use_effort(parse_effort(value))
            case "agent":
                await self._engine.set_agent(self._session_id, value)
                self._engine.live[self._session_id].model = None
            case _:
                raise ConfigurationError(
                    f"unknown option {option!r}; the options are mode, approval, model, effort and agent"
                )

    async def set_mode(self, mode_name: str) -> None:
        for mode in MODES:
            if mode == mode_name:
                await self._engine.set_mode(self._session_id, mode)
                return
        raise ConfigurationError(f"unknown mode {mode_name!r}; there are {', '.join(MODES)}")

    async def _set_approval(self, level_name: str) -> None:
        for level in APPROVAL_LEVELS:
            if level == level_name:
                await self._engine.set_approval(self._session_id, level)
                return
        raise ConfigurationError(f"unknown approval level {level_name!r}; there are {', '.join(APPROVAL_LEVELS)}")

    def _set_model(self, model_name: str) -> None:
        kinds = {provider.name: provider.kind for provider in self._settings.providers}
        provider, _, model = expand_model_name(model_name, kinds).partition("/")
        names = [entry.name for entry in self._settings.providers]
        if provider not in names or not model:
            raise ConfigurationError(f"unknown model {model_name!r}; write PROVIDER/MODEL, with one of {names}")
        self._engine.live[self._session_id].model = ModelRef(provider, model)

    def _model_names(self, current: str) -> list[str]:
        used = [str(agent.model_ref) for agent in self._settings.agents]
        listed = [str(ref) for ref in self._listed]
        return list(dict.fromkeys((current, *used, *listed)))

    def _describe_models(self, models: Sequence[ModelRef]) -> dict[str, str]:
        notes = {str(model): describe_model(self._settings.providers, model) for model in models}
        return {name: note for name, note in notes.items() if note}


def _select_option(
    name: str,
    title: str,
    current: str,
    values: dict[str, str],
    category: str | None = None,
    notes: Mapping[str, str] = {},
) -> SessionConfigOptionSelect:
    options = [
        SessionConfigSelectOption(
            value=replace_surrogates(value), name=replace_surrogates(label), description=notes.get(value)
        )
        for value, label in values.items()
    ]
    return SessionConfigOptionSelect(
        type="select",
        id=name,
        name=title,
        category=category,  # type: ignore[arg-type]  the words of our tables are among the known ones
        current_value=replace_surrogates(current),
        options=options,
    )


CommandName = Literal["compact", "undo", "redo"]
COMMAND_DESCRIPTIONS: dict[CommandName, str] = {
    "compact": "Put a summary in place of old messages; `undo` uses them again",
    "undo": "Bring files back to what they were before the last turn",
    "redo": "Make the changes again that were undone last",
}


COMMAND_HINTS: dict[CommandName, str] = {"compact": "what the summary should contain, or undo"}


def load_custom_commands(settings: Settings) -> tuple[CustomCommand, ...]:
    """Returns the commands in files of the user and of the folder, if it is trusted."""
    folders = settings.folders
    trust = WorkspaceTrust(find_project(settings.workspace, folders.home), folders.trust_file)
    return find_custom_commands(trust.project, folders.commands_folder, folders.home, trusted=trust.trusted)


def find_called_command(parts: Sequence[PartBase], settings: Settings) -> tuple[CustomCommand, str] | None:
    """Returns the command from a file that a prompt calls, and its argument; None if it calls none."""
    first_part = parts[0] if parts else None
    if not isinstance(first_part, TextPart) or not first_part.text.startswith("/"):
        return None
    name, _, argument = first_part.text[1:].partition(" ")
    matching = next((command for command in load_custom_commands(settings) if command.name == name.strip()), None)
    return None if matching is None else (matching, argument.strip())


def _name_folders(folders: Sequence[str]) -> list[TextPart]:
    """Returns the note for the model about the existing folders besides the workspace."""
    listed = "\n".join(f"- {replace_surrogates(folder)}" for folder in folders if os.path.isdir(folder))  # noqa: PTH112
    text = (
        "The user's editor has further folders open besides the workspace. Read them by absolute path; changes there "
        f"need an approval:\n{listed}"
    )
    return [TextPart(text, synthetic=True)] if listed else []


def available_commands(
    custom: Sequence[CustomCommand] = (), offers: "ServerOffers | None" = None
) -> AvailableCommandsUpdate:
    commands = [
        _command_entry(name, description, COMMAND_HINTS.get(name, ""))
        for name, description in COMMAND_DESCRIPTIONS.items()
    ]
    for command in custom:
        if command.name not in COMMAND_DESCRIPTIONS:
            commands.append(_command_entry(command.name, command.description or command.origin, command.hint))
    for prompt in offers.prompts if offers else ():
        hint = " ".join(argument.name if argument.required else f"[{argument.name}]" for argument in prompt.arguments)
        name = f"{prompt.server}:{prompt.name}"
        commands.append(_command_entry(name, prompt.description or f"a prompt of {prompt.server}", hint))
    return AvailableCommandsUpdate(session_update="available_commands_update", available_commands=commands)


def _command_entry(name: str, description: str, hint: str) -> AvailableCommand:
    return AvailableCommand(
        name=replace_surrogates(name),
        description=clean_line(description, 200),
        input=AvailableCommandInput(UnstructuredCommandInput(hint=clean_line(hint, 200))) if hint else None,
    )


def parse_command(parts: Sequence[PartBase]) -> tuple[CommandName, str] | None:
    """Returns the slash command and its argument if the prompt is exactly one; else None."""
    if len(parts) != 1 or not isinstance(parts[0], TextPart):
        return None
    word, argument = [*parts[0].text.split(maxsplit=1), "", ""][:2]
    for name in COMMAND_DESCRIPTIONS:
        if word == f"/{name}" and (not argument or name in COMMAND_HINTS):
            return name, argument.strip()
    return None


async def run_command(
    command: tuple[CommandName, str], engine: Engine, session_id: str, buffers: ClientBuffers | None = None
) -> str:
    """Runs a slash command and returns a sentence about the result."""
    match command:
        case "compact", "undo":
            undone = await engine.undo_compaction(session_id)
            return as_sentence(compaction_undo_result(undone=undone).text)
        case "compact", instructions:
            part = await engine.compact(session_id, instructions)
            notice = compaction_notice(part) if part is not None else compaction_result(done=False)
            return as_sentence(notice.text) if notice is not None else ""
        case direction, _:
            return await _restore_files(engine, session_id, direction, buffers)


async def _restore_files(
    engine: Engine, session_id: str, direction: Literal["undo", "redo"], buffers: ClientBuffers | None
) -> str:
    """Restores files, unless the client has unsaved text in one of them. The client shows the restored text."""
    changes, folder = engine.file_changes(session_id), Path(engine.live[session_id].session.workspace_directory)
    if buffers is not None:
        planned = await changes.preview(direction)
        if unsaved := await buffers.find_unsaved([folder / path for path in planned.changed]):
            return f"Nothing was restored: {', '.join(unsaved)} has unsaved changes. Save or revert them first."
    restored = await (changes.undo() if direction == "undo" else changes.redo())
    if buffers is not None:
        await buffers.show_saved([folder / path for path in restored.changed])
    result = f"Restored: {', '.join(restored.changed)}." if restored.changed else restored.off or "Nothing changed."
    if restored.conflicts:
        result += f" Not restored, because another program changed them: {', '.join(restored.conflicts)}."
    return result


COMMANDS_DELAY_SECONDS = 0.05  # seconds
PLAN_OPTIONS = tuple(  # an editor has no text field for the plan or for a reason
    PermissionOption(
        option_id=choice.id, name=choice.label, kind="allow_once" if choice.id == "accept" else "reject_once"
    )
    for choice in PLAN_DETAILS.choices
    if not choice.edits_plan
)


class EditorSession:
    """Subscribes to the engine's events from construction until `close`, and sends them to the client."""

    def __init__(
        self,
        session_id: str,
        opened: OpenedEngine,
        client: acp.Client,
        tasks: asyncio.TaskGroup,
        capabilities: ClientCapabilities,
        buffers: ClientBuffers | None = None,
    ) -> None:
        self.session_id = session_id
        self.engine = opened.engine
        self._settings = opened.settings
        self._readable = opened.readable
        self._client = client
        self._buffers = buffers
        self._folder = Path()
        self._updates = UpdateBuilder(session_id, self._folder)
        self.options = SessionOptions(session_id, opened.engine, opened.settings)
        self.usage = UsageTracker(session_id, opened.engine)
        has_forms = capabilities.elicitation is not None and capabilities.elicitation.form is not None
        self.permissions = PermissionRequests(session_id, opened.engine, client, tasks, has_forms=has_forms)
        self._terminals = (
            CommandTerminals(
                session_id,
                client,
                tasks,
                self._send_update,
                with_messages=shows_output_messages(capabilities),
            )
            if has_terminals(capabilities)
            else None
        )
        # Held while updates are sent: live updates must follow the replay of stored messages, and those of one event
        # must not mix with those of another.
        self._send_lock = asyncio.Lock()
        self._inputs: set[str] = set()
        self._cancel_count = 0
        self._expansion: asyncio.Future[TextPart] | None = None  # while the commands of a command file run
        self._command_sessions: set[str] = set()  # of these commands; they have questions, but no messages
        self._has_named_folders = False  # whether the model knows the folders besides the workspace
        self._unsubscribe = opened.engine.bus.subscribe_all(self._handle_event)

    async def open(self, *, replay: bool) -> None:
        """Opens the session and, with `replay`, sends its messages. Approvals that a crash left open are requested
        again afterwards."""
        async with self._send_lock:
            await self.engine.open(self.session_id)
            # The stored copy is redacted; the open session may contain secrets.
            transcript = await self.engine.store.load(self.session_id)
            self._folder = Path(transcript.session.workspace_directory)
            self._updates = UpdateBuilder(self.session_id, self._folder)
            for update in self._updates.replay_transcript(transcript):
                if replay:
                    await self._send_update(update)

    def close(self) -> None:
        self._unsubscribe()
        self.permissions.close()
        if self._terminals is not None:
            self._terminals.close()

    def includes_session(self, session_id: str) -> bool:
        return session_id in self._command_sessions or self._updates.includes_session(session_id)

    async def ask_model_question(self, question: UserQuestion, context: ToolContext) -> tuple[str, ...] | None:
        call = self._updates.view_call(context.session_id, context.call_id)
        return await self.permissions.ask_model_question(question, call.id if call is not None else "")

    async def run_prompt(self, parts: Sequence[PartBase]) -> TurnOutcome:
        """Runs a turn and returns its end after all its updates were sent to the client."""
        self.usage.start_turn()
        if (command := parse_command(parts)) is not None:
            return await self._run_command(command)
        cancels_before, input_id = self._cancel_count, new_id()
        if (called := await asyncio.to_thread(find_called_command, parts, self._settings)) is not None:
            prompt = await self._expand_command(*called)
            if prompt is None:
                return TurnEnd("aborted")
            parts = [prompt, *parts[1:]]
        if not self._has_named_folders:
            parts, self._has_named_folders = [*parts, *_name_folders(self._readable)], True
        self._inputs.add(input_id)
        try:
            turn_end = await self.engine.enqueue(self.session_id, parts, input_id=input_id, sender=EDITOR_SENDER)
            if self._cancel_count != cancels_before:  # the cancel request arrived before the input was queued
                await self._stop_turn()
            end = await turn_end
        finally:
            self._inputs.discard(input_id)
        await self.engine.bus.settled()
        return await self._ask_about_plan(end)

    async def _expand_command(self, command: CustomCommand, argument: str) -> TextPart | None:
        """Returns the prompt of a command from a file, or None if the client cancels a shell command that it contains.
        Raises ToolFailure if one of them does not succeed."""

        async def run(text: str) -> ToolPart:
            child = self._command_sessions.add
            return await run_embedded_command(self.engine, self.session_id, text, command.allowed_commands, child)

        self._expansion = expansion = asyncio.ensure_future(command.expand_with(argument, run))
        try:
            return await expansion
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) and task.cancelling():
                raise
            return None
        finally:
            expansion.cancel()
            self._expansion = None

    async def send_commands(self) -> None:
        """Sends the commands, then the models that the servers list. Waits shortly: a client accepts updates only after
        it has read the response with the session id."""
        await asyncio.sleep(COMMANDS_DELAY_SECONDS)
        custom = await asyncio.to_thread(load_custom_commands, self._settings)
        await self._send_update(available_commands(custom))
        if (servers := self.engine.runtime.mcp_servers) is not None:
            await servers.wait_until_settled()
            offers = await list_offers(self.engine, Path(self._folder))
            if offers.prompts:
                await self._send_update(available_commands(custom, offers))
        if await self.options.load_models() and self.session_id in self.engine.live:
            await self._send_config_options()

    async def _run_command(self, command: tuple[CommandName, str]) -> TurnOutcome:
        message = await run_command(command, self.engine, self.session_id, self._buffers)
        await self.engine.bus.settled()
        await self._send_update(acp.update_agent_message(acp.text_block(replace_surrogates(message))))
        return TurnEnd("completed", message)

    async def cancel(self) -> None:
        self._cancel_count += 1
        if self._buffers is not None:
            self._buffers.cancel_writes()
        await self._stop_turn()

    async def _stop_turn(self) -> None:
        """Aborts the running turn or the commands of a command file, and withdraws the client's queued input."""
        if self._expansion is not None:
            self._expansion.cancel()
        for input_id in list(self._inputs):
            await self.engine.withdraw(self.session_id, input_id)
        await self.engine.abort(self.session_id)

    async def _ask_about_plan(self, end: TurnOutcome) -> TurnOutcome:
        """Asks the user about a plan at the end of a turn. If it is accepted, the end of the following turn is
        returned."""
        plan = await self.engine.plan(self.session_id) if end.reason == "completed" else None
        if plan is None:
            return end
        await self._send_update(plan_from_text(plan.text))
        call = acp.start_tool_call(
            f"plan-{plan.id}",
            f"{PLAN_DETAILS.title}. {PLAN_DETAILS.question}",
            kind="switch_mode",
            status="pending",
            content=[acp.tool_content(acp.text_block(replace_surrogates(plan.text)))],
        )
        await self._send_update(call)
        update = ToolCallUpdate(
            tool_call_id=call.tool_call_id, title=call.title, kind=call.kind, status=call.status, content=call.content
        )
        chosen = await self.permissions.request_choice(update, PLAN_OPTIONS)
        accepted = chosen == "accept"
        await self._send_update(acp.update_tool_call(call.tool_call_id, status="completed" if accepted else "failed"))
        if accepted:
            end = await self.engine.accept_plan(self.session_id, by=EDITOR_SENDER)
            await self.engine.bus.settled()
        elif chosen not in (None, "later"):
            await self.engine.refuse_plan(self.session_id, by=EDITOR_SENDER)
        return TurnEnd("aborted") if chosen is None else end

    async def _handle_event(self, event: Event) -> None:
        async with self._send_lock:
            updates = list(self._updates.event_updates(event))
            if self._terminals is not None:
                self._add_terminal_output(self._terminals, event)
            for update in updates:
                if self._terminals is not None and isinstance(update, ToolCallStart | ToolCallProgress):
                    update = self._terminals.show(update)  # noqa: PLW2901
                await self._send_update(update)
            await self._react_to_event(event)

    def _add_terminal_output(self, terminals: CommandTerminals, event: Event) -> None:
        if isinstance(event, DeltasDroppedEvent):
            terminals.note_loss()
        elif isinstance(event, ToolOutputEvent) and event.tool_name == "shell":
            call = self._updates.view_call(event.session_id, event.call_id)
            if call is not None:
                terminals.add_output(call.id, self._folder, event.output)

    async def _react_to_event(self, event: Event) -> None:
        """Handles events that need more than updates of the transcript, which `UpdateBuilder` makes of every event."""
        if isinstance(event, ToolApprovalResultEvent):
            self.permissions.cancel_request(event.approval_id)
        if not self.includes_session(event.session_id):
            return
        if isinstance(event, LLMResponseEvent):
            if (usage_update := self.usage.record_response(event)) is not None:
                await self._send_update(usage_update)
        elif isinstance(event, ToolApprovalRequestedEvent):
            self.permissions.request_approval(self._permission_view(event))
        elif isinstance(event, SessionUpdatedEvent) and self._changes_options(event):
            await self._send_options()

    def _changes_options(self, event: SessionUpdatedEvent) -> bool:
        return event.session_id == self.session_id and bool(event.changes.keys() & {"mode", "agent"})

    def _permission_view(self, event: ToolApprovalRequestedEvent) -> PermissionView:
        call = self._updates.view_call(event.session_id, event.call_id)
        if call is None:
            pending = ToolPending(event.tool_input, phase="awaiting_approval")
            call = view_tool_call(ToolPart(event.call_id, event.tool_name, pending), self._folder)
        question = requested_approval_view(event)
        return PermissionView(
            question, show_planned_changes(call, question.changes if event.preview else (), self._folder)
        )

    async def _send_options(self) -> None:
        await self._send_update(
            CurrentModeUpdate(session_update="current_mode_update", current_mode_id=self.options.mode)
        )
        await self._send_config_options()

    async def _send_config_options(self) -> None:
        await self._send_update(
            ConfigOptionUpdate(
                session_update="config_option_update", config_options=list(self.options.config_options())
            )
        )

    async def _send_update(
        self, update: Update | CurrentModeUpdate | ConfigOptionUpdate | UsageUpdate | AvailableCommandsUpdate
    ) -> None:
        with suppress(ConnectionError):  # the client disconnected; the session is stored anyway
            await self._client.session_update(self.session_id, update)
