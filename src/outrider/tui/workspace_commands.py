"""Slash commands about the workspace and the setup: instructions, reviews, changes, status, context, and the commands
that the user or the project defines in Markdown files."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.config.settings import Settings
from outrider.errors import OutriderError, ProcessError, ToolFailure
from outrider.presentation.formats import (
    clean_line,
    clean_text,
    format_cost,
    format_count,
    format_tokens,
    is_editable,
)
from outrider.project.extensions import CustomCommand, find_custom_commands, read_git_diff
from outrider.project.trust import INSTRUCTIONS_FILE, ProjectFolder, WorkspaceTrust, find_project
from outrider.tui.completion import CompletionChoice
from outrider.tui.screen import ScreenApi, SlashCommand
from outrider.tui.widgets.modals import PickerItem
from outrider.types.parts import ToolPart
from outrider.types.request import ServerOverview

if TYPE_CHECKING:
    from outrider.engine.engine import Engine
    from outrider.engine.session_client import SessionClient
    from outrider.project.mcp import ServerOffers

_INIT_PROMPT = """\
Write `AGENTS.md` in the root of this project: the notes that an engineer who is new here needs before the first change.
Look at the files first: the README, the build files, the layout of the sources, the tests and the CI configuration.
Include the commands to build, lint and test (also one single test), the layout and the main concepts, and conventions
that the code shows and that are easy to miss. State only what you have seen in the files. Leave out the obvious, and
stay below 60 lines. If the file exists, improve it and preserve what is still true.{more}"""
_REVIEW_PROMPT = """\
Review {subject}. Read the changed code and what calls it. Look for bugs, missed cases, security problems, wrong or
missing tests, and breaks with the conventions of this project. Report findings ordered by severity, each with file and
line, why it is a problem, and a concrete fix. Say what you have checked. Do not report matters of taste, and do not
change files."""
_UNCOMMITTED = "the uncommitted changes of this repository (`git status`, `git diff HEAD`, untracked files)"
_NOT_HERE = "this needs the workspace, which is on the server; start outrider there"
_MAX_DIFF_CHARS = 400_000
_BAR_WIDTH = 24
_MAX_POLLS = 30  # seconds in which commands of servers that are connecting are added


async def write_instructions(ui: ScreenApi, argument: str) -> None:
    """Asks the model to write the project's AGENTS.md."""
    instructions = f"\n\n{argument}" if argument else ""
    await ui.controller.send_prompt(_INIT_PROMPT.format(more=instructions), changed=ui.redraw)


async def review_changes(ui: ScreenApi, argument: str) -> None:
    """Asks the model to review the uncommitted changes, or what the argument names: a branch, a commit, files."""
    await ui.controller.send_prompt(_REVIEW_PROMPT.format(subject=argument or _UNCOMMITTED), changed=ui.redraw)


async def show_diff(ui: ScreenApi, _: str) -> None:
    """Shows the uncommitted changes of the repository."""
    if ui.controller.client.is_remote:
        ui.show_notice(_NOT_HERE, "warning")
        return
    try:
        diff = await asyncio.to_thread(read_git_diff, _project(ui.controller.settings))
    except ProcessError as error:
        ui.show_notice(f"git failed: {clean_line(error.message, 300)}", "error")
        return
    if diff is None:
        ui.show_notice("this folder is not a git repository")
    elif not diff.strip():
        ui.show_notice("there are no uncommitted changes")
    else:
        fence = "`" * 8
        cut = "\n\n(The rest is not shown.)" if len(diff) > _MAX_DIFF_CHARS else ""
        ui.show_page("Uncommitted changes", f"{fence}diff\n{clean_text(diff[:_MAX_DIFF_CHARS])}\n{fence}{cut}")


