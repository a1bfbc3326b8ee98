"""Calls that somebody makes by hand: looked at before they run, and run as if an agent had made them."""

import asyncio
import base64
import mimetypes
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from outrider.agents.delegation import open_agent_context
from outrider.agents.run_context import AgentContext
from outrider.agents.tool_calls import ToolCallRunner
from outrider.agents.turn_state import is_cut_off
from outrider.engine.approval_gate import ApprovalGate
from outrider.engine.archive import Archive
from outrider.engine.engine import Engine
from outrider.engine.live_session import LiveSession
from outrider.engine.questions import AskedQuestion, OpenQuestions
from outrider.errors import ProcessError, ToolFailure
from outrider.models.clients import known_models
from outrider.models.local.weights import KNOWN, limits_of
from outrider.permissions.modes import Decision
from outrider.permissions.redaction.terminal import shows_everything
from outrider.processes.output import OutputSlice, plain_text
from outrider.processes.supervisor import ProcessStatus, Supervisor
from outrider.sessions.records import Approval, ApprovalScope
from outrider.sessions.session import Session
from outrider.tools.builtin.question import Ask, Question
from outrider.tools.context import ToolContext
from outrider.tools.search import list_files
from outrider.tools.tool import Tool
from outrider.types.agents import Provider
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.parts import FilePart, FileSource, ModelRef, TextPart, ToolPart
from outrider.types.request import ToolSpec
from outrider.types.tool_state import ToolPending

__all__ = ["CallPreview", "Decision", "ToolSpec", "call_by_hand", "denying_rule", "look_at_call", "tools_of_session"]


class CallPreview(msgspec.Struct, frozen=True):
    """The input as it would run, and what the rules say to it."""

    input: dict[str, Any]
    decision: Decision


async def tools_of_session(engine: Engine, session_id: str) -> Sequence[ToolSpec]:
    """The tools that the session's agent has in its mode."""
    return (await _seat(engine, session_id))[0].specs


async def look_at_call(engine: Engine, session_id: str, tool: str, given: dict[str, Any]) -> CallPreview:
    """Nothing runs, and nobody is asked."""
    seat, _ = await _seat(engine, session_id)
    found = _find(seat, tool)
    prepared = found.prepare(given)
    gate = seat.crew.gate
    assert isinstance(gate, ApprovalGate)
    return CallPreview(prepared, gate.decide(_call(tool, prepared), found, seat))


async def call_by_hand(engine: Engine, session_id: str, tool: str, given: dict[str, Any]) -> ToolPart:
    """Runs in a session of its own below the one that is named, so that a turn under way there is not disturbed. Rules
    and approvals hold as for an agent; the ended call comes back, and its `session_id` says where it is kept."""
    seat, live = await _seat(engine, session_id)
    _find(seat, tool)
    parent = live.journal.session
    child = Session(
        title=f"{tool} by hand",
        workspace_directory=parent.workspace_directory,
        mode=parent.mode,
        agent=parent.agent,
        parent_id=parent.id,
    )
    async with await seat.crew.open_journal(child) as journal:
        own = open_agent_context(seat.agent, journal, seat.crew)
        await journal.add_message(Message("user", [TextPart(f"{tool}, called by hand", synthetic=True)]))
        message = Message("assistant", [_call(tool, given)], agent=seat.agent.name)
        await journal.add_message(message)
        (ended,) = await ToolCallRunner(own, seat.crew).run(message)
    return ended


async def denying_rule(engine: Engine, session_id: str, command: str) -> str | None:
    """The rule that denies a command also to people who would run it themselves; None if there is none."""
    from outrider.permissions.policy import decide  # with the first command: a shell's grammar takes long to load

    seat, _ = await _seat(engine, session_id)
    deny = (*engine.staff.rules.deny, *seat.deny)
    found = decide("shell", {"command": command}, mode="agent", deny=deny, workspace=seat.workspace)
    return found.rule if found.effect == "deny" else None


async def _seat(engine: Engine, session_id: str) -> tuple[AgentContext, LiveSession]:
    await engine.open(session_id)
    live = engine.live[session_id]
    return live.visitor(), live


def _find(seat: AgentContext, tool: str) -> Tool:
    if tool not in seat.tools:
        raise ToolFailure(f"there is no tool {tool!r} here; there are {', '.join(sorted(seat.tools)) or 'none'}")
    return seat.tools[tool]


def _call(tool: str, given: dict[str, Any]) -> ToolPart:
    return ToolPart(call_id=new_id(), tool=tool, state=ToolPending(given, phase="ready"))


__all__ = [
    "OutputSlice", "ProcessStatus", "end_process", "output_of", "processes", "run_by_hand", "running", "send_input",
    "send_to_background",
]  # fmt: skip


