"""Asks the embedded model: a request becomes a compact prompt and a schema, its answer becomes deltas."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Protocol

import msgspec

from outrider.errors import NotFoundError, OutriderError, ProviderError
from outrider.providers.local.answer import AnswerReader
from outrider.providers.local.chunks import read_chunks
from outrider.providers.local.names import FileNames, NoNames
from outrider.providers.local.offers import offers
from outrider.providers.local.primer import Primer
from outrider.providers.local.runtimes.loaded import LoadedModel
from outrider.providers.local.schema import CallSchema, grammar, output_schema
from outrider.providers.local.tool_text import beginning_of
from outrider.providers.local.transcript import Transcript
from outrider.types.request import ModelSettings, Request
from outrider.types.stream import Delta

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
        primer: Primer,
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

    def __init__(self, request: Request, primer: Primer, names: FileNames) -> None:
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
