"""The slash commands of the terminal application and their table, in the order in which /help lists them."""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import pairwise
from time import time
from typing import Literal, assert_never, get_args

import msgspec

from outrider.config.settings import Settings, remember_model
from outrider.engine.approvals import applies_here
from outrider.engine.archive import StoredSession, render_shared_page
from outrider.engine.frontend import ProcessStatus, describe_model, was_cut_off
from outrider.engine.session_trace import stored_trace
from outrider.engine.undo_history import RestoreResult
from outrider.errors import SessionInUseError
from outrider.presentation.approvals import grant_view
from outrider.presentation.diffs import git_folder_of, group_git_files
from outrider.presentation.formats import (
    clean_line,
    clean_text,
    format_age,
    format_count,
    format_tokens,
    format_total_cost,
    shorten,
)
from outrider.presentation.item_views import restore_notice
from outrider.presentation.items import (
    CommandItem,
    FileItem,
    NoticeItem,
    TextItem,
    ToolCallItem,
    TranscriptItem,
    UserItem,
    compaction_result,
    compaction_undo_result,
    file_summary,
    message_items,
    strike_out,
)
from outrider.presentation.tool_calls import call_input, call_status, call_title, status_text
from outrider.project.extensions import CustomCommand
from outrider.tui.completion import CompletionChoice
from outrider.tui.dialogs import AnswerKey
from outrider.tui.rendering.markdown import code_blocks
from outrider.tui.screen import ScreenApi, SlashCommand
from outrider.tui.theme import ThemeChoice
from outrider.tui.widgets.modals import PickerItem
from outrider.tui.workspace_commands import (
    compare_session,
    custom_choices,
    edit_memory,
    find_custom_command,
    rename_session,
    replay_session,
    rerun_session,
    review_changes,
    show_context,
    show_diff,
    show_servers,
    show_status,
    write_instructions,
)
from outrider.types.messages import Message
from outrider.types.modes import (
    APPROVAL_DESCRIPTIONS,
    APPROVAL_LEVELS,
    MODE_DESCRIPTIONS,
    MODES,
    REASONING_EFFORTS,
    UNATTENDED_MODES,
    ApprovalLevel,
    Mode,
)
from outrider.types.parts import ModelRef

_MAX_SHOWN_FILES = 30
_MAX_AGENT_MESSAGES = 60


async def undo_changes(ui: ScreenApi, _: str) -> None:
    await _restore_files(ui, "undo")


async def redo_changes(ui: ScreenApi, _: str) -> None:
    await _restore_files(ui, "redo")


async def compact_session(ui: ScreenApi, argument: str) -> None:
    """Replaces earlier messages by a summary, for which the argument may give instructions, or undoes the last
    compaction."""
    if argument == "undo" and ui.controller.session_id:
        undone = await ui.controller.engine.undo_compaction(ui.controller.session_id)
        ui.show_notice(compaction_undo_result(undone=undone).text)
        return
    has_summary = False
    if ui.controller.session_id:
        ui.show_notice("summarising earlier messages…")
        has_summary = await ui.controller.engine.compact(ui.controller.session_id, argument) is not None
    if (notice := compaction_result(done=has_summary)) is not None:
        ui.show_notice(notice.text)


async def _restore_files(ui: ScreenApi, direction: Literal["undo", "redo"]) -> None:
    """Shows every file change for confirmation, then undoes or redoes them."""
    if not ui.controller.session_id:
        ui.show_notice(f"there is nothing to {direction} yet")
        return
    changes = ui.controller.engine.file_changes(ui.controller.session_id)
    preview = await changes.preview(direction)
    if preview.off or not preview.changed:
        notice = restore_notice(preview.actions, off=preview.off)
        ui.show_notice(notice.text, "warning")
        return
    files = [action for action in preview.actions if not git_folder_of(action.path)]
    git_records = _git_records(preview)
    details = "\n\n".join(
        [f"**change** `{name}`" for name in group_git_files(path for path in preview.changed if git_folder_of(path))]
        + [f"- {record}" for record in git_records]
        + [
            f"**{action.action}** `{action.path}`" + (f"\n\n```diff\n{action.diff}\n```" if action.diff else "")
            for action in files[:_MAX_SHOWN_FILES]
        ]
    )
    count = sum(not git_folder_of(path) for path in preview.changed)
    subjects = [format_count(count, "file")] if count else []
    subjects += ["what git recorded"] if count < len(preview.changed) else []
    if not await ui.ask_confirmation(f"{direction.capitalize()} {' and '.join(subjects)}?", details, direction):
        return
    restored = await (changes.undo() if direction == "undo" else changes.redo())
    result = restore_notice(restored.actions, uncovered=restored.uncovered, off=restored.off)
    ui.show_notice(result.text, result.level)


