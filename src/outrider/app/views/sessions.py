"""What a screen has to know about a session that was just opened."""

from outrider.agents.ends import is_cut_off
from outrider.app.engine import Engine


def was_cut_off(engine: Engine, session_id: str) -> bool:
    """Whether the last turn of an open session broke off and could go on."""
    return is_cut_off(engine.live[session_id].journal.session.messages)
