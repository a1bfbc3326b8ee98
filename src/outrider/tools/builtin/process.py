"""The `process` tool: lists background processes, reads output, writes input, waits and kills."""

from typing import Any, Literal, assert_never

from outrider.errors import ProcessError, ToolFailure
from outrider.processes.launch import ExitStatus
from outrider.processes.output import append_note, format_slice
from outrider.processes.supervisor import ProcessStatus, ProcessSupervisor
from outrider.tools.definitions import argument_aliases, load_prompt
from outrider.tools.tool import Tool, ToolContext, ToolResult
from outrider.types.ids import now_ms
from outrider.types.tool_declaration import KNOWN_NAMES

Action = Literal["list", "read", "wait", "write", "kill"]

DEFAULT_WAIT, MAX_WAIT = 30.0, 600.0
MAX_SHOWN_BYTES = 24_000  # slightly less than the runner's output cap
ALIASES = {
    "id": "process_id",
    "pid": "process_id",
    "bash_id": "process_id",
    "shell_id": "process_id",
    "task_id": "process_id",
    "text": "input",
    "data": "input",
}
ACTION_ALIASES = {
    "output": "read",
    "poll": "read",
    "log": "read",
    "send": "write",
    "send_input": "write",
    "stop": "kill",
}
_rename = argument_aliases(ALIASES)


def process_tool(supervisor: ProcessSupervisor) -> Tool:
    async def process(
        action: Action,
        context: ToolContext,
        process_id: str = "",
        input: str = "",
        timeout: float = DEFAULT_WAIT,  # noqa: ASYNC109  same name as in the shell tool
        offset: int | None = None,
    ) -> ToolResult:
        if action == "list":
            return ToolResult(_format_processes(supervisor.list_processes(context.session_id)))
        try:
            _check_owner(supervisor, process_id, context.session_id)
            await _perform_action(supervisor, action, process_id, input, min(max(timeout, 0.0), MAX_WAIT))
            return _format_process_output(supervisor, process_id, offset)
        except ProcessError as error:
            raise ToolFailure(error.message) from error

    return Tool(
        process,
        description=load_prompt(__file__, "process"),
        preprocess_args=normalize_arguments,
        unsaid=("offset",),
        declares=KNOWN_NAMES["process"],
    )


def normalize_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    arguments = _rename(arguments)
    action = arguments.get("action")
    if isinstance(action, str) and action in ACTION_ALIASES:
        arguments["action"] = ACTION_ALIASES[action]
    return {name: value for name, value in arguments.items() if value is not None}


async def _perform_action(
    supervisor: ProcessSupervisor,
    action: Literal["read", "wait", "write", "kill"],
    process_id: str,
    text: str,
    limit: float,
) -> None:
    match action:
        case "read":
            return
        case "wait":
            await supervisor.wait(process_id, limit)
        case "write":
            await supervisor.write(process_id, text)
        case "kill":
            await supervisor.kill_process(process_id)
        case _:
            assert_never(action)


def _check_owner(supervisor: ProcessSupervisor, process_id: str, session_id: str) -> None:
    """Raises ToolFailure for an unknown process id. A process of another session is reported as unknown."""
    ids = [status.id for status in supervisor.list_processes(session_id)]
    if process_id not in ids:
        hint = f"the processes are: {', '.join(ids)}" if ids else "there are none"
        raise ToolFailure(f"there is no process {process_id!r}; {hint}")


def _format_process_output(supervisor: ProcessSupervisor, process_id: str, offset: int | None) -> ToolResult:
    output_slice = supervisor.read(process_id, offset, MAX_SHOWN_BYTES)
    status = supervisor.status(process_id)
    text = format_slice(output_slice) or "(no new output)"
    if remaining_bytes := status.output_size - output_slice.end:
        text = append_note(text, f"{remaining_bytes:,} more bytes; read again")
    metadata = {"process_id": process_id, "running": status.ending is None, "offset": output_slice.end}
    return ToolResult(append_note(text, _format_ending(status.ending)), title=status.command[:100], metadata=metadata)


def _format_processes(statuses: list[ProcessStatus]) -> str:
    return "\n".join(map(_format_process, statuses)) or "(no processes in the background)"


def _format_process(status: ProcessStatus) -> str:
    age = (now_ms() - status.started_at) // 1000
    command = status.command.replace("\n", " ")[:100]
    return f"{status.id}: {_format_ending(status.ending)}, started {age} s ago, {status.output_size:,} bytes: {command}"


def _format_ending(ending: ExitStatus | None) -> str:
    return "still running" if ending is None else ending.description
