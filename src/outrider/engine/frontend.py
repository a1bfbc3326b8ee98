"""Operations for front ends: manual tool calls, user commands, processes, attachments and models of a session."""

import asyncio
import base64
import mimetypes
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from outrider._posix import O_DIRECTORY, check_place
from outrider.agents.compaction import estimate_message_tokens, estimate_text_tokens
from outrider.agents.delegation import open_agent_context
from outrider.agents.run_context import AgentContext
from outrider.agents.tool_calls import HookRunner, ToolCallRunner
from outrider.agents.turn_state import is_cut_off
from outrider.context.lower import apply_compaction
from outrider.engine.approval_gate import ApprovalGate
from outrider.engine.archive import SessionArchive
from outrider.engine.engine import Engine
from outrider.engine.live_session import LiveSession
from outrider.engine.questions import AskedQuestion, QuestionQueue
from outrider.errors import ProcessError, ToolFailure
from outrider.models.clients import shared_catalog
from outrider.permissions import reasons
from outrider.permissions.modes import MODE_TABLE, Decision
from outrider.permissions.paths.containment import lock_file, write_private_file
from outrider.permissions.redaction.terminal import is_fully_visible
from outrider.presentation.formats import format_bytes, format_cost, format_tokens
from outrider.processes.launch import keep_launch_unchanged
from outrider.processes.output import OutputSlice, plain_text
from outrider.processes.supervisor import ProcessStatus, ProcessSupervisor
from outrider.providers.catalog import store_server_facts
from outrider.sessions.records import Approval, ApprovalScope
from outrider.sessions.session import Session
from outrider.tools.search import list_files
from outrider.tools.tool import AskUser, Tool, ToolContext, UserQuestion
from outrider.tools.workspace_files import EditorFiles
from outrider.types.agents import Provider
from outrider.types.ids import new_id, now_ms
from outrider.types.messages import Message
from outrider.types.parts import FilePart, FileSource, ModelRef, TextPart, TextRange, ToolPart
from outrider.types.request import ServerOverview, ToolSpec
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, make_data_url

if TYPE_CHECKING:
    from outrider.models.context_ledger import ContextReport
    from outrider.models.live_models import LiveModel
    from outrider.project.mcp import ServerOffers
    from outrider.project.mcp_completion import InputCompletion
    from outrider.sessions.message_formats import MessageFormat

# With re-exports: front ends import types of lower layers from the engine.
__all__ = [
    "MAX_COMMAND_OUTPUT",
    "Approval",
    "ApprovalScope",
    "AskUser",
    "AskedQuestion",
    "CallPreview",
    "ContextShare",
    "Decision",
    "EditorFiles",
    "OutputSlice",
    "ProcessStatus",
    "QuestionQueue",
    "ToolContext",
    "ToolSpec",
    "UserCommandEnd",
    "UserQuestion",
    "add_history",
    "archive_of",
    "attach_file",
    "background_processes",
    "catalog_models",
    "complete_input",
    "context_limit",
    "context_shares",
    "denying_rule",
    "describe_model",
    "end_process",
    "file_part",
    "is_attachable",
    "last_shares",
    "list_models",
    "list_offers",
    "list_processes",
    "list_servers",
    "lock_file",
    "preview_call",
    "read_conversation",
    "read_process_output",
    "run_embedded_command",
    "run_manual_call",
    "run_user_command",
    "send_input",
    "send_to_background",
    "session_servers",
    "session_tool_specs",
    "user_command_part",
    "was_cut_off",
    "workspace_files",
    "write_private_file",
]


MAX_FAILURE_CHARS = 2000  # of the output of a command that failed


class CallPreview(msgspec.Struct, frozen=True):
    """The input as it would run, and the permission decision about it."""

    input: dict[str, Any]
    decision: Decision


async def session_tool_specs(engine: Engine, session_id: str) -> Sequence[ToolSpec]:
    """Returns the tools that the session's agent has in its mode."""
    return (await _open_context(engine, session_id))[0].tool_specs


MAX_SHARES = 20


