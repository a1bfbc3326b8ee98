"""Wire format of the Messages API: builds requests, creates decoders and adapts to error responses."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from outrider.errors import ConfigurationError, InvalidRequestError, ProviderError
from outrider.http.transport import HttpRequest
from outrider.providers.anthropic.decode import AnthropicDecoder, error_from_response
from outrider.providers.anthropic.encode import (
    ModelTraits,
    encode_message,
    encode_prefix,
    encode_settings,
    lacks_required_thinking,
    refers_to_upload,
    traits_for_model,
)
from outrider.providers.request_body import (
    SharedPrefixes,
    build_body_prefix,
    encode_json,
    find_rejected_vendor_tools,
    finish_body,
    has_schemas,
    insert_bytes,
    merge_fields,
)
from outrider.types.agents import Provider
from outrider.types.modes import VendorTool
from outrider.types.request import BodyLayout, ModelMessage, Prompt, Request

if TYPE_CHECKING:
    from outrider.providers.schema_dialects import SchemaLowering

# The version that every compatible server accepts; later versions reject `temperature` for every model.
_API_VERSION = "2023-06-01"
_VERTEX_VERSION = "vertex-2023-10-16"
_DEFAULT_BASE_URL = "https://api.anthropic.com"


class MessagesEndpoint(msgspec.Struct, frozen=True):
    """Base URL, headers and cache mode of one provider.

    `caching` is `auto` (the server moves the cache mark to the end of the prompt), `marks` (the client sets it) or
    `off`.
    """

    base: str
    headers: dict[str, str]
    vertex: bool
    caching: str
    cache_control: dict[str, Any]

    def request_url(self, model: str, *, stream: bool) -> str:
        if not self.vertex:
            return f"{self.base}/messages"
        return f"{self.base}/models/{model}:{'streamRawPredict' if stream else 'rawPredict'}"

    def model_fields(self, model: str) -> dict[str, Any]:
        """Returns the fields that name the model. Vertex takes the model from the URL and requires the version in the
        body."""
        return {"anthropic_version": _VERTEX_VERSION} if self.vertex else {"model": model}

    def headers_with_betas(self, betas: Iterable[str]) -> dict[str, str]:
        configured = self.headers.get("anthropic-beta", "")
        names = dict.fromkeys([*filter(None, configured.split(",")), *betas])
        return self.headers | {"anthropic-beta": ",".join(names)} if names else self.headers


def build_endpoint(provider: Provider) -> MessagesEndpoint:
    """Builds the endpoint from the provider configuration. Supported `options` keys: version, betas, caching,
    cache_ttl, and for Vertex project and region."""
    options = provider.options
    vertex = "project" in options or "/publishers/anthropic" in (provider.base_url or "")
    ttl = options.get("cache_ttl")
    return MessagesEndpoint(
        base=_vertex_base_url(provider) if vertex else _base_url(provider.base_url),
        headers=_request_headers(provider, vertex=vertex),
        vertex=vertex,
        caching=options.get("caching", "marks" if vertex else "auto"),
        cache_control={"type": "ephemeral", "ttl": ttl} if ttl else {"type": "ephemeral"},
    )


def _base_url(base_url: str | None) -> str:
    base = (base_url or _DEFAULT_BASE_URL).rstrip("/")
    return base if base.endswith("/v1") else f"{base}/v1"


def _vertex_base_url(provider: Provider) -> str:
    base = (provider.base_url or "").rstrip("/")
    if base.endswith("/publishers/anthropic"):
        return base
    project, region = provider.options.get("project"), provider.options.get("region")
    if not project or not region:
        raise ConfigurationError(f"provider {provider.name}: Vertex needs the options project and region")
    host = "aiplatform.googleapis.com" if region == "global" else f"{region}-aiplatform.googleapis.com"
    return f"{base or f'https://{host}/v1'}/projects/{project}/locations/{region}/publishers/anthropic"


def _request_headers(provider: Provider, *, vertex: bool) -> dict[str, str]:
    """Returns the request headers. Headers from the provider configuration override the defaults."""
    headers = {"content-type": "application/json"}
    if not vertex:
        headers["anthropic-version"] = provider.options.get("version", _API_VERSION)
    if provider.api_key:
        headers |= _auth_headers(provider.api_key, provider.base_url or _DEFAULT_BASE_URL, vertex=vertex)
    if betas := provider.options.get("betas"):
        headers["anthropic-beta"] = ",".join(betas)
    return headers | {name.lower(): value for name, value in provider.headers.items()}


def _auth_headers(key: str, url: str, *, vertex: bool) -> dict[str, str]:
    """Returns the headers with the key. Compatible servers read it from `x-api-key` or from `authorization`, so they
    get both."""
    api_key, bearer = {"x-api-key": key}, {"authorization": f"Bearer {key}"}
    if vertex:
        return bearer
    return api_key if f".{urlsplit(url).hostname}".endswith(".anthropic.com") else api_key | bearer


_FAMILY = "anthropic"
_INTERLEAVED_THINKING_BETA = "interleaved-thinking-2025-05-14"
_CODE_EXECUTION_BETA = "code-execution-2025-08-25"
_FILES_BETA = "files-api-2025-04-14"
_BLOCK_END = len(b"}]}")  # closes the last content block, the content and the message
_LOOKBACK_BLOCKS = 15  # the API looks back 20 blocks; some parts become two


class AnthropicWire:
    """Builds Messages API requests and learns model limits from error responses.

    `output_limit` returns the catalog's maximum output tokens for a model. Limits that the API reports override it;
    they are stored in `shared_traits`, a dict that several instances for one base URL may share.
    """

    def __init__(
        self,
        provider: Provider,
        output_limit: Callable[[str], int | None] = lambda _: None,
        shared_traits: dict[str, ModelTraits] | None = None,
    ) -> None:
        self._endpoint = build_endpoint(provider)
        self._output_limit = output_limit
        self._prefixes = SharedPrefixes()
        self._traits = {} if shared_traits is None else shared_traits

    @cached_property
    def _schemas(self) -> "SchemaLowering":
        from outrider.providers.schema_dialects import SchemaLowering  # lazy: most requests have no such schema

        return SchemaLowering("anthropic")

    def _lower_schemas(self, request: Request) -> Request:
        return self._schemas.lower_request(request) if has_schemas(request) or "_schemas" in vars(self) else request

    def model_family(self, model: str) -> str:
        """Returns "anthropic" for every Claude model. On a compatible server every other model is a separate family."""
        return _FAMILY if "claude" in model.lower() else f"{_FAMILY}:{model}"

    def build_request(self, request: Request) -> HttpRequest:
        request = self._lower_schemas(request)
        family = self.model_family(request.model)

        def encode(message: ModelMessage) -> bytes:
            return encode_message(message, family)

        traits = self._traits_of(request.model)
        form = (
            self._endpoint,
            traits,
            self._catalog_limit(request, traits),
            lacks_required_thinking(request, traits),
        )
        prefix = build_body_prefix(request, "messages", form, lambda: self._body_fields(request), shared=self._prefixes)
        messages = request.prompt.encoded(family, encode)
        marks = tuple(self._cache_marks(request.prompt, family, traits, end=len(messages)))
        return HttpRequest(
            url=self._endpoint.request_url(request.model, stream=request.stream),
            headers=self._endpoint.headers_with_betas(self._beta_features(request, traits)),
            body=finish_body(prefix, insert_bytes(messages, marks)),
            layout=BodyLayout(
                (_FAMILY, family),
                prefix,
                request.prompt,
                messages,
                lambda prompt: prompt.encoded(family, encode),
                marks,
            ),
        )

    def create_decoder(self, request: Request) -> AnthropicDecoder:
        return AnthropicDecoder()

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return error_from_response(status, headers, body)

    def adapt_to_error(self, request: Request, error: ProviderError) -> bool:
        """Stores what an error response reveals about the model. Returns True if the request body changes as a
        result."""
        if not isinstance(error, InvalidRequestError):
            return False
        original, request = request, self._lower_schemas(request)
        before, traits = self._body_fields_with_extra(request), self._traits_of(request.model)
        rejected = traits.rejected_tools | find_rejected_vendor_tools(request.settings, error.message)
        self._traits[request.model] = replace(traits.updated_from_error(error.message), rejected_tools=rejected)
        if self._body_fields_with_extra(request) != before:
            return True
        return self._schemas.learn_from_error(original, error)

    def _caching(self, traits: ModelTraits) -> str:
        """Returns the cache mode: a server that rejects the mark of the request gets marks in its blocks, and none if
        it rejects those too."""
        if not traits.marks:
            return "off"
        return "marks" if traits.block_marks and self._endpoint.caching == "auto" else self._endpoint.caching

    def _cache_marks(
        self, prompt: Prompt, family: str, traits: ModelTraits, *, end: int
    ) -> Iterator[tuple[int, bytes]]:
        """Yields the cache marks in the messages, with their offsets: the end of the previous request, if many blocks
        follow it, and the last block. The server looks for cached prefixes only in the last blocks before a mark. With
        tools and system prompt these are four marks, as many as the API accepts. It ignores marks when it compares
        prefixes, so earlier bytes still match the cache."""
        caching = self._caching(traits)
        if caching == "off" or not end:
            return
        mark = b',"cache_control":' + encode_json(self._endpoint.cache_control)
        sent_count = prompt.count_sent()
        if (
            0 < sent_count < len(prompt)
            and sum(len(message.content) for message in prompt[sent_count:]) >= _LOOKBACK_BLOCKS
        ):
            yield prompt.encoded_end(family, sent_count) - _BLOCK_END, mark
        if caching == "marks":
            yield end - _BLOCK_END, mark

    def _body_fields_with_extra(self, request: Request) -> dict[str, Any]:
        return merge_fields(self._body_fields(request), request.settings.extra)

    def _body_fields(self, request: Request) -> dict[str, Any]:
        """Returns the body without messages and without the user's extra fields. With `auto` caching the server moves
        the cache mark, so encoded messages never change."""
        endpoint = self._endpoint
        traits = self._traits_of(request.model)
        fields = endpoint.model_fields(request.model)
        vendor_tools = self._vendor_tools(request, traits)
        fields |= encode_prefix(
            request, None if self._caching(traits) == "off" else endpoint.cache_control, vendor_tools
        )
        fields |= encode_settings(request, traits, self._catalog_limit(request, traits))
        if self._caching(traits) == "auto":
            fields["cache_control"] = endpoint.cache_control
        return fields

    def _catalog_limit(self, request: Request, traits: ModelTraits) -> int | None:
        """Returns the catalog's output limit, or None if the settings or an error response already give one."""
        limit = request.settings.max_output_tokens or traits.output_limit
        return None if limit else self._output_limit(request.model)

    def _traits_of(self, model: str) -> ModelTraits:
        return self._traits.get(model) or traits_for_model(model)

    def _vendor_tools(self, request: Request, traits: ModelTraits) -> list[VendorTool]:
        """Returns the enabled tools of the vendor; servers of other vendors that speak this API do not have them."""
        enabled = request.settings.vendor_tools if traits.version is not None else ()
        return [name for name in enabled if name not in traits.rejected_tools]

    def _beta_features(self, request: Request, traits: ModelTraits) -> Iterator[str]:
        settings = request.settings
        if traits.interleaves_on_request and (settings.reasoning is not False or settings.extra):
            fields = self._body_fields_with_extra(request)
            if "tools" in fields and fields.get("thinking", {}).get("type") == "enabled":
                yield _INTERLEAVED_THINKING_BETA
        if "code_execution" in self._vendor_tools(request, traits):
            yield _CODE_EXECUTION_BETA
        if request.prompt.encoded("anthropic-uploads", _upload_marker):
            yield _FILES_BETA


def _upload_marker(message: ModelMessage) -> bytes:
    """Returns a non-empty value if the message refers to an uploaded file. The prompt caches it per message, so each
    message is scanned once."""
    return b"1" if any(refers_to_upload(part) for part in message.content) else b""
