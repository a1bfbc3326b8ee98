"""Public facade of the providers: the contracts for custom providers, credentials, retries and rate limits.

`CustomProvider` is the contract of any source of answers. A vendor with an HTTP API implements `WireFormat`, and
`WireClient` adds retries, timeouts and rate limits. Names are loaded when they are first used.
"""

from typing import TYPE_CHECKING

from outrider._lazy import lazy_names

if TYPE_CHECKING:
    from outrider.http.transport import HttpRequest, HttpTimeouts
    from outrider.providers.catalog import ModelCatalog
    from outrider.providers.client import RateLimit, WireClient
    from outrider.providers.provider import (
        AdaptiveWireFormat,
        AnswerDecoder,
        CustomProvider,
        ModelClient,
        ModelDescription,
        WireFormat,
    )
    from outrider.types.agents import Credential, Provider
    from outrider.types.parts import Tokens
    from outrider.types.request import (
        AnswerStart,
        Delta,
        Finish,
        InputDelta,
        ModelMessage,
        ModelSettings,
        PartEnd,
        PartStart,
        Prompt,
        ReasoningDelta,
        Request,
        Retry,
        RetryPolicy,
        TextDelta,
        ToolSpec,
        UsageReport,
    )

__all__ = [
    "AdaptiveWireFormat",
    "AnswerDecoder",
    "AnswerStart",
    "Credential",
    "CustomProvider",
    "Delta",
    "Finish",
    "HttpRequest",
    "HttpTimeouts",
    "InputDelta",
    "ModelCatalog",
    "ModelClient",
    "ModelDescription",
    "ModelMessage",
    "ModelSettings",
    "PartEnd",
    "PartStart",
    "Prompt",
    "Provider",
    "RateLimit",
    "ReasoningDelta",
    "Request",
    "Retry",
    "RetryPolicy",
    "TextDelta",
    "Tokens",
    "ToolSpec",
    "UsageReport",
    "WireClient",
    "WireFormat",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "outrider.http.transport": "HttpRequest HttpTimeouts",
        "outrider.providers.catalog": "ModelCatalog",
        "outrider.providers.client": "RateLimit WireClient",
        "outrider.providers.provider": (
            "AdaptiveWireFormat AnswerDecoder CustomProvider ModelClient ModelDescription WireFormat"
        ),
        "outrider.types.agents": "Credential Provider",
        "outrider.types.parts": "Tokens",
        "outrider.types.request": """
            AnswerStart Delta Finish InputDelta ModelMessage ModelSettings PartEnd PartStart Prompt ReasoningDelta
            Request Retry RetryPolicy TextDelta ToolSpec UsageReport
        """,
    },
)
