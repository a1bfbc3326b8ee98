"""Wire format of the Responses API: builds requests, creates decoders, adapts to error responses."""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from outrider._lazy import lazy_pattern
from outrider.errors import InvalidRequestError, PermissionRefusedError, ProviderError
from outrider.http.transport import HttpRequest
from outrider.providers.openai.common import (
    efforts_in_error,
    endpoint_url,
    error_from_response,
    provider_host,
    request_headers,
)
from outrider.providers.openai.responses_decode import ResponsesDecoder
from outrider.providers.openai.responses_encode import (
    ENCRYPTED_REASONING,
    NO_TRAITS,
    PROMPT_CACHE_KEY,
    REASONING_EFFORT,
    REASONING_SUMMARY,
    SAMPLING,
    STORE,
    STRICT,
    ItemWriter,
    ResponsesTraits,
    encode_custom_call_ids,
    encode_responses_fields,
)
from outrider.providers.request_body import (
    build_body_prefix,
    find_rejected_vendor_tools,
    finish_body,
    has_schemas,
)
from outrider.types.agents import Provider
from outrider.types.request import BodyLayout, Prompt, Request

if TYPE_CHECKING:
    from outrider.providers.schema_dialects import SchemaLowering


FAMILY = "openai-responses"
_REJECTION_PATTERNS = {
    ENCRYPTED_REASONING: lazy_pattern(r"encrypted.content|'include'|unrecognized.{0,40}\binclude\b", re.IGNORECASE),
    REASONING_SUMMARY: lazy_pattern(r"reasoning.summar", re.IGNORECASE),
    REASONING_EFFORT: lazy_pattern(
        r"(unsupported|unknown|unrecognized)[\w ]*\W+reasoning\b(?!\.summ)"
        r"|^reasoning\b(?!\.summ).{0,40}not support"
        r"|not support.{0,30}(reasoning.?effort|\breasoning\b)"
        r"|reasoning.?effort.{0,60}not support",
        re.IGNORECASE,
    ),
    PROMPT_CACHE_KEY: lazy_pattern(PROMPT_CACHE_KEY),
    STORE: lazy_pattern(r"(unsupported|unknown|unrecognized)[\w ]*\W+store\b", re.IGNORECASE),
    STRICT: lazy_pattern(r"(unsupported|unknown|unrecognized)[\w ()]*\W+([\w\[\].]*\.)?strict\b", re.IGNORECASE),
    **{
        name: lazy_pattern(
            rf"(unsupported|unknown) (parameter|value)\W+{name}\b|\b{name}\b.{{0,60}}not support", re.IGNORECASE
        )
        for name in SAMPLING
    },
}


class ResponsesWire:
    """Builds stateless Responses API requests: responses are not stored (unless `extra={"store": True}`), and encrypted
    reasoning is sent with the messages."""

    def __init__(self, provider: Provider) -> None:
        self._headers = request_headers(provider)
        self._url = endpoint_url(provider, "responses")
        self._learned: dict[str, ResponsesTraits] = {}  # by model
        self._family = FAMILY if _is_openai(provider_host(provider)) else f"{FAMILY}@{provider_host(provider)}"

    @cached_property
    def _schemas(self) -> "SchemaLowering":
        from outrider.providers.schema_dialects import SchemaLowering  # lazy: most requests have no such schema

        return SchemaLowering("openai")

    def _lower_schemas(self, request: Request) -> Request:
        return self._schemas.lower_request(request) if has_schemas(request) or "_schemas" in vars(self) else request

    def model_family(self, model: str) -> str:
        """Returns a family per service, because only the service that encrypted the reasoning can decrypt it."""
        return self._family

    def build_request(self, request: Request) -> HttpRequest:
        request = self._lower_schemas(request)
        traits = self._traits_of(request.model)
        prefix = build_body_prefix(request, "input", traits, lambda: encode_responses_fields(request, traits))
        stored = bool(request.settings.extra.get("store"))

        def encode(prompt: Prompt) -> bytearray:
            return encode_input(prompt, self._family, stored=stored)

        items = encode(request.prompt)
        form = ("responses", self._family, "stored" if stored else "")
        layout = BodyLayout(form, prefix, request.prompt, items, encode)
        return HttpRequest(self._url, self._headers, finish_body(prefix, items), layout=layout)

    def create_decoder(self, request: Request) -> ResponsesDecoder:
        return ResponsesDecoder()

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return error_from_response(status, headers, body)

    def adapt_to_error(self, request: Request, error: ProviderError) -> bool:
        """Records optional fields and effort levels that the model rejects. Returns True if the request changes."""
        if not isinstance(error, InvalidRequestError | PermissionRefusedError):
            return False
        current = self._traits_of(request.model)
        learned = _traits_after_error(current, error.message)
        rejected_tools = find_rejected_vendor_tools(request.settings, error.message)
        learned = msgspec.structs.replace(learned, rejected=learned.rejected | rejected_tools)
        self._learned[request.model] = learned
        if encode_responses_fields(request, current) != encode_responses_fields(request, learned):
            return True
        return self._schemas.learn_from_error(request, error)

    def _traits_of(self, model: str) -> ResponsesTraits:
        return self._learned.get(model, NO_TRAITS)


def encode_input(prompt: Prompt, family: str, *, stored: bool) -> bytearray:
    """Encodes the messages of a prompt as input items."""
    encoded_ids = prompt.encoded(f"{family}/custom-calls", lambda message: encode_custom_call_ids(message, family))
    custom_call_ids = frozenset(msgspec.json.decode(b"[%b]" % encoded_ids, type=list[str]))
    writer = ItemWriter(family, custom_call_ids, stored=stored)
    return prompt.encoded(f"{family}/stored" if stored else family, writer.write)


def _traits_after_error(traits: ResponsesTraits, message: str) -> ResponsesTraits:
    if efforts := efforts_in_error(message):
        return ResponsesTraits(traits.rejected, efforts)
    rejected = {field for field, pattern in _REJECTION_PATTERNS.items() if pattern.search(message)}
    return ResponsesTraits(traits.rejected | rejected, traits.efforts)


def _is_openai(host: str) -> bool:
    return host == "openai.com" or host.endswith(".openai.com")
