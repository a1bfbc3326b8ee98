"""The Messages API as a wire format: requests written, answers and refusals read, maxima learnt."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from outrider.errors import ConfigurationError, InvalidRequestError, ProviderError
from outrider.providers.anthropic.decode import AnthropicDecoder
from outrider.providers.anthropic.encode import encode_message, head, names_upload, tuning
from outrider.providers.anthropic.errors import error_in_response
from outrider.providers.anthropic.models import ModelTraits, traits_of
from outrider.providers.provider import HttpCall
from outrider.providers.request_body import encoded_json, finished, merged, opening
from outrider.types.agents import Provider
from outrider.types.request import ModelMessage, Request

# What every compatible server knows; later versions refuse a temperature for every model.
_VERSION = "2023-06-01"
_VERTEX_VERSION = "vertex-2023-10-16"
_ANTHROPIC = "https://api.anthropic.com"


class Endpoint(msgspec.Struct, frozen=True):
    """`caching` is `auto` (the server moves the mark to the end of the prompt), `marks` (we do) or `off`."""

    base: str
    headers: dict[str, str]
    vertex: bool
    caching: str
    mark: dict[str, Any]

    def url(self, model: str, *, stream: bool) -> str:
        if not self.vertex:
            return f"{self.base}/messages"
        return f"{self.base}/models/{model}:{'streamRawPredict' if stream else 'rawPredict'}"

    def identity(self, model: str) -> dict[str, Any]:
        """Vertex names the model in the address and the version in the body."""
        return {"anthropic_version": _VERTEX_VERSION} if self.vertex else {"model": model}

    def headers_with(self, betas: Iterable[str]) -> dict[str, str]:
        given = self.headers.get("anthropic-beta", "")
        wanted = dict.fromkeys([*filter(None, given.split(",")), *betas])
        return self.headers | {"anthropic-beta": ",".join(wanted)} if wanted else self.headers


def endpoint(provider: Provider) -> Endpoint:
    """`options`: version, betas, caching, cache_ttl; for Vertex project and region."""
    options = provider.options
    vertex = "project" in options or "/publishers/anthropic" in (provider.base_url or "")
    ttl = options.get("cache_ttl")
    return Endpoint(
        base=_vertex_base(provider) if vertex else _base(provider.base_url),
        headers=_headers(provider, vertex=vertex),
        vertex=vertex,
        caching=options.get("caching", "marks" if vertex else "auto"),
        mark={"type": "ephemeral", "ttl": ttl} if ttl else {"type": "ephemeral"},
    )


def _base(base_url: str | None) -> str:
    base = (base_url or _ANTHROPIC).rstrip("/")
    return base if base.endswith("/v1") else f"{base}/v1"


def _vertex_base(provider: Provider) -> str:
    base = (provider.base_url or "").rstrip("/")
    if base.endswith("/publishers/anthropic"):
        return base
    project, region = provider.options.get("project"), provider.options.get("region")
    if not project or not region:
        raise ConfigurationError(f"provider {provider.name}: Vertex needs the options project and region")
    host = "aiplatform.googleapis.com" if region == "global" else f"{region}-aiplatform.googleapis.com"
    return f"{base or f'https://{host}/v1'}/projects/{project}/locations/{region}/publishers/anthropic"


def _headers(provider: Provider, *, vertex: bool) -> dict[str, str]:
    """A provider's own headers count last."""
    headers = {"content-type": "application/json"}
    if not vertex:
        headers["anthropic-version"] = provider.options.get("version", _VERSION)
    if provider.api_key:
        headers |= _key_headers(provider.api_key, provider.base_url or _ANTHROPIC, vertex=vertex)
    if betas := provider.options.get("betas"):
        headers["anthropic-beta"] = ",".join(betas)
    return headers | {name.lower(): value for name, value in provider.headers.items()}


def _key_headers(key: str, url: str, *, vertex: bool) -> dict[str, str]:
    """Compatible servers look for the key in one of two places, so they get it in both."""
    own, bearer = {"x-api-key": key}, {"authorization": f"Bearer {key}"}
    if vertex:
        return bearer
    return own if f".{urlsplit(url).hostname}".endswith(".anthropic.com") else own | bearer