def _git_records(preview: RestoreResult) -> list[str]:
    """Returns what an undo removes from git's logs of HEAD, or a redo adds, such as `commit: Rename a function`."""
    sign = "-" if preview.direction == "undo" else "+"
    logs = (action.diff for action in preview.actions if action.path.endswith(".git/logs/HEAD"))
    lines = [line for diff in logs for line in diff.splitlines() if line.startswith(sign) and "\t" in line]
    return [clean_line(line.partition("\t")[2], 100) for line in lines[:_MAX_SHOWN_FILES]]


async def choose_mode(ui: ScreenApi, name: str) -> None:
    """Sets the mode by name, or lets the user pick one."""
    chosen = name or await ui.pick_item(
        "Mode", [PickerItem(mode, mode, note) for mode, note in MODE_DESCRIPTIONS.items()], ui.controller.mode
    )
    for valid_mode in MODES:
        if valid_mode == chosen:
            await ui.controller.set_mode(valid_mode)
            ui.redraw()
            return
    if chosen:
        ui.show_notice(f"unknown mode {chosen}; available: {', '.join(MODES)}", "warning")


def next_mode(current: Mode) -> Mode:
    """Returns the mode after `current` for Shift+Tab. Background mode must be selected by name, since one key press too
    many must not turn off approvals."""
    cycle: list[Mode] = [mode for mode in reversed(MODES) if mode not in UNATTENDED_MODES]
    return cycle[(cycle.index(current) + 1) % len(cycle)] if current in cycle else cycle[0]


async def choose_approval(ui: ScreenApi, name: str) -> None:
    """Sets the approval level of agent mode by name, or lets the user pick one."""
    items = [PickerItem(level, level, f"asks about {note}") for level, note in APPROVAL_DESCRIPTIONS.items()]
    chosen = name or await ui.pick_item("Approval level", items, ui.controller.approval)
    for valid_level in APPROVAL_LEVELS:
        if valid_level == chosen:
            await ui.controller.set_approval(valid_level)
            ui.redraw()
            return
    if chosen:
        ui.show_notice(f"unknown approval level {chosen}; available: {', '.join(APPROVAL_LEVELS)}", "warning")


def next_approval(current: ApprovalLevel) -> ApprovalLevel:
    """Returns the approval level after `current` for Ctrl+T."""
    return APPROVAL_LEVELS[(APPROVAL_LEVELS.index(current) + 1) % len(APPROVAL_LEVELS)]


async def choose_model(ui: ScreenApi, name: str) -> None:
    """Sets the model by name, or lets the user pick one."""
    controller = ui.controller
    current = str(controller.model)
    chosen = name or await ui.pick_item("Model", await _model_items(ui, current), current)
    if not chosen:
        return
    providers = controller.client.providers
    provider, _, model = controller.expand_model_name(chosen).partition("/")
    if provider not in providers or not model:
        hint = f"/model lists them; write PROVIDER/MODEL with one of these providers: {', '.join(providers)}"
        ui.show_notice(clean_line(f"unknown model {name}; {hint}"), "warning")
        return
    await controller.set_model(ModelRef(provider, model))
    remember_model(controller.settings.data_folder, f"{provider}/{model}")
    ui.redraw()


async def choose_effort(ui: ScreenApi, name: str) -> None:
    """Sets the reasoning effort by name, or lets the user pick one."""
    items = [PickerItem(effort, effort, EFFORT_NOTES.get(effort, "")) for effort in REASONING_EFFORTS]
    chosen = name or await ui.pick_item("Reasoning effort", items, ui.controller.effort)
    for valid_effort in REASONING_EFFORTS:
        if valid_effort == chosen:
            await ui.controller.set_effort(valid_effort)
            ui.show_notice(f"reasoning effort: {valid_effort}")
            ui.redraw()
            return
    if chosen:
        ui.show_notice(f"unknown effort {chosen}; available: {', '.join(REASONING_EFFORTS)}", "warning")


