"""The Messages API as a wire format: requests written, answers and refusals read, maxima learnt."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from outrider.errors import InvalidRequestError, ProviderError
from outrider.providers.anthropic.decode import AnthropicDecoder
from outrider.providers.anthropic.encode import encode_message, names_upload
from outrider.providers.anthropic.endpoint import endpoint
from outrider.providers.anthropic.envelope import error_in_response
from outrider.providers.anthropic.models import ModelTraits, traits_of
from outrider.providers.anthropic.settings import head, tuning
from outrider.providers.provider import HttpCall
from outrider.providers.writing import encoded_json, finished, merged, opening
from outrider.types.agents import Provider
from outrider.types.request import ModelMessage, Request

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
