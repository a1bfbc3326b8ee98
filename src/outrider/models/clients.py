"""Creates model clients from provider settings, shares them between single calls, and prices answers."""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from decimal import Decimal
from functools import cache, cached_property, lru_cache
from time import monotonic
from typing import Any, TypeVar, assert_never, get_args

import msgspec
from msgspec.structs import asdict, replace

from outrider._sync import call_user_function, describe_exception, is_interruption
from outrider.agents.budget import ModelPrice
from outrider.config.providers import proxy_for, with_environment_defaults
from outrider.errors import (
    AuthenticationError,
    CallbackError,
    ConfigurationError,
    InvalidRequestError,
    NetworkError,
    OutriderError,
    ProviderError,
)
from outrider.http.client import HttpClient
from outrider.http.transport import HttpRequest, HttpTimeouts, HttpTransport
from outrider.providers.catalog import ModelCatalog, have_same_limits
from outrider.providers.client import RateLimit, RateLimiter, RequestSigner, WireClient
from outrider.providers.provider import CustomProvider, ModelClient, ModelDescription, WireFormat
from outrider.providers.stream_filters import StreamFilter
from outrider.types.agents import Agent, Credential, CredentialFunction, Provider, ProviderKind
from outrider.types.events import Event
from outrider.types.ids import new_id
from outrider.types.parts import Tokens
from outrider.types.request import (
    AnswerStart,
    Delta,
    Finish,
    InputDelta,
    PartEnd,
    PartStart,
    Prompt,
    ReasoningDelta,
    RemoteEvent,
    Request,
    Retry,
    RetryPolicy,
    TextDelta,
    UsageReport,
)

Settings = TypeVar("Settings", bound=msgspec.Struct)

_log = logging.getLogger("outrider.models")


def model_client(provider: Provider, *, catalog: ModelCatalog | None = None) -> ModelClient:
    """Creates the client of a provider; missing settings are read from the environment. Raises ConfigurationError.

    The provider's `options` may contain:

    - `timeouts`: an HttpTimeouts.
    - `retry`: a RetryPolicy.
    - `rate_limit`: a RateLimit.
    - `cassette`: a CassetteOptions or a factory.
    - `text_tools`: renders tools as text, for models without native tool calls.
    """
    match provider.kind:
        case "scripted":
            from outrider.providers.scripted import scripted_client

            return scripted_client(provider)
        case "custom":
            return CustomClient(provider)
        case "local":
            from outrider.config.paths import find_app_folders
            from outrider.models.local_models import local_client

            return local_client(provider, find_app_folders().data)
        case _:
            return _create_http_client(provider, catalog)


def _create_http_client(provider: Provider, catalog: ModelCatalog | None) -> ModelClient:
    signer = None
    if provider.credentials is not None:
        signer = CredentialSource(provider)
        provider = msgspec.structs.replace(provider, api_key=signer.placeholder, credentials=None)
    match provider.kind:
        case "outrider":
            from outrider.providers.remote_agent import RemoteAgentWire

            return _create_wire_client(provider, RemoteAgentWire(provider), signer=signer)
        case "openai":
            return _create_chat_client(with_environment_defaults(provider), signer)
        case "openai-responses":
            from outrider.providers.openai.responses_client import ResponsesWire

            filled = with_environment_defaults(provider)
            return _create_wire_client(filled, ResponsesWire(filled), signer=signer)
        case "google":
            from outrider.providers.google.client import GoogleWire

            filled = with_environment_defaults(provider)
            return _create_wire_client(filled, GoogleWire(filled), signer=signer)
        case "anthropic":
            filled = with_environment_defaults(provider)
            wire = _create_anthropic_wire(filled, catalog or ModelCatalog())
            return _create_wire_client(filled, wire, signer=signer)
        case unknown:  # msgspec does not validate constructor arguments
            kinds = ", ".join(get_args(ProviderKind))
            raise ConfigurationError(
                f"the provider {provider.name!r} has the unknown kind {unknown!r}; use one of: {kinds}"
            )