async def show_status(ui: ScreenApi, _: str) -> None:
    """Shows the session, the model, the rights and the files that are in effect."""
    controller, settings = ui.controller, ui.controller.settings
    activity = controller.conversation.activity
    trust = "of the server" if controller.client.is_remote else await asyncio.to_thread(_trust_state, settings)
    rows: dict[str, str] = {
        "version": str(getattr(sys.modules["outrider"], "__version__", "")),
        "session": f"{controller.title or 'new'} · {controller.session_id[-8:]}" if controller.session_id else "new",
        "model": f"{controller.model}, effort {controller.effort}",
        "agent": controller.agent,
        "mode": controller.mode,
        "approval": controller.approval,
        "workspace": f"{controller.workspace} ({trust})",
        "context": _context_text(activity.context_tokens, controller.context_limit),
        "cost": format_cost(activity.cost) if activity.cost is not None else "unknown",
        "providers": ", ".join(controller.client.providers) or "none",
        "MCP servers": _servers_text(await controller.client.list_servers()),
        "own commands": format_count(len(controller.custom_commands), "command"),
        "configuration": str(settings.folders.config_file),
        "data": str(settings.data_folder),
    }
    table = "\n".join(f"| {name} | {_cell(value)} |" for name, value in rows.items())
    notices = "".join(f"\n- {clean_line(notice, 400)}" for notice in settings.notices)
    ui.show_page("Status", f"| what | value |\n|---|---|\n{table}\n{notices}")


def _servers_text(servers: Sequence[ServerOverview]) -> str:
    unusable = [f"{server.name} ({server.state})" for server in servers if server.state != "ready"]
    suffix = f", not ready: {', '.join(unusable)}" if unusable else ""
    return format_count(len(servers), "server") + suffix


async def show_servers(ui: ScreenApi, _: str) -> None:
    """Shows the MCP servers and their states."""
    servers = await ui.controller.client.list_servers()
    if not servers:
        ui.show_notice("no MCP servers are configured; docs/mcp.md describes how to add one")
        return
    rows = "\n".join(f"| {_cell(server.name)} | {_cell(server.text)} |" for server in servers)
    ui.show_page("MCP servers", f"| server | state |\n|---|---|\n{rows}")


async def show_context(ui: ScreenApi, _: str) -> None:
    """Shows how full the context is, and what fills it."""
    controller = ui.controller
    if not controller.session_id:
        ui.show_notice("the context is empty")
        return
    used, limit = controller.conversation.activity.context_tokens, controller.context_limit
    shares = await controller.client.context_shares(controller.session_id)
    total = sum(share.tokens for share in shares) or 1
    rows = "\n".join(
        f"| {_cell(share.name)} | {format_tokens(share.tokens)} "
        f"| {'█' * round(share.tokens / total * _BAR_WIDTH) or '▏'} |"
        for share in shares
    )
    table = f"\n\n| source | tokens | share |\n|---|---|---|\n{rows}" if shares else ""
    hint = "`/compact` replaces earlier messages; `outrider context` shows each request, its cost and its cache."
    ui.show_page("Context", f"**{_context_text(used, limit)}**{table}\n\n{hint}")


async def replay_session(ui: ScreenApi, ignored: str) -> None:
    """Runs the session again, offline, with the recorded answers of the model, and shows what differs."""
    from outrider.engine.factory import CASSETTES
    from outrider.session_replay.replay import find_cassette, replay

    if engine := _local_engine(ui):
        settings, session_id = ui.controller.settings, ui.controller.session_id
        try:
            cassette = find_cassette(settings.data_folder / CASSETTES, session_id)
            result = await replay(engine, session_id, cassette=cassette, ignore=ignored.split())
        except OutriderError as error:
            ui.show_notice(clean_text(str(error)), "warning")
        else:
            ui.show_page("Replay", lambda _: result.text())