_FAMILY = "anthropic"
_INTERLEAVED = "interleaved-thinking-2025-05-14"
_FILES = "files-api-2025-04-14"


class AnthropicWire:
    """`output_limit` is what the catalog knows of a model's largest answer; what the API says counts more, and is
    kept in `learnt`, which the wires of one address may share."""

    def __init__(
        self,
        provider: Provider,
        output_limit: Callable[[str], int | None] = lambda _: None,
        learnt: dict[str, ModelTraits] | None = None,
    ) -> None:
        self._endpoint = endpoint(provider)
        self._output_limit = output_limit
        self._traits = {} if learnt is None else learnt

    def family(self, model: str) -> str:
        """All of Claude is one family; behind a compatible server every other model is its own."""
        return _FAMILY if "claude" in model.lower() else f"{_FAMILY}:{model}"

    def call(self, request: Request) -> HttpCall:
        family = self.family(request.model)

        def encode(message: ModelMessage) -> bytes:
            return encode_message(message, family)

        traits = self._traits_of(request.model)
        form = (self._endpoint, traits, self._limit(request, traits))
        begun = opening(request, "messages", form, lambda: self._fields(request))
        messages: bytes | bytearray = request.prompt.encoded(family, encode)
        if self._endpoint.caching == "marks":
            messages = _marked_end(messages, self._endpoint.mark)
        return HttpCall(
            url=self._endpoint.url(request.model, stream=request.stream),
            headers=self._endpoint.headers_with(self._betas(request, traits)),
            body=finished(begun, messages),
        )

    def decoder(self, request: Request) -> AnthropicDecoder:
        return AnthropicDecoder()

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return error_in_response(status, headers, body)

    def learn(self, request: Request, error: ProviderError) -> bool:
        """Remembers what a refusal tells about the model; True when the request now reads otherwise."""
        if not isinstance(error, InvalidRequestError):
            return False
        before = self._all_fields(request)
        self._traits[request.model] = self._traits_of(request.model).after(error.message)
        return self._all_fields(request) != before

    def _all_fields(self, request: Request) -> dict[str, Any]:
        return merged(self._fields(request), request.settings.extra)

    def _fields(self, request: Request) -> dict[str, Any]:
        """The body but for its messages and the user's own fields. Where the server moves the mark itself, no message
        ever changes."""
        place = self._endpoint
        traits = self._traits_of(request.model)
        fields = place.identity(request.model)
        fields |= head(request, None if place.caching == "off" else place.mark)
        fields |= tuning(request, traits, self._limit(request, traits))
        if place.caching == "auto":
            fields["cache_control"] = place.mark
        return fields

    def _limit(self, request: Request, traits: ModelTraits) -> int | None:
        """What the catalog says of the largest answer, where nobody knows better."""
        known = request.settings.max_output_tokens or traits.output_limit
        return None if known else self._output_limit(request.model)

    def _traits_of(self, model: str) -> ModelTraits:
        return self._traits.get(model) or traits_of(model)

    def _betas(self, request: Request, traits: ModelTraits) -> Iterator[str]:
        settings = request.settings
        if traits.interleaves_on_request and (settings.reasoning or settings.extra):
            fields = self._all_fields(request)
            if "tools" in fields and fields.get("thinking", {}).get("type") == "enabled":
                yield _INTERLEAVED
        if request.prompt.encoded("anthropic-uploads", _uploads):
            yield _FILES


def _uploads(message: ModelMessage) -> bytes:
    """Something where a message names an uploaded file: remembered with the prompt, so that each is looked at once."""
    return b"1" if any(names_upload(part) for part in message.content) else b""


def _marked_end(messages: bytes | bytearray, mark: dict[str, Any]) -> bytes | bytearray:
    """The mark on the last block of the prompt. Caches do not see marks, so earlier bytes still count as the same."""
    return b"".join((messages[:-3], b',"cache_control":', encoded_json(mark), b"}]}")) if messages else messages