def _create_wire_client(
    provider: Provider,
    wire: WireFormat,
    create_filter: Callable[[Request], StreamFilter] | None = None,
    signer: RequestSigner | None = None,
) -> WireClient:
    limit = _parse_options(provider, "rate_limit", RateLimit)
    return WireClient(
        provider.name,
        wire,
        _create_transport(provider),
        retry=_parse_options(provider, "retry", RetryPolicy),
        limiter=RateLimiter(limit) if limit != RateLimit() else None,
        create_filter=create_filter,
        signer=signer,
    )


def _create_transport(provider: Provider) -> HttpTransport:
    network = HttpClient(_parse_options(provider, "timeouts", HttpTimeouts), proxy=proxy_for)
    cassette = provider.options.get("cassette")
    if cassette is None:
        return network
    from outrider.providers.cassettes.replay import CassetteOptions, CassetteTransportFactory

    factory = (
        cassette
        if isinstance(cassette, CassetteTransportFactory)
        else CassetteTransportFactory(_parse_options(provider, "cassette", CassetteOptions))
    )
    return factory.wrap_transport(network)


def _create_chat_client(provider: Provider, signer: RequestSigner | None) -> ModelClient:
    from outrider.providers.openai.chat_client import ChatWire
    from outrider.providers.stream_filters import create_think_filter

    client = _create_wire_client(provider, ChatWire(provider), create_think_filter, signer)
    if not provider.options.get("text_tools"):
        return ToolFallbackClient(client)
    from outrider.providers.text_tool_calls import TextToolsClient

    return TextToolsClient(client)


class ToolFallbackClient:
    """Describes tools in text to models whose server rejects tools, as for the option `text_tools`.

    Until a model has answered with tools, its answers pass through a generator that waits for the rejection."""

    repeats_requests = True

    def __init__(self, client: WireClient) -> None:
        self.name = client.name
        self._client = client
        self._with_tools: dict[str, bool] = {}  # by model

    def model_family(self, model: str) -> str:
        return self._client.model_family(model)

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        accepts_tools = self._with_tools.get(request.model)
        if accepts_tools or not request.tools:
            return self._client.stream(request)
        return self._stream_first(request) if accepts_tools is None else self._stream_as_text(request)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _stream_first(self, request: Request) -> AsyncGenerator[Delta, None]:
        try:
            async with aclosing(self._client.stream(request)) as deltas:
                async for delta in deltas:
                    self._learn_from(delta, request.model)
                    yield delta
            return
        except InvalidRequestError as error:
            from outrider.providers.error_mapping import rejects_tools

            if not rejects_tools(error.message):
                raise
        self._with_tools[request.model] = False
        async with aclosing(self._stream_as_text(request)) as deltas:
            async for delta in deltas:
                yield delta

    def _learn_from(self, delta: Delta, model: str) -> None:
        if not isinstance(delta, Retry):  # a failed attempt proves nothing: the server may not have read the tools
            self._with_tools[model] = True

    def _stream_as_text(self, request: Request) -> AsyncGenerator[Delta, None]:
        from outrider.providers.text_tool_calls import TextToolsClient  # lazy: rarely needed

        return TextToolsClient(self._client).stream(request)


def _create_anthropic_wire(provider: Provider, catalog: ModelCatalog) -> WireFormat:
    from outrider.providers.anthropic.client import AnthropicWire

    def output_limit(model: str) -> int | None:
        return catalog.output_limit(provider.kind, model, base_url=provider.base_url)

    return AnthropicWire(provider, output_limit, catalog.learned_facts(provider.kind, base_url=provider.base_url))


