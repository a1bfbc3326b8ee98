"""Public module for tests of programs that use Outrider: a scripted model, recorded traffic, a simulator of the model
APIs, crash tests, and contract suites for custom stores and providers."""

from typing import TYPE_CHECKING

from outrider._lazy import lazy_names

if TYPE_CHECKING:
    from outrider.providers.cassettes.replay import CassetteOptions
    from outrider.testing.contracts import (
        CrashReport,
        CrashRun,
        assert_stable_prefix,
        check_provider,
        check_store,
        crash,
        scripted_model,
    )
    from outrider.testing.simulator import Chaos, SimulatedRequest, Simulator
    from outrider.testing.simulator_answers import (
        BrokenConnection,
        MalformedCall,
        MaxTokens,
        Refusal,
        ServerSearch,
        SimulatedError,
        SimulatedReasoning,
        call,
    )

__all__ = [
    "BrokenConnection",
    "CassetteOptions",
    "Chaos",
    "CrashReport",
    "CrashRun",
    "MalformedCall",
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
    "crash",
    "scripted_model",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "outrider.providers.cassettes.replay": "CassetteOptions",
        "outrider.testing.contracts": (
            "CrashReport CrashRun assert_stable_prefix check_provider check_store crash scripted_model"
        ),
        "outrider.testing.simulator": "Chaos SimulatedRequest Simulator",
        "outrider.testing.simulator_answers": (
            "BrokenConnection MalformedCall MaxTokens Refusal ServerSearch SimulatedError SimulatedReasoning call"
        ),
    },
)
