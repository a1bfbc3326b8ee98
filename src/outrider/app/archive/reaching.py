"""Can a provider be reached, and does it take the key: asked by listing its models, which costs nothing."""

import asyncio
import ssl
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from outrider.app.archive.health import Finding
from outrider.types.agents import Provider

SECONDS = 15.0
_ADDRESSES = {
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com/v1",
    "openai-responses": "https://api.openai.com/v1",
    "google": "https://generativelanguage.googleapis.com",
    "outrider": "http://localhost",
}
_PATHS = {"anthropic": "/v1/models", "google": "/v1beta/models", "outrider": "/api/health"}


async def reached(provider: Provider) -> Finding:
    name = f"network {provider.name}"
    if provider.kind not in _ADDRESSES:
        return Finding(name, "ok", "needs no network")
    return await asyncio.to_thread(_ask, name, provider)


def _ask(name: str, provider: Provider) -> Finding:
    address = (provider.base_url or _ADDRESSES[provider.kind]).rstrip("/")
    request = Request(address + _PATHS.get(provider.kind, "/models"), headers=_headers(provider))
    try:
        with build_opener(ProxyHandler()).open(request, timeout=SECONDS):
            return Finding(name, "ok", f"{address} answers and takes the key")
    except HTTPError as error:
        with error:
            return _refused(name, address, error.code)
    except URLError as error:
        if isinstance(error.reason, ssl.SSLError):
            remedy = "point SSL_CERT_FILE to the certificate of the proxy that reads your traffic"
            return Finding(name, "problem", f"the certificate of {address} is not trusted", remedy)
        return Finding(name, "problem", f"{address}: {error.reason}", "check the address, the network and HTTPS_PROXY")
    except OSError as error:
        return Finding(name, "problem", f"{address}: {error}", "check the address, the network and HTTPS_PROXY")


def _refused(name: str, address: str, status: int) -> Finding:
    match status:
        case 401 | 403:
            return Finding(name, "problem", f"{address} refuses the key ({status})", "check the key in the environment")
        case 404 | 405:
            return Finding(name, "note", f"{address} answers, and lists no models ({status})")
        case _:
            return Finding(name, "problem", f"{address} answers {status}", "try again later")


def _headers(provider: Provider) -> dict[str, str]:
    key = provider.api_key or ""
    match provider.kind:
        case "anthropic":
            own = {"x-api-key": key, "anthropic-version": "2023-06-01"}
        case "google":
            own = {"x-goog-api-key": key}
        case _:
            own = {"authorization": f"Bearer {key}"} if key else {}
    return {**own, **provider.headers}
