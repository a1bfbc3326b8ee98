"""Tools for tests of programs that use Outrider: recorded provider traffic, and a simulator of the model APIs."""

from typing import TYPE_CHECKING

from outrider._lazy import lazy_names

if TYPE_CHECKING:
    from outrider.providers.scripted import call
    from outrider.testing.simulator import (
        BrokenConnection,
        MaxTokens,
        ServerSearch,
        SimulatedError,
        SimulatedReasoning,
        SimulatedRequest,
        Simulator,
    )

__all__ = [
    "BrokenConnection",
    "MaxTokens",
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
        "outrider.providers.scripted": "call",
        "outrider.testing.simulator": (
            "BrokenConnection MaxTokens ServerSearch SimulatedError SimulatedReasoning SimulatedRequest Simulator"
        ),
    },
)