class ContextShare(msgspec.Struct, frozen=True):
    """A part of the prompt and its number of tokens."""

    name: str
    tokens: int


async def context_shares(engine: Engine, session_id: str) -> list[ContextShare]:
    """Returns what the last request of a session consists of; without a recorded request, estimates the next prompt."""
    from outrider.models.context_ledger import build_report  # lazy: it loads prices

    context, live = await _open_context(engine, session_id)
    report = await asyncio.to_thread(build_report, session_id, list(live.session.messages))
    if shares := last_shares(report):
        return shares
    tools = {"tools": 0, "tools of MCP servers": 0}
    for spec in context.tool_specs:
        kind = "tools of MCP servers" if spec.name.startswith("mcp__") else "tools"
        tools[kind] += estimate_text_tokens(msgspec.json.encode(spec).decode())
    messages = apply_compaction(live.session.messages)
    by_role = {
        name: sum(estimate_message_tokens(message) for message in messages if message.role == role)
        for name, role in (("your messages and summaries", "user"), ("answers, calls and results", "assistant"))
    }
    tokens_by_source = {"system prompt": estimate_text_tokens(context.system_prompt), **tools, **by_role}
    return [ContextShare(name, tokens) for name, tokens in tokens_by_source.items() if tokens]


def last_shares(report: "ContextReport") -> list[ContextShare]:
    """Returns the sources of the last request that was recorded, the largest ones first."""
    last_step = next((step for step in reversed(report.steps) if step.sources and step.step), None)
    sources = (
        [
            (f"{source.kind}: {source.name}" if source.name else source.kind, source.tokens)
            for source in last_step.sources
        ]
        if last_step
        else []
    )
    shares = [ContextShare(name, tokens) for name, tokens in sources[:MAX_SHARES]]
    remaining = sum(tokens for _, tokens in sources[MAX_SHARES:])
    return [*shares, ContextShare("other sources", remaining)] if remaining else shares


def list_servers(engine: Engine) -> list[ServerOverview]:
    """Returns the state of each MCP server, with the cause of a failure."""
    servers = engine.runtime.mcp_servers
    return servers.describe_servers() if servers else []


async def list_offers(engine: Engine, workspace: Path | None = None) -> "ServerOffers":
    """Returns the prompts and resources of the MCP servers that are ready."""
    from outrider.project.mcp import ServerOffers  # lazy: most users have no servers

    servers = engine.runtime.mcp_servers
    return await servers.list_offers(workspace) if servers else ServerOffers()


async def complete_input(engine: Engine, text: str, workspace: Path | None = None) -> "InputCompletion":
    """Returns how MCP servers complete the end of an input: arguments of prompts and values in the addresses of
    resources."""
    from outrider.project.mcp_completion import InputCompletion

    servers = engine.runtime.mcp_servers
    return await servers.complete_input(text, workspace) if servers else InputCompletion()


async def session_servers(engine: Engine, session_id: str) -> list[ServerOverview]:
    """Connects the MCP servers of the session, and waits as long as the first turn would wait for them. Returns their
    states."""
    live = engine.live[session_id]
    servers = engine.runtime.mcp_servers
    if servers is None or live.session_tools is None:
        return []
    await live.session_tools.refresh_mcp_tools()
    return servers.describe_servers(Path(live.session.workspace_directory or "."))


async def preview_call(engine: Engine, session_id: str, tool: str, tool_input: dict[str, Any]) -> CallPreview:
    """Prepares and checks a call without running it and without requesting an approval."""
    context, _ = await _open_context(engine, session_id)
    named_tool = _find_tool(context, tool)
    prepared = await named_tool.preprocess(tool_input, context.run.program.callbacks)
    gate = context.run.gate
    assert isinstance(gate, ApprovalGate)
    return CallPreview(prepared, await gate.decide(_pending_call(tool, prepared), named_tool, context))


