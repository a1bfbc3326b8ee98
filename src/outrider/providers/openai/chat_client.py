"""Wire format of Chat Completions: builds requests, creates decoders, adapts to error responses."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from outrider.errors import InvalidRequestError, ProviderError
from outrider.http.transport import HttpRequest
from outrider.providers.openai.chat_decode import ChatDecoder
from outrider.providers.openai.chat_encode import (
    ChatDialect,
    MessageWriter,
    dialect_after_error,
    dialect_for_model,
    dialect_for_provider,
    encode_chat_fields,
    model_family,
    system_message,
)
from outrider.providers.openai.common import (
    endpoint_url,
    error_from_response,
    request_headers,
)
from outrider.providers.request_body import (
    SharedPrefixes,
    build_body_prefix,
    encode_json,
    finish_body,
    has_schemas,
)
from outrider.types.agents import Provider
from outrider.types.parts import ReasoningPart
from outrider.types.request import BodyLayout, Prompt, Request

if TYPE_CHECKING:
    from outrider.providers.schema_dialects import SchemaLowering


class ChatWire:
    """Builds requests for OpenAI and compatible servers in the dialect that the provider's host selects."""

    def __init__(self, provider: Provider) -> None:
        self._dialect = dialect_for_provider(provider)
        self._learned: dict[str, list[ChatDialect]] = {}  # per model; the last one is used
        self._prefixes = SharedPrefixes()
        self._headers = request_headers(provider)
        self._url = endpoint_url(provider, "chat/completions")

    @cached_property
    def _schemas(self) -> "SchemaLowering":
        from outrider.providers.schema_dialects import SchemaLowering  # lazy: most requests have no such schema

        # These gateways translate the schemas of tools for models of other vendors.
        return SchemaLowering("openai", lowers_tools=self._dialect.name not in ("openrouter", "vercel"))

    def _lower_schemas(self, request: Request, *, native: bool) -> Request:
        if has_schemas(request) or "_schemas" in vars(self):
            return self._schemas.lower_request(request, native=native)
        return request

    def model_family(self, model: str) -> str:
        return model_family(model)

    def build_request(self, request: Request) -> HttpRequest:
        dialect = self._dialect_for(request.model)
        request = self._lower_schemas(request, native=dialect.schemas)
        writer = MessageWriter(dialect, self.model_family(request.model))
        prefix = build_body_prefix(
            request,
            "messages",
            dialect,
            lambda: encode_chat_fields(request, dialect),
            lambda: _encode_system_message(request, dialect),
            shared=None if dialect.cache_key else self._prefixes,
        )

        def encode(prompt: Prompt) -> bytearray:
            return prompt.encoded(writer.cache_key, writer.write)

        messages = encode(request.prompt)
        form = ("chat", self.model_family(request.model), dialect.name, dialect.replay)
        layout = BodyLayout(form, prefix, request.prompt, messages, encode)
        return HttpRequest(self._url, self._headers, finish_body(prefix, messages), layout=layout)

    def create_decoder(self, request: Request) -> ChatDecoder:
        audio = request.settings.extra.get("audio", {})
        return ChatDecoder(f"audio/{audio.get('format', 'wav')}", request.tools)

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return error_from_response(status, headers, body)

    def adapt_to_error(self, request: Request, error: ProviderError) -> bool:
        """Switches the dialect after an error response: an alternative field name, no unsupported optional field, or no
        replayed reasoning. Returns True if the request changes."""
        if not isinstance(error, InvalidRequestError):
            return False
        before = self._dialect_for(request.model)
        tried, after = self._learned[request.model], dialect_after_error(before, error.message)
        if after in tried or not _requests_differ(request, before, after):
            return self._schemas.learn_from_error(request, error)
        tried.append(after)
        return True

    def _dialect_for(self, model: str) -> ChatDialect:
        if model not in self._learned:
            self._learned[model] = [dialect_for_model(self._dialect, model)]
        return self._learned[model][-1]


def _requests_differ(request: Request, before: ChatDialect, after: ChatDialect) -> bool:
    if (encode_chat_fields(request, before), before.system) != (encode_chat_fields(request, after), after.system):
        return True
    parts = (part for message in request.prompt for part in message.content)
    return before.replay != after.replay and any(isinstance(part, ReasoningPart) for part in parts)


def _encode_system_message(request: Request, dialect: ChatDialect) -> bytes:
    system = system_message(request, dialect)
    return b"" if system is None else encode_json(system)
