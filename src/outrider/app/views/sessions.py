"""Sessions as a screen needs them besides the engine: all that are kept, and what to know of one just opened."""

from outrider.agents.ends import is_cut_off
from outrider.app.archive.archive import Archive
from outrider.app.engine import Engine
from outrider.sessions.session import Session


def was_cut_off(session: Session) -> bool:
    """Whether the last turn broke off and could go on."""
    return is_cut_off(session.messages)


def archive_of(engine: Engine) -> Archive:
    """The sessions that are kept where an engine keeps its own; what is deleted there takes its undo along."""
    return Archive(engine.store, engine.staff.data)