async def run_by_hand(engine: Engine, session_id: str, command: str, on_output: Callable[[str], object]) -> str:
    """How it ended, in words. Nobody is asked: the user wrote it. Cancelling kills it."""
    live = engine.live[session_id]
    if live.toolbox is None:
        raise ProcessError("this engine runs no commands")
    outcome = await live.toolbox.supervisor.run_command(
        f"by-hand-{new_id()}",
        command,
        lambda text: on_output(plain_text(text)),
        workdir=Path(live.journal.session.workspace_directory or "."),
        session_id=session_id,
    )
    return "runs on in the background" if outcome.ending is None else outcome.ending.words


def processes(engine: Engine, session_id: str) -> list[ProcessStatus]:
    """What runs or ran in the background of a session, oldest first."""
    live = engine.live.get(session_id)
    if live is None or live.toolbox is None:
        return []
    return [found for found in live.toolbox.supervisor.list_processes(session_id) if found.backgrounded]


def running(engine: Engine, session_id: str) -> list[ProcessStatus]:
    """The same with the commands that a call still waits for."""
    live = engine.live.get(session_id)
    return [] if live is None or live.toolbox is None else live.toolbox.supervisor.list_processes(session_id)


async def end_process(engine: Engine, session_id: str, process_id: str) -> bool:
    live = engine.live.get(session_id)
    return live is not None and live.toolbox is not None and await live.toolbox.supervisor.kill_process(process_id)


def output_of(engine: Engine, session_id: str, process_id: str, offset: int | None = None) -> OutputSlice:
    """A piece of what a process wrote: from `offset` on, or its end."""
    return _supervisor(engine, session_id, process_id).read(process_id, offset)


async def send_input(engine: Engine, session_id: str, process_id: str, text: str, *, last: bool) -> None:
    await _supervisor(engine, session_id, process_id).write(process_id, text, last=last)


def send_to_background(engine: Engine, session_id: str, process_id: str) -> bool:
    """Whoever waits for the command waits no more; False if it had ended, or was there already."""
    return _supervisor(engine, session_id, process_id).mark_as_backgrounded(process_id)


def _supervisor(engine: Engine, session_id: str, process_id: str) -> Supervisor:
    live = engine.live.get(session_id)
    if live is None or live.toolbox is None or all(one.id != process_id for one in running(engine, session_id)):
        raise ProcessError(f"the session has no process {process_id!r}")
    return live.toolbox.supervisor


MOST = 30_000
LARGEST = 20 * 1024 * 1024
_ATTACHED = ("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf")


async def workspace_files(workspace: Path) -> list[str]:
    """Relative paths of what is not ignored, those near the top first; at most MOST, and none that a terminal could
    not show as it is."""
    try:
        folder = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return []
    try:
        found = await list_files(folder, str(workspace))
    finally:
        os.close(folder)
    return await asyncio.to_thread(_ordered, found)


def _ordered(names: list[str]) -> list[str]:
    shown = (name for name in names if shows_everything(name))
    return sorted(shown, key=lambda name: (name.count("/"), name))[:MOST]


def is_attachable(path: Path) -> bool:
    """Whether a file goes along as it is (an image, a PDF) instead of being read by a tool."""
    return mimetypes.guess_type(path.name)[0] in _ATTACHED and path.is_file()


def attached(path: Path) -> FilePart:
    """Raises OSError for a file that cannot be read, and ValueError for one that is too large."""
    size = path.stat().st_size
    if size > LARGEST:
        raise ValueError(f"{path.name} has {size / 1024**2:.0f} MB; at most {LARGEST // 1024**2} can go along")
    mime = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    content = base64.b64encode(path.read_bytes()).decode()
    return FilePart(mime, f"data:{mime};base64,{content}", path.name, FileSource(str(path)))


def models_of(providers: Iterable[Provider]) -> list[ModelRef]:
    """Every model that is listed for the providers, by name; those of a server of one's own are not known."""
    return [
        ModelRef(provider.name, name)
        for provider in providers
        if provider.kind not in ("scripted", "outrider")
        for name in _names(provider)
    ]


def context_limit(providers: Iterable[Provider], model: ModelRef) -> int | None:
    """How many tokens a model holds; None where nobody knows."""
    provider = next((found for found in providers if found.name == model.provider), None)
    if provider is None or provider.kind in ("scripted", "outrider"):
        return None
    if provider.kind == "local":
        return limits_of(provider).context
    return known_models().context_limit(provider.kind, model.model, base_url=provider.base_url)


def _names(provider: Provider) -> Iterable[str]:
    if provider.kind == "local":
        return [weights.name for weights in KNOWN]
    return known_models().models(provider.kind, base_url=provider.base_url)


__all__ = ["Approval", "ApprovalScope", "Ask", "AskedQuestion", "OpenQuestions", "Question", "ToolContext"]


def was_cut_off(session: Session) -> bool:
    """Whether the last turn broke off and could go on."""
    return is_cut_off(session.messages)


def archive_of(engine: Engine) -> Archive:
    """The sessions that are kept where an engine keeps its own; what is deleted there takes its undo along."""
    return Archive(engine.store, engine.staff.data)