async def run_manual_call(
    engine: Engine,
    session_id: str,
    tool: str,
    tool_input: dict[str, Any],
    on_child: Callable[[str], object] = lambda _: None,
) -> ToolPart:
    """Runs a tool call of the user in a new child session, so that a running turn is not disturbed. Rules and approvals
    apply as for an agent. `on_child` gets the id of the child session, whose approvals a front end shows, before the
    call starts. Returns the ended call; its `session_id` names the child session."""
    context, live = await _open_context(engine, session_id)
    _find_tool(context, tool)
    parent = live.journal.session
    child = Session(
        title=f"{tool}, called manually",
        workspace_directory=parent.workspace_directory,
        mode=parent.mode,
        agent=parent.agent,
        parent_id=parent.id,
        owner=parent.owner,
        approval=parent.approval,
    )
    async with await context.run.child_sessions.open_child(child) as journal:
        on_child(journal.session.id)
        call_context = open_agent_context(context.agent, journal, context.run)
        await journal.add_message(Message("user", [TextPart(f"{tool}, called manually", synthetic=True)]))
        message = Message("assistant", [_pending_call(tool, tool_input)], agent=context.agent.name)
        await journal.add_message(message)
        (ended,) = await ToolCallRunner(call_context, HookRunner(call_context), message).run()
    return ended


async def run_embedded_command(
    engine: Engine,
    session_id: str,
    command: str,
    allowed: Sequence[str] | None,
    on_child: Callable[[str], object],
) -> ToolPart:
    """Runs a shell command of a command file as a call of the agent: in its sandbox, with its rules and approvals.
    `allowed` are the rules of the file, which only limit; None is no limit. Returns the completed call. Raises
    ToolFailure if the command was refused, failed or continues in the background."""
    from outrider.permissions.call_assessment import ShellCall  # lazy: the shell grammar is slow to load
    from outrider.permissions.rules import parse_rule

    workspace = engine.live[session_id].session.workspace_directory or "."
    if allowed is not None:
        call = await asyncio.to_thread(ShellCall, "shell", {"command": command}, workspace, ())
        if not call.is_limited_to([parse_rule(text) for text in allowed]):
            raise ToolFailure(f"allowed-tools of the file does not include it ({', '.join(allowed) or 'empty'})")
    ended = await run_manual_call(engine, session_id, "shell", {"command": command}, on_child)
    state = ended.state
    if not isinstance(state, ToolCompleted):
        raise ToolFailure(state.error if isinstance(state, ToolError) else "it has not ended")
    if state.metadata.get("running") or state.metadata.get("exit_code") != 0:
        raise ToolFailure(state.output[-MAX_FAILURE_CHARS:])
    return ended


async def denying_rule(engine: Engine, session_id: str, command: str) -> str | None:
    """Returns the deny rule that also forbids a command of the user, or None."""
    from outrider.permissions.policy import decide  # lazy: the shell grammar is slow to load

    context, _ = await _open_context(engine, session_id)
    deny = (*engine.runtime.rules.deny, *context.deny_rules)
    decision = decide("shell", {"command": command}, mode="agent", deny=deny, workspace=context.workspace)
    return decision.rule if decision.effect == "deny" else None


async def _open_context(engine: Engine, session_id: str) -> tuple[AgentContext, LiveSession]:
    """Opens the session and returns a side context of its agent, and the session."""
    await engine.open(session_id)
    live = engine.live[session_id]
    return live.open_side_context(), live


def _find_tool(context: AgentContext, tool: str) -> Tool:
    if tool not in context.tools:
        raise ToolFailure(f"there is no tool {tool!r} here; there are {', '.join(sorted(context.tools)) or 'none'}")
    return context.tools[tool]


def _pending_call(tool: str, tool_input: dict[str, Any]) -> ToolPart:
    return ToolPart(call_id=new_id(), tool=tool, state=ToolPending(tool_input, phase="ready"))


MAX_COMMAND_OUTPUT = 20_000
"""Characters of the output of a user's command that are sent to the model."""


class UserCommandEnd(msgspec.Struct, frozen=True):
    """How a command of the user ended; `words` describes it. A command that continues in the background has not
    failed."""

    words: str
    succeeded: bool = False


