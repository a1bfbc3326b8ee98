"""One answer of a model without the loop: the smallest way to use Outrider."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from outrider._sync import run_sync
from outrider.config.environment import filled_in
from outrider.context.lower import lower
from outrider.errors import ConfigurationError, ProviderError
from outrider.models.clients import connected, known_models
from outrider.providers.assembler import Assembler
from outrider.providers.provider import ModelClient
from outrider.types.agents import Provider
from outrider.types.deltas import Answer
from outrider.types.messages import Message, text_message
from outrider.types.request import ModelSettings, Request, ToolSpec
from outrider.types.usage import Tokens


async def async_complete(
    provider: Provider,
    model: str,
    messages: str | Sequence[Message],
    *,
    system: str | None = None,
    tools: Iterable[Any] = (),
    stream: bool = True,
    settings: ModelSettings | Mapping[str, Any] | None = None,
) -> Answer:
    """`tools` are ToolSpecs or whatever has `to_schema()`. Raises ProviderError; what arrived before it is the
    Answer in its `details["answer"]`."""
    provider = filled_in(provider)
    async with connected(provider, known_models()) as client:
        request = Request(
            model,
            lower(_messages(messages), family=client.family(model)),
            system=system,
            tools=tuple(_spec(tool) for tool in tools),
            settings=_settings(settings),
            stream=stream,
        )
        return await _answer(client, provider, request)


def complete(
    provider: Provider,
    model: str,
    messages: str | Sequence[Message],
    *,
    system: str | None = None,
    tools: Iterable[Any] = (),
    stream: bool = True,
    settings: ModelSettings | Mapping[str, Any] | None = None,
) -> Answer:
    """`async_complete` for plain code; it also works where an event loop already runs, as in a notebook."""
    return run_sync(
        lambda: async_complete(provider, model, messages, system=system, tools=tools, stream=stream, settings=settings)
    )


async def _answer(client: ModelClient, provider: Provider, request: Request) -> Answer:
    assembler = Assembler(client.family(request.model))

    def answer() -> Answer:
        return assembler.answer(cost_of(provider, request.model, assembler))

    try:
        async for delta in client.stream(request):
            assembler.add(delta)
    except ProviderError as error:
        error.details["answer"] = answer()
        raise
    return answer()


def _messages(messages: str | Message | Sequence[Message]) -> Sequence[Message]:
    match messages:
        case str():
            return [text_message("user", messages)]
        case Message():
            return [messages]
        case [*several] if {type(message) for message in several} <= {Message}:
            return several
        case _:
            raise ConfigurationError("messages are a string or a list of Message")


def cost_of(provider: Provider, asked: str, assembler: Assembler) -> Decimal | None:
    """Who answered counts; some providers name themselves in ways that no price list knows."""
    if assembler.tokens == Tokens():
        return None
    prices = (
        known_models().cost_of(provider.kind, model, assembler.tokens, base_url=provider.base_url)
        for model in dict.fromkeys((assembler.model, asked))
        if model
    )
    return next((price for price in prices if price is not None), None)


def _settings(settings: ModelSettings | Mapping[str, Any] | None) -> ModelSettings:
    if settings is None or isinstance(settings, ModelSettings):
        return settings or ModelSettings()
    try:
        return msgspec.convert(dict(settings), ModelSettings)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"settings: {error}") from error


def _spec(tool: Any) -> ToolSpec:
    """A tool as it is offered to a model, from a ToolSpec or from the schema that a tool gives of itself."""
    if isinstance(tool, ToolSpec):
        return tool
    schema: Any = tool.to_schema() if hasattr(tool, "to_schema") else tool
    if isinstance(schema, ToolSpec):
        return schema
    fields: dict[str, Any] = schema.get("function", schema)
    parameters: dict[str, Any] = fields.get("parameters") or fields.get("input_schema") or {"type": "object"}
    return ToolSpec(fields["name"], fields.get("description") or "", parameters, bool(fields.get("strict")))
