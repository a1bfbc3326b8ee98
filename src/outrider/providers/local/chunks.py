"""The chunks of the runtime's answer, as far as they are read."""

from collections.abc import AsyncGenerator
from pathlib import PurePath
from typing import Any

import msgspec

from outrider.providers.local.answer import AnswerReader
from outrider.providers.local.runtimes.refused import refusal
from outrider.types.stream import AnswerStart, Delta, Finish, FinishReason, UsageReport
from outrider.types.usage import CacheTokens, Tokens

_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class Piece(msgspec.Struct):
    content: str | None = None


class Choice(msgspec.Struct):
    delta: Piece = msgspec.field(default_factory=Piece)
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int = 0


class Used(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails = msgspec.field(default_factory=PromptDetails)

    def tokens(self) -> Tokens:
        cached = self.prompt_tokens_details.cached_tokens
        return Tokens(self.prompt_tokens - cached, self.completion_tokens, cache=CacheTokens(read=cached))


class Chunk(msgspec.Struct):
    id: str = ""
    model: str = ""
    choices: list[Choice] = []
    usage: Used | None = None
    error: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(Chunk)


async def read_chunks(chunks: AsyncGenerator[str, None], reader: AnswerReader) -> AsyncGenerator[Delta, None]:
    """Raises ProviderError for a refusal. The answer ends with what it used and how it ended."""
    started, raw, tokens = False, "", Tokens()
    async for text in chunks:
        chunk = _decoder.decode(text)
        if chunk.error is not None:
            raise refusal(chunk.error)
        if not started:
            started = True
            yield AnswerStart(chunk.id, PurePath(chunk.model).stem)
        for choice in chunk.choices:
            for delta in reader.feed(choice.delta.content or ""):
                yield delta
            raw = choice.finish_reason or raw
        tokens = chunk.usage.tokens() if chunk.usage else tokens
    reason = _REASONS.get(raw, "other")
    for delta in reader.end(whole=reason == "stop"):
        yield delta
    yield UsageReport(tokens)
    yield Finish("tool_use" if reader.called and reason == "stop" else reason, raw)