EFFORT_NOTES = {
    "none": "no reasoning, where the model allows it",
    "medium": "the default",
    "max": "as much as the model can; other models use their highest level",
}


async def choose_agent(ui: ScreenApi, name: str) -> None:
    """Sets the agent by name, or lets the user pick one."""
    controller = ui.controller
    items = [
        PickerItem(agent.name, agent.name, agent.role or str(agent.model_ref)) for agent in controller.settings.agents
    ]
    chosen = name or await ui.pick_item("Agent", items, controller.agent)
    if chosen and chosen in controller.agent_names():
        await controller.set_agent(chosen)
        ui.redraw()
    elif chosen:
        ui.show_notice(f"unknown agent {chosen}; available: {', '.join(controller.agent_names())}", "warning")


async def choose_theme(ui: ScreenApi, name: str) -> None:
    """Sets the theme by name; without a name, toggles between dark and light."""
    for look in get_args(ThemeChoice):
        if look == name:
            ui.switch_theme(look)
            return
    if name:
        ui.show_notice(f"unknown theme {name}; available: {', '.join(get_args(ThemeChoice))}", "warning")
    else:
        ui.switch_theme(None)


async def _model_items(ui: ScreenApi, current: str) -> list[PickerItem]:
    """Lists the models in use first, then all known models of the configured providers."""
    controller = ui.controller
    agent_models = [str(agent.model_ref) for agent in controller.settings.agents]
    names = dict.fromkeys((current, *agent_models, *await controller.client.list_models()))
    notes = await asyncio.to_thread(lambda: [_model_note(controller.settings, name) for name in names])
    return [PickerItem(name, name, note) for name, note in zip(names, notes, strict=True)]


def _model_note(settings: Settings, name: str) -> str:
    """Returns the context size and the prices of a model that this machine's configuration names."""
    provider, _, model = name.partition("/")
    return describe_model(settings.providers, ModelRef(provider, model))


KEYS = (
    ("Enter", "send; during a turn the agent reads it before its next step"),
    ("Tab", "during a turn: queue the message for the next turn; on the start screen: take a suggestion"),
    ("Shift+Enter, Alt+Enter, Ctrl+J", "insert a new line"),
    ("Esc", "interrupt the turn; queued messages return to the input"),
    ("↑ ↓ · Ctrl+R", "previous and next input · search earlier inputs"),
    ("Ctrl+X", "edit the input in $VISUAL or $EDITOR"),
    ("Ctrl+V", "paste an image or text of the clipboard"),
    ("Ctrl+Z · Alt+Z", "undo and redo in the input; Ctrl+W, Ctrl+U, Ctrl+K delete a word, to the start, to the end"),
    ("Ctrl+Z", "with nothing to undo: suspend the program; `fg` in the shell continues it"),
    ("Shift+Tab", "next mode: agent, plan, chat; /mode background works without asking"),
    ("Ctrl+T", "next approval level of agent mode: ask, edits, auto"),
    ("Ctrl+O · Ctrl+G", "choose the model · the agent"),
    ("Ctrl+Y", "choose the reasoning effort"),
    ("F2", "expand or collapse all reasoning and output; click to toggle one"),
    ("Ctrl+B · F4", "move the running command to the background · show or hide the side panel"),
    ("PageUp, PageDown", "scroll; older messages are loaded at the top; Ctrl+End returns to the end"),
    ("Ctrl+F, F3", "search the conversation"),
    ("Ctrl+C", "copy the selection, interrupt the turn, or clear the input; twice: quit"),
)


def _table_row(cells: tuple[str, str]) -> str:
    return "| {} | {} |".format(*(cell.replace("|", r"\|") for cell in cells))


