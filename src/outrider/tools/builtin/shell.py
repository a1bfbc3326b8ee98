"""The `shell` tool: runs a shell command in the foreground or background."""

import shlex
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import msgspec

from outrider.errors import ProcessError, ToolFailure
from outrider.processes.launch import LaunchWrapper
from outrider.processes.output import OutputThrottle, append_note, format_output, plain_text
from outrider.processes.supervisor import CommandResult, ProcessSupervisor, TimeLimit
from outrider.tools.definitions import argument_aliases, load_prompt
from outrider.tools.tool import Progress, Tool, ToolContext, ToolResult
from outrider.types.ids import new_id
from outrider.types.tool_declaration import KNOWN_NAMES

AtLimit = Literal["kill", "background"]

DEFAULT_TIMEOUT, MAX_TIMEOUT = 120.0, 600.0
EARLY_EXIT_WAIT = 0.5  # seconds to wait for an immediate failure of a background process
MILLISECONDS_THRESHOLD = 1_000  # above the maximum timeout in seconds, so the value is in milliseconds
TIMEOUT_PHRASES: dict[AtLimit, str] = {"kill": "is killed", "background": "goes on in the background"}
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


class CommandSandbox(Protocol):
    """Runs commands confined.

    `execute` starts a command with a launch wrapper and waits for it. `start` starts a process that continues to run in
    the background. Without a wrapper, the wrapper of the supervisor applies.
    """

    async def run(
        self,
        context: ToolContext,
        execute: Callable[[LaunchWrapper | None], Awaitable[CommandResult]],
        format_result: Callable[[CommandResult], ToolResult],
    ) -> ToolResult: ...

    async def run_on(
        self, context: ToolContext, start: Callable[[LaunchWrapper | None], Awaitable[CommandResult]]
    ) -> CommandResult: ...


def shell_tool(
    supervisor: ProcessSupervisor,
    *,
    at_limit: AtLimit = "kill",
    sandbox: Callable[[], CommandSandbox] | None = None,
    describe_surroundings: Callable[[], Awaitable[str]] | None = None,
    early_exit_wait: float = EARLY_EXIT_WAIT,
) -> Tool:
    """Returns the tool. `describe_surroundings` returns a note for the result of a command, such as about unsaved
    files. `early_exit_wait` is how many seconds a background process has to fail at once."""

    async def shell(
        command: str,
        context: ToolContext,
        description: Annotated[str, "in a few words"] = "",
        timeout: Annotated[float, "seconds, at most 600"] = DEFAULT_TIMEOUT,  # noqa: ASYNC109  the parameter name that models know
        workdir: str = "",
        background: bool = False,  # noqa: FBT001, FBT002  models pass it by name
    ) -> ToolResult:
        if not command.strip():
            raise ToolFailure("`command` is empty; nothing was run")
        title = description or command.strip().partition("\n")[0][:100]
        context.report(Progress(title=title))
        try:
            folder = context.workspace / workdir
            if background:
                start = partial(_start_in_background, supervisor, command, folder, context, early_exit_wait)
                started = await (start() if sandbox is None else sandbox().run_on(context, start))
                return _format_background_result(started, title)
            limit = TimeLimit(min(max(timeout, 0.0), MAX_TIMEOUT), at_limit)
            if sandbox is None:
                outcome = await _run_command(supervisor, command, folder, context, limit)
                result = _format_outcome(outcome, title, limit)
            else:
                result = await sandbox().run(
                    context,
                    lambda wrap: _run_command(supervisor, command, folder, context, limit, wrap),
                    lambda outcome: _format_outcome(outcome, title, limit),
                )
        except ProcessError as error:
            raise ToolFailure(error.message) from error
        note = await describe_surroundings() if describe_surroundings is not None else ""
        return msgspec.structs.replace(result, content=append_note(result.content, note)) if note else result

    description = load_prompt(__file__, "shell", at_limit=TIMEOUT_PHRASES[at_limit])
    return Tool(
        shell,
        description=description,
        preprocess_args=normalize_arguments,
        plan=True,
        unsaid=("description", "workdir"),
        declares=KNOWN_NAMES["shell"],
    )


def normalize_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Resolves aliases. Accepts the command as a list of strings and the timeout in milliseconds."""
    arguments = _rename(arguments)
    if isinstance(argv := arguments.get("command"), list):
        arguments["command"] = _join_command([str(word) for word in argv])  # pyright: ignore
    if isinstance(milliseconds := arguments.pop("timeout_ms", None), int | float):
        arguments["timeout"] = milliseconds / 1000
    elif isinstance(timeout := arguments.get("timeout"), int | float) and timeout >= MILLISECONDS_THRESHOLD:
        arguments["timeout"] = timeout / 1000
    return {name: value for name, value in arguments.items() if value is not None}


def _join_command(argv: Sequence[str]) -> str:
    match argv:
        case [shell, "-c" | "-lc", command] if Path(shell).name in {"bash", "sh", "zsh"}:
            return command
        case _:
            return shlex.join(argv)


async def _run_command(
    supervisor: ProcessSupervisor,
    command: str,
    workdir: Path,
    context: ToolContext,
    limit: TimeLimit,
    wrap: LaunchWrapper | None = None,
) -> CommandResult:
    throttle = OutputThrottle(lambda text: context.report(Progress(plain_text(text))))
    try:
        return await supervisor.run_command(
            context.call_id or new_id(),
            command,
            throttle.feed,
            workdir=workdir,
            limit=limit,
            session_id=context.session_id,
            wrap=wrap,
        )
    finally:
        throttle.flush()  # also on cancellation: the runner stores the reported output


async def _start_in_background(
    supervisor: ProcessSupervisor,
    command: str,
    workdir: Path,
    context: ToolContext,
    early_exit_wait: float,
    wrap: LaunchWrapper | None = None,
) -> CommandResult:
    started = await supervisor.start_command(
        context.call_id or new_id(), command, workdir=workdir, session_id=context.session_id, wrap=wrap
    )
    return await supervisor.wait(started.id, early_exit_wait)


def _format_outcome(outcome: CommandResult, title: str, limit: TimeLimit) -> ToolResult:
    ending = outcome.ending
    if ending is None:
        return _format_background_result(outcome, title)
    match ending.cause:
        case "timeout":
            raise ToolFailure(f"killed after its time limit of {limit.seconds:g} s", reason="timeout")
        case "killed" | "memory" | "lost":
            raise ToolFailure(ending.description)
        case "exited" | "signaled":
            text = append_note(format_output(outcome.output), "" if ending.succeeded else ending.description)
            return ToolResult(append_note(text, outcome.note), title=title, metadata=_result_metadata(outcome))


def _format_background_result(outcome: CommandResult, title: str) -> ToolResult:
    if outcome.ending is None:
        note = f"it runs on in the background; its process_id is {outcome.process_id}"
    else:
        note = f"it was started in the background and has ended: {outcome.ending.description}"
    return ToolResult(append_note(format_output(outcome.output), note), title=title, metadata=_result_metadata(outcome))


def _result_metadata(outcome: CommandResult) -> dict[str, Any]:
    path = outcome.output.path
    return {
        "process_id": outcome.process_id,
        "exit_code": outcome.exit_code,
        "running": outcome.ending is None,
        "duration_ms": outcome.duration_ms,
        "bytes": outcome.output.size,
        "path": str(path) if path else None,
    }
