"""Runs a shell command, and waits for it or leaves it in the background."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from outrider.errors import ProcessError, ToolFailure
from outrider.processes.output import Pacer, plain_text
from outrider.processes.supervisor import Outcome, Supervisor, TimeLimit
from outrider.tools.command_output import noted, told_output
from outrider.tools.context import Progress, ToolContext
from outrider.tools.tool import Tool, ToolResult, argument_aliases, prompt_beside
from outrider.types.ids import new_id

AtLimit = Literal["kill", "background"]

SECONDS, MOST_SECONDS = 120.0, 600.0
EARLY = 0.5  # seconds in which a process in the background that fails at once is seen to
MILLISECONDS = 1_000  # so many seconds nobody may ask for, so it was meant in milliseconds
AT_LIMIT: dict[AtLimit, str] = {"kill": "is killed", "background": "goes on in the background"}
ALIASES = {
    "cmd": "command",
    "script": "command",
    "cwd": "workdir",
    "directory": "workdir",
    "working_directory": "workdir",
    "run_in_background": "background",
    "is_background": "background",
}
_rename = argument_aliases(ALIASES)


def shell_tool(supervisor: Supervisor, *, at_limit: AtLimit = "kill") -> Tool:
    async def shell(
        command: str,
        context: ToolContext,
        description: Annotated[str, "in a few words"] = "",
        timeout: Annotated[float, "seconds, at most 600"] = SECONDS,  # noqa: ASYNC109  the word that models know
        workdir: str = "",
        background: bool = False,  # noqa: FBT001, FBT002  models fill it in by name
    ) -> ToolResult:
        if not command.strip():
            raise ToolFailure("`command` is empty; nothing was run")
        title = description or command.strip().partition("\n")[0][:100]
        context.report(Progress(title=title))
        try:
            if background:
                return await _start(supervisor, command, context.workspace / workdir, context, title)
            limit = TimeLimit(min(max(timeout, 0.0), MOST_SECONDS), at_limit)
            outcome = await _run(supervisor, command, context.workspace / workdir, context, limit)
        except ProcessError as error:
            raise ToolFailure(error.message) from error
        return _told(outcome, title, limit)

    description = prompt_beside(__file__, at_limit=AT_LIMIT[at_limit])
    return Tool(shell, description=description, preprocess_args=prepared, plan=True, unsaid=("description",))


def prepared(arguments: dict[str, Any]) -> dict[str, Any]:
    """Some models give a list of words for a command, and milliseconds for a time."""
    arguments = _rename(arguments)
    if isinstance(words := arguments.get("command"), list):
        arguments["command"] = _joined([str(word) for word in words])  # pyright: ignore
    if isinstance(milliseconds := arguments.pop("timeout_ms", None), int | float):
        arguments["timeout"] = milliseconds / 1000
    elif isinstance(timeout := arguments.get("timeout"), int | float) and timeout >= MILLISECONDS:
        arguments["timeout"] = timeout / 1000
    return {name: value for name, value in arguments.items() if value is not None}


def _joined(words: Sequence[str]) -> str:
    match words:
        case [shell, "-c" | "-lc", command] if Path(shell).name in {"bash", "sh", "zsh"}:
            return command
        case _:
            return shlex.join(words)


async def _run(supervisor: Supervisor, command: str, workdir: Path, context: ToolContext, limit: TimeLimit) -> Outcome:
    shown = Pacer(lambda text: context.report(Progress(plain_text(text))))
    try:
        return await supervisor.run_command(
            context.call_id or new_id(),
            command,
            shown.feed,
            workdir=workdir,
            limit=limit,
            session_id=context.session_id,
        )
    finally:
        shown.flush()  # also before an early end, for which the runner keeps what was reported


async def _start(supervisor: Supervisor, command: str, workdir: Path, context: ToolContext, title: str) -> ToolResult:
    call_id = context.call_id or new_id()
    started = await supervisor.start_command(call_id, command, workdir=workdir, session_id=context.session_id)
    return _told_to_run_on(await supervisor.wait(started.id, EARLY), title)


def _told(outcome: Outcome, title: str, limit: TimeLimit) -> ToolResult:
    ending = outcome.ending
    if ending is None:
        return _told_to_run_on(outcome, title)
    match ending.cause:
        case "timeout":
            raise ToolFailure(f"killed after its time limit of {limit.seconds:g} s", reason="timeout")
        case "killed" | "memory" | "lost":
            raise ToolFailure(ending.words)
        case "exited" | "signaled":
            text = noted(told_output(outcome.output), "" if ending.succeeded else ending.words)
            return ToolResult(noted(text, outcome.note), title=title, metadata=_about(outcome))


def _told_to_run_on(outcome: Outcome, title: str) -> ToolResult:
    if outcome.ending is None:
        note = f"it runs on in the background; its process_id is {outcome.process_id}"
    else:
        note = f"it was started in the background and has ended: {outcome.ending.words}"
    return ToolResult(noted(told_output(outcome.output), note), title=title, metadata=_about(outcome))


def _about(outcome: Outcome) -> dict[str, Any]:
    path = outcome.output.path
    return {
        "process_id": outcome.process_id,
        "exit_code": outcome.exit_code,
        "running": outcome.ending is None,
        "duration_ms": outcome.duration_ms,
        "bytes": outcome.output.size,
        "path": str(path) if path else None,
    }
