"""How turns end, for those who hold an engine and not its loop."""

from outrider.agents.ends import TurnEnd

__all__ = ["TurnEnd"]
