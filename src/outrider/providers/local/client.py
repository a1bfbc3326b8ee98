"""Asks the embedded model: a request becomes a compact prompt and a schema, its answer becomes deltas."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import PurePath
from typing import Any, Protocol

import msgspec

from outrider.errors import NotFoundError, OutriderError, ProviderError
from outrider.providers.local.constrained_output import AnswerReader, CallSchema, grammar, offers, output_schema
from outrider.providers.local.model_pool import LoadedModel
from outrider.providers.local.prompt import CompactToolPrompt, FileNames, NoNames, Transcript, beginning_of
from outrider.providers.local.runtime import refusal
from outrider.types.deltas import AnswerStart, Delta, Finish, FinishReason, UsageReport
from outrider.types.request import ModelSettings, Request
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


LARGEST_ANSWER = 2048  # tokens; a small model that finds no end would go on to the end of its context


class Models(Protocol):
    """Where a client has its models from, by their names."""

    def take(self, name: str) -> LoadedModel:
        """Blocks while it loads. Raises OutriderError where there is none."""
        ...

    def give_back(self, name: str) -> None: ...


class LocalClient:
    def __init__(
        self,
        name: str,
        models: Models,
        primer: CompactToolPrompt,
        names: FileNames = NoNames(),  # noqa: B008  it has no state
    ) -> None:
        self.name = name
        self._models = models
        self._primer = primer
        self._names = names
        self._taken: dict[str, asyncio.Future[LoadedModel]] = {}

    def family(self, model: str) -> str:
        return "local"

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        try:
            model = await self._model(request.model)
            asked = Asked(request, self._primer, self._names)
            chunks = model.stream(asked.body, asked.beginning, request.conversation)
            async with contextlib.aclosing(chunks):
                async for delta in read_chunks(chunks, asked.reader):
                    yield delta
        except ProviderError as error:
            error.provider = error.provider or self.name
            raise

    async def aclose(self) -> None:
        while self._taken:
            name, taking = self._taken.popitem()
            with contextlib.suppress(OutriderError):
                await taking
                await asyncio.to_thread(self._models.give_back, name)

    async def _model(self, name: str) -> LoadedModel:
        """A request that is given up while the model loads leaves it to the next one."""
        if name not in self._taken:
            self._taken[name] = asyncio.ensure_future(asyncio.to_thread(self._models.take, name))
        try:
            return await asyncio.shield(self._taken[name])
        except OutriderError as error:
            self._taken.pop(name, None)
            if isinstance(error, ProviderError):
                raise
            raise NotFoundError(error.message, **error.details) from error


class Asked:
    """A request as the runtime takes it, and how its answer is read."""

    def __init__(self, request: Request, primer: CompactToolPrompt, names: FileNames) -> None:
        self._primer = primer
        self._schema = CallSchema(request.tools, primer)
        self.beginning = beginning_of(request.system or "", request.tools, primer)
        place = self.beginning.place if self.beginning else ""
        words = self._schema.words if request.tools else None
        self.reader = AnswerReader(words)
        transcript = Transcript(words, primer, lambda text: names.meant(request, text), place)
        messages = transcript.messages(request.prompt)
        if self.beginning is not None:
            messages = msgspec.json.encode(self.beginning.as_chat())[1:-1] + b"," + messages
        options = msgspec.json.encode(_options(request.settings) | self._constraint(request, names))
        self.body = f'{{"messages":[{messages.decode()}],{options.decode()[1:]}'

    def _constraint(self, request: Request, names: FileNames) -> dict[str, Any]:
        settings = request.settings
        if request.tools:
            offered = offers(request, self._primer, names)
            return {"grammar": grammar(self._schema.for_answer(offered, settings.tool_choice, settings.output))}
        return {"grammar": grammar(output_schema(settings.output))} if settings.output else {}


def _options(settings: ModelSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,  # a chunk for each batch of the prompt: the moments when it can be given up
        "cache_prompt": True,
        "max_tokens": min(settings.max_output_tokens or LARGEST_ANSWER, LARGEST_ANSWER),
        "temperature": settings.temperature or 0.0,
    }
    if settings.top_p is not None:
        options["top_p"] = settings.top_p
    if settings.stop:
        options["stop"] = list(settings.stop)
    return options | settings.extra
