"""Public module for tests of programs that use Outrider: a scripted model, recorded traffic, a simulator of the model
APIs, and contract suites for custom stores and providers."""

from typing import TYPE_CHECKING

from outrider._lazy import lazy_names

if TYPE_CHECKING:
    from outrider.providers.cassettes.replay import CassetteOptions
    from outrider.testing.contracts import assert_stable_prefix, check_provider, check_store, scripted_model
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
    "CassetteOptions",
    "MaxTokens",
    "Refusal",
    "ServerSearch",
    "SimulatedError",
    "SimulatedReasoning",
    "SimulatedRequest",
    "Simulator",
    "assert_stable_prefix",
    "call",
    "check_provider",
    "check_store",
    "scripted_model",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "outrider.providers.cassettes.replay": "CassetteOptions",
        "outrider.testing.contracts": "assert_stable_prefix check_provider check_store scripted_model",
        "outrider.testing.simulator": (
            "BrokenConnection MaxTokens Refusal ServerSearch SimulatedError SimulatedReasoning SimulatedRequest "
            "Simulator call"
        ),
    },
)
