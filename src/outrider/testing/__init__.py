"""Tools for tests of programs that use Outrider: recorded provider traffic, and a simulator of the model APIs."""

from typing import TYPE_CHECKING

from outrider._lazy import lazy_names

if TYPE_CHECKING:
    from outrider.testing.simulator import (
        BrokenConnection,
        MaxTokens,
        Refusal,
        ServerSearch,
        SimulatedError,
        SimulatedReasoning,
        SimulatedRequest,
        Simulator,
        call,
    )

__all__ = [
    "BrokenConnection",
    "MaxTokens",
    "Refusal",
    "ServerSearch",
    "SimulatedError",
    "SimulatedReasoning",
    "SimulatedRequest",
    "Simulator",
    "call",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "outrider.testing.simulator": (
            "BrokenConnection MaxTokens Refusal ServerSearch SimulatedError SimulatedReasoning SimulatedRequest "
            "Simulator call"
        ),
    },
)