async def run_user_command(
    engine: Engine, session_id: str, command: str, on_output: Callable[[str], object]
) -> UserCommandEnd:
    """Runs a shell command of the user without approval. In agent mode it runs outside the sandbox, as in the user's
    own terminal, unless the owner of the session is limited. Cancelling kills it."""
    live = engine.live[session_id]
    if live.session_tools is None:
        raise ProcessError("this engine has no built-in tools and runs no commands")
    is_free = live.session_tools.owner_limits is None
    if not is_free and not live.session_tools.can_confine:
        raise ToolFailure(reasons.OWNER_NEEDS_SANDBOX)
    outcome = await live.session_tools.supervisor.run_command(
        f"by-hand-{new_id()}",
        command,
        lambda text: on_output(plain_text(text)),
        workdir=Path(live.journal.session.workspace_directory or "."),
        session_id=session_id,
        wrap=keep_launch_unchanged if is_free and MODE_TABLE[live.session.mode].outcomes == "ask" else None,
    )
    if outcome.ending is None:
        return UserCommandEnd("runs on in the background", succeeded=True)
    return UserCommandEnd(outcome.ending.description, outcome.ending.succeeded)


def user_command_part(command: str, output: str, status: str, *, part_id: str = "") -> TextPart:
    """Returns what the model reads of a command that the user ran. The information flow policy takes the origins of the
    output from the metadata, and front ends show the command from there."""
    note = f"The user ran a command: {command}\n{output[-MAX_COMMAND_OUTPUT:]}\n({status})"
    return TextPart(note, synthetic=True, id=part_id or new_id(), metadata={"command": command, "output": output})


def background_processes(engine: Engine, session_id: str) -> list[ProcessStatus]:
    """Returns the background processes of a session, running or ended, oldest first."""
    live = engine.live.get(session_id)
    if live is None or live.session_tools is None:
        return []
    return [process for process in live.session_tools.supervisor.list_processes(session_id) if process.backgrounded]


def list_processes(engine: Engine, session_id: str) -> list[ProcessStatus]:
    """Returns all processes of a session, including those that a call waits for."""
    live = engine.live.get(session_id)
    return (
        [] if live is None or live.session_tools is None else live.session_tools.supervisor.list_processes(session_id)
    )


async def end_process(engine: Engine, session_id: str, process_id: str) -> bool:
    """Kills a process; returns whether it was running."""
    live = engine.live.get(session_id)
    return (
        live is not None
        and live.session_tools is not None
        and await live.session_tools.supervisor.kill_process(process_id)
    )


def read_process_output(engine: Engine, session_id: str, process_id: str, offset: int | None = None) -> OutputSlice:
    """Returns a chunk of a process's output: from `offset`, or else its end. The position from which the model reads
    next does not change."""
    return _find_supervisor(engine, session_id, process_id).peek(process_id, offset)


async def send_input(engine: Engine, session_id: str, process_id: str, text: str, *, last: bool) -> None:
    """Writes text to the standard input of a process; with `last`, closes the stream. Raises ProcessError for an
    unknown process."""
    await _find_supervisor(engine, session_id, process_id).write(process_id, text, last=last)


def send_to_background(engine: Engine, session_id: str, process_id: str) -> bool:
    """Lets the waiting call return while the command continues. Returns False if the command has ended or already runs
    in the background."""
    return _find_supervisor(engine, session_id, process_id).mark_as_backgrounded(process_id)


def _find_supervisor(engine: Engine, session_id: str, process_id: str) -> ProcessSupervisor:
    live = engine.live.get(session_id)
    if (
        live is None
        or live.session_tools is None
        or all(process.id != process_id for process in list_processes(engine, session_id))
    ):
        raise ProcessError(f"the session has no process {process_id!r}")
    return live.session_tools.supervisor


MAX_LISTED_FILES = 30_000
MAX_ATTACHMENT_BYTES = 20 * 1024 * 1024
_ATTACHABLE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf")