async def rerun_session(ui: ScreenApi, argument: str) -> None:
    """Runs a copy of the session from one of its steps with another model, and compares both."""
    from outrider.session_replay.what_if import what_if

    model, _, step = argument.strip().partition(" ")
    if not model or (step and not step.strip().isdigit()):
        ui.fill_composer("/what-if ")
        ui.show_notice("name a model, and the number of steps to preserve: /what-if openai/gpt-5.4 2")
    elif engine := _local_engine(ui):
        ui.show_notice(f"a copy of this session runs with {model}; calls that need an approval are denied")
        try:
            at_step = int(step) if step else None
            async with engine.replace(attended=False) as twin:
                result = await what_if(twin, ui.controller.session_id, at_step=at_step, model=model)
        except OutriderError as error:
            ui.show_notice(clean_text(str(error)), "warning")
        else:
            hint = f"/resume {result.session.id} opens the copy"
            ui.show_page("What if", lambda _: f"{result.text()}\n\n{hint}")


async def compare_session(ui: ScreenApi, name: str) -> None:
    """Compares this session with another one."""
    from outrider.session_replay.recorded_session import load_session
    from outrider.session_replay.what_if import compare

    if not name.strip():
        ui.fill_composer("/compare ")
        ui.show_notice("name the other session by its id, or the end of it")
    elif engine := _local_engine(ui):
        try:
            other_session = await ui.controller.archive.find_session(name.strip())
            sessions = [
                await load_session(engine.store, session_id)
                for session_id in (ui.controller.session_id, other_session.id)
            ]
            text = compare(*sessions).text()
        except OutriderError as error:
            ui.show_notice(clean_text(str(error)), "warning")
        else:
            ui.show_page("Comparison", lambda _: text)


def _local_engine(ui: ScreenApi) -> "Engine | None":
    """Returns the engine of this process if a session is open in it; otherwise shows a notice and returns None."""
    from outrider.engine.engine import Engine

    engine = ui.controller.engine
    if not isinstance(engine, Engine):
        ui.show_notice(_NOT_HERE, "warning")
    elif not ui.controller.session_id:
        ui.show_notice("there is no session yet", "warning")
    else:
        return engine
    return None


async def rename_session(ui: ScreenApi, title: str) -> None:
    """Sets the title of the session."""
    controller = ui.controller
    if not controller.session_id:
        ui.show_notice("there is no session to rename yet", "warning")
    elif not title:
        ui.fill_composer("/rename ")
    else:
        await controller.engine.rename(controller.session_id, clean_line(title, 200))
        ui.show_notice(f"the session is now called: {clean_line(title, 200)}", "success")


async def edit_memory(ui: ScreenApi, _: str) -> None:
    """Edits the instructions that the agent reads at the start of every session: the user's or the project's."""
    if ui.controller.client.is_remote:
        ui.show_notice(_NOT_HERE, "warning")
        return
    settings = ui.controller.settings
    project = _project(settings)
    items = [
        PickerItem(
            str(settings.folders.instructions_file), "your instructions", str(settings.folders.instructions_file)
        ),
        PickerItem(str(project.root / INSTRUCTIONS_FILE), "instructions of this project", INSTRUCTIONS_FILE),
    ]
    chosen = await ui.pick_item("Instructions to edit", items)
    if chosen is None:
        return
    path = Path(chosen)
    if await asyncio.to_thread(path.is_symlink):
        ui.show_notice(f"{path} is a link; edit its target", "warning")
        return
    before = await asyncio.to_thread(_read_text, path)
    if before is None or not is_editable(before):
        ui.show_notice(f"{path} is not plain text that can be edited here; use another editor", "warning")
        return
    after = await ui.edit_text(str(path), before)
    if after is None or after == before:
        return
    await asyncio.to_thread(_write_instructions, settings, path, after)
    ui.show_notice(f"written: {path}; new sessions read it", "success")


def load_custom_commands(settings: Settings) -> tuple[CustomCommand, ...]:
    """Returns the commands of the user and of the workspace, if it is trusted."""
    trust, folders = _trust(settings), settings.folders
    return find_custom_commands(trust.project, folders.commands_folder, folders.home, trusted=trust.trusted)