def encode_prompt(form: tuple[str, ...], prompt: Prompt) -> bytes | bytearray:
    """Encodes the messages of a prompt in the form that a stored request names. Raises ConfigurationError for a form of
    another version."""
    match form:
        case ("anthropic", family):
            from outrider.providers.anthropic.encode import encode_message

            return prompt.encoded(family, lambda message: encode_message(message, family))
        case ("chat", family, name, replay):
            from outrider.providers.openai.chat_encode import MessageWriter, find_dialect

            writer = MessageWriter(find_dialect(name, replay), family)
            return prompt.encoded(writer.cache_key, writer.write)
        case ("responses", family, stored):
            from outrider.providers.openai.responses_client import encode_input

            return encode_input(prompt, family, stored=bool(stored))
        case ("google", generation):
            from outrider.providers.google.client import encode_contents

            return encode_contents(prompt, float(generation))
        case _:
            raise ConfigurationError(f"requests in the form {form!r} are not known to this version")


def _parse_options(provider: Provider, name: str, kind: type[Settings]) -> Settings:
    value: Any = provider.options.get(name, {})
    try:
        return value if isinstance(value, kind) else msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"options of the provider {provider.name!r}: {name}: {error}") from error


def as_provider(provider: Provider | CustomProvider) -> Provider:
    """Returns the provider, or wraps one that the program implements. Raises ConfigurationError for other values."""
    if isinstance(provider, Provider):
        return provider
    name: Any = getattr(provider, "name", None)
    if (
        isinstance(provider, type)
        or not isinstance(name, str)
        or not name
        or not callable(getattr(provider, "stream", None))
    ):
        raise ConfigurationError(
            f"a provider is a Provider(…) or an object with a `name` and a method `stream`, got "
            f"{type(provider).__name__}; see outrider.providers.CustomProvider"
        )
    return Provider(name, "custom", options={"client": provider})


_CUSTOM_IDLE_SECONDS = 600.0  # without a delta; a custom provider may have to wait for a complete answer
_STREAM_END = object()


