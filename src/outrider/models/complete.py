"""A single model call without the agent loop: `complete` and `async_complete`."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Never

import msgspec

from outrider._sync import describe_value, run_sync
from outrider.config.providers import with_environment_defaults
from outrider.context.lower import lower
from outrider.errors import ConfigurationError, ProviderError
from outrider.models.clients import as_provider, custom_cost, shared_catalog, shared_client
from outrider.providers.provider import AnswerAssembler, CustomProvider, ModelClient
from outrider.types.agents import Provider
from outrider.types.messages import Message, text_message
from outrider.types.parts import Tokens
from outrider.types.request import Answer, ModelSettings, Request, ToolSpec
from outrider.types.validate import check_names, is_object


async def async_complete(
    provider: Provider | CustomProvider,
    model: str,
    messages: str | Sequence[Message],
    *,
    system: str | None = None,
    tools: Iterable[Any] = (),
    stream: bool = True,
    settings: ModelSettings | Mapping[str, Any] | None = None,
    **unknown: Never,
) -> Answer:
    """Requests one answer from a model.

    `messages` is a string or a list of messages. `tools` are ToolSpecs, schemas, or objects with `to_schema()`; the
    call does not run them. Raises ProviderError; its `details["answer"]` holds the Answer received until then.
    """
    if isinstance(provider, str):
        raise ConfigurationError(
            f"complete() needs a provider, got the string {provider!r}; write Provider({provider!r}, kind=…)"
        )
    check_names("complete()", unknown, ("system", "tools", "stream", "settings"))
    _check_request(model, messages, system, tools)
    provider = with_environment_defaults(as_provider(provider))
    async with shared_client(provider, shared_catalog()) as client:
        request = Request(
            model,
            lower(_to_messages(messages), family=client.model_family(model)),
            system=system,
            tools=tuple(_to_tool_spec(tool) for tool in tools),
            settings=_to_settings(settings),
            stream=stream,
        )
        return await _collect_answer(client, provider, request)


def _check_request(model: object, messages: object, system: object, tools: object) -> None:
    if not isinstance(model, str) or not model:
        raise ConfigurationError(f"complete(): model is the name of a model, got {model!r}")
    if not isinstance(system, str | None):
        raise ConfigurationError(f"complete(): system is a string, got {type(system).__name__}")
    if messages is None or messages == "" or (not system and (messages == [] or messages == ())):
        raise ConfigurationError("complete(): messages is empty; pass a string or a list of Message values")
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        raise ConfigurationError(f"complete(): tools is a list, got {type(tools).__name__}; write tools=[…]")


def complete(
    provider: Provider | CustomProvider,
    model: str,
    messages: str | Sequence[Message],
    *,
    system: str | None = None,
    tools: Iterable[Any] = (),
    stream: bool = True,
    settings: ModelSettings | Mapping[str, Any] | None = None,
    **unknown: Never,
) -> Answer:
    """Runs `async_complete` from synchronous code, including inside a running event loop such as that of a notebook."""
    return run_sync(
        lambda: async_complete(
            provider, model, messages, system=system, tools=tools, stream=stream, settings=settings, **unknown
        )
    )


async def _collect_answer(client: ModelClient, provider: Provider, request: Request) -> Answer:
    assembler = AnswerAssembler(client.model_family(request.model))

    def build_answer() -> Answer:
        return assembler.build_answer(answer_cost(provider, request.model, assembler))

    try:
        async for delta in client.stream(request):
            assembler.add(delta)
    except ProviderError as error:
        error.details["answer"] = build_answer()
        raise
    return build_answer()


def _to_messages(messages: str | Message | Sequence[Message]) -> Sequence[Message]:
    match messages:
        case str():
            return [text_message("user", messages)]
        case Message():
            return [messages]
        case [*message_list] if {type(message) for message in message_list} <= {Message}:
            return message_list
        case _:
            raise ConfigurationError("messages must be a string or a list of Message objects")


def answer_cost(provider: Provider, requested_model: str, assembler: AnswerAssembler) -> Decimal | None:
    """Returns the cost that the response reports, or else the cost at the price of the model that answered or was
    requested: some servers report other names."""
    if assembler.cost is not None:
        return assembler.cost
    if assembler.tokens == Tokens():
        return None
    if provider.kind == "custom":
        return custom_cost(provider, requested_model, assembler.tokens)
    prices = (
        shared_catalog().cost_of(provider.kind, model, assembler.tokens, base_url=provider.base_url)
        for model in dict.fromkeys((assembler.model, requested_model))
        if model
    )
    return next((price for price in prices if price is not None), None)


def _to_settings(settings: ModelSettings | Mapping[str, Any] | None) -> ModelSettings:
    if settings is None or isinstance(settings, ModelSettings):
        return settings or ModelSettings()
    if not isinstance(settings, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"complete(): settings is ModelSettings(temperature=…) or a dict, got {describe_value(settings)}"
        )
    try:
        return msgspec.convert(dict(settings), ModelSettings)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"settings: {error}") from error


def _to_tool_spec(tool: Any) -> ToolSpec:
    """Converts a ToolSpec, a schema in OpenAI's or Anthropic's form, or an object with `to_schema()`."""
    if isinstance(tool, ToolSpec):
        return tool
    schema: Any = tool.to_schema() if hasattr(tool, "to_schema") else tool
    if isinstance(schema, ToolSpec):
        return schema
    if not is_object(schema):
        raise ConfigurationError(
            f"complete(): tools has {describe_value(tool)}; it has Tool values, such as Tool(function), or schemas"
        )
    fields: dict[str, Any] = schema.get("function", schema)
    if not isinstance(fields.get("name"), str):
        raise ConfigurationError(f"complete(): tools has a schema without a name: {describe_value(tool)}")
    parameters: dict[str, Any] = fields.get("parameters") or fields.get("input_schema") or {"type": "object"}
    return ToolSpec(fields["name"], fields.get("description") or "", parameters, bool(fields.get("strict")))
