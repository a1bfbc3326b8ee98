"""Removes secrets from URLs, headers and bodies before an exchange is recorded."""

from collections.abc import Collection, Mapping, Sequence
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec

from outrider.http.transport import HttpRequest
from outrider.providers.cassettes.cassette import RecordedCall, RecordedChunk, join_chunks
from outrider.providers.error_mapping import HIDDEN_SECRET, is_secret_name, redact_secrets

_SENT_HEADERS = {"accept", "content-type", "anthropic-version", "anthropic-beta", "openai-beta"}
_RECEIVED_HEADERS = {
    "content-type", "retry-after", "retry-after-ms", "x-should-retry", "request-id", "x-request-id",
}  # fmt: skip


class SecretScrubber:
    """Redacts the keys of a request, text that looks like a key, and the given secrets."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        # Longest first: one secret may contain another.
        self._secrets = sorted((secret for secret in secrets if secret), key=len, reverse=True)

    def scrub_request(self, request: HttpRequest) -> RecordedCall:
        return RecordedCall(
            url=self._scrub_url(request),
            body=_decode_body(self._scrub_bytes(request.body, request)),
            headers={
                name.lower(): self.scrub_text(value, request)
                for name, value in request.headers.items()
                if name.lower() in _SENT_HEADERS
            },
        )

    def scrub_headers(self, headers: Mapping[str, str], request: HttpRequest) -> dict[str, str]:
        return {
            name.lower(): self.scrub_text(value, request)
            for name, value in headers.items()
            if name.lower() in _RECEIVED_HEADERS or "ratelimit" in name.lower()
        }

    def scrub_chunks(self, chunks: Sequence[RecordedChunk], request: HttpRequest) -> tuple[RecordedChunk, ...]:
        """Redacts each chunk; merges all chunks into one if a secret spans a chunk boundary."""
        body = join_chunks(chunks)
        clean = self._scrub_bytes(body, request)
        if clean == body:
            return tuple(chunks)
        single = tuple(
            RecordedChunk.from_bytes(self._scrub_bytes(chunk.to_bytes(), request), chunk.at) for chunk in chunks
        )
        return single if join_chunks(single) == clean else (RecordedChunk.from_bytes(clean, chunks[0].at),)

    def scrub_text(self, text: str, request: HttpRequest) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN_SECRET).replace(quote(secret, safe=""), HIDDEN_SECRET)
        return redact_secrets(text, request)

    def _scrub_bytes(self, content: bytes, request: HttpRequest) -> bytes:
        text = content.decode(errors="surrogateescape")
        return self.scrub_text(text, request).encode(errors="surrogateescape")

    def _scrub_url(self, request: HttpRequest) -> str:
        address = urlsplit(request.url)
        query = [
            (name, HIDDEN_SECRET if is_secret_name(name) else value)
            for name, value in parse_qsl(address.query, keep_blank_values=True)
        ]
        host = address.netloc.rpartition("@")[2]
        plain = urlunsplit((address.scheme, host, address.path, urlencode(query, safe="[]"), ""))
        return self.scrub_text(plain, request)


def _decode_body(content: bytes) -> object:
    try:
        return msgspec.json.decode(content)
    except msgspec.MsgspecError:
        return content.decode(errors="replace")