def help_text(commands: list[SlashCommand], custom: tuple[CompletionChoice, ...] = ()) -> str:
    """Returns the help page as Markdown: keys, commands, custom commands, and the special prefixes."""
    rows = [(f"`/{command.name}` {command.argument}", command.note) for command in commands]
    rows += [(f"`{choice.text}`", choice.note) for choice in custom]
    keys, names = ("\n".join(map(_table_row, table)) for table in (KEYS, rows))
    return (
        f"## Keys\n\n| key | what it does |\n|---|---|\n{keys}\n\n"
        f"## Commands\n\n| command | what it does |\n|---|---|\n{names}\n\n"
        "`@path` mentions a file (images and PDFs are attached), `!command` runs a command yourself; its output is "
        "sent with your next message."
    )


async def show_cost(ui: ScreenApi, _: str) -> None:
    """Shows the usage of the session by model as a table."""
    controller = ui.controller
    if not controller.session_id:
        ui.show_notice("there is no usage yet")
        return
    rows: list[str] = []
    for row in await controller.archive.usage_statistics("model", session_id=controller.session_id):
        tokens = row.tokens
        unpriced = f" ({format_count(row.unpriced, 'answer')} without a known price)" if row.unpriced else ""
        price = f"{format_total_cost(row.cost, row.unpriced)}{unpriced}"
        rows.append(
            f"| {row.key} | {row.messages} | {format_tokens(tokens.prompt)} | {format_tokens(tokens.cache.read)} | "
            f"{format_tokens(tokens.output + tokens.reasoning)} | {price} |"
        )
    table = "| model | answers | sent | from cache | written | cost |\n|---|---|---|---|---|---|\n" + "\n".join(rows)
    ui.show_page("Cost of this session", table)


async def show_trace(ui: ScreenApi, _: str) -> None:
    """Shows the trace of the session as a tree."""
    controller = ui.controller
    if not controller.session_id:
        ui.show_notice("there is no trace yet")
        return
    trace = await stored_trace(controller.archive, controller.session_id)
    ui.show_page("Trace", trace.format_tree)


async def show_processes(ui: ScreenApi, _: str) -> None:
    """Lists the background processes of the session; selecting one shows its output, and offers to end it."""
    controller = ui.controller
    processes = {process.id: process for process in await controller.client.list_processes(controller.session_id)}
    if not processes:
        ui.show_notice("there are no background processes")
        return
    items = [
        PickerItem(id, process.command, process.ending.description if process.ending else f"runs, pid {process.pid}")
        for id, process in processes.items()
    ]
    chosen = await ui.pick_item("Background processes (Enter shows the output)", items)
    if chosen:
        await _show_process(ui, processes[chosen])


async def _show_process(ui: ScreenApi, process: ProcessStatus) -> None:
    controller = ui.controller
    output = clean_text(await controller.client.read_process_output(controller.session_id, process.id)).rstrip("\n")
    fence = "`" * 8
    text = f"{fence}\n{output}\n{fence}" if output else "It has written nothing."
    close = AnswerKey("escape", "close", "close")
    if process.ending is not None:
        text = f"{text}\n\n{process.ending.description}"
        await ui.ask_choice(clean_line(process.command, 60), text, (close,), at_end=True)
        return
    keys = (AnswerKey("e", "end", "end the process"), AnswerKey("u", "update", "read the output again"), close)
    answer, _ = await ui.ask_choice(clean_line(process.command, 60), text, keys, at_end=True)
    if answer == "update":
        await _show_process(ui, process)
    elif answer == "end" and await ui.ask_confirmation("End this process?", f"`{process.command}`", "end it"):
        was_running = await controller.client.end_process(controller.session_id, process.id)
        ui.show_notice("the process was ended" if was_running else "the process had already ended", "success")


async def show_subagents(ui: ScreenApi, _: str) -> None:
    """Lists the agents that were called in this session; selecting one shows its conversation."""
    agents = dict(sorted(ui.controller.conversation.side.agents.items()))  # ids sort by time
    if not agents:
        ui.show_notice("no agents were called in this session")
        return
    items = [
        PickerItem(
            agent.session_id,
            f"{agent.name} · {agent.task} · {agent.state}" if agent.task else f"{agent.name} · {agent.state}",
            agent.activity,
            shorten(agent.message, 300),
        )
        for agent in agents.values()
    ]
    chosen = await ui.pick_item("Called agents (Enter shows the conversation)", items)
    if chosen is None:
        return
    page = await ui.controller.archive.load(chosen, _MAX_AGENT_MESSAGES)
    text = "\n\n".join(filter(None, (message_markdown(message) for message in page.messages)))
    agent = agents[chosen]
    ui.show_page(f"{agent.name} · {agent.task or agent.state}", text or "It has not answered yet.")


