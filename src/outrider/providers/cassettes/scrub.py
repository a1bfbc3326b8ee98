"""What of an exchange may be kept: addresses, headers and bodies without anything that only the user may know."""

from collections.abc import Collection, Mapping, Sequence
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec

from outrider.providers.cassettes.cassette import RecordedCall, RecordedChunk, whole
from outrider.providers.error_mapping import HIDDEN, is_secret, without_secrets
from outrider.providers.provider import HttpCall

_SENT_HEADERS = {"accept", "content-type", "anthropic-version", "anthropic-beta", "openai-beta"}
_RECEIVED_HEADERS = {
    "content-type", "retry-after", "retry-after-ms", "x-should-retry", "request-id", "x-request-id",
}  # fmt: skip


class Scrubber:
    """Hides the keys that a call carries, whatever looks like a key, and the secrets that it is told of."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        # The longest first, in case that one holds another.
        self._secrets = sorted((secret for secret in secrets if secret), key=len, reverse=True)

    def call(self, call: HttpCall) -> RecordedCall:
        return RecordedCall(
            url=self._url(call),
            body=_body(self._bytes(call.body, call)),
            headers={
                name.lower(): self.text(value, call)
                for name, value in call.headers.items()
                if name.lower() in _SENT_HEADERS
            },
        )

    def headers(self, headers: Mapping[str, str], call: HttpCall) -> dict[str, str]:
        return {
            name.lower(): self.text(value, call)
            for name, value in headers.items()
            if name.lower() in _RECEIVED_HEADERS or "ratelimit" in name.lower()
        }

    def chunks(self, chunks: Sequence[RecordedChunk], call: HttpCall) -> tuple[RecordedChunk, ...]:
        """Chunks as they arrived; as one where a secret stood across their borders."""
        body = whole(chunks)
        clean = self._bytes(body, call)
        if clean == body:
            return tuple(chunks)
        single = tuple(RecordedChunk.of(self._bytes(chunk.content(), call), chunk.at) for chunk in chunks)
        return single if whole(single) == clean else (RecordedChunk.of(clean, chunks[0].at),)

    def text(self, text: str, call: HttpCall) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN).replace(quote(secret, safe=""), HIDDEN)
        return without_secrets(text, call)

    def _bytes(self, content: bytes, call: HttpCall) -> bytes:
        text = content.decode(errors="surrogateescape")
        return self.text(text, call).encode(errors="surrogateescape")

    def _url(self, call: HttpCall) -> str:
        address = urlsplit(call.url)
        query = [
            (name, HIDDEN if is_secret(name) else value)
            for name, value in parse_qsl(address.query, keep_blank_values=True)
        ]
        host = address.netloc.rpartition("@")[2]
        plain = urlunsplit((address.scheme, host, address.path, urlencode(query, safe="[]"), ""))
        return self.text(plain, call)


def _body(content: bytes) -> object:
    try:
        return msgspec.json.decode(content)
    except msgspec.MsgspecError:
        return content.decode(errors="replace")
