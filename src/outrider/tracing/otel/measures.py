"""The metrics: tokens, durations and the time to the first chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.tracing.otel import names
from outrider.types.events import LLMResponseEvent

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

Attributes = dict[str, str]


class Measures:
    def __init__(self, meter: Meter) -> None:
        seconds = names.SECOND_BUCKETS
        self._tokens = meter.create_histogram(
            names.TOKEN_USAGE,
            unit="{token}",
            description="Tokens of requests and answers.",
            explicit_bucket_boundaries_advisory=names.TOKEN_BUCKETS,
        )
        self._chat = meter.create_histogram(
            names.CHAT_DURATION,
            unit="s",
            description="How long answers took.",
            explicit_bucket_boundaries_advisory=seconds,
        )
        self._first = meter.create_histogram(
            names.FIRST_CHUNK,
            unit="s",
            description="How long the first piece of an answer took.",
            explicit_bucket_boundaries_advisory=names.FIRST_CHUNK_BUCKETS,
        )
        self._agents = meter.create_histogram(
            names.AGENT_DURATION,
            unit="s",
            description="How long turns of agents took.",
            explicit_bucket_boundaries_advisory=seconds,
        )
        self._tools = meter.create_histogram(
            names.TOOL_DURATION,
            unit="s",
            description="How long calls of tools took.",
            explicit_bucket_boundaries_advisory=seconds,
        )

    def answered(self, event: LLMResponseEvent, attributes: Attributes) -> None:
        for kind, count in (("input", event.input_tokens), ("output", event.output_tokens)):
            if count:
                self._tokens.record(count, {**attributes, names.TOKEN_TYPE: kind})
        self._chat.record(event.duration_ms / 1000, attributes)
        if event.first_token_ms is not None:
            self._first.record(event.first_token_ms / 1000, attributes)

    def agent_ended(self, milliseconds: int, attributes: Attributes) -> None:
        self._agents.record(milliseconds / 1000, attributes)

    def tool_ended(self, milliseconds: int, attributes: Attributes) -> None:
        self._tools.record(milliseconds / 1000, attributes)
