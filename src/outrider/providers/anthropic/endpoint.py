"""Where the Messages API is reached: Anthropic itself, a server that speaks like it, or Google's Vertex."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from outrider.errors import ConfigurationError
from outrider.types.agents import Provider

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
