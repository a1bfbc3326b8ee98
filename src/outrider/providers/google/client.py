"""Gemini's API: how a request leaves, and who reads what comes back."""

from collections.abc import Mapping
from urllib.parse import quote

from outrider.errors import ProviderError
from outrider.providers.google.decode import GeminiDecoder
from outrider.providers.google.encode import ContentWriter, generation_of, head
from outrider.providers.google.errors import refused
from outrider.providers.provider import HttpCall
from outrider.providers.request_body import finished, opening
from outrider.types.agents import Provider
from outrider.types.parts import ToolUsePart
from outrider.types.request import Prompt, Request

FAMILY = "google"
_DEVELOPER_API = "https://generativelanguage.googleapis.com"


class GoogleWire:
    """The developer API, or Vertex where `options` name a `project` (and a `location`, else global): there the key
    is an access token. `options["api_version"]` replaces v1beta (v1beta1 on Vertex)."""

    def __init__(self, provider: Provider) -> None:
        options = provider.options
        project, location = options.get("project"), options.get("location", "global")
        host = provider.base_url or (_vertex(location) if project else _DEVELOPER_API)
        version = options.get("api_version", "v1beta1" if project else "v1beta")
        where = f"/projects/{project}/locations/{location}/publishers/google" if project else ""
        self._base = f"{host.rstrip('/')}/{version}{where}"
        self._headers = {"content-type": "application/json"} | _key(provider, is_token=bool(project)) | provider.headers

    def family(self, model: str) -> str:
        return FAMILY

    def call(self, request: Request) -> HttpCall:
        generation = generation_of(request.model)
        writer = ContentWriter(FAMILY, generation, lambda call_id: _name_of(call_id, request.prompt))
        contents = request.prompt.encoded(f"{FAMILY}/{3 if generation >= 3 else 2}", writer.write)
        begun = opening(request, "contents", generation, lambda: head(request, generation))
        return HttpCall(self._url(request), self._headers, finished(begun, contents))

    def decoder(self, request: Request) -> GeminiDecoder:
        return GeminiDecoder()

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return refused(status, headers, body)

    def _url(self, request: Request) -> str:
        model = request.model if "/" in request.model else f"models/{request.model}"
        method = "streamGenerateContent?alt=sse" if request.stream else "generateContent"
        return f"{self._base}/{quote(model)}:{method}"


def _vertex(location: str) -> str:
    return f"https://{'' if location == 'global' else f'{location}-'}aiplatform.googleapis.com"


def _key(provider: Provider, *, is_token: bool) -> dict[str, str]:
    if not provider.api_key:
        return {}
    return {"authorization": f"Bearer {provider.api_key}"} if is_token else {"x-goog-api-key": provider.api_key}


def _name_of(call_id: str, prompt: Prompt) -> str:
    """The tool of a call, for results that do not name it."""
    for message in reversed(prompt):
        for part in message.content:
            if isinstance(part, ToolUsePart) and part.tool_id == call_id:
                return part.tool_name
    return call_id