class CustomClient:
    """Streams from a provider that the program implements, and does not close it. Whatever it raises or yields becomes
    a valid stream or a ProviderError. `checks_parts` is False for a test that reports every mistake of a provider."""

    def __init__(self, provider: Provider, *, checks_parts: bool = True) -> None:
        self.name = provider.name
        self._provider = provider
        self._checks_parts = checks_parts
        self._client: Any = provider.options.get("client")
        if self._client is None:
            raise ConfigurationError(f"the provider {provider.name!r} has the kind 'custom'; pass the object itself")
        self.repeats_requests = bool(getattr(self._client, "repeats_requests", False))
        self._idle: float | None = getattr(self._client, "idle_seconds", _CUSTOM_IDLE_SECONDS)

    def model_family(self, model: str) -> str:
        find = getattr(self._client, "model_family", None)
        if not callable(find):
            return f"custom {self.name}"
        return str(_call_method(f"model_family of the provider {self.name!r}", find, model))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        describe_custom_model(self._provider, request.model)  # raises an error now, not after the answer
        deltas, is_complete = self._start_stream(request), False
        started = set[int]()
        try:
            while (delta := await self._next_delta(deltas)) is not _STREAM_END:
                if is_complete and self._checks_parts:
                    text = f"the provider {self.name!r} yielded {type(delta).__name__} after Finish, which is the last"
                    raise ProviderError(text, provider=self.name)
                is_complete = isinstance(self._check_delta(delta, started), Finish)
                yield delta
        finally:
            await self._close_stream(deltas)
        if not is_complete:
            raise ProviderError(f"the provider {self.name!r} ended its answer without Finish", provider=self.name)

    def _start_stream(self, request: Request) -> AsyncIterator[Any]:
        try:
            deltas: Any = self._client.stream(request)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._as_provider_error(error) from error
        if hasattr(deltas, "__aiter__"):
            return aiter(deltas)
        if inspect.iscoroutine(deltas):
            deltas.close()
        raise ProviderError(
            f"`stream` of the provider {self.name!r} returned a {type(deltas).__name__}; it is an async generator: "
            "write `async def stream(self, request)` with `yield` for each delta",
            provider=self.name,
        )

    async def _next_delta(self, deltas: AsyncIterator[Any]) -> Any:
        """Returns the next value of the stream, or _STREAM_END."""
        limit, task = asyncio.timeout(self._idle), asyncio.current_task()
        try:
            async with limit:
                return await anext(deltas, _STREAM_END)
        except BaseException as error:
            if is_interruption(error, task):
                raise
            if limit.expired():
                text = f"the provider {self.name!r} sent nothing for {self._idle:g} s"
                raise NetworkError(text, provider=self.name) from error
            raise self._as_provider_error(error) from error

    async def _close_stream(self, deltas: Any) -> None:
        """Closes the stream. A failure is ignored, because everything that the stream yielded is stored."""
        if hasattr(deltas, "aclose"):
            with suppress(CallbackError):
                await call_user_function(f"aclose of the provider {self.name!r}", _close_generator, deltas)

    def _as_provider_error(self, error: BaseException) -> ProviderError:
        if isinstance(error, ProviderError):
            error.provider = error.provider or self.name
            return error
        text = str(error) if isinstance(error, OutriderError) else describe_exception(error)
        return ProviderError(f"the provider {self.name!r} failed ({text})", provider=self.name)

    def _check_delta(self, delta: object, started: set[int]) -> Delta:
        """Returns the delta. Raises ProviderError if it has no valid fields, or belongs to no part."""
        if not isinstance(delta, Delta):
            text = f"the provider {self.name!r} yielded {type(delta).__name__}"
            raise ProviderError(f"{text}; it yields deltas of outrider.providers such as TextDelta", provider=self.name)
        match delta:
            case PartStart(index=index, kind="tool") if self._checks_parts and not (delta.call_id and delta.tool):
                text = f"the provider {self.name!r} yielded PartStart({index!r}, 'tool') without call_id and tool"
                raise ProviderError(text, provider=self.name)
            case PartStart(index=index):
                started.add(index)
            case TextDelta(index=index) | ReasoningDelta(index=index) | InputDelta(index=index) | PartEnd(index=index):
                if self._checks_parts and index not in started:
                    text = f"the provider {self.name!r} yielded {type(delta).__name__} for the part {index!r}"
                    raise ProviderError(f"{text}, which has no PartStart", provider=self.name)
            case Retry():
                started.clear()
            case AnswerStart() | UsageReport() | RemoteEvent() | Finish():
                pass
            case _:
                assert_never(delta)
        try:
            _validate_fields(delta)
            if self._checks_parts and isinstance(delta, UsageReport):
                _check_tokens(delta.tokens)
        except msgspec.ValidationError as error:
            text = f"the provider {self.name!r} yielded an invalid {type(delta).__name__}: {error}"
            raise ProviderError(text, provider=self.name) from error
        return delta

    async def aclose(self) -> None:
        """Does nothing: the program closes its provider."""


def _validate_fields(value: msgspec.Struct) -> None:
    """Raises msgspec.ValidationError if a field does not have its declared type; constructors do not check types."""
    fields = asdict(value)
    if isinstance(value, UsageReport) and isinstance(value.tokens, Tokens):  # pyright: ignore[reportUnnecessaryIsInstance]
        _validate_fields(value.tokens)
    if isinstance(value, RemoteEvent):
        if not isinstance(value.event, Event):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise msgspec.ValidationError(f"Expected an event, got `{type(value.event).__name__}` - at `$.event`")
        return
    msgspec.convert(fields, type(value), from_attributes=True)


def _check_tokens(tokens: Tokens) -> None:
    """Raises msgspec.ValidationError for negative numbers: they would lower the usage and the cost of a run."""
    if min(tokens.input, tokens.output, tokens.reasoning, tokens.cache.read, tokens.cache.write) < 0:
        raise msgspec.ValidationError("Expected numbers of at least 0 - at `$.tokens`")