async def workspace_files(workspace: Path, *, exact: bool = False) -> list[str]:
    """Returns relative paths of files that are not ignored, at most `MAX_LISTED_FILES`, files near the top first. Names
    with unprintable characters are left out. With `exact`, the list is empty if the path of the workspace contains a
    link."""
    try:
        folder = os.open(workspace, os.O_RDONLY | O_DIRECTORY)
    except OSError:
        return []
    try:
        if exact:
            check_place(folder, str(workspace))
        names = await list_files(folder, str(workspace))
    except OSError:
        return []
    finally:
        os.close(folder)
    return await asyncio.to_thread(_sort_paths, names)


def match_names(typed: str, names: Sequence[str], limit: int) -> list[str]:
    """Returns the paths that contain the typed letters in order; matches in the file name rank before the folders."""
    typed = typed.strip('"').lower()
    if not typed:
        return list(names[:limit])
    scored = ((score, name) for name in names if (score := _match_score(typed, name.lower())) is not None)
    return [name for _, name in sorted(scored)[:limit]]


def _match_score(typed: str, name: str) -> tuple[int, int] | None:
    """Returns the sort key of a match (lower is better), or None if the name does not match."""
    file_name = name.rpartition("/")[2]
    if file_name.startswith(typed):
        return 0, len(name)
    if typed in file_name:
        return 1, len(name)
    if typed in name:
        return 2, len(name)
    return (3, len(name)) if _has_letters_in_order(typed, name) else None


def _has_letters_in_order(typed: Iterable[str], name: str) -> bool:
    letters = iter(name)
    return all(letter in letters for letter in typed)


def _sort_paths(names: list[str]) -> list[str]:
    visible = (name for name in names if is_fully_visible(name))
    return sorted(visible, key=lambda name: (name.count("/"), name))[:MAX_LISTED_FILES]


def is_attachable(path: Path) -> bool:
    """Returns whether a file is attached to the message (image, PDF) instead of being read by a tool."""
    return mimetypes.guess_type(path.name)[0] in _ATTACHABLE_TYPES and path.is_file()


def is_denied_file(path: Path, deny: Sequence[str], workspace: Path) -> bool:
    """Returns whether a deny rule forbids reading a file."""
    if not deny:
        return False
    from outrider.permissions.rules import DeniedReads  # lazy: most users have no such rules

    return DeniedReads(deny, workspace).includes(str(path.expanduser().resolve()))


def attach_file(
    path: Path, deny: Sequence[str] = (), workspace: Path | None = None, mention: TextRange | None = None
) -> FilePart:
    """Returns the file as a message part; `mention` is its position in the user's text. Raises OSError if it cannot be
    read, and ValueError if it is too large or a deny rule forbids reading it."""
    if is_denied_file(path, deny, workspace or Path.cwd()):
        raise ValueError(f"{path.name}: a rule forbids reading it")
    size = path.stat().st_size
    if size > MAX_ATTACHMENT_BYTES:
        raise ValueError(
            f"{path.name} has {format_bytes(size)}; at most {format_bytes(MAX_ATTACHMENT_BYTES)} can be attached"
        )
    return file_part(path, path.read_bytes(), FileSource(str(path), mention))


def file_part(path: Path, content: bytes, source: FileSource | None = None) -> FilePart:
    """Returns the content of a file as a message part."""
    mime = _detect_mime(path.name, content)
    return FilePart(mime, make_data_url(mime, base64.b64encode(content).decode()), path.name, source)


def _detect_mime(name: str, content: bytes) -> str:
    """Returns the media type: text/plain for text that is not an image or a PDF, because names such as `main.ts` are
    registered as video or not at all; else the type that follows from the name."""
    mime = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if mime.startswith(("image/", "application/pdf")) or b"\0" in content:
        return mime
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return mime
    return "text/plain"


def read_conversation(messages: Iterable[Any], format: "MessageFormat") -> list[Message]:
    """Returns messages that another program sent, in the format of a vendor's API. Raises PartValidationError with the
    index of an invalid one."""
    from outrider.sessions.message_formats import read_messages  # lazy: only servers of other protocols need it

    return read_messages(messages, now_ms(), format)


async def add_history(engine: Engine, session_id: str, messages: Iterable[Message]) -> None:
    """Appends messages of an earlier conversation to a session without a turn."""
    await engine.open(session_id)
    for message in messages:
        await engine.live[session_id].journal.add_message(message)


