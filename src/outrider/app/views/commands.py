"""Commands that the user runs in a session by hand: through its supervisor, so that none outlives it."""

from collections.abc import Callable
from pathlib import Path

from outrider.app.engine import Engine
from outrider.errors import ProcessError
from outrider.processes.plain_text import plain_text
from outrider.processes.supervised import ProcessStatus
from outrider.types.ids import new_id

__all__ = ["ProcessStatus", "end_process", "processes", "run_by_hand"]


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


async def end_process(engine: Engine, session_id: str, process_id: str) -> bool:
    live = engine.live.get(session_id)
    return live is not None and live.toolbox is not None and await live.toolbox.supervisor.kill_process(process_id)