def message_markdown(message: Message) -> str:
    """Returns a message as Markdown: its text, and one line for each call, file and notice. Items of a failed attempt
    are struck out."""
    return "\n\n".join(
        strike_out(row) if item.withdrawn else row for item in message_items(message) for row in _item_rows(item)
    )


def _item_rows(item: TranscriptItem) -> Iterator[str]:
    match item:
        case UserItem():
            yield "\n".join(f"> {line}" for line in item.text.split("\n"))
            yield from (f"> [file {file_summary(file)}]" for file in item.files)
        case ToolCallItem():
            row = f"**{status_text(call_status(item.part))}** `{call_title(item.part.tool, call_input(item.part))}`"
            yield row if item.withdrawn else f"- {row}"
        case TextItem():
            yield item.text
        case FileItem():
            yield f"[file {file_summary(item.part)}]"
        case NoticeItem():
            yield f"*{item.text}*"
        case CommandItem():
            yield f"`$ {item.command}`"
        case _:
            assert_never(item)


async def copy_answer(ui: ScreenApi, argument: str) -> None:
    """Copies the last answer as Markdown; with `code` its code blocks, with `all` the whole conversation."""
    items = [item for item in ui.controller.conversation.items if not item.withdrawn]
    answers = [item.text for item in items if type(item) is TextItem and item.text.strip()]
    if argument not in ("", "code", "all"):
        ui.show_notice(f"unknown part {argument}; use /copy, /copy code or /copy all", "warning")
    elif not answers:
        ui.show_notice("there is no answer to copy yet")
    elif argument == "code":
        code = [block for answer in answers[-1:] for block in code_blocks(answer)]
        if code:
            ui.copy_text("\n\n".join(code))
        else:
            ui.show_notice("the last answer contains no code")
    elif argument == "all":
        messages = [item for item in items if isinstance(item, UserItem | TextItem)]
        texts = [f"> {item.text}" if isinstance(item, UserItem) else item.text for item in messages]
        ui.copy_text("\n\n".join(texts))
    else:
        ui.copy_text(answers[-1].strip("\n"))


async def find_in_transcript(ui: ScreenApi, query: str) -> None:
    """Searches the lines of the conversation that is loaded, and scrolls to the chosen one."""
    lines = [(number, line) for number, line in enumerate(ui.transcript_lines()) if line]
    matches = [(number, line) for number, line in lines if query.lower() in line.lower()]
    if not matches:
        ui.show_notice(f"nothing found: {clean_line(query)}" if query else "the conversation is empty")
        return
    items = [PickerItem(str(number), line) for number, line in reversed(matches)]
    chosen = await ui.pick_item("Find in the conversation, last lines first", items)
    if chosen is not None:
        ui.find_in_transcript(int(chosen))


async def switch_vim(ui: ScreenApi, argument: str) -> None:
    if (on := _read_switch(ui, argument, now=ui.preferences.stored.vim)) is not None:
        ui.set_vim_keys(on=on)
        ui.show_notice(f"vi keys are {_on_off(on)}" + ("; Esc enters normal mode (N)" if on else ""))


async def switch_notifications(ui: ScreenApi, argument: str) -> None:
    if (on := _read_switch(ui, argument, now=ui.preferences.stored.notify)) is not None:
        ui.preferences.update(notify=on)
        ui.show_notice(f"bell and notifications are {_on_off(on)}")


async def switch_print(ui: ScreenApi, argument: str) -> None:
    if (on := _read_switch(ui, argument, now=ui.preferences.stored.print_on_exit)) is not None:
        ui.preferences.update(print_on_exit=on)
        ui.show_notice(f"printing the conversation on exit is {_on_off(on)}")