async def list_models(providers: Iterable[Provider]) -> list[ModelRef]:
    """Returns the chat models of the providers, newest first: the models that their servers list, or else the models of
    the catalog. Two providers with the same server and key are listed once. The catalog stores what the servers report
    about the models."""
    from outrider.models.live_models import fetch_models  # lazy: it loads the HTTP client

    distinct = _distinct_providers(providers)
    async with asyncio.TaskGroup() as group:
        fetched = [(provider, group.create_task(fetch_models(provider))) for provider in distinct]
    listed = [(provider, order_live_models(provider, live.result() or ())) for provider, live in fetched]
    return [ModelRef(provider.name, name) for provider, live in listed for name in live or _model_names(provider)]


def order_live_models(provider: Provider, live: "Sequence[LiveModel]") -> list[str]:
    """Returns the names of a server's models. If the server does not report their age, models that the catalog does not
    know come first, and the others follow in the order of the catalog."""
    store_server_facts(provider.kind, provider.base_url, {model.name: model.facts for model in live})
    names = [model.name for model in live]
    if not live or any(model.created for model in live):
        return names
    positions = {name: position for position, name in enumerate(_model_names(provider), 1)}
    return sorted(names, key=lambda name: positions.get(name, 0))


def catalog_models(providers: Iterable[Provider]) -> list[ModelRef]:
    """Returns the models that the catalog lists for the providers, newest first, without asking their servers."""
    distinct = _distinct_providers(providers)
    return [ModelRef(provider.name, name) for provider in distinct for name in _model_names(provider)]


def _distinct_providers(providers: Iterable[Provider]) -> list[Provider]:
    vendor = {"openai-responses": "openai"}
    by_endpoint: dict[tuple[str, str | None, str | None], Provider] = {}
    for provider in providers:
        if provider.kind not in ("scripted", "outrider"):
            kind = vendor.get(provider.kind, provider.kind)
            by_endpoint.setdefault((kind, provider.base_url, provider.api_key), provider)
    return list(by_endpoint.values())


def context_limit(providers: Iterable[Provider], model: ModelRef) -> int | None:
    """Returns the context size of a model in tokens, or None if it is unknown."""
    provider = next((candidate for candidate in providers if candidate.name == model.provider), None)
    if provider is None or provider.kind in ("scripted", "outrider"):
        return None
    if provider.kind == "local":
        from outrider.models.local_models import runtime_limits

        return runtime_limits(provider).context
    return shared_catalog().context_limit(provider.kind, model.model, base_url=provider.base_url)


def describe_model(providers: Iterable[Provider], model: ModelRef) -> str:
    """Returns context size and prices of a model on one line; "" if neither is known. Longer prompts may cost more."""
    provider = next((candidate for candidate in providers if candidate.name == model.provider), None)
    if provider is None or provider.kind in ("scripted", "outrider", "local"):
        return ""
    catalog, base_url = shared_catalog(), provider.base_url
    context = catalog.context_limit(provider.kind, model.model, base_url=base_url)
    prices = catalog.prices(provider.kind, model.model, base_url=base_url)
    facts = [f"{format_tokens(context)} context"] if context else []
    if prices is not None:
        facts.append(f"{format_cost(prices.input)} in, {format_cost(prices.output)} out per 1M tokens")
    return " · ".join(facts)


def _model_names(provider: Provider) -> Iterable[str]:
    if provider.kind == "local":
        from outrider.models.local_models import KNOWN_WEIGHTS

        return [weights.name for weights in KNOWN_WEIGHTS]
    return shared_catalog().list_models(provider.kind, base_url=provider.base_url)


def was_cut_off(messages: Sequence[Message]) -> bool:
    """Returns whether the last turn was interrupted and can be resumed."""
    return is_cut_off(messages)


def archive_of(engine: Engine) -> SessionArchive:
    """Returns the archive of an engine's store. Deleting a session there also deletes its undo data."""
    return SessionArchive(engine.store, engine.runtime.data)
