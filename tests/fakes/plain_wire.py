"""The smallest wire format: every event is a word of the answer, and [END] ends it."""

from collections.abc import Iterable, Mapping

import msgspec

from outrider.errors import NetworkError, ProviderError
from outrider.providers.provider import HttpCall
from outrider.providers.refusals import refusal
from outrider.types.request import Prompt, Request
from outrider.types.stream import AnswerStart, Delta, Finish, PartEnd, PartStart, TextDelta, UsageReport
from outrider.types.usage import Tokens

KEY = "sk-plain-0123456789abcdef"


class PlainDecoder:
    closable = False

    def __init__(self) -> None:
        self._open = False
        self._done = False

    def feed(self, event: str, data: bytes) -> Iterable[Delta]:
        if event == "ping":
            return
        if event == "start":
            yield AnswerStart("answer-1", "plain-1")
            yield UsageReport(Tokens(input=5))
            return
        if event == "error":
            raise refusal(data.decode(), type=data.decode())
        if not self._open:
            self._open = True
            yield PartStart(0, "text")
        if data == b"[END]":
            self._done = True
            yield PartEnd(0)
            yield UsageReport(Tokens(input=5, output=7))
            yield Finish("stop", "end")
        else:
            yield TextDelta(0, data.decode())

    def whole(self, body: bytes) -> Iterable[Delta]:
        yield PartStart(0, "text")
        yield TextDelta(0, msgspec.json.decode(body)["text"])
        yield PartEnd(0)
        yield Finish("stop", "end")

    def close(self) -> Iterable[Delta]:
        if not self._done:
            raise NetworkError("the stream ended before the answer did")
        return ()


class PlainWire:
    def __init__(self, url: str, body: bytes = b"{}") -> None:
        self._url = url
        self._body = body

    def family(self, model: str) -> str:
        return f"plain:{model}"

    def call(self, request: Request) -> HttpCall:
        return HttpCall(f"{self._url}/{request.model}", {"authorization": f"Bearer {KEY}"}, self._body)

    def decoder(self, request: Request) -> PlainDecoder:
        return PlainDecoder()

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return refusal(body.decode(errors="replace"), status=status, headers=headers)


def words(*texts: str) -> bytes:
    """A stream of these words."""
    return b"".join(b"data: " + text.encode() + b"\n\n" for text in texts)


def plain_request(model: str = "m") -> Request:
    return Request(model, Prompt())
