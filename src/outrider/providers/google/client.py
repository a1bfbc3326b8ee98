"""Wire format of the Gemini API: builds requests and creates decoders."""

import re
from collections.abc import Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from outrider.errors import InvalidRequestError, ProviderError
from outrider.http.transport import HttpRequest
from outrider.providers.google.decode import GeminiDecoder, error_from_response
from outrider.providers.google.encode import ContentWriter, encode_body_fields, model_generation
from outrider.providers.request_body import (
    SharedPrefixes,
    build_body_prefix,
    find_rejected_vendor_tools,
    finish_body,
    has_schemas,
)
from outrider.types.agents import Provider
from outrider.types.modes import VendorTool
from outrider.types.parts import ToolUsePart
from outrider.types.request import BodyLayout, Prompt, Request

if TYPE_CHECKING:
    from outrider.providers.schema_dialects import SchemaLowering

FAMILY = "google"
_DEVELOPER_API = "https://generativelanguage.googleapis.com"
_THINKING_REJECTED = re.compile(r"thinking(?! signature)|thoughts\b", re.IGNORECASE)


class GoogleWire:
    """Builds Gemini requests for the developer API, or for Vertex if `options` contain `project` (`location` defaults
    to global).

    On Vertex the API key is an access token. `options["api_version"]` replaces the default v1beta (v1beta1 on Vertex).
    """

    def __init__(self, provider: Provider) -> None:
        options = provider.options
        project, location = options.get("project"), options.get("location", "global")
        host = provider.base_url or (_vertex_host(location) if project else _DEVELOPER_API)
        version = options.get("api_version", "v1beta1" if project else "v1beta")
        project_path = f"/projects/{project}/locations/{location}/publishers/google" if project else ""
        self._without_thinking: set[str] = set()  # models that rejected a thinking configuration
        self._rejected_tools: dict[str, frozenset[VendorTool]] = {}  # tools of the vendor, by model
        self._prefixes = SharedPrefixes()
        self._base = f"{host.rstrip('/')}/{version}{project_path}"
        self._headers = (
            {"content-type": "application/json"} | _auth_header(provider, is_token=bool(project)) | provider.headers
        )

    @cached_property
    def _schemas(self) -> "SchemaLowering":
        from outrider.providers.schema_dialects import SchemaLowering  # lazy: most requests have no such schema

        return SchemaLowering("google")

    def _lower_schemas(self, request: Request) -> Request:
        return self._schemas.lower_request(request) if has_schemas(request) or "_schemas" in vars(self) else request

    def model_family(self, model: str) -> str:
        return FAMILY

    def build_request(self, request: Request) -> HttpRequest:
        request = self._lower_schemas(request)
        generation = model_generation(request.model)
        contents = encode_contents(request.prompt, generation)
        thinking = request.model not in self._without_thinking
        rejected = self._rejected_tools.get(request.model, frozenset())
        prefix = build_body_prefix(
            request,
            "contents",
            (generation, thinking, rejected),
            lambda: encode_body_fields(request, generation, thinking=thinking, rejected=rejected),
            shared=self._prefixes,
        )
        form, encode = (FAMILY, str(generation)), partial(encode_contents, generation=generation)
        layout = BodyLayout(form, prefix, request.prompt, contents, encode)
        return HttpRequest(self._request_url(request), self._headers, finish_body(prefix, contents), layout=layout)

    def create_decoder(self, request: Request) -> GeminiDecoder:
        return GeminiDecoder()

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return error_from_response(status, headers, body)

    def adapt_to_error(self, request: Request, error: ProviderError) -> bool:
        """Stops sending a thinking configuration or a tool of the vendor to a model that rejects it. Returns True if
        the request changes."""
        if not isinstance(error, InvalidRequestError):
            return False
        rejected = self._rejected_tools.get(request.model, frozenset())
        if newly_rejected := find_rejected_vendor_tools(request.settings, error.message) - rejected:
            self._rejected_tools[request.model] = rejected | newly_rejected
            return True
        if not _THINKING_REJECTED.search(error.message):
            return self._schemas.learn_from_error(request, error)
        config = encode_body_fields(request, model_generation(request.model)).get("generationConfig", {})
        if request.model in self._without_thinking or "thinkingConfig" not in config:
            return False
        self._without_thinking.add(request.model)
        return True

    def _request_url(self, request: Request) -> str:
        model = request.model if "/" in request.model else f"models/{request.model}"
        method = "streamGenerateContent?alt=sse" if request.stream else "generateContent"
        return f"{self._base}/{quote(model)}:{method}"


def encode_contents(prompt: Prompt, generation: float) -> bytearray:
    """Encodes the messages of a prompt for a model generation."""
    writer = ContentWriter(FAMILY, generation, lambda call_id: _tool_name_of_call(call_id, prompt))
    return prompt.encoded(f"{FAMILY}/{3 if generation >= 3 else 2}", writer.write)


def _vertex_host(location: str) -> str:
    return f"https://{'' if location == 'global' else f'{location}-'}aiplatform.googleapis.com"


def _auth_header(provider: Provider, *, is_token: bool) -> dict[str, str]:
    if not provider.api_key:
        return {}
    return {"authorization": f"Bearer {provider.api_key}"} if is_token else {"x-goog-api-key": provider.api_key}


def _tool_name_of_call(call_id: str, prompt: Prompt) -> str:
    """Returns the tool name of a call, for results that do not contain it."""
    for message in reversed(prompt):
        for part in message.content:
            if isinstance(part, ToolUsePart) and part.tool_id == call_id:
                return part.tool_name
    return call_id
