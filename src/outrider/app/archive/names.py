"""What sessions are called where there is little room."""

_SHORT = 8


def short_id(session_id: str) -> str:
    """The end of an id: its beginning is the time, and so the same for sessions of one minute."""
    return session_id[-_SHORT:]