def _read_switch(ui: ScreenApi, argument: str, *, now: bool) -> bool | None:
    """Returns the state that the user wants; without an argument, the opposite of `now`. Shows a notice and returns
    None for a word that is neither on nor off."""
    if argument not in ("", "on", "off"):
        ui.show_notice(f"write on or off, not {clean_line(argument, 60)}", "warning")
        return None
    return argument == "on" if argument else not now


def _on_off(on: bool) -> str:  # noqa: FBT001  a value to print
    return "on" if on else "off"


async def show_permissions(ui: ScreenApi, _: str) -> None:
    """Lists the stored approvals that apply here, with everything they cover; selecting one revokes it."""
    controller = ui.controller
    answers = await controller.archive.lasting_approvals()
    sessions, folder = {controller.session_id}, str(controller.workspace)
    approvals = [approval for approval in answers if applies_here(approval, sessions, folder)]
    hidden_count = len(answers) - len(approvals)
    hint = f"; {hidden_count:,} more of other folders or sessions: outrider permissions list"
    if not approvals:
        text = "no stored approvals apply here; rules are in your settings"
        ui.show_notice(f"{text}{hint if hidden_count else ''}")
        return
    items = [
        PickerItem(approval.id, view.title, view.scope, f"covers {view.text}")
        for approval, view in ((approval, grant_view(approval)) for approval in approvals)
    ]
    chosen = await ui.pick_item("Stored approvals (Enter revokes one)", items)
    if chosen:
        await controller.client.revoke_approval(chosen)
        ui.show_notice("approval revoked; the next such call asks again", "success")


MAX_SESSIONS = 100
_SHORT_ID_LENGTH = 8  # characters from the end of an id; its beginning is a timestamp and does not distinguish sessions


async def start_new_session(ui: ScreenApi, _: str) -> None:
    works = ui.controller.is_working
    ui.controller.start_new_session()
    await ui.session_shown()
    if works:
        ui.show_notice("the turn of the earlier session continues; /resume returns to it")


async def resume_session(ui: ScreenApi, name: str) -> None:
    """Opens the session with the given id, or lets the user pick one of this folder's sessions."""
    controller = ui.controller
    if name:
        await open_session(ui, (await controller.archive.find_session(name)).id)
        return
    sessions = await controller.archive.list_sessions(MAX_SESSIONS, workspace=controller.client.folder)
    chosen = await ui.pick_item(
        "Sessions of this folder", [_session_item(session) for session in sessions], controller.session_id
    )
    if chosen:
        await open_session(ui, chosen)


async def find_sessions(ui: ScreenApi, query: str) -> None:
    """Lets the user pick a session of any folder; with a query, one of the search results."""
    controller = ui.controller
    if query:
        hits = await controller.archive.search(query, limit=MAX_SESSIONS)
        items = list(
            {hit.session_id: PickerItem(hit.session_id, hit.title or "untitled", hit.snippet) for hit in hits}.values()
        )
    else:
        items = [
            _session_item(session, folder=True) for session in await controller.archive.list_sessions(MAX_SESSIONS)
        ]
    chosen = await ui.pick_item(f"Sessions with “{query}”" if query else "All sessions", items, controller.session_id)
    if chosen:
        await open_session(ui, chosen)


async def open_session(ui: ScreenApi, session_id: str) -> None:
    """Shows a session. If another process holds its lease, asks before taking it over."""
    try:
        await ui.controller.show_session(session_id, changed=ui.redraw)
    except SessionInUseError as error:
        ui.redraw()
        text = f"{error.message}\n\nTaking it over stops the turn that runs there."
        if await ui.ask_confirmation("This session is open in another process", text, "take it over"):
            await ui.controller.show_session(session_id, take_over=True)
        else:
            ui.controller.start_new_session()
    await ui.session_shown()
    busy = ui.controller.conversation.activity.busy
    if ui.controller.session_id and not busy and was_cut_off(ui.controller.engine.live[session_id].session.messages):
        ui.show_notice("the last turn was interrupted; /continue resumes it, or send a new message", "warning")


async def continue_turn(ui: ScreenApi, _: str) -> None:
    """Resumes a turn that was interrupted; asks the model to continue after one that has ended."""
    controller = ui.controller
    session = controller.engine.live.get(controller.session_id)
    if session is None or not session.session.messages:
        ui.show_notice("there is nothing to continue yet", "warning")
    elif was_cut_off(session.session.messages):
        await controller.continue_turn()
    else:
        await controller.send_prompt("continue", changed=ui.redraw)


