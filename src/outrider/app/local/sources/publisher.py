"""Fetches weights from their publisher, going on where an earlier download stopped."""

from http.client import HTTPException, HTTPResponse
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from outrider.app.local.sources.source import Advance, Partial, SourceError
from outrider.app.local.weights import Weights

_CHUNK = 256 * 1024
_SILENCE = 20.0  # seconds without a byte


class Publisher:
    name = "the publisher"

    def fetch(self, weights: Weights, partial: Partial, advance: Advance) -> None:
        have = min(partial.size, weights.bytes)
        request = Request(weights.address, headers={"User-Agent": "outrider", "Range": f"bytes={have}-"})
        try:
            with urlopen(request, timeout=_SILENCE) as answer:
                # A server that knows no ranges sends everything again.
                partial.cut(have if answer.status == 206 else 0)
                _copy(answer, weights, partial, advance)
        except HTTPError as error:
            raise SourceError(f"it answered {error.code} {error.reason}") from error
        except (URLError, HTTPException, OSError) as error:
            raise SourceError(f"it cannot be reached: {_words(error)}") from error


def _copy(answer: HTTPResponse, weights: Weights, partial: Partial, advance: Advance) -> None:
    while piece := answer.read(_CHUNK):
        partial.append(piece)
        advance(partial.size)
        if partial.size > weights.bytes:
            raise SourceError("it sends more bytes than the weights have")
    if partial.size < weights.bytes:
        raise SourceError(f"the connection ended after {partial.size:,} of {weights.bytes:,} bytes")


def _words(error: Exception) -> str:
    reason: object = getattr(error, "reason", None) or error
    return (isinstance(reason, OSError) and reason.strerror) or str(reason)
