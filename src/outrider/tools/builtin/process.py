"""Looks after processes in the background: lists them, reads and writes, waits, kills."""

from typing import Annotated, Any, Literal, assert_never

from outrider.errors import ProcessError, ToolFailure
from outrider.processes.supervisor import ProcessStatus, Supervisor
from outrider.tools.command_output import noted, told_ending, told_slice
from outrider.tools.context import ToolContext
from outrider.tools.tool import Tool, ToolResult, argument_aliases, prompt_beside
from outrider.types.ids import now_ms

Action = Literal["list", "read", "wait", "write", "kill"]

SECONDS, MOST_SECONDS = 30.0, 600.0
SHOWN = 24_000  # bytes; a little less than the runner shows
ALIASES = {
    "id": "process_id",
    "pid": "process_id",
    "bash_id": "process_id",
    "shell_id": "process_id",
    "task_id": "process_id",
    "text": "input",
    "data": "input",
}
ACTIONS = {"output": "read", "poll": "read", "log": "read", "send": "write", "send_input": "write", "stop": "kill"}
_rename = argument_aliases(ALIASES)


def process_tool(supervisor: Supervisor) -> Tool:
    async def process(
        action: Action,
        context: ToolContext,
        process_id: Annotated[str, "from `shell`"] = "",
        input: str = "",
        timeout: Annotated[float, "seconds, at most 600"] = SECONDS,  # noqa: ASYNC109  as in shell
        offset: int | None = None,
    ) -> ToolResult:
        if action == "list":
            return ToolResult(_listed(supervisor.list_processes(context.session_id)))
        try:
            _check_owner(supervisor, process_id, context.session_id)
            await _act(supervisor, action, process_id, input, min(max(timeout, 0.0), MOST_SECONDS))
            return _told(supervisor, process_id, offset)
        except ProcessError as error:
            raise ToolFailure(error.message) from error

    return Tool(process, description=prompt_beside(__file__), preprocess_args=prepared, unsaid=("offset",))


def prepared(arguments: dict[str, Any]) -> dict[str, Any]:
    arguments = _rename(arguments)
    action = arguments.get("action")
    if isinstance(action, str) and action in ACTIONS:
        arguments["action"] = ACTIONS[action]
    return {name: value for name, value in arguments.items() if value is not None}


async def _act(
    supervisor: Supervisor, action: Literal["read", "wait", "write", "kill"], process_id: str, text: str, limit: float
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


def _check_owner(supervisor: Supervisor, process_id: str, session_id: str) -> None:
    """A process of another session is as unknown as one that never was."""
    own = [status.id for status in supervisor.list_processes(session_id)]
    if process_id not in own:
        known = f"the processes are: {', '.join(own)}" if own else "there are none"
        raise ToolFailure(f"there is no process {process_id!r}; {known}")


def _told(supervisor: Supervisor, process_id: str, offset: int | None) -> ToolResult:
    piece = supervisor.read(process_id, offset, SHOWN)
    status = supervisor.status(process_id)
    text = told_slice(piece) or "(no new output)"
    if more := status.output_size - piece.end:
        text = noted(text, f"{more:,} more bytes; read again")
    metadata = {"process_id": process_id, "running": status.ending is None, "offset": piece.end}
    return ToolResult(noted(text, told_ending(status.ending)), title=status.command[:100], metadata=metadata)


def _listed(statuses: list[ProcessStatus]) -> str:
    return "\n".join(map(_line, statuses)) or "(no processes in the background)"


def _line(status: ProcessStatus) -> str:
    age = (now_ms() - status.started_at) // 1000
    command = status.command.replace("\n", " ")[:100]
    return f"{status.id}: {told_ending(status.ending)}, started {age} s ago, {status.output_size:,} bytes: {command}"
