"""The metrics: tokens, durations and the time to the first chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from outrider.tracing.otel import names
from outrider.types.events import LLMResponseEvent

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, Meter

Attributes = dict[str, str]


class Measures:
    def __init__(self, meter: Meter) -> None:
        def histogram(name: str, description: str, buckets: Sequence[float], unit: str = "s") -> Histogram:
            return meter.create_histogram(
                name, unit=unit, description=description, explicit_bucket_boundaries_advisory=buckets
            )

        seconds = names.SECOND_BUCKETS
        self._tokens = histogram(
            names.TOKEN_USAGE, "Tokens of requests and answers.", names.TOKEN_BUCKETS, unit="{token}"
        )
        self._chat = histogram(names.CHAT_DURATION, "How long answers took.", seconds)
        self._first = histogram(names.FIRST_CHUNK, "How long the first piece took.", names.FIRST_CHUNK_BUCKETS)
        self._agents = histogram(names.AGENT_DURATION, "How long turns of agents took.", seconds)
        self._tools = histogram(names.TOOL_DURATION, "How long calls of tools took.", seconds)

    def answered(self, event: LLMResponseEvent, attributes: Attributes) -> None:
        used = event.tokens
        for kind, count in (("input", used.prompt), ("output", used.output + used.reasoning)):
            if count:
                self._tokens.record(count, {**attributes, names.TOKEN_TYPE: kind})
        self._chat.record(event.duration_ms / 1000, attributes)
        if event.first_token_ms is not None:
            self._first.record(event.first_token_ms / 1000, attributes)

    def agent_ended(self, milliseconds: int, attributes: Attributes) -> None:
        self._agents.record(milliseconds / 1000, attributes)

    def tool_ended(self, milliseconds: int, attributes: Attributes) -> None:
        self._tools.record(milliseconds / 1000, attributes)