async def load_server_offers(
    client: "SessionClient",
) -> AsyncGenerator[tuple[tuple[CustomCommand, ...], Mapping[str, str | None]], None]:
    """Yields the prompts of MCP servers as commands, whose text the engine replaces, and a mapping of their resources:
    `SERVER:URI` to None, or to the text before the first placeholder of a template. Yields again when further servers
    become ready."""
    ready_count = 0
    for _ in range(_MAX_POLLS):
        servers = await client.list_servers()
        if (ready := sum(server.state == "ready" for server in servers)) > ready_count:
            ready_count, offers = ready, await client.list_offers()
            yield _prompt_commands(offers), _resource_names(offers)
        if not any(server.state == "connecting" for server in servers):
            break
        await asyncio.sleep(1)


def _resource_names(offers: "ServerOffers") -> dict[str, str | None]:
    names = ((f"{resource.server}:{resource.uri}", resource.is_template) for resource in offers.resources)
    return {name: name.partition("{")[0] if is_template else None for name, is_template in names}


def _prompt_commands(offers: "ServerOffers") -> tuple[CustomCommand, ...]:
    return tuple(
        CustomCommand(
            name=f"{prompt.server}:{prompt.name}",
            description=prompt.description or "a prompt",
            text=f"/{prompt.server}:{prompt.name} $ARGUMENTS",
            origin=f"MCP server {prompt.server}",
            hint=" ".join(
                parameter.name if parameter.required else f"[{parameter.name}]" for parameter in prompt.arguments
            ),
        )
        for prompt in offers.prompts
    )


def custom_choices(commands: tuple[CustomCommand, ...]) -> tuple[CompletionChoice, ...]:
    return tuple(CompletionChoice(f"/{command.name}", _command_note(command)) for command in commands)


def find_custom_command(text: str, commands: tuple[CustomCommand, ...]) -> tuple[SlashCommand, str] | None:
    """Returns the custom command of a line and its argument, or None."""
    name, _, argument = text.removeprefix("/").partition(" ")
    definition = next((command for command in commands if command.name == name), None)
    if definition is None:
        return None

    async def send_command(ui: ScreenApi, arguments: str) -> None:
        line = f"/{definition.name} {arguments}".rstrip()

        async def run(command: str) -> ToolPart:
            return await ui.controller.run_embedded_command(command, definition.allowed_commands, ui.redraw)

        try:
            prompt = await definition.expand_with(arguments, run)
        except ToolFailure as error:
            ui.return_input(line)
            ui.show_notice(clean_line(error.message, 500), "error")
            return
        await ui.controller.send_prompt(
            prompt.text,
            origins=prompt.origins or (),
            changed=ui.redraw,
            undelivered=lambda _: ui.return_input(line),
        )

    return SlashCommand(definition.name, _command_note(definition), send_command, definition.hint), argument.strip()


def _command_note(command: CustomCommand) -> str:
    return f"{clean_line(command.description, 80)} ({clean_line(command.origin, 60)})"


def _write_instructions(settings: Settings, path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.endswith("\n") else f"{text}\n", encoding="utf-8")
    trust = _trust(settings)
    if trust.trusted:
        trust.remember_files()  # the user has written the change, so it needs no notice


def _read_text(path: Path) -> str | None:
    """Returns the text of a file, "" if it does not exist, or None if it is no UTF-8 text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
    except FileNotFoundError:
        return ""


def _context_text(used: int, limit: int | None) -> str:
    return f"{format_tokens(used)} of {format_tokens(limit)} tokens" if limit else f"{format_tokens(used)} tokens"


def _cell(value: str) -> str:
    return clean_line(value, 300).replace("|", "\\|")


def _project(settings: Settings) -> ProjectFolder:
    return find_project(settings.workspace, settings.home_folder)


def _trust(settings: Settings) -> WorkspaceTrust:
    return WorkspaceTrust(_project(settings), settings.folders.trust_file)


def _trust_state(settings: Settings) -> str:
    return _trust(settings).state