async def share_session(ui: ScreenApi, _: str) -> None:
    """Writes the session as one self-contained HTML page into this folder."""
    controller = ui.controller
    if not controller.session_id:
        ui.show_notice("there is nothing to share yet", "warning")
        return
    path = controller.workspace / f"outrider-{controller.session_id[-_SHORT_ID_LENGTH:]}.html"
    path.write_text(await render_shared_page(controller.archive, controller.session_id), encoding="utf-8")
    ui.show_notice(f"session written as an HTML page: {path}", "success")


async def export_session(ui: ScreenApi, _: str) -> None:
    """Writes the complete session as JSON into this folder."""
    controller = ui.controller
    if not controller.session_id:
        ui.show_notice("there is nothing to export yet", "warning")
        return
    path = controller.workspace / f"outrider-{controller.session_id[-_SHORT_ID_LENGTH:]}.json"
    path.write_bytes(await controller.archive.export_document(controller.session_id))
    ui.show_notice(f"session exported: {path}", "success")


def _session_item(session: StoredSession, *, folder: bool = False) -> PickerItem:
    used = session.time.updated / 1000 if session.time else 0
    note = f"{format_age(max(time() - used, 0))} · {session.id[-_SHORT_ID_LENGTH:]}"
    return PickerItem(
        session.id, session.title or "untitled", f"{note} · {session.workspace_directory}" if folder else note
    )


_COPY_ALL = "whole"


class ForkChoice(msgspec.Struct, frozen=True):
    """A user message where a session can be forked; the copy ends with the message before it, `before_id`."""

    before_id: str
    text: str
    created_ms: int


async def fork_session(ui: ScreenApi, title: str) -> None:
    """Copies the session, completely or up to a user message, and opens the copy; that message goes into the
    composer."""
    controller = ui.controller
    if controller.session_id not in controller.engine.live:
        ui.show_notice("there is nothing to fork yet", "warning")
        return
    points = {point.before_id: point for point in fork_points(await controller.load_transcript())}
    chosen = (
        await ui.pick_item("Fork: what the copy holds", _fork_items(list(points.values()))) if points else _COPY_ALL
    )
    if chosen is None:
        return
    point = points.get(chosen)
    copy = await controller.archive.fork(
        controller.session_id, at=point.before_id if point else None, title=title or None
    )
    await open_session(ui, copy.id)
    ui.show_notice("forked; the original session is unchanged", "success")
    if point is not None:
        ui.fill_composer(point.text)


def fork_points(messages: Sequence[Message]) -> list[ForkChoice]:
    """Returns the fork points, newest first. The first message is excluded: a copy before it would be empty."""
    choices: list[ForkChoice] = []
    for previous, message in pairwise(messages):
        item = next((item for item in message_items(message) if isinstance(item, UserItem)), None)
        if message.role == "user" and item is not None:
            choices.append(ForkChoice(previous.id, item.text, message.time.created if message.time else 0))
    return choices[::-1]


def _fork_items(points: Sequence[ForkChoice]) -> list[PickerItem]:
    now = time()
    items = [
        PickerItem(point.before_id, f"all before: {point.text}", format_age(max(now - point.created_ms / 1000, 0)))
        for point in points
    ]
    return [PickerItem(_COPY_ALL, "everything so far"), *items]


async def _show_help(ui: ScreenApi, _: str) -> None:
    ui.show_page("Help", help_text(COMMANDS, custom_choices(ui.controller.custom_commands)))


async def _quit_app(ui: ScreenApi, _: str) -> None:
    ui.quit_app()