async def _close_generator(deltas: Any) -> None:
    await deltas.aclose()


def _call_method(name: str, method: Callable[[str], Any], model: str) -> Any:
    """Calls a plain method of a custom provider. Raises CallbackError if it fails."""
    try:
        return method(model)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise CallbackError(name, f"failed ({describe_exception(error)})") from error


def describe_custom_model(provider: Provider, model: str) -> ModelDescription:
    """Returns the description of a model by a provider that the program implements."""
    describe = getattr(provider.options.get("client"), "describe_model", None)
    name = f"describe_model of the provider {provider.name!r}"
    description = _call_method(name, describe, model) if callable(describe) else None
    if description is None:
        return ModelDescription()
    if not isinstance(description, ModelDescription):
        raise CallbackError(name, f"returned {type(description).__name__}; it returns a ModelDescription or None")
    try:
        _validate_fields(description)
    except msgspec.ValidationError as error:
        raise CallbackError(name, f"returned an invalid ModelDescription: {error}") from error
    return description


MAX_SHARED_CLIENTS = 8  # per event loop; further providers get a new client for each call
_UNSHARED_KINDS = ("scripted", "custom")


class _SharedClient:
    """A shared client with its key, the provider and the catalog, and the generator that closes it with the loop."""

    def __init__(
        self, provider: Provider, catalog: ModelCatalog, client: ModelClient, closer: AsyncGenerator[None, None]
    ) -> None:
        self.provider = provider
        self.catalog = catalog
        self.client = client
        self.closer = closer


_shared_clients: dict[asyncio.AbstractEventLoop, list[_SharedClient]] = {}


@asynccontextmanager
async def shared_client(provider: Provider, catalog: ModelCatalog) -> AsyncGenerator[ModelClient, None]:
    """Yields a client that is shared by all calls in this event loop with equal catalogs: a TLS handshake is slow.

    The client is closed with the loop. Scripted providers and cassettes are not shared.
    """
    loop = asyncio.get_running_loop()
    clients = _shared_clients.get(loop) or _clients_of_loop(loop)
    for shared in clients:
        if shared.provider == provider and have_same_limits(shared.catalog, catalog):
            yield shared.client
            return
    client = model_client(provider, catalog=catalog)
    if len(clients) >= MAX_SHARED_CLIENTS or provider.kind in _UNSHARED_KINDS or "cassette" in provider.options:
        try:
            yield client
        finally:
            await client.aclose()
        return
    closer = _close_with_loop(client, loop)
    clients.append(_SharedClient(provider, catalog, client, closer))
    await anext(closer)
    yield client


class LazyClient:
    """Creates the real client on first use, for providers that no agent uses yet."""

    repeats_requests = True

    def __init__(self, provider: Provider, catalog: ModelCatalog) -> None:
        self.name = provider.name
        self._provider = provider
        self._catalog = catalog

    @cached_property
    def _client(self) -> ModelClient:
        return model_client(self._provider, catalog=self._catalog)

    def model_family(self, model: str) -> str:
        return self._client.model_family(model)

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        return self._client.stream(request)

    async def aclose(self) -> None:
        if "_client" in self.__dict__:
            await self._client.aclose()


