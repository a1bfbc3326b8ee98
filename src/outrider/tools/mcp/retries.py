"""When a server that died is tried again."""

from outrider.tools.mcp.config import Limits


class Retries:
    """A server that never served has failed at once; one that died gets its chances, each later
    than the one before."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._deaths = 0

    def after(self, served: float | None) -> float | None:
        """Seconds to wait after a connection that served so long; None to give up."""
        if served is None and not self._deaths:
            return None
        self._deaths = 1 if served is not None and served >= self._limits.steady else self._deaths + 1
        if self._deaths > self._limits.reconnects:
            return None
        return min(self._limits.longest_delay, self._limits.first_delay * 2 ** (self._deaths - 1))