COMMANDS: list[SlashCommand] = [
    SlashCommand("help", "show keys and commands", _show_help),
    SlashCommand("new", "start a new session", start_new_session),
    SlashCommand("resume", "continue an earlier session of this folder", resume_session, "[ID]"),
    SlashCommand("sessions", "find a session of any folder", find_sessions, "[WORDS]"),
    SlashCommand("continue", "resume the last turn, or ask for more", continue_turn),
    SlashCommand("fork", "copy the session, completely or up to one of your messages", fork_session, "[TITLE]"),
    SlashCommand("undo", "revert the file changes of the last turn", undo_changes),
    SlashCommand("redo", "apply reverted file changes again", redo_changes),
    SlashCommand(
        "compact", "replace earlier messages by a summary, or undo that", compact_session, "[INSTRUCTIONS | undo]"
    ),
    SlashCommand("mode", f"choose the mode: {', '.join(MODES)}", choose_mode, "[MODE]"),
    SlashCommand(
        "approval", f"choose what agent mode asks about: {', '.join(APPROVAL_LEVELS)}", choose_approval, "[LEVEL]"
    ),
    SlashCommand("model", "choose the model", choose_model, "[PROVIDER/MODEL]"),
    SlashCommand(
        "effort", f"choose how much the model reasons: {', '.join(REASONING_EFFORTS)}", choose_effort, "[LEVEL]"
    ),
    SlashCommand("agents", "choose the agent", choose_agent, "[NAME]"),
    SlashCommand("share", "write the session as one HTML page", share_session),
    SlashCommand("export", "write the session as JSON", export_session),
    SlashCommand("rename", "change the title of this session", rename_session, "TITLE"),
    SlashCommand("init", "let the model write AGENTS.md, the notes about this project", write_instructions, "[WORDS]"),
    SlashCommand("review", "let the model review uncommitted changes, a branch, a commit", review_changes, "[WHAT]"),
    SlashCommand("diff", "show the uncommitted changes of the repository", show_diff),
    SlashCommand("memory", "edit your instructions, or those of this project", edit_memory),
    SlashCommand("status", "show session, model, rights and files in effect", show_status),
    SlashCommand("context", "show what fills the context", show_context),
    SlashCommand("mcp", "show the MCP servers and their states", show_servers),
    SlashCommand("cost", "show tokens and cost of this session", show_cost),
    SlashCommand("trace", "show the steps of this session as a tree", show_trace),
    SlashCommand(
        "replay", "run this session again with its recorded answers", replay_session, "[FIELDS THAT MAY DIFFER]"
    ),
    SlashCommand("what-if", "run a copy of this session with another model", rerun_session, "MODEL [STEPS]"),
    SlashCommand("compare", "compare this session with another one", compare_session, "SESSION"),
    SlashCommand("processes", "show background processes and their output, or end them", show_processes),
    SlashCommand("subagents", "show the agents that were called and what they did", show_subagents),
    SlashCommand("copy", "copy the last answer as Markdown, its code, or the conversation", copy_answer, "[code|all]"),
    SlashCommand("find", "search the conversation", find_in_transcript, "[WORDS]"),
    SlashCommand("permissions", "list stored approvals and revoke them", show_permissions),
    SlashCommand("theme", "set the theme: dark, light, or auto to follow the terminal", choose_theme, "[LOOK]"),
    SlashCommand("vim", "turn vi keys in the composer on or off", switch_vim, "[on|off]"),
    SlashCommand("notify", "turn bell and desktop notifications on or off", switch_notifications, "[on|off]"),
    SlashCommand("print", "print the conversation to the terminal on exit", switch_print, "[on|off]"),
    SlashCommand(
        "clear", "start with an empty context; the session is stored, /resume returns to it", start_new_session
    ),
    SlashCommand("quit", "quit; the session is stored", _quit_app),
]


def command_choices(custom: tuple[CustomCommand, ...] = ()) -> tuple[CompletionChoice, ...]:
    """Returns the completions of all commands."""
    built_in = tuple(CompletionChoice(f"/{command.name}", command.note) for command in COMMANDS)
    return (*built_in, *custom_choices(custom))


def find_command(text: str, custom: tuple[CustomCommand, ...] = ()) -> tuple[SlashCommand, str] | None:
    """Returns the command of a line and its argument; an unambiguous prefix of a built-in name is accepted."""
    name, _, argument = text.removeprefix("/").partition(" ")
    exact = [command for command in COMMANDS if command.name == name]
    if not exact and (custom_match := find_custom_command(text, custom)):
        return custom_match
    matches = exact or [command for command in COMMANDS if command.name.startswith(name)]
    return (matches[0], argument.strip()) if len(matches) == 1 else None
