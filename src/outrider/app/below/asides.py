"""Sessions beside the work: what an engine asks a model for its own ends, below the session that it is for."""

TITLER = "outrider/title"  # no agent of a user is called like that


def is_aside(agent: str) -> bool:
    """Whether the session of this agent is none of those that agents opened for each other."""
    return agent == TITLER
