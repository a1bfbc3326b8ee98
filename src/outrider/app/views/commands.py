"""Commands that the user runs in a session by hand: through its supervisor, so that none outlives it."""

from collections.abc import Callable
from pathlib import Path

from outrider.app.engine import Engine
from outrider.errors import ProcessError
from outrider.processes.output import OutputSlice
from outrider.processes.plain_text import plain_text
from outrider.processes.supervised import ProcessStatus
from outrider.processes.supervisor import Supervisor
from outrider.types.ids import new_id

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
