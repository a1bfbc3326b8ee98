"""One attempt at an answer: a call is sent, and what comes back is read into deltas, in whatever shape it comes."""

import msgspec

from outrider.errors import InvalidRequestError, MalformedAnswerError, NetworkError, ProviderError
from outrider.providers.provider import HttpCall, Wire
from outrider.providers.response_json import values_in
from outrider.providers.transport.sse import EventReader
from outrider.providers.transport.transport import HttpAnswer, Transport
from outrider.types.deltas import Delta, Finish
from outrider.types.request import Request

_ERROR_BYTES = 256 * 1024
_ANSWER_BYTES = 256 * 1024 * 1024
_ERROR_SECONDS = 10.0
# After the end mark the body's own end is awaited a moment, so that the connection can be used again.
_GOODBYE_SECONDS = 0.25
_BLANK = b" \t\r\n\xef\xbb\xbf"
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")


class Exchange:
    """`read` gives what has arrived; None is the good end. What arrived before a failure is given out before it."""

    def __init__(self, wire: Wire, request: Request) -> None:
        self._wire = wire
        self._decoder = wire.decoder(request)
        self._events = EventReader()
        self._answer: HttpAnswer | None = None
        self._failure: ProviderError | None = None
        self._head: bytes | None = b""  # the beginning, until it tells what kind of answer this is
        self._bytes = 0
        self._settled = False
        self._finished = False
        self._ended = False

    async def open(self, transport: Transport, call: HttpCall) -> None:
        """Raises what the provider refuses with."""
        self._answer = answer = await transport.send(call)
        if answer.status >= 400:
            answer.hurry(_ERROR_SECONDS)
            raise self._wire.error(answer.status, answer.headers, await _error_body(answer))
        if answer.status >= 300:
            raise _redirected(answer)

    async def read(self) -> list[Delta] | None:
        if self._failure is not None:
            raise self._failure
        if self._ended or self._answer is None:
            return None
        try:
            chunk = await self._answer.read()
        except NetworkError as broken:
            return self._end(broken)
        if not chunk:
            return self._end(None)
        self._count(chunk)
        if self._head is not None:
            return await self._begin(self._answer, self._head + chunk)
        return self._feed(chunk)

    def close(self) -> None:
        if self._answer is not None:
            self._answer.close()

    async def _begin(self, answer: HttpAnswer, head: bytes) -> list[Delta]:
        """No event begins with a brace, a bracket or a tag, whatever the content type claims."""
        self._head = head = head.lstrip(_BLANK)
        first = head[:1]
        if first and first in b"{[":
            return await self._whole(answer)
        if first == b"<" or (first and "html" in answer.headers.get("content-type", "") and not _is_field(head)):
            raise _doomed("a web page came instead of an answer; is the address right?", "unexpected_content")
        if not first:
            return []
        self._head = None
        return self._feed(head)

    async def _whole(self, answer: HttpAnswer) -> list[Delta]:
        pieces = [self._head or b""]
        while chunk := await answer.read():
            self._count(chunk)
            pieces.append(chunk)
        self._head = None
        self._ended = True
        answer.progress()
        deltas: list[Delta] = []
        try:
            self._feed_whole(b"".join(pieces), deltas)
        except Exception as error:  # noqa: BLE001 - see _fail
            self._fail(error)
        return self._given(deltas)

    def _feed_whole(self, body: bytes, deltas: list[Delta]) -> None:
        try:
            deltas.extend(self._decoder.whole(body))
            return
        except MalformedAnswerError:
            values = values_in(body)
            if not values or values == [body.strip()]:
                raise
        if len(values) == 1:  # something stood before or after it
            deltas.extend(self._decoder.whole(values[0]))
            return
        for value in values:  # a stream whose events are bare JSON
            deltas.extend(self._decoder.feed("", value))
        deltas.extend(self._decoder.close())

    def _feed(self, chunk: bytes) -> list[Delta]:
        deltas: list[Delta] = []
        feed = self._decoder.feed
        try:
            for name, data in self._events.feed(chunk):
                try:
                    deltas.extend(feed(name, data))
                except MalformedAnswerError:
                    self._feed_each(name, data, deltas)
                if deltas and type(deltas[-1]) is Finish:
                    self._finish()
        except Exception as error:  # noqa: BLE001 - see _fail
            self._fail(error)
        if self._decoder.closable and not self._settled:
            self._settle()
        return self._given(deltas)

    def _feed_each(self, name: str, data: bytes, deltas: list[Delta]) -> None:
        """Perhaps several events in the place of one, as without the blank lines between them."""
        values = values_in(data)
        for value in values if len(values) > 1 else [data]:
            deltas.extend(self._decoder.feed(name, value))

    def _end(self, broken: NetworkError | None) -> list[Delta]:
        """The body is over. An answer that is whole all the same does not care how its connection ended."""
        self._ended = True
        deltas: list[Delta] = []
        try:
            for name, data in self._events.close():
                self._feed_each(name, data, deltas)
            deltas.extend(self._decoder.close())
        except Exception as error:  # noqa: BLE001 - see _fail
            self._fail(broken or error)
        return self._given(deltas)

    def _settle(self) -> None:
        self._settled = True
        if self._answer is not None:
            self._answer.settle()

    def _finish(self) -> None:
        if not self._finished and self._answer is not None:
            self._finished = True
            self._answer.hurry(_GOODBYE_SECONDS)

    def _fail(self, error: Exception) -> None:
        """After the end mark nothing can go wrong any more. What a damaged answer does to a decoder that did not
        expect it is the answer's fault, and must not end more than this exchange."""
        if self._finished:
            self._ended = True
        elif isinstance(error, ProviderError):
            self._failure = error
        else:
            self._failure = _unreadable(error)

    def _given(self, deltas: list[Delta]) -> list[Delta]:
        if deltas and self._answer is not None:
            self._answer.progress()
        elif self._failure is not None:
            raise self._failure
        return deltas

    def _count(self, chunk: bytes) -> None:
        self._bytes += len(chunk)
        if self._bytes > _ANSWER_BYTES:
            raise _doomed(f"the answer is larger than {_ANSWER_BYTES} bytes", "answer_too_large")


def _is_field(head: bytes) -> bool:
    """Whether it may be the beginning of an event."""
    return head.startswith(_FIELDS) or any(field.startswith(head) for field in _FIELDS)


async def _error_body(answer: HttpAnswer) -> bytes:
    """As much of it as says what is wrong; the status counts even if the rest never arrives."""
    body = bytearray()
    try:
        while len(body) < _ERROR_BYTES and (chunk := await answer.read()):
            body += chunk
    except NetworkError:
        pass
    return bytes(body[:_ERROR_BYTES])


def _redirected(answer: HttpAnswer) -> ProviderError:
    target = answer.headers.get("location", "another address")
    return InvalidRequestError(
        f"the provider redirects to {target}; keys are not sent elsewhere, so set the base_url to the right address",
        status=answer.status,
        type="redirect",
    )


def _unreadable(error: Exception) -> MalformedAnswerError:
    """Damaged bytes may arrive whole the next time; an answer of an unexpected shape will come again."""
    failure = MalformedAnswerError(f"the answer cannot be read: {error!r}", type="malformed")
    failure.retryable = type(error) is msgspec.DecodeError
    failure.__cause__ = error
    return failure


def _doomed(message: str, type: str) -> MalformedAnswerError:
    error = MalformedAnswerError(message, type=type)
    error.retryable = False
    return error