async def _close_with_loop(client: ModelClient, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
    """Closes the client when the event loop shuts down: `shutdown_asyncgens` closes this suspended generator."""
    try:
        yield
    finally:
        _shared_clients.pop(loop, None)
        await client.aclose()


def _clients_of_loop(loop: asyncio.AbstractEventLoop) -> list[_SharedClient]:
    for closed_loop in [shared_loop for shared_loop in _shared_clients if shared_loop.is_closed()]:
        del _shared_clients[closed_loop]
    return _shared_clients.setdefault(loop, [])


_MILLION = 1_000_000


@cache
def shared_catalog() -> ModelCatalog:
    """Returns the catalog of the process; its data does not change while the program runs."""
    return ModelCatalog()


class CatalogPricing:
    """Prices and limits of agents' models; caches lookups, which are too slow for every step."""

    def __init__(self, catalog: ModelCatalog, providers: Mapping[str, Provider]) -> None:
        self._catalog = catalog
        self._providers = providers
        self._look_up = lru_cache(maxsize=256)(self._find_facts)

    def price(self, agent: Agent) -> ModelPrice | None:
        return self._look_up(agent.provider, agent.model)[0]

    def context_limit(self, agent: Agent) -> int | None:
        return self._look_up(agent.provider, agent.model)[1]

    def output_limit(self, agent: Agent) -> int | None:
        return self._look_up(agent.provider, agent.model)[2]

    def result_limit(self, agent: Agent) -> int | None:
        if self._providers[agent.provider].kind != "local":
            return None
        from outrider.providers.local.prompt import LOCAL_TOOL_PROMPT

        return LOCAL_TOOL_PROMPT.max_result_characters

    def cost(self, agent: Agent, model: str, tokens: Tokens) -> Decimal | None:
        """Returns the cost at the price of the model that answered, or else of the requested model: some servers report
        other names."""
        try:
            price = self.price(agent)
        except CallbackError as error:  # the answer is stored without its cost
            _log.warning("%s", error.message)
            return None
        if not tokens.total or price is None or price.billed_afterwards:
            return None
        provider = self._providers[agent.provider]
        if provider.kind == "local":
            return Decimal(0)
        if provider.kind == "custom":
            return _cost_by_price(price, tokens)
        for name in dict.fromkeys((model, agent.model)):
            cost = self._catalog.cost_of(provider.kind, name, tokens, base_url=provider.base_url) if name else None
            if cost is not None:
                return cost
        return None

    def _find_facts(self, provider_name: str, model: str) -> tuple[ModelPrice | None, int | None, int | None]:
        provider, catalog = self._providers[provider_name], self._catalog
        if provider.kind == "scripted" and not catalog.is_configured(provider.kind, model):
            return None, None, None  # the name of a model says nothing about scripted answers
        if provider.kind == "custom":
            facts = describe_custom_model(provider, model)
            return _custom_price(facts), facts.context, facts.output
        if provider.kind == "outrider":
            return ModelPrice(billed_afterwards=True), None, None
        if provider.kind == "local":
            from outrider.models.local_models import runtime_limits
            from outrider.providers.local.client import MAX_ANSWER_TOKENS

            return ModelPrice(), runtime_limits(provider).context, MAX_ANSWER_TOKENS
        rates = catalog.prices(provider.kind, model, base_url=provider.base_url)
        price = ModelPrice(rates.input / _MILLION, rates.output / _MILLION) if rates is not None else None
        context = catalog.context_limit(provider.kind, model, base_url=provider.base_url)
        return price, context, catalog.output_limit(provider.kind, model, base_url=provider.base_url)


def custom_cost(provider: Provider, model: str, tokens: Tokens) -> Decimal | None:
    """Returns the cost of an answer of a provider that the program implements; None if it states no price."""
    price = _custom_price(describe_custom_model(provider, model))
    return price and _cost_by_price(price, tokens)


def _cost_by_price(price: ModelPrice, tokens: Tokens) -> Decimal:
    return price.input * tokens.prompt + price.output * (tokens.output + tokens.reasoning)


def _custom_price(facts: ModelDescription) -> ModelPrice | None:
    if facts.input_price is None or facts.output_price is None:
        return None
    return ModelPrice(Decimal(str(facts.input_price)) / _MILLION, Decimal(str(facts.output_price)) / _MILLION)


PEER_KIND = "outrider"


def adapt_to_local_models(agents: Iterable[Agent], providers: Iterable[Provider]) -> tuple[Agent, ...]:
    """Applies `local_profile` to the agents that use a local provider."""
    local = {provider.name for provider in providers if provider.kind == "local"}
    if not local:
        return tuple(agents)
    from outrider.models.local_models import local_profile  # lazy: most runs use no local model

    return tuple(local_profile(agent) if agent.provider in local else agent for agent in agents)


def find_peers(providers: Iterable[Provider]) -> dict[str, Provider]:
    """Returns the peers by address, in the form that RemoteAgentWire uses."""
    peers = [with_environment_defaults(provider) for provider in providers if provider.kind == PEER_KIND]
    return {(peer.base_url or "").rstrip("/"): peer for peer in peers}


async def send_to_peer(peer: Provider, path: str, answer: dict[str, Any]) -> bytes:
    """Posts a reply to a peer and returns the response body.

    Raises ProviderError for an error response, NotFoundError if the question is no longer open.
    """
    from outrider.providers.remote_agent import RemoteAgentWire  # lazy: most configurations have no peers

    wire, chunks = RemoteAgentWire(await with_current_key(peer)), list[bytes]()
    async with aclosing(HttpClient(proxy=proxy_for)) as http:
        response = await http.send(wire.build_reply(path, answer))
        while chunk := await response.read():
            chunks.append(chunk)
    if response.status >= 400:
        raise wire.decode_error(response.status, response.headers, b"".join(chunks))
    return b"".join(chunks)


_RENEWAL_SECONDS = 60.0  # before the end, so that no request starts with a key that expires on its way
_RENEWAL_SHARE = 0.1  # of the lifetime of a key that expires within ten minutes


class CredentialSource:
    """The current key of one provider. Requests are built with `placeholder`, which `sign` replaces with the key."""

    def __init__(self, provider: Provider) -> None:
        self.placeholder = f"credential-{new_id()}"
        self._name = provider.name
        self._function: CredentialFunction = provider.credentials
        self._value = ""
        self._renew_at: float | None = None
        self._lock = asyncio.Lock()

    async def current_key(self) -> str:
        """Returns the key; calls the function if there is no key yet or the key is about to expire. Raises
        AuthenticationError if the function fails. The lock makes concurrent requests wait for one call."""
        async with self._lock:
            if not self._value or (self._renew_at is not None and monotonic() >= self._renew_at):
                await self._call_function()
            return self._value

    async def sign(self, request: HttpRequest) -> HttpRequest:
        """Returns the request with the current key in place of the placeholder."""
        key = await self.current_key()
        headers = {name: value.replace(self.placeholder, key) for name, value in request.headers.items()}
        return replace(request, headers=headers, url=request.url.replace(self.placeholder, key))

    def reject(self, request: HttpRequest) -> None:
        """Forgets the key of a refused request, unless another request has replaced it already."""
        if self._value and any(self._value in value for value in (*request.headers.values(), request.url)):
            self._value = ""

    async def _call_function(self) -> None:
        self._value, self._renew_at = "", None
        name = f"the api_key function of the provider {self._name!r}"
        try:
            returned: Any = await call_user_function(name, self._function)
        except CallbackError as error:
            raise AuthenticationError(error.message, provider=self._name) from error
        credential = Credential(returned) if isinstance(returned, str) else returned
        if (
            not isinstance(credential, Credential)
            or not isinstance(credential.value, str)  # pyright: ignore[reportUnnecessaryIsInstance]
            or not credential.value.strip()
        ):
            raise AuthenticationError(
                f"{name} returned no key; it must return a string or a Credential, got {type(returned).__name__}",
                provider=self._name,
            )
        if credential.seconds is not None:
            self._renew_at = (
                monotonic() + credential.seconds - min(_RENEWAL_SECONDS, credential.seconds * _RENEWAL_SHARE)
            )
        self._value = credential.value.strip()


async def with_current_key(provider: Provider) -> Provider:
    """Returns the provider with the key that its function returns, for a single request outside of a client."""
    if provider.credentials is None:
        return provider
    return replace(provider, api_key=await CredentialSource(provider).current_key(), credentials=None)
