"""The Responses API: how a request leaves, and who reads what comes back."""

import re
from collections.abc import Mapping

import msgspec

from outrider.errors import InvalidRequestError, PermissionRefusedError, ProviderError
from outrider.providers.openai.common import address, headers, host, refused
from outrider.providers.openai.responses_decode import ResponsesDecoder
from outrider.providers.openai.responses_encode import CACHE_KEY, ENCRYPTED, SUMMARY, ItemWriter, custom_calls, head
from outrider.providers.provider import HttpCall
from outrider.providers.request_body import finished, opening
from outrider.types.agents import Provider
from outrider.types.request import Prompt, Request

FAMILY = "openai-responses"
_REFUSALS = {
    ENCRYPTED: re.compile(r"encrypted.content|'include'", re.IGNORECASE),
    SUMMARY: re.compile(r"reasoning.summar", re.IGNORECASE),
    CACHE_KEY: re.compile(CACHE_KEY),
}


class ResponsesWire:
    """Nothing depends on what a server remembers: answers are not stored (`extra={"store": True}` asks for it),
    and reasoning travels encrypted with the messages."""

    def __init__(self, provider: Provider) -> None:
        self._headers = headers(provider)
        self._url = address(provider, "responses")
        self._unwanted: dict[str, frozenset[str]] = {}  # per model, what it was found not to take
        self._family = FAMILY if _is_openai(host(provider)) else f"{FAMILY}@{host(provider)}"

    def family(self, model: str) -> str:
        """Encrypted reasoning can be read only by the service that wrote it."""
        return self._family

    def call(self, request: Request) -> HttpCall:
        unwanted = self._unwanted_by(request.model)
        begun = opening(request, "input", unwanted, lambda: head(request, unwanted))
        stored = bool(request.settings.extra.get("store"))
        return HttpCall(self._url, self._headers, finished(begun, self._items(request.prompt, stored=stored)))

    def decoder(self, request: Request) -> ResponsesDecoder:
        return ResponsesDecoder()

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return refused(status, headers, body)

    def learn(self, request: Request, error: ProviderError) -> bool:
        """Remembers what we asked for by ourselves and a model does not take."""
        if not isinstance(error, InvalidRequestError | PermissionRefusedError):
            return False
        known = self._unwanted_by(request.model)
        refused = {nicety for nicety, words in _REFUSALS.items() if words.search(error.message)}
        self._unwanted[request.model] = known | refused
        return head(request, known) != head(request, known | refused)

    def _unwanted_by(self, model: str) -> frozenset[str]:
        return self._unwanted.get(model, frozenset())

    def _items(self, prompt: Prompt, *, stored: bool) -> bytearray:
        family = self._family
        listed = prompt.encoded(f"{family}/custom-calls", lambda message: custom_calls(message, family))
        custom = frozenset(msgspec.json.decode(b"[%b]" % listed, type=list[str]))
        writer = ItemWriter(family, custom, stored=stored)
        return prompt.encoded(f"{family}/stored" if stored else family, writer.write)


def _is_openai(host: str) -> bool:
    return host == "openai.com" or host.endswith(".openai.com")
